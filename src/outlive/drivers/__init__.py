"""The real world: databases, schedulers, processes. Blocking libraries run in threads; every call has a deadline."""

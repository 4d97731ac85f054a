"""The promise: failover reservations that are kept valid. Modules are imported by name."""

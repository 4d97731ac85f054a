"""How controllers run: virtual time, tasks, informers, queues, the manager, elections, events, metrics, settings.

Modules are imported by name (``outlive.runtime.informer``), so that the command line does not load what it
does not use.
"""

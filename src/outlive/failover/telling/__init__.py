"""What failover tells the outside: metrics and events. Modules are imported by name.

``reporting`` counts what cycles do and writes events, ``gauges`` are figures of now, ``tolerated`` is how many failures
are survived, ``disagreements`` is where the VM source and hosts differ.
"""

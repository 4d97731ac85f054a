"""The ground: clock, random and id sources, limits, errors, logging, quantities, durations, name patterns.

Nothing here knows of hosts, VMs or slots. Modules are imported by name (``outlive.base.clock``)
so that a process that needs one of them does not load the others.
"""

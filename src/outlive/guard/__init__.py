"""The guard: the small separate process that empties a host which can no longer prove that it is alive.

It imports the standard library and nothing else of Outlive, so that nothing that can stall the daemon can stall it.
``outlive.guard.main`` is its command; everything else in here is private to it.
"""

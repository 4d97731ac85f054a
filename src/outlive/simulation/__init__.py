"""A whole cluster in one process, under virtual time, with every fault injected, and the same way for the same seed."""

"""Which hosts may take a VM or a slot, best first: filters and weighers over columns of hosts."""

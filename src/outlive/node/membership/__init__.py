"""A host's membership: joining, renewing, holding VMs, and what it means to be dead."""

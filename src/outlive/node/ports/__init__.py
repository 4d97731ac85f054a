"""What the node daemon needs of the outside: hypervisor, guard, power controllers, storage, and its own machine."""

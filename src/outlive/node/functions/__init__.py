"""Virtual functions of network cards (SR-IOV): registered, programmed and booked by the daemon of their host.

A host's books are fields of its own ``Hypervisor``, which only its daemon writes. What is wanted of them is in the
virtual machines: where each is assigned, and the record of its move. So the books follow from what the store has, and
a daemon that ended between any two writes finds the same answer again (docs/operating/functions.md).
"""

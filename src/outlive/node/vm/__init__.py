"""The virtual machines of one host: what an observed state asks for, and the steps that carry it out.

Decisions are pure functions; steps take the context of the host. Who may run a virtual machine at all is settled by its
holders (``outlive.node.membership.holders``), not here.
"""

"""Directed recovery: a VM that is sent into a slot is sent into one of its own, which nobody else is let into.

Judged at the very write that sends it, so that no slot is used twice and nobody lands beside its slot at any instant.
That its room is counted once from then on is judged at rest (``outlive.simulation.invariants.resting``).
"""

from __future__ import annotations

from outlive.resources import Reservation, VirtualMachine
from outlive.simulation.invariants.truth import Truth


def lands_in_its_own_slot(truth: Truth, before: VirtualMachine, after: VirtualMachine) -> str:
    """What is wrong with the slot that it is sent into; empty where it is sent into none, or into its own."""
    where = after.status.assigned
    if where is None or where.slot is None or where == before.status.assigned:
        return ""
    slot = truth.store.look(Reservation, where.slot.name)
    if slot is None:
        return f"is sent into slot {where.slot.name}, which is not there"
    consumer, failover = slot.status.consumer, slot.status.failover_reservation
    if consumer is None or (consumer.vm, consumer.fence) != (after.name, where.fence):
        taken = f"is let to {consumer.vm} (fence {consumer.fence})" if consumer is not None else "is let to nobody"
        return f"is sent into slot {slot.name} for fence {where.fence}, and that {taken}"
    if slot.status.host != where.hypervisor:
        return f"is sent to {where.hypervisor} into slot {slot.name}, which is on {slot.status.host}"
    if failover is None or after.name not in failover.allocations:
        return f"is sent into slot {slot.name}, which was not promised to it"
    return ""

"""Which slots are looked at anew because of their host: it changed, or it holds more than it has.

A host may be sent VMs without regard to slots: by a user who creates or moves one there, or because it boots and takes
back what it had. VMs go before promises, so slots give way then, as many as are too much, and their members are given
others. Not promised: which of several slots goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from outlive.failover.keeping.validation import SlotValidation
from outlive.resources import FAILOVER, Hypervisor, Reservation


def validity_facts(host: Hypervisor) -> tuple[object, ...]:
    """What the validity of a host's slots rests on; usage and running VMs change all the time and are not in it."""
    status = host.status
    return (
        host.spec,
        host.metadata.labels,
        status.capacity,
        status.effective_capacity,
        status.aggregates,
        status.traits,
        status.capabilities,
        status.domain_capabilities,
        tuple((one.type, one.status) for one in status.conditions),
        status.lost,
        status.domain_state,
    )


class ChangedHosts:
    """Which slots need a look because a host changed: the keys of a watch on hosts."""

    def __init__(
        self,
        validation: SlotValidation,
        slots_on: Callable[[str], Iterable[Reservation]],
        excess: Callable[[str], Mapping[str, int]] = lambda host: {},
    ) -> None:
        """``excess``: what a host holds more than it has."""
        self._validation = validation
        self._slots_on = slots_on
        self._excess = excess

    def keys(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """The slots on a host that came, went, or changed in something that matters; of a host that holds more than it
        has, as many as are too much.
        """
        host = new or old
        if host is None or old is None:
            return []
        slots = [slot for slot in self._slots_on(host.name) if slot.spec.type == FAILOVER]
        if new is not None and validity_facts(old) == validity_facts(new):
            slots = too_much(slots, self._excess(host.name))
        names = sorted(slot.name for slot in slots)
        self._validation.due_now(names)
        return names


def too_much(slots: Iterable[Reservation], excess: Mapping[str, int]) -> list[Reservation]:
    """So many slots that the excess goes with them, those with the fewest members first; consumed ones stay."""
    left = {name: amount for name, amount in excess.items() if amount > 0}
    chosen: list[Reservation] = []
    for slot in sorted((one for one in slots if one.status.consumer is None), key=_by_members):
        if any(slot.spec.resources.get(name, 0) > 0 for name in left):
            chosen.append(slot)
            left = {name: rest for name, at in left.items() if (rest := at - slot.spec.resources.get(name, 0)) > 0}
    return chosen


def _by_members(slot: Reservation) -> tuple[int, str]:
    members = slot.status.failover_reservation
    return len(members.allocations) if members is not None else 0, slot.name

"""Slots whose room is not really there: on a host that holds more than it has, as many as are too much.

A host may be sent VMs without regard to slots: by a user who creates or moves one there, or because it boots and takes
back what it had. VMs go before promises, so slots give way then. Which ones is the same question for whoever deletes
them, and for whoever says that they promise nothing as long as they may not be deleted. Not promised: which of several
slots goes, and that the figures of a host are of one moment (``outlive.failover.reconciler.validation`` looks twice).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from outlive.failover.reconciler.writes import NO_ROOM_REASON
from outlive.resources import FAILOVER, Hypervisor, Reservation, VirtualMachine, condition


class Crowding:
    """Which slots of a host are too much."""

    def __init__(
        self, slots_on: Callable[[str], Iterable[Reservation]], excess: Callable[[str], Mapping[str, int]]
    ) -> None:
        """``excess``: what a host holds more than it has."""
        self._slots_on = slots_on
        self._excess = excess

    def why(self, host: str, slot: str) -> str:
        """Why there is no room for the slot on its host; empty where there is."""
        excess = self._excess(host)
        if not excess or all(one.name != slot for one in too_much(self._slots(host), excess)):
            return ""
        over = ", ".join(f"{amount} {name}" for name, amount in sorted(excess.items()))
        return f"VMs and slots on {host} take {over} more than it has"

    def unsettled(self, host: str) -> list[Reservation]:
        """The slots of the host that say of themselves otherwise than is so: they have room or have none."""
        excess, slots = self._excess(host), self._slots(host)
        crowded = {one.name for one in too_much(slots, excess)} if excess else set[str]()
        return [one for one in slots if (one.name in crowded) != has_no_room(one)]

    def _slots(self, host: str) -> list[Reservation]:
        return [one for one in self._slots_on(host) if one.spec.type == FAILOVER]


def has_no_room(slot: Reservation) -> bool:
    """Whether the slot says of itself that its room is not there."""
    ready = condition(slot.status.conditions, "Ready")
    return ready is not None and ready.status == "False" and ready.reason == NO_ROOM_REASON


def too_much(slots: Iterable[Reservation], excess: Mapping[str, int]) -> list[Reservation]:
    """So many slots that the excess goes with them; those first that are known to have no room, then those with the
    fewest members. Consumed ones stay.
    """
    left = {name: amount for name, amount in excess.items() if amount > 0}
    chosen: list[Reservation] = []
    for slot in sorted((one for one in slots if one.status.consumer is None), key=_by_members):
        if any(slot.spec.resources.get(name, 0) > 0 for name in left):
            chosen.append(slot)
            left = {name: rest for name, at in left.items() if (rest := at - slot.spec.resources.get(name, 0)) > 0}
    return chosen


def _by_members(slot: Reservation) -> tuple[bool, int, str]:
    members = slot.status.failover_reservation
    return not has_no_room(slot), len(members.allocations) if members is not None else 0, slot.name


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
    """Which slots need a look because a host changed, or what is on it: the keys of watches."""

    def __init__(
        self,
        due_now: Callable[[Iterable[str]], None],
        slots_on: Callable[[str], Iterable[Reservation]],
        crowding: Crowding | None = None,
    ) -> None:
        """``due_now`` is told of slots that may be valid no more; ``crowding``: which slots of a host are too much."""
        self._due_now = due_now
        self._slots_on = slots_on
        self._crowding = crowding

    def keys(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """The slots on a host that came, went, or changed in something that matters; else those of it that have room
        and say otherwise, or have none and promise it.
        """
        host = new or old
        if host is None or old is None:
            return []
        if new is not None and validity_facts(old) == validity_facts(new):
            return self._crowded(host.name)
        return self._due(slot for slot in self._slots_on(host.name) if slot.spec.type == FAILOVER)

    def of_slot(self, old: Reservation | None, new: Reservation | None) -> list[str]:
        """The slot itself, and those that lost their room to it, or got it back."""
        slot = new or old
        if slot is None:
            return []
        return sorted({slot.name, *(self._crowded(slot.status.host) if slot.status.host else ())})

    def of_vm(self, old: VirtualMachine | None, new: VirtualMachine | None) -> list[str]:
        """The slots that lost their room because the VM is to run on their host, or got it back."""
        hosts = {one.status.assigned.hypervisor for one in (old, new) if one is not None and one.status.assigned}
        return [name for host in sorted(hosts) for name in self._crowded(host)]

    def _crowded(self, host: str) -> list[str]:
        return self._due(self._crowding.unsettled(host)) if self._crowding is not None else []

    def _due(self, slots: Iterable[Reservation]) -> list[str]:
        names = sorted(slot.name for slot in slots)
        self._due_now(names)
        return names

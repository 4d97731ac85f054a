"""Which slots are looked at anew because of their host: it changed, or it holds more than it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from outlive.failover.keeping.crowding import Crowding
from outlive.failover.keeping.validation import SlotValidation
from outlive.resources import FAILOVER, Hypervisor, Reservation, VirtualMachine


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
        validation: SlotValidation,
        slots_on: Callable[[str], Iterable[Reservation]],
        crowding: Crowding | None = None,
    ) -> None:
        """``crowding``: which slots of a host are too much."""
        self._validation = validation
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
        self._validation.due_now(names)
        return names

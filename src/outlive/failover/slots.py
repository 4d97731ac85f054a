"""Slots as decisions see them, made from our own objects; how large they are, and how new slots are named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from outlive.base import format_bytes, format_milli
from outlive.failover.model import HostView, SlotView
from outlive.placement import MIB, MILLI, VmView
from outlive.resources import (
    FAILOVER,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    FlavorGroupSpec,
    Reservation,
    find_condition,
)
from outlive.store import Selector

# How large a VM's slot must be: one answer, used for the placement request and for the slot itself.
#
# With group sizing a slot is as large as the largest flavor of the VM's group, so that any VM of the group may share
# it; without, it is as large as the VM (docs/reference/failover-rules.md#size). What is *not* decided here is whether
# the VM fits a given slot: that compares the VM's own size.


class ResolvedSize(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slot's size: milli-cores and bytes, with the flavor and the group that it was taken from."""

    flavor_name: str = ""
    group_name: str = ""
    """Empty where the size is the VM's own."""
    cpu_milli: int = 0
    memory_bytes: int = 0


def resolve_size(vm: VmView, groups: Mapping[str, FlavorGroupSpec] | None = None) -> ResolvedSize:
    """The size of the VM's slot, to the byte; ``groups`` (flavor name → group) is ``None`` where group sizing is
    off."""
    group = groups.get(vm.flavor) if groups else None
    if group is None:
        return ResolvedSize(flavor_name=vm.flavor, cpu_milli=vm.cpu_milli, memory_bytes=vm.memory_bytes)
    largest = group.largest_flavor
    return ResolvedSize(
        flavor_name=largest.name,
        group_name=group.group_name,
        cpu_milli=largest.vcpus * MILLI,
        memory_bytes=largest.memory_mb * MIB,
    )


def enlarge_for_vm(vm: VmView, size: ResolvedSize) -> ResolvedSize:
    """The size, lifted where the VM itself is larger.

    The largest flavor of a group is largest by memory; another one may have more cores, and a flavor may have been
    changed under a running VM. A slot that does not hold its VM would be no promise.
    """
    if size.cpu_milli >= vm.cpu_milli and size.memory_bytes >= vm.memory_bytes:
        return size
    return msgspec.structs.replace(
        size, cpu_milli=max(size.cpu_milli, vm.cpu_milli), memory_bytes=max(size.memory_bytes, vm.memory_bytes)
    )


def format_amounts(cpu_milli: int, memory_bytes: int) -> str:
    """A size for people: cores and bytes as quantities."""
    return f"{format_milli(cpu_milli)} cpu and {format_bytes(memory_bytes)} memory"


def resource_group(vm: VmView, size: ResolvedSize) -> str:
    """What a new slot calls its group: the flavor group, else the VM's own flavor."""
    return size.group_name or vm.flavor


SLOT_SELECTOR = Selector.from_labels({RESERVATION_TYPE_LABEL: TYPE_LABEL_VALUES[FAILOVER]})
"""The slots of the reconciler. An object of the type without the label is validated, never cleaned up or reused."""
NAME_PREFIX = "failover-"
ZONE_LENGTH = 9
UNKNOWN_ZONE = "unknown"
NO_ROOM_REASON = "NoRoom"
"""The ``Ready`` condition's reason where VMs have taken the room of the slot."""
UNKNOWN_HOST = "is no host that is known"
"""Why no slot can be used on a host, to follow its name."""
_BUILDING_BLOCK = re.compile(r"bb[0-9]+")
_NOT_ALLOWED = re.compile(r"[^a-z0-9-]")


def slot_view(slot: Reservation) -> SlotView:
    """A slot as the rules see it; one that has a consumer promises nothing any more."""
    spec, status, meta = slot.spec, slot.status, slot.metadata
    consumer = status.consumer.vm if status.consumer is not None else ""
    failover = status.failover_reservation
    ready = find_condition(status.conditions, "Ready")
    return SlotView(
        name=meta.name,
        host=status.host,
        target_host=spec.target_host,
        zone=spec.availability_zone,
        group=spec.failover_reservation.resource_group if spec.failover_reservation else "",
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        members=dict(slot.members) if not consumer else {},
        ready=False if consumer else None if ready is None else ready.status == "True",
        initialised=failover is not None,
        consumer=consumer,
        created_at=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        last_changed=failover.last_changed.timestamp() if failover and failover.last_changed else None,
        acknowledged_at=failover.acknowledged_at.timestamp() if failover and failover.acknowledged_at else None,
        uid=meta.uid,
        version=meta.resource_version,
    )


def unschedulable_hosts(hosts: Iterable[HostView], slots: Iterable[SlotView]) -> dict[str, str]:
    """Host on which no slot can be used → why not, to follow its name; unknown hosts of slots included."""
    found = {host.name: host.unschedulable for host in hosts}
    found.update({slot.host: UNKNOWN_HOST for slot in slots if slot.host and slot.host not in found})
    return {name: why for name, why in found.items() if why}


def apply_closed_hosts(slot: SlotView, closed: Mapping[str, str]) -> SlotView:
    """The slot in view of its host: where no slot can be used it is not ready, whatever its condition says."""
    why = closed.get(slot.host)
    return slot if why is None else msgspec.structs.replace(slot, ready=False, unready=f"{slot.host} {why}")


def is_slot(reservation: Reservation) -> bool:
    """Whether the reconciler sees it."""
    return SLOT_SELECTOR.matches(reservation.metadata.labels)


def name_prefix(zone: str) -> str:
    """The beginning of a slot's name. The zone is in it because stores of several zones draw suffixes independently: in
    lower case, without illegal characters, cut, then without hyphens at its ends."""
    zone = _NOT_ALLOWED.sub("", zone.lower())[:ZONE_LENGTH].strip("-") or UNKNOWN_ZONE
    return f"{NAME_PREFIX}{zone}-"


def building_block(host: str) -> str:
    """The building block in the name of a host, such as ``bb042``; empty where there is none."""
    found = _BUILDING_BLOCK.search(host)
    return found.group() if found else ""


class OverbookedHosts:
    """Which slots have no room: on a host that holds more than it has, as many as are too much.

    A host may be sent VMs without regard to slots: by a user who creates or moves one there, or because it boots and
    starts what it had. VMs go before promises, so slots give way then.
    """

    def __init__(
        self, reserved_on: Callable[[str], Iterable[Reservation]], excess: Callable[[str], Mapping[str, int]]
    ) -> None:
        """``excess``: what a host holds more than it has."""
        self._reserved_on = reserved_on
        self._excess = excess

    def explain(self, host: str, slot: str) -> str:
        """Why there is no room for the slot on its host; empty where there is."""
        excess = self._excess(host)
        if not excess or all(one.name != slot for one in choose_excess_slots(self.slots_on(host), excess)):
            return ""
        over = ", ".join(f"{amount} {name}" for name, amount in sorted(excess.items()))
        return f"VMs and slots on {host} take {over} more than it has"

    def find_changed_slots(self, host: str) -> list[Reservation]:
        """The slots of the host that say of themselves otherwise than is so: they have room or have none."""
        excess, slots = self._excess(host), self.slots_on(host)
        crowded = {one.name for one in choose_excess_slots(slots, excess)} if excess else set[str]()
        return [one for one in slots if (one.name in crowded) != has_no_room(one)]

    def slots_on(self, host: str) -> list[Reservation]:
        """All slots of the host."""
        return [one for one in self._reserved_on(host) if one.spec.type == FAILOVER]


def has_no_room(slot: Reservation) -> bool:
    """Whether the slot says of itself that its room is not there."""
    ready = find_condition(slot.status.conditions, "Ready")
    return ready is not None and ready.status == "False" and ready.reason == NO_ROOM_REASON


def choose_excess_slots(slots: Iterable[Reservation], excess: Mapping[str, int]) -> list[Reservation]:
    """So many slots that the excess goes with them; those first that are known to have no room, then those with the
    fewest members. Consumed ones stay.
    """
    left = {name: amount for name, amount in excess.items() if amount > 0}
    chosen: list[Reservation] = []
    free = [slot for slot in slots if slot.status.consumer is None]
    for slot in sorted(free, key=lambda one: (not has_no_room(one), len(one.members), one.name)):
        if any(slot.spec.resources.get(name, 0) > 0 for name in left):
            chosen.append(slot)
            left = {name: rest for name, at in left.items() if (rest := at - slot.spec.resources.get(name, 0)) > 0}
    return chosen

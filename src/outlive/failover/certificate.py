"""Certificates: what may be claimed of a state, in a form that somebody else can check.

The checker is ``outlive.failover.verify``, which shares none of this.

A slot counts for a VM when it lists the VM where it runs, is ready, at least as large, where the VM may run, and on a
host that has room for all that is reserved there. A VM may be certified for as many failures as slots count for it,
provided that no rule is broken for it; one that needs more is named with the reason. Only what every set of failures
survives by the rules is claimed: a VM for which a rule is broken may in fact survive some failures and is certified for
none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from outlive.failover.analysis.coverage import allocation_fault
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.slots import format_amounts, slot_view
from outlive.failover.snapshot import Snapshot
from outlive.failover.topology import HOST_UNIT, Topology
from outlive.placement import VmView, blocked_hosts, blocks_somebody, has_landed, unused_amounts
from outlive.resources import CPU, FAILOVER, MEMORY, CoveredBy, Hypervisor, Reservation, Resource, state_digest
from outlive.resources.reasons import AllocationFault, CoverageReason, render

CERTIFICATE_VERSION: Final = 1


class VmLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM of the fleet."""

    id: str
    host: str
    need: int
    """Failures, its own host's among them, that it is certified to survive; 0 where nothing is claimed."""
    slots: tuple[str, ...]
    """The slots that count for it, by name."""
    required: int = 0
    """Slots that it needs, where that is more than ``need``: only partial certificates have such VMs."""
    by: CoveredBy | None = None
    """By what a VM is covered for which something is claimed."""


class SlotLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slot that is not said to be unready."""

    name: str
    host: str
    cpu_milli: int
    memory_bytes: int
    allocations: dict[str, str]
    """VM → the host that it ran on when it was added."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Every VM survives every set of failed units, as many as it needs slots and at most ``k``."""

    version: int
    state_digest: str
    k: int
    hosts: tuple[str, ...]
    vms: tuple[VmLine, ...]
    slots: tuple[SlotLine, ...]
    unit: str = HOST_UNIT
    """What fails as one; absent for hosts."""


class LackReason(enum.StrEnum):
    """Why a VM cannot be certified for all that it needs."""

    CLASH = "memberships-clash"
    ELSEWHERE = AllocationFault.ELSEWHERE.value
    NOT_READY = AllocationFault.NOT_READY.value
    NOT_ALLOWED = AllocationFault.NOT_ALLOWED.value
    TOO_SMALL = AllocationFault.TOO_SMALL.value
    NO_ROOM = "no-room"
    TOO_FEW = "too-few-slots"
    HOST_UNKNOWN = CoverageReason.HOST_UNKNOWN.value
    DISPUTED = CoverageReason.DISPUTED.value
    NOT_REPORTED = CoverageReason.NOT_REPORTED.value


class Uncertified(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that needs more than can be claimed."""

    vm: str
    host: str
    required: int
    certified: int
    """What could be claimed, and is in a partial certificate."""
    reason: LackReason
    message: str


class CertifyInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A state."""

    state_digest: str
    hosts: tuple[str, ...]
    vms: tuple[VmView, ...]
    required: dict[str, int] = {}
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    crowded: tuple[str, ...] = ()
    """Slots that are ready by their condition and do not count, since their host holds more than it has: named in the
    certificate, as every slot that says that it is ready."""
    covered_by: dict[str, CoveredBy] = {}
    """Host → by what its covered VMs are covered."""
    without_room: dict[str, str] = {}
    """Host → why slots on it are no promise."""
    unit: str = HOST_UNIT
    """The failure domain that fails as one."""
    topology: Topology = Topology()
    """Host → unit, by that domain."""
    k: int | None = None
    """Failures to certify at most; absent: as many as the VM that needs the most."""
    unplaced: tuple[Uncertified, ...] = ()
    """VMs that need slots and of which it cannot be said where they are."""
    partial: bool = False
    """Claim what can be claimed, instead of refusing because of those who need more."""


class CertifyResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The certificate, or who is in the way of it."""

    certificate: Certificate | None
    uncertified: tuple[Uncertified, ...]
    """By VM."""


def certify(given: CertifyInput) -> CertifyResult:
    """The certificate; ``None`` where some VM needs more than can be claimed, unless it may be partial."""
    maker = _Maker(given)
    lines, lacking = [], []
    for vm in sorted(given.vms, key=lambda one: one.id):
        required, slots = max(0, given.required.get(vm.id, 0)), maker.counting[vm.id]
        need = 0 if vm.id in maker.broken else min(required, len(slots))
        short = required if need < required else 0
        by = given.covered_by.get(vm.host) if need else None
        lines.append(VmLine(id=vm.id, host=vm.host, need=need, slots=tuple(slots), required=short, by=by))
        if need < required:
            reason, message = maker.explain_lack(vm, required)
            lacking.append(
                Uncertified(vm=vm.id, host=vm.host, required=required, certified=need, reason=reason, message=message)
            )
    lacking = sorted([*lacking, *given.unplaced], key=lambda one: one.vm)
    if lacking and not given.partial:
        return CertifyResult(certificate=None, uncertified=tuple(lacking))
    crowded = frozenset(given.crowded)
    largest = max((line.need for line in lines), default=0)
    certificate = Certificate(
        version=CERTIFICATE_VERSION,
        state_digest=given.state_digest,
        k=largest if given.k is None else min(given.k, largest),
        unit=given.unit,
        hosts=tuple(sorted(given.hosts)),
        vms=tuple(lines),
        slots=tuple(
            SlotLine(
                name=slot.name,
                host=slot.host,
                cpu_milli=slot.cpu_milli,
                memory_bytes=slot.memory_bytes,
                allocations=dict(slot.members),
            )
            for slot in maker.slots
            if slot.ready is not False or slot.name in crowded
        ),
    )
    return CertifyResult(certificate=certificate, uncertified=tuple(lacking))


class _Maker:
    """Which slots count for whom, and for whom a rule is broken."""

    def __init__(self, given: CertifyInput) -> None:
        self._without_room: Mapping[str, str] = given.without_room
        self.slots: Sequence[SlotView] = sorted(given.slots, key=lambda slot: slot.name)
        views = {vm.id: vm for vm in given.vms}
        self.counting: dict[str, list[str]] = {vm: [] for vm in views}
        self._idle: dict[str, list[tuple[LackReason, str]]] = {}
        """VM → why slots that list it do not count."""
        for slot in self.slots:
            for member in slot.members:
                vm = views.get(member)
                if vm is None:
                    continue
                lack = self._find_lack(vm, slot)
                if lack is None:
                    self.counting[member].append(slot.name)
                else:
                    self._idle.setdefault(member, []).append(lack)
        locations = {vm.id: vm.host for vm in given.vms}
        self.broken = set(ConflictIndex.build(self.slots, topology=given.topology, locations=locations).list_faulty())

    def _find_lack(self, vm: VmView, slot: SlotView) -> tuple[LackReason, str] | None:
        name = f"slot {slot.name} on {slot.host or 'no host'}"
        full = slot.host in self._without_room
        why = allocation_fault(vm, slot)
        if why is not None and not (full and why.code == AllocationFault.NOT_READY):
            return LackReason(why.code), f"{name} {render(why).text}"
        if slot.host and not full:
            return None
        return LackReason.NO_ROOM, f"{name}, which {self._without_room.get(slot.host, 'is not known')}"

    def explain_lack(self, vm: VmView, required: int) -> tuple[LackReason, str]:
        has = f"{len(self.counting[vm.id])} of {required} slots"
        if vm.id in self.broken:
            return LackReason.CLASH, f"{has}, and a rule is broken for it: see outlive failover check"
        nothing = (LackReason.TOO_FEW, "no other slot lists it: see outlive failover plan")
        reason, message = self._idle.get(vm.id, [nothing])[0]
        return reason, f"{has}; {message}"


def without_room(
    hosts: Sequence[Hypervisor], reservations: Iterable[Reservation], vms: Iterable[VmView]
) -> dict[str, str]:
    """Host → why what is reserved there is not held; hosts that hold everything are left out."""
    running: dict[str, list[int]] = {}
    for vm in vms:
        there = running.setdefault(vm.host, [0, 0])
        there[0] += vm.cpu_milli
        there[1] += vm.memory_bytes
    left = {host.name: _free_room(host, running.get(host.name, [0, 0])) for host in hosts}
    instances = {host.name: {one.id for one in host.status.instances} for host in hosts}
    reasons: dict[str, str] = {}
    for reservation in reservations:
        if not blocks_somebody(reservation):
            continue
        held = unused_amounts(reservation, running=instances.get(reservation.status.host, ()))
        for name in blocked_hosts(reservation):
            free = left.get(name)
            if name not in instances:
                reasons[name] = "is not known"
            elif free is not None and not has_landed(reservation, instances[name]):
                left[name] = (free[0] - max(0, held.cpu_milli), free[1] - max(0, held.memory_bytes))
    for host in hosts:
        free = left[host.name]
        if host.status.lost:
            reasons[host.name] = f"is lost by fence {host.status.lost}"
        elif free is None:
            reasons[host.name] = "does not tell its capacity"
        elif min(free) < 0:
            lacks = format_amounts(max(0, -free[0]), max(0, -free[1]))
            reasons[host.name] = f"lacks {lacks} for its VMs and all that is reserved there"
    return reasons


def _free_room(host: Hypervisor, running: Sequence[int]) -> tuple[int, int] | None:
    """What the host has beside its VMs, before reservations; ``None`` where its capacity is not known."""
    capacity, allocation = host.effective_capacity(), host.status.allocation
    if capacity is None or CPU not in capacity or MEMORY not in capacity:
        return None
    cpu, memory = running if allocation is None else (allocation.cpu_milli, allocation.memory_bytes)
    return capacity[CPU] - cpu, capacity[MEMORY] - memory


def certify_input(
    gathered: Snapshot,
    objects: Sequence[Resource],
    *,
    partial: bool = False,
    covered_by: Mapping[str, CoveredBy] = MappingProxyType({}),
) -> CertifyInput:
    """What may be certified of exactly these objects, under the settings in force."""
    observation = gathered.observation
    slots = [view for view in observation.slots if observation.objects[view.name].spec.type == FAILOVER]
    # Slots that are ready but for the room on their host.
    closed = observation.closed
    unready = [slot for slot in slots if slot.ready is False and slot.unready and slot.host not in closed]
    crowded = [slot.name for slot in unready if slot_view(observation.objects[slot.name]).ready is not False]
    unplaced = []
    for vm in gathered.unplaced:
        if gathered.required.get(vm.id, 0) > 0:
            required, why = gathered.required[vm.id], gathered.unplaced_reason(vm.id)
            reason, message = LackReason(why.code), render(why).text
            unplaced.append(
                Uncertified(vm=vm.id, host=vm.host, required=required, certified=0, reason=reason, message=message)
            )
    reservations = [item for item in objects if isinstance(item, Reservation)]
    return CertifyInput(
        state_digest=state_digest(objects),
        hosts=tuple(host.name for host in observation.hosts),
        vms=observation.vms,
        required=gathered.required,
        slots=tuple(slots),
        crowded=tuple(crowded),
        covered_by=dict(covered_by),
        without_room=without_room(observation.hypervisors, reservations, observation.vms),
        unit=gathered.settings.topology_choice.unit,
        topology=gathered.topology,
        unplaced=tuple(unplaced),
        partial=partial,
    )


def encode_certificate(certificate: Certificate) -> bytes:
    """The file: JSON, a line for each VM and each slot."""
    encode = msgspec.json.encode
    bare = encode(msgspec.structs.replace(certificate, vms=(), slots=()))
    vms = b",\n".join(map(encode, certificate.vms))
    slots = b",\n".join(
        encode(msgspec.structs.replace(slot, allocations=dict(sorted(slot.allocations.items()))))
        for slot in certificate.slots
    )
    head, _, rest = bare.partition(b'"vms":[]')
    tail = rest.removeprefix(b',"slots":[]')
    return b'%s\n"vms":[\n%s\n],\n"slots":[\n%s\n]%s\n' % (head, vms, slots, tail)

"""Which VM is charged to which commitment, and what a project uses (docs/reference/commitments.md#usage).

The oldest VM goes to the oldest commitment that has room for all of it; no VM is divided. Memory and cores are charged
apart: a VM may count against a commitment of each.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from outlive.base import as_instant
from outlive.commitments.names import real_zone
from outlive.commitments.state import READY, Commitment, from_spec, is_active, is_over
from outlive.placement import MIB, MILLI, VmView
from outlive.resources import (
    ACTIVE_STATES,
    Amounts,
    CommittedResource,
    CommittedResourceStatus,
    FlavorGroupSpec,
    find_condition,
)

Place = tuple[str, str]
"""Zone and flavor group."""


class UsageVm(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A VM as far as charging is concerned."""

    id: str
    zone: str
    group: str
    memory_bytes: int
    cpu_milli: int
    created_at: float = 0.0


class UsageInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Commitments and VMs of one project. ``now``: seconds since 1970."""

    commitments: tuple[Commitment, ...]
    """As they were accepted; those that are not active, or not begun, take no VM."""
    vms: tuple[UsageVm, ...]
    now: float


class Charge(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one commitment is used for."""

    uuid: str
    vms: tuple[str, ...] = ()
    """In the order in which they were charged."""
    memory_bytes: int = 0
    cpu_milli: int = 0


class UsageResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every commitment that takes VMs is used for, by uuid."""

    charges: tuple[Charge, ...]


def usage_vms(vms: Iterable[VmView], groups: Mapping[str, FlavorGroupSpec], zones: Iterable[str]) -> list[UsageVm]:
    """The VMs whose flavor is in a group (flavor name → group). One in a zone that is not given is in none."""
    known = frozenset(zones)
    sizes = {
        name: (group.group_name, next(flavor for flavor in group.flavors if flavor.name == name))
        for name, group in groups.items()
    }
    found: list[UsageVm] = []
    for vm in vms:
        if vm.flavor in sizes:
            group, flavor = sizes[vm.flavor]
            found.append(
                UsageVm(
                    id=vm.id,
                    zone=real_zone(vm.zone, known),
                    group=group,
                    memory_bytes=flavor.memory_mb * MIB,
                    cpu_milli=flavor.vcpus * MILLI,
                    created_at=vm.created_at,
                )
            )
    return found


def list_accepted(commitments: Iterable[CommittedResource], now: float) -> list[Commitment]:
    """What was accepted of each commitment and is active now; the first of a uuid counts."""
    found: dict[str, Commitment] = {}
    for one in commitments:
        spec = one.status.accepted_spec
        if spec is not None and is_active(spec, now) and not is_over(one.spec, now):
            found.setdefault(spec.commitment_uuid, from_spec(spec, one.metadata.generation))
    return list(found.values())


def assign(given: UsageInput) -> UsageResult:
    """Charge every VM, the oldest first, to the first commitment of its zone and group that has room for all of it.

    Memory comes first. Then cores: VMs that are charged to memory before the others, because a commitment of cores
    belongs to the same VMs (docs/reference/commitments.md#usage-of-cores).
    """
    now = given.now
    taking = [
        one
        for one in given.commitments
        if one.state in ACTIVE_STATES
        and (one.start is None or as_instant(one.start) <= now)
        and (one.end is None or as_instant(one.end) > now)
    ]
    order = sorted(given.vms, key=lambda vm: (vm.created_at, -vm.memory_bytes, vm.id))
    memory, charged = _Lists(taking, "memory"), list[UsageVm]()
    rest: list[UsageVm] = []
    for vm in order:
        (charged if memory.charge(vm, vm.memory_bytes) else rest).append(vm)
    cores = _Lists(taking, "cores")
    for vm in (*charged, *rest):
        cores.charge(vm, vm.cpu_milli)
    found = {**memory.list_charges(), **cores.list_charges()}
    return UsageResult(charges=tuple(found[uuid] for uuid in sorted(found)))


class _CommitmentLine:
    """The commitments of one zone and group in order, and what is left of each.

    What is left only shrinks, so for each size of VM the search goes on where it ended the last time.
    """

    def __init__(self) -> None:
        self.uuids: list[str] = []
        self.left: list[int] = []
        self.vms: list[list[UsageVm]] = []
        self._first: dict[int, int] = {}

    def charge(self, vm: UsageVm, size: int) -> bool:
        """Charge the VM to the first commitment that has so much left; whether there is one."""
        at, left = self._first.get(size, 0), self.left
        while at < len(left) and left[at] < size:
            at += 1
        self._first[size] = at
        if at == len(left):
            return False
        left[at] -= size
        self.vms[at].append(vm)
        return True


class _Lists:
    """The lines of one type of commitment."""

    def __init__(self, commitments: Iterable[Commitment], kind: str) -> None:
        self._lines: dict[Place, _CommitmentLine] = {}
        self._kind = kind
        for one in sorted((one for one in commitments if one.type == kind), key=_age_key):
            line = self._lines.setdefault((one.zone, one.group), _CommitmentLine())
            line.uuids.append(one.uuid)
            line.left.append(one.memory_bytes if kind == "memory" else one.cores * MILLI)
            line.vms.append([])

    def charge(self, vm: UsageVm, size: int) -> bool:
        """Charge the VM by so much of this type."""
        line = self._lines.get((vm.zone, vm.group))
        return line is not None and line.charge(vm, size)

    def list_charges(self) -> dict[str, Charge]:
        """Uuid → what it is used for."""
        return {
            uuid: Charge(
                uuid=uuid,
                vms=tuple(vm.id for vm in vms),
                memory_bytes=sum(vm.memory_bytes for vm in vms) if self._kind == "memory" else 0,
                cpu_milli=sum(vm.cpu_milli for vm in vms),
            )
            for line in self._lines.values()
            for uuid, vms in zip(line.uuids, line.vms, strict=True)
        }


def _age_key(one: Commitment) -> tuple[float, int, str]:
    """The oldest first, one without a start before all; then the largest, then by uuid."""
    return (as_instant(one.start) if one.start is not None else float("-inf"), -one.total, one.uuid)


def set_usage(
    status: CommittedResourceStatus, charge: Charge, *, generation: int, now: datetime
) -> CommittedResourceStatus:
    """The status with this usage, which was found for this generation. A commitment of cores uses cores alone."""
    used = Amounts(cpu=charge.cpu_milli)
    if status.accepted_spec is None or status.accepted_spec.resource_type == "memory":
        used = Amounts(cpu=charge.cpu_milli, memory=charge.memory_bytes)
    return msgspec.structs.replace(
        status,
        assigned_instances=charge.vms,
        used_resources=used,
        last_usage_reconcile_at=now,
        usage_observed_generation=generation,
    )


def without_usage(status: CommittedResourceStatus) -> CommittedResourceStatus:
    """The status of a commitment that is over: nothing is charged to it."""
    return msgspec.structs.replace(
        status,
        assigned_instances=(),
        used_resources=None,
        last_usage_reconcile_at=None,
        usage_observed_generation=None,
    )


class UsageStep(enum.StrEnum):
    """What is to be done about the usage of a commitment."""

    NOTHING = "nothing"
    CLEAR = "clear"
    """It is over, and something is still charged to it."""
    WAIT = "wait"
    """Its project was counted a short time ago."""
    COUNT = "count"


class UsageDue(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The step, and in how many seconds to look again (0: when something changes)."""

    step: UsageStep
    again_s: float = 0.0


def usage_due(one: CommittedResource, *, now: float, cooldown_s: float) -> UsageDue:
    """Whether the VMs of the commitment's project are to be assigned anew because of it."""
    spec, status, generation = one.spec, one.status, one.metadata.generation
    if not is_active(spec, now):
        return UsageDue(step=UsageStep.NOTHING if without_usage(status) == status else UsageStep.CLEAR)
    if spec.start_time is not None and as_instant(spec.start_time) > now:
        return UsageDue(step=UsageStep.NOTHING, again_s=as_instant(spec.start_time) - now)
    ready = find_condition(status.conditions, READY)
    if ready is None or ready.status != "True" or ready.observed_generation != generation:
        return UsageDue(step=UsageStep.NOTHING)
    last = status.last_usage_reconcile_at
    if status.usage_observed_generation == generation and last is not None:
        left = as_instant(last) + cooldown_s - now
        if left > 0:
            return UsageDue(step=UsageStep.WAIT, again_s=min(left, cooldown_s))
    return UsageDue(step=UsageStep.COUNT, again_s=cooldown_s)


def map_to_commitment(commitments: Iterable[CommittedResource]) -> dict[str, str]:
    """VM → the commitment of memory that it is charged to, as the objects say."""
    found: dict[str, str] = {}
    for one in commitments:
        spec = one.status.accepted_spec or one.spec
        if spec.resource_type == "memory":
            for vm in one.status.assigned_instances:
                found.setdefault(vm, one.spec.commitment_uuid)
    return found

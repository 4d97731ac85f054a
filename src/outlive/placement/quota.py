"""What a project may still use of a flavor group in a zone: commitments, quota, and VMs that are on their way.

The index follows ``CommittedResource``, ``ProjectQuota`` and in-flight reservations; ``decide_quota`` is pure. The rule
is docs/reference/placement.md#filter_quota_enforcement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from outlive.base.clock import as_instant
from outlive.placement.request import PlacementRequest
from outlive.placement.reservations import RESIZES
from outlive.resources import (
    ACTIVE_STATES,
    Amounts,
    CommittedResource,
    CommittedResourceSpec,
    InFlightSpec,
    ProjectQuota,
    Reservation,
)

GIB: Final = 2**30
KINDS: Final = ("ram", "cores", "instances")
"""What quota limits of a flavor group, in the order in which it is checked."""
K = TypeVar("K")
V = TypeVar("V")
Key = tuple[str, str, str]
"""Project, zone and flavor group."""


class Demand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What VMs need of quota: GiB, whole cores, and how many they are."""

    ram: int = 0
    cores: int = 0
    instances: int = 0

    def of(self, kind: str) -> int:
        """One of ``KINDS``."""
        return {"ram": self.ram, "cores": self.cores, "instances": self.instances}[kind]


class VmSize(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as it is now."""

    group: str
    resources: Amounts


class Promise(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A commitment of memory as quota sees it: GiB, rounded up, and Unix times; 0 without a start or an end."""

    amount: int
    used: int = 0
    start: float = 0.0
    end: float = 0.0

    def holds(self, now: float) -> bool:
        """Whether it has begun and not ended."""
        return self.start <= now and (not self.end or now < self.end)


class Account(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that decides about one project, zone and flavor group."""

    promises: tuple[Promise, ...] = ()
    """Active commitments that hold now."""
    pending: tuple[Demand, ...] = ()
    """VMs that have been sent somewhere and that nobody reports."""
    quota: dict[str, int] | None = None
    """Of ``KINDS``; absent: the project has no quota in the zone. A negative one is no limit."""
    used: dict[str, int] = {}
    """Of ``KINDS``: what it pays as it goes."""


class QuotaDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One decision, in the words of its counter."""

    decision: str
    resource: str = ""
    headroom: int = 0
    """Of a refusal: what is left."""
    needed: int = 0


def demand_of(request: PlacementRequest, now: VmSize | None, group: str) -> Demand:
    """What a request needs; of a VM that gets another size in the same group, what it grows by."""
    memory, cpu = request.need.memory_bytes * request.instances, request.need.cpu_milli * request.instances
    instances = request.instances
    if request.intent in RESIZES and now is not None and now.group == group:
        memory, cpu, instances = memory - now.resources.memory_bytes, cpu - now.resources.cpu_milli, 0
    return _demand(memory, cpu, instances)


def decide_quota(account: Account, demand: Demand) -> QuotaDecision:
    """Whether the demand fits into one commitment, else into what is left of quota.

    VMs on their way are charged first, each to the smallest commitment that has room for it, else to quota.
    """
    free = sorted(max(0, one.amount - one.used) for one in account.promises)
    charged = {kind: account.used.get(kind, 0) for kind in KINDS}
    for vm in account.pending:
        at = next((at for at, left in enumerate(free) if left >= vm.ram), None)
        if at is None:
            charged = {kind: amount + vm.of(kind) for kind, amount in charged.items()}
        else:
            free[at] -= vm.ram
            free.sort()
    if demand.ram and free and free[-1] >= demand.ram:
        return QuotaDecision(decision="accept_cr", resource="ram")
    if account.quota is None:
        return QuotaDecision(decision="accept_no_quota")
    for kind in KINDS:
        needed, limit = demand.of(kind), account.quota.get(kind, -1)
        if limit < 0 or not needed:
            continue
        committed = sum(one.amount for one in account.promises) if kind == "ram" else 0
        headroom = limit - committed - charged[kind]
        if headroom < needed:
            return QuotaDecision(decision="reject", resource=kind, headroom=max(0, headroom), needed=needed)
    return QuotaDecision(decision="accept_payg")


def _demand(memory: int, cpu: int, instances: int) -> Demand:
    return Demand(ram=max(0, -(-memory // GIB)), cores=max(0, -(-cpu // 1000)), instances=max(0, instances))


class Quotas:
    """The index. Nothing is known of a project until somebody says so."""

    def __init__(self) -> None:
        self.size_of: Callable[[str], VmSize | None] = lambda _vm: None
        """The present size of a VM, where somebody knows it."""
        self._promises: dict[Key, dict[str, Promise]] = {}
        self._key_of_commitment: dict[str, Key] = {}
        self._quotas: dict[tuple[str, str], ProjectQuota] = {}
        self._quota_names: dict[str, tuple[str, str]] = {}
        self._pending: dict[Key, dict[str, dict[str, Demand]]] = {}
        """Key → VM → its in-flight reservations, which all need the same."""
        self._key_of_room: dict[str, tuple[Key, str]] = {}

    # -- changes ---------------------------------------------------------------------------------------

    def upsert_commitment(self, commitment: CommittedResource) -> None:
        """The commitment exists and looks like this now."""
        self.remove_commitment(commitment.name)
        spec = commitment.status.accepted_spec or commitment.spec
        if spec.resource_type != "memory" or spec.state not in ACTIVE_STATES:
            return
        key = (spec.project_id, spec.availability_zone, spec.flavor_group_name)
        self._key_of_commitment[commitment.name] = key
        self._promises.setdefault(key, {})[commitment.name] = _promise(spec, commitment.status.used_resources)

    def remove_commitment(self, name: str) -> None:
        """The commitment is gone."""
        key = self._key_of_commitment.pop(name, None)
        if key is not None:
            _drop(self._promises, key, name)

    def upsert_quota(self, quota: ProjectQuota) -> None:
        """The quota exists and looks like this now."""
        self.remove_quota(quota.name)
        where = (quota.spec.project_id, quota.spec.availability_zone)
        self._quota_names[quota.name] = where
        self._quotas[where] = quota

    def remove_quota(self, name: str) -> None:
        """The quota is gone."""
        where = self._quota_names.pop(name, None)
        if where is not None:
            self._quotas.pop(where, None)

    def hold(self, reservation: Reservation) -> None:
        """A VM of a flavor group is on its way."""
        self.release(reservation.name)
        details = reservation.spec.in_flight_reservation
        zone = reservation.spec.availability_zone
        if details is None or not (details.project_id and zone and details.resource_group):
            return
        key = (details.project_id, zone, details.resource_group)
        self._key_of_room[reservation.name] = (key, details.vm_id)
        vms = self._pending.setdefault(key, {})
        vms.setdefault(details.vm_id, {})[reservation.name] = self._growth(reservation.spec.resources, details)

    def _growth(self, size: Amounts, details: InFlightSpec) -> Demand:
        """What the VM adds to what its project uses."""
        now = self.size_of(details.vm_id) if details.intent in RESIZES else None
        if now is None or now.group != details.resource_group:
            return _demand(size.memory_bytes, size.cpu_milli, details.instances)
        return _demand(size.memory_bytes - now.resources.memory_bytes, size.cpu_milli - now.resources.cpu_milli, 0)

    def release(self, reservation: str) -> None:
        """The reservation is gone."""
        key, vm = self._key_of_room.pop(reservation, (None, ""))
        if key is not None:
            _drop(self._pending[key], vm, reservation)
            if not self._pending[key]:
                del self._pending[key]

    # -- questions -------------------------------------------------------------------------------------

    def account(self, project: str, zone: str, group: str, *, now: float, asking: str = "") -> Account:
        """What decides about this project, zone and group. The room of ``asking``, the VM itself, does not count."""
        key = (project, zone, group)
        quota = self._quotas.get((project, zone))
        promises = self._promises.get(key, {})
        pending = self._pending.get(key, {})
        return Account(
            promises=tuple(promises[name] for name in sorted(promises) if promises[name].holds(now)),
            pending=tuple(next(iter(pending[vm].values())) for vm in sorted(pending) if vm != asking),
            quota=_of_group(quota.spec.quota, group) if quota is not None else None,
            used=_of_group(quota.status.payg_usage, group) if quota is not None else {},
        )


def _promise(spec: CommittedResourceSpec, used: Amounts | None) -> Promise:
    return Promise(
        amount=-(-spec.total // GIB),
        used=-(-used.memory_bytes // GIB) if used is not None else 0,
        start=as_instant(spec.start_time) if spec.start_time is not None else 0.0,
        end=as_instant(spec.end_time) if spec.end_time is not None else 0.0,
    )


def _of_group(amounts: Mapping[str, int], group: str) -> dict[str, int]:
    """The amounts of a flavor group, by kind."""
    return {kind: amounts[name] for kind in KINDS if (name := f"hw_version_{group}_{kind}") in amounts}


def _drop(index: dict[K, dict[str, V]], key: K, name: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(name, None)
        if not found:
            del index[key]

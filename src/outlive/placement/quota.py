"""What a project may still use of a flavor group in a zone: commitments, quota, and VMs that are on their way.

The index follows ``CommittedResource``, ``ProjectQuota`` and in-flight reservations; ``decide_quota`` is pure. The rule
is docs/reference/placement.md#filter_quota_enforcement.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from outlive.base import as_instant
from outlive.placement.request import PlacementRequest
from outlive.placement.reservations import RESIZES
from outlive.resources import (
    ACTIVE_STATES,
    Amounts,
    CommittedResource,
    ProjectQuota,
    Reservation,
)

GIB: Final = 2**30
KINDS: Final = ("ram", "cores", "instances")
"""What quota limits of a flavor group, in the order in which it is checked."""
BALANCES_KEPT: Final = 10_000
"""Balances that are kept; of a project that asks again later it is made anew."""
Key = tuple[str, str, str]
"""Project, zone and flavor group."""


class QuotaDemand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What VMs need of quota: GiB, whole cores, and how many they are."""

    ram: int = 0
    cores: int = 0
    instances: int = 0

    def amount_of(self, kind: str) -> int:
        """One of ``KINDS``."""
        return {"ram": self.ram, "cores": self.cores, "instances": self.instances}[kind]


class VmSize(msgspec.Struct, frozen=True, kw_only=True):
    """A VM as it is now."""

    group: str
    resources: Amounts


class QuotaCommitment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A commitment of memory as quota sees it: GiB, rounded up, and Unix times; 0 without a start or an end."""

    amount: int
    used: int = 0
    start: float = 0.0
    end: float = 0.0

    def holds(self, now: float) -> bool:
        """Whether it has begun and not ended."""
        return self.start <= now and (not self.end or now < self.end)


class Balance(msgspec.Struct, kw_only=True, rename="camel"):
    """What a project has of one flavor group in a zone, after VMs on their way were charged. GiB, cores, instances."""

    committed: int = 0
    """All that its commitments that hold now promise."""
    free: list[int] = []
    """What is left of each of them, rising."""
    limits: dict[str, int] | None = None
    """Quota of ``KINDS``; absent: the project has none in the zone. A negative one is no limit."""
    used: dict[str, int] = {}
    """Of ``KINDS``: what it pays as it goes."""

    def charge(self, vm: QuotaDemand) -> None:
        """Charge a VM on its way: to the commitment with least left that has room for it, else to the quota."""
        at = bisect_left(self.free, vm.ram)
        if at < len(self.free):
            insort(self.free, self.free.pop(at) - vm.ram)
        else:
            self.used = {kind: self.used.get(kind, 0) + vm.amount_of(kind) for kind in KINDS}


class QuotaDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One decision, in the words of its counter."""

    decision: str
    resource: str = ""
    headroom: int = 0
    """Of a refusal: what is left."""
    needed: int = 0


def demand_of(request: PlacementRequest, now: VmSize | None, group: str) -> QuotaDemand:
    """What a request needs; of a VM that gets another size in the same group, what it grows by."""
    memory, cpu = request.need.memory_bytes * request.instances, request.need.cpu_milli * request.instances
    instances = request.instances
    if request.intent in RESIZES and now is not None and now.group == group:
        memory, cpu, instances = memory - now.resources.memory_bytes, cpu - now.resources.cpu_milli, 0
    return _demand_of(memory, cpu, instances)


def balance_of(
    promises: Iterable[QuotaCommitment],
    limits: Mapping[str, int] | None,
    used: Mapping[str, int],
    pending: Iterable[QuotaDemand],
) -> Balance:
    """The balance of commitments that hold now, after ``pending`` VMs were charged in their order."""
    listed = list(promises)
    made = Balance(
        committed=sum(one.amount for one in listed),
        free=sorted(max(0, one.amount - one.used) for one in listed),
        limits=dict(limits) if limits is not None else None,
        used=dict(used),
    )
    for vm in pending:
        made.charge(vm)
    return made


def decide_quota(balance: Balance, demand: QuotaDemand) -> QuotaDecision:
    """Whether the demand fits into one commitment, else into what is left of quota."""
    if demand.ram and balance.free and balance.free[-1] >= demand.ram:
        return QuotaDecision(decision="accept_cr", resource="ram")
    if balance.limits is None:
        return QuotaDecision(decision="accept_no_quota")
    for kind in KINDS:
        needed, limit = demand.amount_of(kind), balance.limits.get(kind, -1)
        if limit < 0 or not needed:
            continue
        headroom = limit - balance.used.get(kind, 0) - (balance.committed if kind == "ram" else 0)
        if headroom < needed:
            return QuotaDecision(decision="reject", resource=kind, headroom=max(0, headroom), needed=needed)
    return QuotaDecision(decision="accept_payg")


def _demand_of(memory: int, cpu: int, instances: int) -> QuotaDemand:
    return QuotaDemand(ram=max(0, -(-memory // GIB)), cores=max(0, -(-cpu // 1000)), instances=max(0, instances))


@dataclass(slots=True)
class _Balance:
    """A balance, and until when it is right: then a commitment begins or ends."""

    balance: Balance
    until: float


class Quotas:
    """The index. Nothing is known of a project until somebody says so.

    The balance of a project is kept, and a VM that is sent somewhere is charged to it: no request looks at commitments.
    """

    def __init__(self) -> None:
        self.size_of: Callable[[str], VmSize | None] = lambda _vm: None
        """The present size of a VM, where somebody knows it."""
        self._promises: dict[Key, dict[str, QuotaCommitment]] = {}
        self._key_of_commitment: dict[str, Key] = {}
        self._quotas: dict[tuple[str, str], ProjectQuota] = {}
        self._quota_names: dict[str, tuple[str, str]] = {}
        self._pending: dict[Key, dict[str, QuotaDemand]] = {}
        """Key → VM → what it needs, in the order in which they were sent."""
        self._rooms: dict[tuple[Key, str], set[str]] = {}
        """Key and VM → its in-flight reservations."""
        self._key_of_room: dict[str, tuple[Key, str]] = {}
        self._balances: dict[Key, _Balance] = {}

    # -- changes ---------------------------------------------------------------------------------------

    def upsert_commitment(self, commitment: CommittedResource) -> None:
        """The commitment exists and looks like this now: what was accepted of it counts, until it is over."""
        self.remove_commitment(commitment.name)
        spec = commitment.status.accepted_spec or commitment.spec
        if spec.resource_type != "memory" or not {spec.state, commitment.spec.state} <= ACTIVE_STATES:
            return
        key = (spec.project_id, spec.availability_zone, spec.flavor_group_name)
        self._key_of_commitment[commitment.name] = key
        used = commitment.status.used_resources
        ends = [as_instant(end) for end in (spec.end_time, commitment.spec.end_time) if end is not None]
        self._promises.setdefault(key, {})[commitment.name] = QuotaCommitment(
            amount=-(-spec.total // GIB),
            used=-(-used.memory_bytes // GIB) if used is not None else 0,
            start=as_instant(spec.start_time) if spec.start_time is not None else 0.0,
            end=min(ends, default=0.0),
        )
        self._balances.pop(key, None)

    def remove_commitment(self, name: str) -> None:
        """The commitment is gone."""
        key = self._key_of_commitment.pop(name, None)
        if key is not None:
            del self._promises[key][name]
            if not self._promises[key]:
                del self._promises[key]
            self._balances.pop(key, None)

    def upsert_quota(self, quota: ProjectQuota) -> None:
        """The quota exists and looks like this now."""
        self.remove_quota(quota.name)
        where = (quota.spec.project_id, quota.spec.availability_zone)
        self._quota_names[quota.name] = where
        self._quotas[where] = quota
        self._forget(where)

    def remove_quota(self, name: str) -> None:
        """The quota is gone."""
        where = self._quota_names.pop(name, None)
        if where is not None:
            self._quotas.pop(where, None)
            self._forget(where)

    def _forget(self, where: tuple[str, str]) -> None:
        for key in [key for key in self._balances if key[:2] == where]:
            del self._balances[key]

    def hold(self, reservation: Reservation) -> None:
        """A VM of a flavor group is on its way."""
        found = self._demand_in_flight(reservation)
        if found is None:
            self.release(reservation.name)
            return
        key, vm, demand = found
        if self._key_of_room.get(reservation.name) != (key, vm):
            self.release(reservation.name)
        self._key_of_room[reservation.name] = (key, vm)
        self._rooms.setdefault((key, vm), set()).add(reservation.name)
        before = self._pending.setdefault(key, {}).get(vm)
        self._pending[key][vm] = demand
        kept = self._balances.get(key)
        if before is None and kept is not None:
            kept.balance.charge(demand)
        elif before != demand:
            self._balances.pop(key, None)

    def _demand_in_flight(self, reservation: Reservation) -> tuple[Key, str, QuotaDemand] | None:
        """Of what and whom it is, and what the VM adds to what its project uses; ``None`` where nobody is charged."""
        spec, details = reservation.spec, reservation.spec.in_flight_reservation
        if details is None or not (details.project_id and spec.availability_zone and details.resource_group):
            return None
        key = (details.project_id, spec.availability_zone, details.resource_group)
        memory, cpu, instances = spec.resources.memory_bytes, spec.resources.cpu_milli, details.instances
        now = self.size_of(details.vm_id) if details.intent in RESIZES else None
        if now is not None and now.group == details.resource_group:
            memory, cpu, instances = memory - now.resources.memory_bytes, cpu - now.resources.cpu_milli, 0
        return key, details.vm_id, _demand_of(memory, cpu, instances)

    def release(self, reservation: str) -> None:
        """The reservation is gone."""
        where = self._key_of_room.pop(reservation, None)
        if where is None:
            return
        self._rooms[where].discard(reservation)
        if not self._rooms[where]:
            key, vm = where
            del self._rooms[where]
            del self._pending[key][vm]
            if not self._pending[key]:
                del self._pending[key]
            self._balances.pop(key, None)

    # -- questions -------------------------------------------------------------------------------------

    def compute_balance(self, project: str, zone: str, group: str, *, now: float, asking: str = "") -> Balance:
        """What a project has. The room of ``asking``, the VM itself, does not count. Shared: for reading only."""
        key = (project, zone, group)
        pending = self._pending.get(key, {})
        if asking in pending:
            return self._compute_balance(key, now, [demand for vm, demand in pending.items() if vm != asking])
        kept = self._balances.get(key)
        if kept is None or now >= kept.until:
            # Until the next commitment begins or ends.
            moments = (at for one in self._promises.get(key, {}).values() for at in (one.start, one.end))
            until = min((at for at in moments if at > now), default=math.inf)
            kept = self._balances[key] = _Balance(self._compute_balance(key, now, pending.values()), until)
            while len(self._balances) > BALANCES_KEPT:
                del self._balances[next(iter(self._balances))]
        return kept.balance

    def _compute_balance(self, key: Key, now: float, pending: Iterable[QuotaDemand]) -> Balance:
        project, zone, group = key
        quota = self._quotas.get((project, zone))
        promises = self._promises.get(key, {}).values()
        return balance_of(
            [one for one in promises if one.holds(now)],
            _select_group(quota.spec.quota, group) if quota is not None else None,
            _select_group(quota.status.payg_usage, group) if quota is not None else {},
            pending,
        )


def _select_group(amounts: Mapping[str, int], group: str) -> dict[str, int]:
    return {kind: amounts[name] for kind in KINDS if (name := f"hw_version_{group}_{kind}") in amounts}

"""The placement engine once more, host by host in plain Python: what the engine's vectors are held against.

It gives the same answer as ``outlive.placement.engine`` for every fleet and request, only slowly: it reads host
records and reservations instead of columns, and asks each filter about each host. Where a step of the engine fails, so
that the engine goes on without it, so does this. Where this fails itself, it says so: nothing of it is caught.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

import numpy as np

from outlive.base import stable_hash
from outlive.placement import (
    AMOUNT_LIMIT,
    GROUP_HINT,
    HOST_UTILIZATION,
    KEY_BITS,
    MIB,
    PROJECT_NOISINESS,
    STEP_ERRORS,
    AvoidLongTermContention,
    AvoidShortTermContention,
    BinPack,
    BoundFilter,
    BoundWeigher,
    CapacityQuery,
    CommitmentParams,
    CommittedReservations,
    ContentionParams,
    Engine,
    FailoverEvacuation,
    Fleet,
    HostContention,
    HostUtilization,
    InstanceGroup,
    Intent,
    NoisinessParams,
    PipelineRun,
    PlacementRequest,
    PreferSmallerHosts,
    ProjectNoisiness,
    Scale,
    SlotConsolidation,
    SoftAffinity,
    SpreadNoisyProjects,
    VmwareBinPack,
    Weigher,
    blocked_hosts,
    has_landed,
    is_ready,
    squash,
    unused_amounts,
    weighers,
)
from outlive.placement.filters import EnoughCapacity, vm_amounts
from outlive.placement.ranking import _FIRST, _SECOND, _STEP
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Amounts, Hypervisor, Reservation

COMPARED: Counter[tuple[str, str]] = Counter()
"""(step, what it did) → how often it was compared: hosts that a filter ``kept`` and ``refused``, and how often a
weigher told hosts apart (``differs``)."""


def rank_plain(engine: Engine, request: PlacementRequest) -> list[tuple[str, float]]:
    """(host, weight), best first: what ``engine.rank`` answers. The same errors are raised."""
    pipeline = engine.select_pipeline(request)
    run = engine.start(request, pipeline)
    gathered = engine.gathers(request, pipeline)
    everybody = gathered or request.hosts is None
    hosts = list(engine.fleet.names if everybody else dict.fromkeys(request.hosts or ()))
    for bound in engine.select_filters(request, pipeline):
        hosts = _keep(run, bound, hosts)
    weights = dict.fromkeys(hosts, 0.0)
    if request.weights and request.hosts is not None and not gathered:
        given = dict(zip(request.hosts, request.weights, strict=True))
        weights = {host: _squashed(given[host]) if pipeline.weighers else given[host] for host in hosts}
    for weigher in pipeline.weighers:
        hosts = _add(run, weigher, hosts, weights)
    return _sorted(engine, request, hosts, weights)


def _keep(run: PipelineRun, bound: BoundFilter, hosts: list[str]) -> list[str]:
    """The hosts that one filter leaves."""
    if bound.step.skips(run):
        return hosts
    try:
        bound.step.mask(run)
    except STEP_ERRORS:  # the engine's own step fails
        return [] if bound.on_error == "reject" else hosts
    if isinstance(bound.step, EnoughCapacity):
        _check_blocking(run, bound.step.build_query(run))
    kept = [host for host in hosts if bound.step.check(run, host) is None]
    COMPARED[bound.step.name, "kept"] += len(kept)
    COMPARED[bound.step.name, "refused"] += len(hosts) - len(kept)
    return kept


def _check_blocking(run: PipelineRun, query: CapacityQuery) -> None:
    """The ledger says of every host which reservations block it, as the rules over one reservation do."""
    fleet = run.fleet
    for host in fleet.names:
        row, instances = fleet.row_of(host), fleet.instances_on(host)
        assert row is not None
        blocking = [
            each.name
            for each in fleet.list_reservations()
            if host in blocked_hosts(each) and verdict(each, query, instances=instances) is Verdict.BLOCKS
        ]
        assert [entry.name for entry in fleet.ledger.blocking_entries(query, row)] == blocking


def _add(run: PipelineRun, bound: BoundWeigher, hosts: list[str], weights: dict[str, float]) -> list[str]:
    """Add one weigher's scores to the weights; the hosts that it leaves."""
    if not hosts or bound.step.skips(run):
        return hosts
    places = [run.extra[host] if host in run.extra else run.fleet.row_of(host) for host in hosts]
    try:
        bound.step.weigh(run, np.array(places, dtype=np.intp))
    except STEP_ERRORS:  # the engine's own step fails
        return [] if bound.on_error == "reject" else hosts
    scores = _PLAIN[type(bound.step)](bound.step, run, hosts)
    COMPARED[bound.step.name, "differs"] += len(set(scores)) > 1
    for host, score in zip(hosts, scores, strict=True):
        weights[host] += bound.multiplier * _squashed(score)
    return hosts


def _squashed(score: float) -> float:
    return float(squash(np.array([score]))[0])


def _sorted(
    engine: Engine, request: PlacementRequest, hosts: Sequence[str], weights: dict[str, float]
) -> list[tuple[str, float]]:
    settings = engine.settings
    ranked = sorted(hosts, key=lambda host: (-weights[host], tie_key(request.resource_id, host), host))
    if request.intent is Intent.EVACUATE and settings.own_slots_first:
        own = own_slot_hosts(engine.fleet, request.resource_id)
        ranked = [host for host in ranked if host in own] + [host for host in ranked if host not in own]
    if settings.nova_limit_hosts_to_request and request.hosts:
        named = set(request.hosts)
        ranked = [host for host in ranked if host in named]
    if request.options.max_candidates:
        ranked = ranked[: request.options.max_candidates]
    return [(host, weights[host]) for host in ranked]


def own_slot_hosts(fleet: Fleet, vm: str) -> set[str]:
    """Hosts on which a ready slot lists the VM, from the reservations themselves."""
    hosts: set[str] = set()
    for reservation in fleet.list_reservations():
        members, consumer = reservation.status.failover_reservation, reservation.status.consumer
        listed = (consumer.vm,) if consumer is not None else members.allocations if members is not None else ()
        if reservation.spec.type != FAILOVER or vm not in listed:
            continue
        if is_ready(reservation):
            hosts.add(reservation.status.host)
    return hosts


def _soft_affinity(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    group = run.request.group or InstanceGroup()
    sign = weighers._SIGNS[group.policy]
    return [sign * float(len(run.fleet.instances_on(host).intersection(group.members))) for host in hosts]


def _committed_reservations(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    group, usable = weighers._group_of(run), set()
    for reservation in run.fleet.list_reservations():
        details = reservation.spec.committed_resource_reservation
        if (
            reservation.spec.type == COMMITTED
            and is_ready(reservation)
            and details is not None
            and (details.project_id, details.resource_group) == (run.request.project, group)
            and reservation.spec.target_host
            and reservation.spec.availability_zone == run.request.zone
            and _left(reservation) >= run.request.need.memory_bytes
        ):
            usable.add(reservation.status.host)
    params: CommitmentParams = step.params
    return [params.reservation_host_weight if host in usable else params.default_host_weight for host in hosts]


def _left(slot: Reservation) -> int:
    """Bytes of a commitment slot that no VM is meant for; negative where its VMs are larger than it is."""
    details = slot.spec.committed_resource_reservation
    assert details is not None
    return slot.spec.resources.memory_bytes - sum(one.resources.memory_bytes for one in details.allocations.values())


def _prefer_smaller_hosts(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    sizes = [_effective(run, host) for host in hosts]
    scores: list[float] = []
    for mine in sizes:
        total = weights = 0.0
        for resource, weight in step.params.resource_weights.items():
            all_sizes = [size[resource] for size in sizes if resource in size]
            if resource not in mine or min(all_sizes) == max(all_sizes):
                continue
            span = max(all_sizes) - min(all_sizes)
            total += weight * (1.0 - (mine[resource] - min(all_sizes)) / span)
            weights += weight
        scores.append(total / weights if weights > 0 else 0.0)
    return scores


def _bin_pack(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    needed = vm_amounts(run.request, run.settings)
    scores: list[float] = []
    for host in hosts:
        size, record = _effective(run, host), run.fleet.find_host(host)
        allocation = record.status.allocation if record is not None else None
        total = weights = 0.0
        for resource, weight in step.params.resource_weights.items():
            if not size.get(resource) or allocation is None or resource not in allocation:
                continue
            used = max(-AMOUNT_LIMIT, min(allocation[resource], AMOUNT_LIMIT)) + needed.get(resource, 0)
            total += weight * (used / size[resource])
            weights += weight
        scores.append(total / weights if weights > 0 else 0.0)
    return scores


def _failover_evacuation(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    own = own_slot_hosts(run.fleet, run.request.resource_id)
    return [step.params.failover_host_weight if host in own else step.params.default_host_weight for host in hosts]


def _slot_consolidation(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    group = run.request.hints.get(GROUP_HINT, "")
    slots = [
        (slot.status.host, slot.spec.failover_reservation.resource_group if slot.spec.failover_reservation else "")
        for slot in run.fleet.list_reservations()
        if slot.spec.type == FAILOVER and slot.status.host and is_ready(slot)
    ]
    scores: list[float] = []
    for host in hosts:
        here = [of for where, of in slots if where == host]
        score = step.params.total_count_weight / len(slots) * len(here)
        if group and any(of == group for _, of in slots):
            score -= step.params.same_spec_penalty / len(slots) * here.count(group)
        scores.append(score)
    return scores


def _vmware_bin_pack(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    needed = vm_amounts(run.request, run.settings)
    scores: list[float] = []
    for host in hosts:
        score = weights = 0.0
        for one in run.fleet.records.records_of(HOST_UTILIZATION, HostUtilization):
            if one.compute_host != host:
                continue
            score = weights = 0.0
            for resource, weight in step.params.resource_weights.items():
                cpu = resource == "cpu"
                unit = 1000 if cpu else MIB
                size = (one.total_vcpus_allocatable if cpu else one.total_ram_allocatable_mb) * unit
                used = (one.vcpus_used if cpu else one.ram_used_mb) * unit + needed.get(resource, 0)
                if size > 0:
                    score += weight * used / size
                    weights += weight
        scores.append(score / weights if weights else 0.0)
    return scores


def _contention(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    params: ContentionParams = step.params
    scores = dict.fromkeys(hosts, 0.0)
    for one in run.fleet.records.records_of(str(step.needs), HostContention):
        if one.compute_host in scores:
            scores[one.compute_host] = _scaled(params.avg, one.avg_cpu_contention) + _scaled(
                params.max, one.max_cpu_contention
            )
    return list(scores.values())


def _noisy_projects(step: Weigher, run: PipelineRun, hosts: Sequence[str]) -> list[float]:
    params: NoisinessParams = step.params
    scores = dict.fromkeys(hosts, 0.0)
    for one in run.fleet.records.records_of(PROJECT_NOISINESS, ProjectNoisiness):
        if one.project == run.request.project and one.compute_host in scores:
            scores[one.compute_host] = _scaled(params.scale, one.avg_cpu_of_project)
    return list(scores.values())


def _scaled(scale: Scale, value: float) -> float:
    """On the straight line through both bounds, and not beyond them."""
    low, high = sorted((scale.low_to, scale.high_to))
    straight = scale.low_to + (value - scale.low) / (scale.high - scale.low) * (scale.high_to - scale.low_to)
    return sorted((low, straight, high))[1]


def _effective(run: PipelineRun, host: str) -> Amounts:
    """Effective capacity as the columns hold it; empty for a host that states none."""
    record = run.fleet.find_host(host)
    if record is None or record.status.effective_capacity is None:
        return Amounts()
    return Amounts(
        {
            name: max(-AMOUNT_LIMIT, min(amount, AMOUNT_LIMIT))
            for name, amount in record.status.effective_capacity.items()
        }
    )


def tie_key(resource_id: str, host: str) -> int:
    """The key of one host for one VM or other resource; the smaller goes first."""
    return mix(stable_hash(resource_id), stable_hash(host))


_WORD = (1 << 64) - 1


def mix(resource_hash: int, host_hash: int) -> int:
    """``tie_key`` of hashes that are known already."""
    word = ((resource_hash ^ host_hash) + _STEP) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return (word ^ (word >> 31)) >> (64 - KEY_BITS)


def host_free_capacity(reservations: Iterable[Reservation], host: Hypervisor) -> Amounts | None:
    """Free after allocation and every reservation that is wanted somewhere and touches the host.

    May be negative, which means over-subscribed; ``None`` without capacity data.
    """
    free = _unallocated(host)
    if free is None:
        return None
    instances = {one.id for one in host.status.instances}
    for reservation in reservations:
        if has_landed(reservation, instances):
            continue
        if reservation.spec.target_host and host.name in blocked_hosts(reservation):
            for name, size in unused_amounts(reservation, running=instances).items():
                if name in free:
                    free[name] -= size
    return Amounts(free)


def _unallocated(host: Hypervisor) -> dict[str, int] | None:
    capacity = host.effective_capacity()
    if capacity is None:
        return None
    used = host.status.allocation if host.status.allocation is not None else Amounts()
    return {name: size - used.get(name, 0) for name, size in capacity.items()}


class Verdict(enum.StrEnum):
    """What one reservation does to one request."""

    IGNORED = "ignored"
    """Its type is overlooked."""
    NOWHERE = "nowhere"
    """It is not ready and has no host, is a commitment without details, or its consumer has arrived: it blocks
    nothing."""
    UNLOCKED = "unlocked"
    """The request may use what it holds."""
    BLOCKS = "blocks"


def verdict(reservation: Reservation, query: CapacityQuery, *, instances: Container[str] = ()) -> Verdict:
    """What the reservation does to a request on a host that reports these VMs; the first rule that applies decides."""
    kind = reservation.spec.type
    if kind in query.ignored_types:
        return Verdict.IGNORED
    if has_landed(reservation, instances):
        return Verdict.NOWHERE
    if kind == IN_FLIGHT:
        details = reservation.spec.in_flight_reservation
        own = details is not None and details.vm_id != "" and details.vm_id == query.vm
        return Verdict.UNLOCKED if own else _held(reservation)
    if not is_ready(reservation):
        return _held(reservation)
    if kind == FAILOVER:
        return _failover(reservation, query)
    return _committed(reservation, query)


def _held(reservation: Reservation) -> Verdict:
    return Verdict.BLOCKS if blocked_hosts(reservation) else Verdict.NOWHERE


def _failover(reservation: Reservation, query: CapacityQuery) -> Verdict:
    consumer = reservation.status.consumer
    if consumer is not None:
        own = query.intent is Intent.EVACUATE and query.vm == consumer.vm
        return Verdict.UNLOCKED if own else _held(reservation)
    if query.intent is Intent.REUSE_FAILOVER_RESERVATION:
        return Verdict.UNLOCKED
    members = reservation.status.failover_reservation
    if query.intent is Intent.EVACUATE and members is not None and query.vm in members.allocations:
        return Verdict.UNLOCKED
    return _held(reservation)


def _committed(reservation: Reservation, query: CapacityQuery) -> Verdict:
    details = reservation.spec.committed_resource_reservation
    if details is None or not details.resource_group:
        return Verdict.NOWHERE
    if (
        query.intent is not Intent.RESERVE_FOR_COMMITTED_RESOURCE
        and not query.locked
        and details.project_id == query.project
        and details.resource_group == query.group
    ):
        return Verdict.UNLOCKED
    return _held(reservation)


_PLAIN: dict[type, Callable[..., list[float]]] = {
    SoftAffinity: _soft_affinity,
    CommittedReservations: _committed_reservations,
    PreferSmallerHosts: _prefer_smaller_hosts,
    BinPack: _bin_pack,
    FailoverEvacuation: _failover_evacuation,
    SlotConsolidation: _slot_consolidation,
    VmwareBinPack: _vmware_bin_pack,
    AvoidLongTermContention: _contention,
    AvoidShortTermContention: _contention,
    SpreadNoisyProjects: _noisy_projects,
}

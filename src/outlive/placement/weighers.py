"""Weighers: slots and commitments, the size and the filling of hosts, and soft server groups.

Those that look at reservations need no record of a host: a reservation counts where it is.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.placement.columns import BoolVector, FloatVector, Rows
from outlive.placement.filters.capacity import vm_amounts
from outlive.placement.fleet import Fleet
from outlive.placement.ledger import Bucket
from outlive.placement.request import GROUP_HINT, InstanceGroup, Intent
from outlive.placement.steps import PipelineRun, Weigher
from outlive.resources import CPU, MEMORY

_SIGNS = {"soft-affinity": 1.0, "soft-anti-affinity": -1.0}


class SoftAffinity(Weigher):
    """Plus or minus one for each member of the group on the host (placement.md#kvm_instance_group_soft_affinity)."""

    name = "kvm_instance_group_soft_affinity"
    statistic = "affinity"

    def skips(self, run: PipelineRun) -> bool:
        """No such group, or it has no members."""
        group = run.request.group
        return group is None or group.policy not in _SIGNS or not group.members

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """Members on each host, with the sign of the policy."""
        group = run.request.group or InstanceGroup()
        count = np.zeros(run.length)
        for member in dict.fromkeys(group.members):
            count[run.fleet.rows_of_vm(member)] += 1.0
        return _SIGNS[group.policy] * count[at]


class ResourceWeights(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How much each resource counts."""

    resource_weights: dict[str, float]

    def __post_init__(self) -> None:
        """Some of cpu and memory, none below zero."""
        if not self.resource_weights:
            raise ValueError("resourceWeights is empty")
        for name, weight in self.resource_weights.items():
            if name not in (CPU, MEMORY):
                raise ValueError(f"resourceWeights names {name!r}, known are cpu and memory")
            if not weight >= 0:
                raise ValueError(f"resourceWeights gives {name} the weight {weight}, it must not be negative")


class PositiveResourceWeights(ResourceWeights, frozen=True):
    """As ``ResourceWeights``, and none zero."""

    def __post_init__(self) -> None:
        """Above zero; a multiplier inverts."""
        super().__post_init__()
        for name, weight in self.resource_weights.items():
            if not weight > 0:
                raise ValueError(f"resourceWeights gives {name} the weight {weight}; to invert, use the multiplier")


class PreferSmallerHosts(Weigher):
    """Smaller hosts first, so that big ones stay free for big VMs (placement.md#kvm_prefer_smaller_hosts).

    1 for the smallest of the hosts that are left, 0 for the largest; a resource in which all are equal, or whose
    effective capacity a host does not state, does not count.
    """

    name = "kvm_prefer_smaller_hosts"
    params_type = ResourceWeights
    statistic = "small host score"

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """Weighted mean over the resources that count."""
        parts: list[Part] = []
        for resource, weight in self.params.resource_weights.items():
            sizes, has = _amounts_at(run, "effective", resource, at)
            known = sizes[has]
            if not len(known):
                continue
            smallest, largest = float(known.min()), float(known.max())
            if smallest != largest:
                parts.append((weight, 1.0 - (sizes - smallest) / (largest - smallest), has))
        return _weighted_mean(parts, len(at))


class BinPack(Weigher):
    """Fuller hosts first; a negative multiplier balances instead (placement.md#kvm_binpack).

    Utilisation once the request has arrived, of effective capacity, reservations not counted; may exceed 1.
    """

    name = "kvm_binpack"
    params_type = PositiveResourceWeights
    statistic = "binpack score"

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """Weighted mean over the resources that the host states."""
        parts: list[Part] = []
        needed = vm_amounts(run.request, run.settings)
        for resource, weight in self.params.resource_weights.items():
            sizes, has_size = _amounts_at(run, "effective", resource, at)
            used, has_used = _amounts_at(run, "allocation", resource, at)
            has = has_size & has_used & (sizes != 0)
            used = used + float(needed.get(resource, 0))
            parts.append((weight, used / np.where(has, sizes, 1.0), has))
        return _weighted_mean(parts, len(at))


Part = tuple[float, FloatVector, BoolVector]
"""A weight, the score of each host, and where it counts."""


def _amounts_at(run: PipelineRun, key: str, resource: str, at: Rows) -> tuple[FloatVector, BoolVector]:
    """An amount at these positions, and where it is known."""
    values, known = run.fleet.amounts_by_row(key, resource)
    if run.extra:
        values, known = np.concatenate((values, np.zeros(len(run.extra)))), run.pad(known, keep_unknown=False)
    return values[at], known[at]


def _weighted_mean(parts: list[Part], count: int) -> FloatVector:
    """The weighted mean of the parts that count for each host, 0 where none does."""
    if len(parts) == 1 and parts[0][0] == 1.0 and parts[0][2].all():
        return parts[0][1]
    total, weights = np.zeros(count), np.zeros(count)
    for weight, score, has in parts:
        total += np.where(has, weight * score, 0.0)
        weights += np.where(has, weight, 0.0)
    counts = weights > 0
    return np.where(counts, total / np.where(counts, weights, 1.0), 0.0)


def _two_scores(run: PipelineRun, at: Rows, rows: list[int] | Rows, value: float, default: float) -> FloatVector:
    """One score for the hosts of these rows of the fleet, and another for everybody else."""
    scores = np.full(run.length, default)
    scores[run.positions_of(rows)] = value
    return scores[at]


class CommitmentParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Scores of hosts with and without a usable commitment slot."""

    reservation_host_weight: float = 1.0
    default_host_weight: float = 0.1


class CommittedReservations(Weigher):
    """Hosts with a commitment slot that has room for the VM first (placement.md#kvm_committed_resource_reservation).

    Without the hint the group is taken from the flavor, because ordinary requests never carry the hint.
    """

    name = "kvm_committed_resource_reservation"
    params_type = CommitmentParams

    def skips(self, run: PipelineRun) -> bool:
        """A search for a failover slot, or the group is unknown."""
        return run.request.intent is Intent.RESERVE_FOR_FAILOVER or not _group_of(run)

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """One score for hosts with a usable slot, another for the others."""
        params: CommitmentParams = self.params
        bucket = run.fleet.ledger.commitments.get((run.request.project, _group_of(run)))
        rows: Rows = np.empty(0, dtype=np.intp)
        if bucket is not None:
            rows, zones, left = bucket.get_unclaimed()
            rows = rows[(zones == run.request.zone) & (left >= run.request.need.memory_bytes)]
        return _two_scores(run, at, rows, params.reservation_host_weight, params.default_host_weight)


def _group_of(run: PipelineRun) -> str:
    hinted = run.request.hints.get(GROUP_HINT)
    if hinted is not None:
        return hinted
    return run.request.group_name(run.settings.flavor_group_keys)


def own_slot_rows(fleet: Fleet, vm: str) -> list[int]:
    """Rows of the hosts on which a ready slot lists the VM."""
    bucket = fleet.ledger.slots_of_vm.get(vm)
    if bucket is None:
        return []
    return sorted({entry.host_row for entry in bucket.entries.values() if entry.host_row >= 0})


def slots_of_vm_on(fleet: Fleet, vm: str, host: str) -> list[str]:
    """Names of the ready slots of the VM on a host."""
    bucket, row = fleet.ledger.slots_of_vm.get(vm), fleet.row_of(host)
    if bucket is None or row is None:
        return []
    return sorted(name for name, entry in bucket.entries.items() if entry.host_row == row)


class EvacuationParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Scores of hosts with and without a slot of the VM."""

    failover_host_weight: float = 1.0
    default_host_weight: float = 0.1


class FailoverEvacuation(Weigher):
    """In an evacuation, hosts that hold a slot of the VM first (placement.md#kvm_failover_evacuation)."""

    name = "kvm_failover_evacuation"
    params_type = EvacuationParams

    def skips(self, run: PipelineRun) -> bool:
        """No evacuation."""
        return run.request.intent is not Intent.EVACUATE

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """One score for own hosts, another for the others."""
        own = own_slot_rows(run.fleet, run.request.resource_id)
        return _two_scores(run, at, own, self.params.failover_host_weight, self.params.default_host_weight)


class ConsolidationParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How strongly slots attract each other, and how strongly those of one group repel."""

    total_count_weight: float = 1.0
    same_spec_penalty: float = 0.1

    def __post_init__(self) -> None:
        """Attraction must outweigh repulsion."""
        total, penalty = self.total_count_weight, self.same_spec_penalty
        if not (total >= 0 and penalty >= 0):
            raise ValueError("totalCountWeight and sameSpecPenalty must not be negative")
        if penalty and penalty >= total:
            raise ValueError(f"sameSpecPenalty {penalty} must be less than totalCountWeight {total}")


def _count_at(run: PipelineRun, bucket: Bucket) -> NDArray[np.intp]:
    """How many reservations of the bucket are at each position."""
    return np.bincount(run.positions_of(bucket.host_rows()), minlength=run.length)


class SlotConsolidation(Weigher):
    """Optional: packs new slots on few hosts, preferring those with fewer of the same group
    (docs/reference/placement.md#kvm_failover_reservation_consolidation).
    """

    name = "kvm_failover_reservation_consolidation"
    params_type = ConsolidationParams
    statistic = "slots"

    def skips(self, run: PipelineRun) -> bool:
        """No search for a new slot, or there is no slot yet."""
        return run.request.intent is not Intent.RESERVE_FOR_FAILOVER or run.fleet.ledger.slots_of_group.get("") is None

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """Share of all slots on the host, less the penalty for those of the group."""
        everything = run.fleet.ledger.slots_of_group.get("")
        group = run.request.hints.get(GROUP_HINT, "")
        same = run.fleet.ledger.slots_of_group.get(group) if group else None
        if everything is None:
            return np.zeros(len(at))
        total = len(everything.entries)
        here = _count_at(run, everything)[at]
        scores = self.params.total_count_weight / total * here
        if same is not None:
            scores = scores - self.params.same_spec_penalty / total * (_count_at(run, same)[at])
        return np.asarray(scores, dtype=np.float64)

"""Weighers on how big and how full a host is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from outlive.placement.blocking import AMOUNT_LIMIT
from outlive.placement.filters.capacity import vm_amounts
from outlive.placement.fleet import FloatVector, Rows
from outlive.placement.steps import Run, Weigher
from outlive.resources import CPU, MEMORY, Amounts


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

    def weigh(self, run: Run, at: Rows) -> FloatVector:
        """Weighted mean over the resources that count."""
        total, weights = np.zeros(len(at)), np.zeros(len(at))
        known, rows = run.known_rows(at)
        for resource, weight in self.params.resource_weights.items():
            column = run.fleet.resources[resource]
            has = run.fleet.present("effective")[column][rows] & known
            if not has.any():
                continue
            size = run.fleet.amounts("effective")[column][rows]
            smallest, largest = int(size[has].min()), int(size[has].max())
            if smallest == largest:
                continue
            total += np.where(has, weight * (1.0 - (size - smallest) / (largest - smallest)), 0.0)
            weights += np.where(has, weight, 0.0)
        return _mean(total, weights)

    def weigh_plain(self, run: Run, hosts: Sequence[str]) -> list[float]:
        """The same, host by host."""
        sizes = [_effective(run, host) for host in hosts]
        scores: list[float] = []
        for mine in sizes:
            total = weights = 0.0
            for resource, weight in self.params.resource_weights.items():
                all_sizes = [size[resource] for size in sizes if resource in size]
                if resource not in mine or min(all_sizes) == max(all_sizes):
                    continue
                span = max(all_sizes) - min(all_sizes)
                total += weight * (1.0 - (mine[resource] - min(all_sizes)) / span)
                weights += weight
            scores.append(total / weights if weights > 0 else 0.0)
        return scores


class BinPack(Weigher):
    """Fuller hosts first; a negative multiplier balances instead (placement.md#kvm_binpack).

    Utilisation once the request has arrived, of effective capacity, reservations not counted; may exceed 1.
    """

    name = "kvm_binpack"
    params_type = PositiveResourceWeights
    statistic = "binpack score"

    def weigh(self, run: Run, at: Rows) -> FloatVector:
        """Weighted mean over the resources that the host states."""
        total, weights = np.zeros(len(at)), np.zeros(len(at))
        known, rows = run.known_rows(at)
        needed = vm_amounts(run.request, run.settings)
        fleet = run.fleet
        for resource, weight in self.params.resource_weights.items():
            column = fleet.resources[resource]
            size = fleet.amounts("effective")[column][rows]
            has = fleet.present("effective")[column][rows] & fleet.present("allocation")[column][rows] & known
            has &= size != 0
            used = (fleet.amounts("allocation")[column][rows] + needed.get(resource, 0)) / np.where(has, size, 1)
            total += np.where(has, weight * used, 0.0)
            weights += np.where(has, weight, 0.0)
        return _mean(total, weights)

    def weigh_plain(self, run: Run, hosts: Sequence[str]) -> list[float]:
        """The same, host by host."""
        needed = vm_amounts(run.request, run.settings)
        scores: list[float] = []
        for host in hosts:
            size, record = _effective(run, host), run.fleet.host(host)
            allocation = record.status.allocation if record is not None else None
            total = weights = 0.0
            for resource, weight in self.params.resource_weights.items():
                if not size.get(resource) or allocation is None or resource not in allocation:
                    continue
                used = max(-AMOUNT_LIMIT, min(allocation[resource], AMOUNT_LIMIT)) + needed.get(resource, 0)
                total += weight * (used / size[resource])
                weights += weight
            scores.append(total / weights if weights > 0 else 0.0)
        return scores


def _mean(total: FloatVector, weights: FloatVector) -> FloatVector:
    counts = weights > 0
    return np.where(counts, total / np.where(counts, weights, 1.0), 0.0)


def _effective(run: Run, host: str) -> Amounts:
    """Effective capacity as the columns hold it; empty for a host that states none."""
    record = run.fleet.host(host)
    if record is None or record.status.effective_capacity is None:
        return Amounts()
    return Amounts(
        {
            name: max(-AMOUNT_LIMIT, min(amount, AMOUNT_LIMIT))
            for name, amount in record.status.effective_capacity.items()
        }
    )

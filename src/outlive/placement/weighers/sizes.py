"""Weighers on how big and how full a host is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from outlive.placement.blocking import AMOUNT_LIMIT
from outlive.placement.columns import BoolVector, FloatVector, Rows
from outlive.placement.filters.capacity import vm_amounts
from outlive.placement.fleet import Sizes
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
        parts: list[Part] = []
        for resource, weight in self.params.resource_weights.items():
            sizes, has = _here(run, run.fleet.sizes("effective", resource), at)
            known = sizes if has is None else sizes[has]
            if not len(known):
                continue
            smallest, largest = float(known.min()), float(known.max())
            if smallest == largest:
                continue
            score = sizes - smallest
            score /= largest - smallest
            np.subtract(1.0, score, out=score)
            parts.append((weight, score, has))
        return _mean(parts, len(at))

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
        parts: list[Part] = []
        needed = vm_amounts(run.request, run.settings)
        for resource, weight in self.params.resource_weights.items():
            sizes, has_size = _here(run, run.fleet.sizes("effective", resource), at)
            used, has_used = _here(run, run.fleet.sizes("allocation", resource), at)
            has = _both(_both(has_size, has_used), None if sizes.all() else sizes != 0)
            used = used + float(needed.get(resource, 0))
            used /= sizes if has is None else np.where(has, sizes, 1.0)
            parts.append((weight, used, has))
        return _mean(parts, len(at))

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


Part = tuple[float, FloatVector, BoolVector | None]
"""A weight, the score of each host, and where it counts (``None``: everywhere)."""


def _here(run: Run, sizes: Sizes, at: Rows) -> tuple[FloatVector, BoolVector | None]:
    """The sizes at these positions (perhaps shared: do not change them), and where they are known (``None``: all)."""
    values, known, all_known = sizes
    if run.extra:
        values = np.concatenate((values, np.zeros(len(run.extra))))
        known = run.pad(known, keep_unknown=False)
    elif all_known:
        return (values if len(at) == len(values) else values[at]), None
    known = known[at]
    return values[at], None if known.all() else known


def _both(one: BoolVector | None, other: BoolVector | None) -> BoolVector | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _mean(parts: list[Part], count: int) -> FloatVector:
    """The weighted mean of the parts that count for each host, 0 where none does."""
    if len(parts) == 1 and parts[0][2] is None and parts[0][0] > 0:
        weight, score, _ = parts[0]
        return score if weight == 1.0 else weight * score / weight
    total, weights = np.zeros(count), np.zeros(count)
    for weight, score, has in parts:
        total += weight * score if has is None else np.where(has, weight * score, 0.0)
        weights += weight if has is None else np.where(has, weight, 0.0)
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

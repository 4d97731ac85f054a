"""Weighers for VMware, whose hosts Nova knows and we do not: they read records that somebody extracts.

Nova's own filters have chosen the hosts; these weighers only order them (docs/reference/placement.md#vmware_binpack).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec
import numpy as np

from outlive.placement.columns import FloatVector, Rows
from outlive.placement.filters.capacity import vm_amounts
from outlive.placement.records import (
    HOST_UTILIZATION,
    LONG_TERM_CONTENTION,
    PROJECT_NOISINESS,
    SHORT_TERM_CONTENTION,
    HostContention,
    HostUtilization,
    ProjectNoisiness,
)
from outlive.placement.settings import MIB
from outlive.placement.steps import PipelineRun, Weigher
from outlive.placement.weighers import PositiveResourceWeights
from outlive.resources import CPU, MEMORY

_NO_HOST: Final = HostUtilization(compute_host="")


def min_max_scale(value: float, low: float, high: float, low_to: float, high_to: float) -> float:
    """The value scaled from the first range to the second and kept inside it; 0 where one of them is a point."""
    if low == high or low_to == high_to:
        return 0.0
    scaled = low_to + (value - low) / (high - low) * (high_to - low_to)
    return min(max(scaled, min(low_to, high_to)), max(low_to, high_to))


class VmwareBinPack(Weigher):
    """Fuller hosts first; a negative multiplier balances instead (placement.md#vmware_binpack)."""

    name = "vmware_binpack"
    params_type = PositiveResourceWeights
    needs = HOST_UTILIZATION
    statistic = "binpack score"

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """Weighted mean of how full the host is with the VM; 0 for hosts without a record."""
        known = {one.compute_host: one for one in run.fleet.records.records_of(HOST_UTILIZATION, HostUtilization)}
        needed = vm_amounts(run.request, run.settings)
        weights = self.params.resource_weights
        return np.array([self._score(known.get(run.name_at(int(one)), _NO_HOST), needed, weights) for one in at])

    @staticmethod
    def _score(host: HostUtilization, needed: Mapping[str, int], weights: Mapping[str, float]) -> float:
        full = {
            CPU: (host.vcpus_used * 1000 + needed.get(CPU, 0), host.total_vcpus_allocatable * 1000),
            MEMORY: (host.ram_used_mb * MIB + needed.get(MEMORY, 0), host.total_ram_allocatable_mb * MIB),
        }
        counted = {name: weight for name, weight in weights.items() if full[name][1] > 0}
        total = sum(weight * full[name][0] / full[name][1] for name, weight in counted.items())
        return total / sum(counted.values()) if counted else 0.0


class Scale(msgspec.Struct, frozen=True):
    """From which values to which scores."""

    low: float
    high: float
    low_to: float
    high_to: float

    def __call__(self, value: float) -> float:
        """The score of a value."""
        return min_max_scale(value, self.low, self.high, self.low_to, self.high_to)


class ContentionParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the average and of the maximum, and the scores at them."""

    avg_low: float = msgspec.field(name="avgCPUContentionLowerBound")
    avg_high: float = msgspec.field(name="avgCPUContentionUpperBound")
    avg_low_to: float = msgspec.field(name="avgCPUContentionActivationLowerBound")
    avg_high_to: float = msgspec.field(name="avgCPUContentionActivationUpperBound")
    max_low: float = msgspec.field(name="maxCPUContentionLowerBound")
    max_high: float = msgspec.field(name="maxCPUContentionUpperBound")
    max_low_to: float = msgspec.field(name="maxCPUContentionActivationLowerBound")
    max_high_to: float = msgspec.field(name="maxCPUContentionActivationUpperBound")

    def __post_init__(self) -> None:
        """The two of a pair differ."""
        _check_pair("avgCPUContention", self.avg)
        _check_pair("maxCPUContention", self.max)

    @property
    def avg(self) -> Scale:
        """Of the average."""
        return Scale(self.avg_low, self.avg_high, self.avg_low_to, self.avg_high_to)

    @property
    def max(self) -> Scale:
        """Of the maximum."""
        return Scale(self.max_low, self.max_high, self.max_low_to, self.max_high_to)


def _check_pair(what: str, scale: Scale) -> None:
    if scale.low == scale.high:
        raise ValueError(f"{what}LowerBound and {what}UpperBound are both {scale.low}")
    if scale.low_to == scale.high_to:
        raise ValueError(f"{what}ActivationLowerBound and {what}ActivationUpperBound are both {scale.low_to}")


class AvoidLongTermContention(Weigher):
    """Away from hosts whose VMs have waited for processors for weeks (placement.md#vmware-contention)."""

    name = "vmware_avoid_long_term_contended_hosts"
    params_type = ContentionParams
    needs: ClassVar[str] = LONG_TERM_CONTENTION
    statistic = "contention"

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """The scores of average and maximum together; 0 for hosts without a record."""
        params: ContentionParams = self.params
        scores = {
            one.compute_host: params.avg(one.avg_cpu_contention) + params.max(one.max_cpu_contention)
            for one in run.fleet.records.records_of(self.needs, HostContention)
        }
        return np.array([scores.get(run.name_at(int(one)), 0.0) for one in at], dtype=np.float64)


class AvoidShortTermContention(AvoidLongTermContention):
    """The same over the last hours."""

    name = "vmware_avoid_short_term_contended_hosts"
    needs: ClassVar[str] = SHORT_TERM_CONTENTION


class NoisinessParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of what the project uses, and the scores at them."""

    low: float = msgspec.field(name="avgCPUUsageLowerBound")
    high: float = msgspec.field(name="avgCPUUsageUpperBound")
    low_to: float = msgspec.field(name="avgCPUUsageActivationLowerBound")
    high_to: float = msgspec.field(name="avgCPUUsageActivationUpperBound")

    def __post_init__(self) -> None:
        """The two of a pair differ."""
        _check_pair("avgCPUUsage", self.scale)

    @property
    def scale(self) -> Scale:
        """From usage to score."""
        return Scale(self.low, self.high, self.low_to, self.high_to)


class SpreadNoisyProjects(Weigher):
    """A project that uses much is spread over hosts (placement.md#vmware_anti_affinity_noisy_projects)."""

    name = "vmware_anti_affinity_noisy_projects"
    params_type = NoisinessParams
    needs = PROJECT_NOISINESS
    statistic = "noisiness"

    def skips(self, run: PipelineRun) -> bool:
        """Nobody's project."""
        return not run.request.project

    def weigh(self, run: PipelineRun, at: Rows) -> FloatVector:
        """The score of what the project uses there already; 0 for hosts without a record."""
        params: NoisinessParams = self.params
        scores = {
            one.compute_host: params.scale(one.avg_cpu_of_project)
            for one in run.fleet.records.records_of(PROJECT_NOISINESS, ProjectNoisiness)
            if one.project == run.request.project
        }
        return np.array([scores.get(run.name_at(int(one)), 0.0) for one in at], dtype=np.float64)

"""Detectors find VMs that should leave their host; what they say is joined, and moves in circles are left out.

All of it is pure (docs/reference/placement.md#detectors).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from outlive.placement.records import CPU_STEAL, CpuSteal, KnowledgeRecords
from outlive.placement.steps import PipelineStep


class Detection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that should leave its host, and why."""

    vm: str
    host: str
    reason: str


class CompletedMove(msgspec.Struct, frozen=True, rename="camel"):
    """A move of a VM that has been made."""

    source: str
    target: str


class Detector(PipelineStep):
    """Finds VMs."""

    @abstractmethod
    def detect(self, records: KnowledgeRecords) -> Sequence[Detection]:
        """The VMs that should leave their hosts; any order, each once."""


class StealParams(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """More than this many percent are too many; 0: no VM is found."""

    max_steal_pct_over_observed_time_span: float = 0.0

    def __post_init__(self) -> None:
        """Not negative."""
        limit = self.max_steal_pct_over_observed_time_span
        if limit < 0:
            raise ValueError(f"maxStealPctOverObservedTimeSpan is {limit}, it must not be negative")


class AvoidHighSteal(Detector):
    """VMs from which others take processor time (placement.md#avoid_high_steal_pct)."""

    name = "avoid_high_steal_pct"
    params_type = StealParams
    needs = CPU_STEAL

    def detect(self, records: KnowledgeRecords) -> Sequence[Detection]:
        """The VMs above the threshold."""
        limit = self.params.max_steal_pct_over_observed_time_span
        if limit <= 0:
            return []
        return [
            Detection(
                vm=one.instance_uuid,
                host=one.host,
                reason=f"others took {one.max_steal_time_pct:.1f} % of its processor time, more than {limit:g} %",
            )
            for one in records.records_of(CPU_STEAL, CpuSteal)
            if one.max_steal_time_pct > limit
        ]


DETECTORS: Final[tuple[type[Detector], ...]] = (AvoidHighSteal,)


def merge_detections(found: Iterable[tuple[str, Sequence[Detection]]]) -> tuple[Detection, ...]:
    """One detection for each VM, by name: the reasons of all steps in the order of their names.

    A VM that two steps see on different hosts is left out: one of them is out of date.
    """
    by_vm: dict[str, list[Detection]] = {}
    for _, detections in sorted(found, key=lambda one: one[0]):
        for one in detections:
            by_vm.setdefault(one.vm, []).append(one)
    return tuple(
        Detection(vm=vm, host=some[0].host, reason="; ".join(dict.fromkeys(one.reason for one in some)))
        for vm, some in sorted(by_vm.items())
        if len({one.host for one in some}) == 1
    )


def moves_in_a_circle(moves: Sequence[CompletedMove]) -> bool:
    """Whether a VM has come back to a host where it was: its moves, the oldest first."""
    visited = {moves[0].source} if moves else set()
    for move in moves:
        if move.target in visited:
            return True
        visited.add(move.target)
    return False

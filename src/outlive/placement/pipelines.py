"""From pipeline objects to pipelines that run: admission, building, and the table of what is in use.

A pipeline is built on fresh steps every time, and what is in use is replaced as a whole, so that a call in
progress keeps the one it started with (docs/reference/placement.md#pipelines).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from outlive.base import BadInput
from outlive.placement.detectors import DETECTORS, Detector
from outlive.placement.filters.capacity import EnoughCapacity
from outlive.placement.filters.hardware import (
    Accelerators,
    HypervisorCapabilities,
    ImageProperties,
    LiveMigratable,
    PackedVirtqueue,
    RequestedTraits,
)
from outlive.placement.filters.location import (
    Affinity,
    AntiAffinity,
    CorrectZone,
    ExcludeHosts,
    HostInstructions,
    Maintenance,
    RequestedDestination,
    StatusConditions,
)
from outlive.placement.filters.tenancy import AggregateTenants, AllowedProjects, ExternalCustomer, QuotaEnforcement
from outlive.placement.shipped import shipped_pipelines
from outlive.placement.steps import Filter, OnError, PipelineStep, Weigher
from outlive.placement.vmware import (
    AvoidLongTermContention,
    AvoidShortTermContention,
    SpreadNoisyProjects,
    VmwareBinPack,
)
from outlive.placement.weighers import (
    BinPack,
    CommittedReservations,
    FailoverEvacuation,
    PreferSmallerHosts,
    SlotConsolidation,
    SoftAffinity,
)
from outlive.resources import Condition, Pipeline, pipelines, with_condition

FILTERS: Final[Mapping[str, type[Filter]]] = MappingProxyType(
    {
        step.name: step
        for step in (
            Accelerators,
            Affinity,
            AggregateTenants,
            AllowedProjects,
            AntiAffinity,
            CorrectZone,
            EnoughCapacity,
            ExcludeHosts,
            ExternalCustomer,
            HostInstructions,
            HypervisorCapabilities,
            ImageProperties,
            LiveMigratable,
            Maintenance,
            PackedVirtqueue,
            QuotaEnforcement,
            RequestedDestination,
            RequestedTraits,
            StatusConditions,
        )
    }
)
WEIGHERS: Final[Mapping[str, type[Weigher]]] = MappingProxyType(
    {
        step.name: step
        for step in (
            AvoidLongTermContention,
            AvoidShortTermContention,
            BinPack,
            CommittedReservations,
            FailoverEvacuation,
            PreferSmallerHosts,
            SlotConsolidation,
            SoftAffinity,
            SpreadNoisyProjects,
            VmwareBinPack,
        )
    }
)
_DETECTORS: Final[Mapping[str, type[Detector]]] = MappingProxyType({step.name: step for step in DETECTORS})
TENANT_FILTERS: Final[tuple[type[Filter], ...]] = (AllowedProjects, AggregateTenants)
"""What keeps VMs off hosts that are set aside for others."""

_VALUES: Final = ("string_value", "bool_value", "int_value", "float_value", "string_list_value", "float_map_value")


def decode_parameters(step: pipelines.StepSpec, kind: type[PipelineStep]) -> msgspec.Struct:
    """The step's parameters; ``BadInput`` lists everything that is wrong with them."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for parameter in step.params:
        given = [value for name in _VALUES if (value := getattr(parameter, name)) is not None]
        if parameter.key in values:
            wrong.append(f"{parameter.key} is given twice")
        elif len(given) != 1:
            wrong.append(f"{parameter.key} has {len(given)} values instead of one")
        else:
            values[parameter.key] = given[0]
    known = _parameters_of(kind.params_type)
    wrong += [problem for key, value in values.items() if (problem := _find_problem(key, value, known))]
    if not wrong:
        try:
            return msgspec.convert(values, kind.params_type)
        except msgspec.ValidationError as error:
            wrong.append(str(error))
    raise BadInput(
        f"step {step.name}: {'; '.join(wrong)}",
        remedy=f"give each parameter once, with one value; known are: {', '.join(known) or 'none'}",
    )


@functools.cache
def _parameters_of(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Parameter → its type: asked for every step of every pipeline that is built, and there are few kinds."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _find_problem(key: str, value: Any, known: Mapping[str, Any]) -> str:
    """What is wrong with one parameter by itself; empty when nothing is."""
    if key not in known:
        return f"{key} is not known"
    numbers = value.values() if isinstance(value, dict) else (value,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        return f"{key} is not finite"
    try:
        msgspec.convert(value, known[key])
    except msgspec.ValidationError as error:
        return f"{key}: {error}"
    return ""


__all__ = [
    "Admission",
    "BuildResult",
    "BuiltPipeline",
    "PipelineTable",
    "admit",
    "build",
    "shipped_pipelines",
    "with_outcome",
]

DOMAIN: Final = "nova"
"""Pipelines of other scheduling domains are none of our business."""


MULTIPLIER_LIMIT: Final = 1e9
"""The largest multiplier of a weigher, either way."""


class Admission(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether a pipeline object is acceptable: all errors together, and warnings that refuse nothing."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


S = TypeVar("S", bound=PipelineStep)


@dataclass(frozen=True, slots=True)
class BoundStep(Generic[S]):
    """A step of a pipeline, what its failure means there, and for a weigher its multiplier."""

    step: S
    on_error: OnError
    multiplier: float = 1.0


BoundFilter = BoundStep[Filter]
BoundWeigher = BoundStep[Weigher]
BoundDetector = BoundStep[Detector]


@dataclass(frozen=True, slots=True)
class BuiltPipeline:
    """A pipeline that can rank hosts."""

    name: str
    filters: tuple[BoundFilter, ...]
    weighers: tuple[BoundWeigher, ...]
    gathers_hosts: bool
    """Take all known hosts instead of the request's."""
    tenant_filters: tuple[BoundFilter, ...] = ()
    """The filter on tenants whose sibling it lists and itself not; searches for slots pass both."""
    detectors: tuple[BoundDetector, ...] = ()
    """Of a detector pipeline, which ranks nothing."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of a pipeline object; ``pipeline`` is absent when it cannot be used."""

    pipeline: BuiltPipeline | None
    unknown: tuple[str, ...] = ()
    """Names of steps that this version does not have."""
    dropped: tuple[str, ...] = ()
    """Weighers and detectors that could not be set up, with the error."""
    failed: tuple[str, ...] = ()
    """Filters that could not be set up, with the error."""


def admit(pipeline: Pipeline) -> Admission:
    """Judge a pipeline object before it is kept; objects of other domains pass unseen."""
    spec = pipeline.spec
    if spec.scheduling_domain != DOMAIN:
        return Admission()
    errors: list[str] = []
    if spec.type == "filter-weigher" and spec.detectors:
        errors.append("a filter-weigher pipeline lists detectors")
    if spec.type == "detector" and (spec.filters or spec.weighers):
        errors.append("a detector pipeline lists filters or weighers")
    result = build(pipeline)
    warnings = tuple(f"step {name} is not known to this version and will be ignored" for name in result.unknown)
    return Admission(errors=(*errors, *result.failed, *result.dropped), warnings=warnings)


def build(pipeline: Pipeline, usable: Container[str] | None = None) -> BuildResult:
    """Set up every step: unknown ones are left out, failing weighers and detectors dropped, a failing filter is fatal.

    ``usable``: names of the ``Knowledge`` that has records; a step that needs another one cannot be set up. ``None``:
    that is not looked at.
    """
    spec = pipeline.spec
    unknown: list[str] = []
    filters, failed = _bind_steps(spec.filters, FILTERS, unknown, usable)
    weighers, dropped = _bind_steps(spec.weighers, WEIGHERS, unknown, usable)
    detectors, unfit = _bind_steps(spec.detectors, _DETECTORS, unknown, usable)
    dropped += unfit
    # The missing filters on tenants, if any of them is listed; a pipeline that lists none stays as it is.
    names = {bound.step.name for bound in filters}
    tenants = [kind for kind in TENANT_FILTERS if kind.name not in names]
    missing = [] if len(tenants) == len(TENANT_FILTERS) else tenants
    built = BuiltPipeline(
        pipeline.name,
        tuple(filters),
        tuple(weighers),
        spec.ignore_preselection,
        tuple(BoundStep(kind(), kind.on_error) for kind in missing),
        tuple(detectors),
    )
    return BuildResult(None if failed else built, tuple(unknown), tuple(dropped), tuple(failed))


def _bind_steps(
    listed: Iterable[pipelines.StepSpec],
    kinds: Mapping[str, type[S]],
    unknown: list[str],
    usable: Container[str] | None,
) -> tuple[list[BoundStep[S]], list[str]]:
    """The steps that could be set up, and the errors of the others; names that nobody knows go to ``unknown``."""
    bound: list[BoundStep[S]] = []
    errors: list[str] = []
    for step in listed:
        kind = kinds.get(step.name)
        if kind is None:
            unknown.append(step.name)
            continue
        try:
            made = kind(decode_parameters(step, kind))
            # Larger ones than any use could come to sums that are no numbers. Nothing reads that of a filter.
            if kinds is WEIGHERS and not abs(step.multiplier) <= MULTIPLIER_LIMIT:
                raise BadInput(
                    f"step {step.name}: the multiplier is {step.multiplier}",
                    remedy=f"at most {MULTIPLIER_LIMIT:g} either way",
                )
            if kind.needs and usable is not None and kind.needs not in usable:
                raise BadInput(
                    f"step {step.name}: Knowledge/{kind.needs} is missing, not ready or empty",
                    remedy="the step is used once there are records",
                )
        except BadInput as error:
            errors.append(str(error))
            continue
        bound.append(BoundStep(made, kind.on_error if step.on_error is None else step.on_error, step.multiplier))
    return bound, errors


def with_outcome(conditions: tuple[Condition, ...], result: BuildResult) -> tuple[Condition, ...]:
    """A pipeline's conditions after it was built (docs/reference/placement.md#pipeline-conditions)."""
    if result.failed:
        detail = "; ".join(result.failed)
        ready = Condition(type="Ready", status="False", reason="PipelineInitFailed", message=detail)
        steps = Condition(type="AllStepsReady", status="False", reason="PipelineInitFailed", message=detail)
    else:
        ready = Condition(type="Ready", status="True", reason="PipelineReady")
        steps = (
            Condition(
                type="AllStepsReady", status="False", reason="SomeStepsNotReady", message="; ".join(result.dropped)
            )
            if result.dropped
            else Condition(type="AllStepsReady", status="True", reason="AllStepsReady")
        )
    indexed = (
        Condition(
            type="AllStepsIndexed",
            status="False",
            reason="PipelineContainsUnknownSteps",
            message=f"not known: {', '.join(result.unknown)}",
        )
        if result.unknown
        else Condition(type="AllStepsIndexed", status="True", reason="AllStepsIndexed")
    )
    for one in (ready, steps, indexed):
        conditions = with_condition(conditions, one)
    return conditions


class PipelineTable(Mapping[str, BuiltPipeline]):
    """The pipelines in use. ``usable`` names the ``Knowledge`` that has records."""

    def __init__(self, usable: Callable[[], frozenset[str]] = frozenset) -> None:
        self._usable = usable
        self._built: dict[str, BuiltPipeline] = {}
        self._broken: set[str] = set()
        self._detectors: dict[str, BuiltPipeline] = {}
        self._objects: dict[str, Pipeline] = {}
        self.revision = 0
        """Another one as soon as any pipeline is."""

    @classmethod
    def with_shipped(cls, usable: Callable[[], frozenset[str]] = frozenset) -> PipelineTable:
        """All shipped pipelines."""
        table = cls(usable)
        for pipeline in shipped_pipelines():
            table.put(pipeline)
        return table

    def put(self, pipeline: Pipeline) -> BuildResult:
        """Build a pipeline and swap it in; one that cannot be used, or is not for us, is taken out."""
        result = build(pipeline, self._usable())
        self.remove(pipeline.name)
        if pipeline.spec.scheduling_domain != DOMAIN:
            return result
        self._objects[pipeline.name] = pipeline
        ranks = pipeline.spec.type == "filter-weigher"
        if result.pipeline is not None:
            (self._built if ranks else self._detectors)[pipeline.name] = result.pipeline
        elif ranks:
            self._broken.add(pipeline.name)
        return result

    def rebuild(self) -> None:
        """Other records can be used than before: build all pipelines anew."""
        for pipeline in list(self._objects.values()):
            self.put(pipeline)

    def detector_pipelines(self) -> tuple[BuiltPipeline, ...]:
        """The detector pipelines, by name."""
        return tuple(self._detectors[name] for name in sorted(self._detectors))

    def remove(self, name: str) -> None:
        """The pipeline is gone."""
        self.revision += 1
        self._objects.pop(name, None)
        self._built.pop(name, None)
        self._detectors.pop(name, None)
        self._broken.discard(name)

    def is_broken(self, name: str) -> bool:
        """Whether a pipeline of that name exists and cannot be used."""
        return name in self._broken

    def __getitem__(self, name: str) -> BuiltPipeline:
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)

"""Placement pipelines: ordered lists of filters and weighers, kept as resources."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from outlive.resources.meta import Condition, KindInfo, Part, Resource, Writers


class Parameter(Part, frozen=True, kw_only=True):
    """One parameter of a step: a key and exactly one value."""

    key: str
    """Name of the parameter, as the step knows it."""
    string_value: str | None = None
    """The value, if it is a text."""
    bool_value: bool | None = None
    """The value, if it is true or false."""
    int_value: int | None = None
    """The value, if it is a whole number."""
    float_value: float | None = None
    """The value, if it is a number with a fraction."""
    string_list_value: tuple[str, ...] | None = None
    """The value, if it is a list of texts."""
    float_map_value: dict[str, float] | None = None
    """The value, if it is a map of numbers."""


class StepSpec(Part, frozen=True, kw_only=True):
    """One filter, weigher or detector of a pipeline."""

    name: str
    """Which filter, weigher or detector it is (docs/reference/placement.md)."""
    params: tuple[Parameter, ...] = ()
    """Parameters of the step; absent ones have the step's default."""
    description: str = ""
    """What people say of the step."""
    multiplier: float = 1.0
    """Weighers only: 0 has no effect, a negative one inverts."""
    on_error: Literal["skip", "reject"] | None = None
    """What a failing step does: accept all hosts, or none. Absent: the step's default."""


class PipelineSpec(Part, frozen=True, kw_only=True):
    """How hosts are ranked for a request."""

    scheduling_domain: str = "nova"
    """The scheduler that it is for; Outlive uses those of ``nova``."""
    description: str = ""
    """What people say of the pipeline."""
    ignore_preselection: bool = False
    """Replace the request's hosts by all known ones."""
    type: Literal["filter-weigher", "detector"] = "filter-weigher"
    """``filter-weigher``: ranks hosts; ``detector``: finds VMs that should leave their host."""
    filters: tuple[StepSpec, ...] = ()
    """Filters that drop hosts, in this order."""
    weighers: tuple[StepSpec, ...] = ()
    """Weighers that rank the hosts which are left."""
    detectors: tuple[StepSpec, ...] = ()
    """Detectors, of a pipeline of that type alone."""
    create_history: bool | None = msgspec.field(default=None)
    """Accepted for older manifests; has no effect."""


class PipelineStatus(Part, frozen=True, kw_only=True):
    """Whether the pipeline can be used."""

    conditions: tuple[Condition, ...] = ()
    """``Ready``, ``AllStepsReady`` and ``AllStepsIndexed``: whether it and each step can be used."""


class Pipeline(Resource, frozen=True, kw_only=True, tag="Pipeline"):
    """A pipeline."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="pipelines",
        writers=Writers(
            fields={"spec": ("users", "import", "defaults"), "status": ("placement",)},
            creates=("users", "import", "defaults"),
            deletes=("users", "import"),
        ),
        columns=(
            ("Domain", ".spec.schedulingDomain", 0),
            ("Type", ".spec.type", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
        ),
    )

    spec: PipelineSpec
    status: PipelineStatus = PipelineStatus()

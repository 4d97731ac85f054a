"""Placement pipelines: ordered lists of filters and weighers, kept as resources."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from outlive.resources.meta import Condition, KindInfo, Part, Resource, Writers


class Parameter(Part, frozen=True, kw_only=True):
    """One parameter of a step: a key and exactly one value."""

    key: str
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    float_value: float | None = None
    string_list_value: tuple[str, ...] | None = None
    float_map_value: dict[str, float] | None = None


class Step(Part, frozen=True, kw_only=True):
    """One filter, weigher or detector of a pipeline."""

    name: str
    params: tuple[Parameter, ...] = ()
    description: str = ""
    multiplier: float = 1.0
    """Weighers only: 0 has no effect, a negative one inverts."""
    on_error: Literal["skip", "reject"] | None = None
    """What a failing step does: let everybody pass, or nobody. Absent: the step's own default."""


class PipelineSpec(Part, frozen=True, kw_only=True):
    """How hosts are ranked for a request."""

    scheduling_domain: str = "nova"
    description: str = ""
    ignore_preselection: bool = False
    """Replace the request's hosts by all known ones."""
    type: Literal["filter-weigher", "detector"] = "filter-weigher"
    filters: tuple[Step, ...] = ()
    weighers: tuple[Step, ...] = ()
    detectors: tuple[Step, ...] = ()
    create_history: bool | None = msgspec.field(default=None)
    """Accepted for older manifests; has no effect."""


class PipelineStatus(Part, frozen=True, kw_only=True):
    """Whether the pipeline can be used."""

    conditions: tuple[Condition, ...] = ()


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

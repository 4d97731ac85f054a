"""What placement keeps about its answers: where each VM was sent, and why."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

import msgspec

from outlive.resources.meta import Condition, KindInfo, ObjectRef, Part, Resource, Writers, object_name

DECISIONS_KEPT: Final = 10
"""Earlier answers that a history keeps."""


class PlacementDecision(Part, frozen=True, kw_only=True):
    """One answer for a resource."""

    timestamp: datetime
    """When placement answered."""
    pipeline_ref: ObjectRef
    """The pipeline that ranked the hosts."""
    intent: str = ""
    """What the caller was up to, such as ``create`` (docs/reference/placement.md#intents)."""
    successful: bool = False
    """Whether there was a host."""
    target_host: str = ""
    """The best host; empty: none. Only in the last answer."""
    ordered_hosts: tuple[str, ...] = ()
    """The best three hosts, the best one first."""
    explanation: str = ""
    """Why these and no others. Kept of the last answer."""


class PlacementHistorySpec(Part, frozen=True, kw_only=True):
    """Whose answers they are."""

    scheduling_domain: str = "nova"
    """The scheduler that was asked; Outlive answers for ``nova``."""
    resource_id: str = msgspec.field(name="resourceID")
    """The VM, or the reservation, that asked for a place."""
    availability_zone: str = ""
    """The zone that was asked for; empty: any."""


class PlacementHistoryStatus(Part, frozen=True, kw_only=True):
    """What placement answered, last and before."""

    current: PlacementDecision | None = None
    """The last answer; absent: there was none."""
    history: tuple[PlacementDecision, ...] = ()
    """Those before it, the oldest first; at most ten."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``: whether the last answer had a host (docs/reference/placement.md#history)."""


class PlacementHistory(Resource, frozen=True, kw_only=True, tag="PlacementHistory"):
    """Where placement sent a VM, last and before. One document, written by placement alone."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="placementhistories",
        short_names=("oph",),
        halves=False,
        writers=Writers(
            fields={"": ("placement",)},
            creates=("placement",),
            deletes=("placement",),
            labels="refused",
        ),
        columns=(
            ("Resource", ".spec.resourceID", 0),
            ("Host", ".status.current.targetHost", 0),
            ("Intent", ".status.current.intent", 0),
            ("Decided", ".status.current.timestamp", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("Zone", ".spec.availabilityZone", 1),
        ),
    )

    spec: PlacementHistorySpec
    status: PlacementHistoryStatus = PlacementHistoryStatus()


def history_name(resource_id: str, domain: str = "nova") -> str:
    """The name of the history of a resource."""
    return object_name(f"{domain}-{resource_id}")


class KnowledgeSpec(Part, frozen=True, kw_only=True):
    """What the records are about."""

    scheduling_domain: str = "nova"
    """The scheduler that uses the records; Outlive uses those of ``nova``."""
    description: str = ""
    """What people say of the records."""


class KnowledgeRaw(Part, frozen=True, kw_only=True):
    """The records themselves."""

    features: tuple[dict[str, Any], ...] = ()
    """The records; empty if they are objects of their own, as flavor groups are."""


class KnowledgeStatus(Part, frozen=True, kw_only=True):
    """The records, and how old they are."""

    raw: KnowledgeRaw = KnowledgeRaw()
    raw_length: int = 0
    """How many records there are."""
    digest: str = ""
    """Digest of the records; it changes with them."""
    last_content_change: datetime | None = None
    """When the records last changed; it never goes back."""
    last_extracted: datetime | None = None
    """When the records were last extracted."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``: whether the records can be used."""


class Knowledge(Resource, frozen=True, kw_only=True, tag="Knowledge"):
    """Records that placement uses and another program extracts: flavor groups, load, contention."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="knowledges",
        halves=False,
        writers=Writers(
            fields={
                "spec": ("users", "import", "placement", "commitments"),
                "status": ("placement", "commitments", "mirror"),
            },
            creates=("users", "import", "placement", "commitments", "mirror"),
            deletes=("users", "import", "placement", "commitments"),
        ),
        columns=(
            ("Records", ".status.rawLength", 0),
            ("Changed", ".status.lastContentChange", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
        ),
    )

    spec: KnowledgeSpec = KnowledgeSpec()
    status: KnowledgeStatus = KnowledgeStatus()


class DeschedulingSpec(Part, frozen=True, kw_only=True):
    """Which VM should leave which host, and why."""

    ref: str
    """The VM that should leave."""
    ref_type: str
    """``virtualMachine`` for one of ours, ``novaServerUUID``."""
    prev_host: str
    """The host that it should leave."""
    prev_host_type: str
    """``hypervisor`` for one of ours, ``novaComputeHostName``."""
    reason: str = ""
    """Why it should leave: the reason of each detector."""


class DeschedulingStatus(Part, frozen=True, kw_only=True):
    """The state of the move."""

    new_host: str = ""
    """Its present host; empty: it has not left."""
    new_host_type: str = ""
    """What kind of host that is, as ``prevHostType``."""
    conditions: tuple[Condition, ...] = ()
    """``Ready`` and ``InProgress`` (docs/reference/placement.md#descheduling)."""


class Descheduling(Resource, frozen=True, kw_only=True, tag="Descheduling"):
    """A VM that should leave its host, named after the VM. Deleted after a day, in which the VM is left alone."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="deschedulings",
        short_names=("odes",),
        writers=Writers(
            fields={"spec": ("placement",), "status": ("placement",)},
            creates=("placement",),
            deletes=("placement",),
            labels="refused",
        ),
        columns=(
            ("VM", ".spec.ref", 0),
            ("From", ".spec.prevHost", 0),
            ("To", ".status.newHost", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("Why", '.status.conditions[?(@.type=="Ready")].reason', 0),
            ("Reason", ".spec.reason", 1),
        ),
    )

    spec: DeschedulingSpec
    status: DeschedulingStatus = DeschedulingStatus()

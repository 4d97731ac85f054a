"""What is sold: commitments of customers, what they may use, and what flavor groups have to sell.

A commitment is fulfilled by reservations of type ``CommittedResourceReservation`` (``reservations``). The rules are in
docs/reference/commitments.md.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from outlive.base.errors import BadInput
from outlive.base.quantity import parse_bytes
from outlive.resources.amounts import Amounts
from outlive.resources.meta import Condition, KindInfo, Part, Resource, Writers

OPEN_LABEL: Final = "commitments.outlive.dev/open"
"""Label of a ``CommitmentChange`` that is not applied yet, and of its further documents."""
COMMITMENT_PREFIX: Final = "commitment-"
"""Of the name of a ``CommittedResource``; its commitment's uuid follows."""

CommitmentState = Literal["planned", "pending", "guaranteed", "confirmed", "superseded", "expired"]
CommittedType = Literal["memory", "cores"]
ACTIVE_STATES: Final[frozenset[CommitmentState]] = frozenset({"guaranteed", "confirmed"})
"""States in which the capacity is promised. A pending commitment gets slots, and is not active."""


class CommittedResourceSpec(Part, frozen=True, kw_only=True):
    """What a customer committed to."""

    commitment_uuid: str = msgspec.field(name="commitmentUUID")
    scheduling_domain: str = "nova"
    flavor_group_name: str
    resource_type: CommittedType
    amount: str
    """Memory in bytes as a quantity (``1536Gi``), or cores as a whole number."""
    availability_zone: str
    project_id: str = msgspec.field(name="projectID")
    domain_id: str = msgspec.field(default="", name="domainID")
    start_time: datetime | None = None
    end_time: datetime | None = None
    """Absent: it does not end."""
    state: CommitmentState
    allow_rejection: bool = False
    """Whether a failure to place it refuses it; else it is tried for as long as it lasts."""

    def __post_init__(self) -> None:
        """``ValueError`` for an amount that is none: everybody adds amounts up."""
        try:
            negative = self.total < 0
        except BadInput as error:
            raise ValueError(str(error)) from None
        if negative:
            raise ValueError(f"amount {self.amount} is negative")

    @property
    def total(self) -> int:
        """Bytes of memory, or cores."""
        return parse_bytes(self.amount)


class CommittedResourceStatus(Part, frozen=True, kw_only=True):
    """What has become of it."""

    accepted_spec: CommittedResourceSpec | None = None
    """The last spec for which capacity was found."""
    accepted_at: datetime | None = None
    assigned_instances: tuple[str, ...] = ()
    """VMs that are charged to it."""
    used_resources: Amounts | None = None
    """``memory`` and ``cpu`` of these VMs."""
    last_usage_reconcile_at: datetime | None = None
    usage_observed_generation: int | None = None
    """Generation of the commitment at the last write of its usage."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``; its reasons are listed in docs/reference/commitments.md#states."""
    status_summary: str = ""


class CommittedResource(Resource, frozen=True, kw_only=True, tag="CommittedResource"):
    """One commitment of a customer: memory or cores of a flavor group in a zone, for a time."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="committedresources",
        short_names=("ocr",),
        writers=Writers(
            fields={"spec": ("commitments",), "status": ("commitments",)},
            creates=("commitments",),
            deletes=("commitments",),
            labels="refused",
        ),
        columns=(
            ("Project", ".spec.projectID", 0),
            ("FlavorGroup", ".spec.flavorGroupName", 0),
            ("ResourceType", ".spec.resourceType", 0),
            ("AZ", ".spec.availabilityZone", 0),
            ("Amount", ".spec.amount", 0),
            ("State", ".spec.state", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("UsedMemory", ".status.usedResources.memory", 1),
            ("UsedCPU", ".status.usedResources.cpu", 1),
            ("StartTime", ".spec.startTime", 1),
            ("Status", ".status.statusSummary", 1),
        ),
    )

    spec: CommittedResourceSpec
    status: CommittedResourceStatus = CommittedResourceStatus()


class SlotChange(Part, frozen=True, kw_only=True):
    """What a batch does with one commitment slot."""

    name: str
    deleted: bool = False
    host: str = ""
    """Where it is made, or where it is; empty: no host was found for it yet."""
    flavor: str = ""
    memory_bytes: int = 0
    cpu_milli: int = 0
    vm: str = ""
    """A VM of the project that runs there already and becomes its first allocation."""
    kept: bool = False
    """It is there already and goes to this commitment."""


class CommitmentStep(Part, frozen=True, kw_only=True):
    """What a batch does with one commitment."""

    uuid: str
    before: CommittedResourceSpec | None = None
    """Absent: there was none."""
    after: CommittedResourceSpec | None = None
    """Absent: it is deleted."""
    accepted: bool = False
    """Whether capacity was found for it; else its controller looks for some."""
    slots: tuple[SlotChange, ...] = ()


class CommitmentChange(Resource, frozen=True, kw_only=True, tag="CommitmentChange"):
    """A batch of changes that was accepted. Its creation is the moment from which all of it counts: whoever finds it
    not applied carries it out (docs/reference/commitments.md#batches). One document, or several where it is large: the
    further ones are created before it. It stays for a time as the record of who changed what. Batches are numbered, and
    the number is the name, so that of two processes that believe they lead only one can commit the next batch.
    """

    info: ClassVar[KindInfo] = KindInfo(
        plural="commitmentchanges",
        halves=False,
        writers=Writers(
            fields={"": ("commitments",)},
            creates=("commitments",),
            deletes=("commitments",),
            labels="refused",
        ),
        columns=(
            ("Phase", ".phase", 0),
            ("Zone", ".availabilityZone", 0),
            ("By", ".requestedBy", 0),
            ("Decided", ".decidedAt", 0),
        ),
    )

    nonce: str = ""
    """Drawn for each batch: by it a process knows its own."""
    part_of: str = ""
    """Of a further document: the nonce of the change that it belongs to."""
    parts: Annotated[int, Meta(ge=0)] = 0
    """Further documents, named after its nonce with ``-1`` and so on."""
    phase: Literal["decided", "applied", "withdrawn"] = "decided"
    """``withdrawn``: nothing is done. It keeps a batch from coming whose creation was in doubt, or any that a former
    leader may still send."""
    availability_zone: str = ""
    request_id: str = ""
    request_digest: str = ""
    """Of what was asked for, where the caller named the request (docs/reference/commitments.md#repeated)."""
    requested_by: str = ""
    decided_at: datetime | None = None
    applied_at: datetime | None = None
    steps: tuple[CommitmentStep, ...] = ()


class CommitmentCoverage(Part, frozen=True, kw_only=True):
    """When VMs were charged to one commitment in a month. Seconds since the month began."""

    resource_type: CommittedType = "memory"
    covered_seconds: Annotated[int, Meta(ge=0)] = 0
    """So long at least one VM was charged to it, without the time that still goes on …"""
    covered_since: Annotated[int, Meta(ge=0)] | None = None
    """… and that began then; absent: no VM is charged to it."""
    vms: dict[str, tuple[int, ...]] = {}
    """VM → begin and end of each time that it was charged, in turns; an odd number: it still is."""


class UsageHistory(Resource, frozen=True, kw_only=True, tag="UsageHistory"):
    """Which VMs of a project were charged to which of its commitments in one month, and when
    (docs/reference/commitments.md#usage-history).
    """

    info: ClassVar[KindInfo] = KindInfo(
        plural="usagehistories",
        halves=False,
        writers=Writers(
            fields={"": ("commitments",)},
            creates=("commitments",),
            deletes=("commitments",),
            labels="refused",
        ),
        columns=(("Project", ".projectID", 0), ("Month", ".month", 0), ("Left out", ".leftOut", 1)),
    )

    project_id: str = msgspec.field(default="", name="projectID")
    month: str = ""
    """``2026-11``, in UTC."""
    commitments: dict[str, CommitmentCoverage] = {}
    """By uuid."""
    left_out: Annotated[int, Meta(ge=0)] = 0
    """Times of single VMs that are not listed because there were too many. ``coveredSeconds`` has them."""


class FlavorCapacity(Part, frozen=True, kw_only=True):
    """How many VMs of one flavor fit into a zone, if nobody competes."""

    flavor_name: str
    placeable_hosts: int = 0
    placeable_vms: int = 0
    total_capacity_hosts: int = 0
    total_capacity_vm_slots: int = 0
    running_vms: int = 0


class FlavorGroupCapacitySpec(Part, frozen=True, kw_only=True):
    """Of what."""

    flavor_group: str
    availability_zone: str


class FlavorGroupCapacityStatus(Part, frozen=True, kw_only=True):
    """What a flavor group has in a zone. Amounts have ``memory`` and ``cores``."""

    flavors: tuple[FlavorCapacity, ...] = ()
    committed_capacity: int = 0
    """Memory of active commitments, in VMs of the smallest flavor."""
    committed_capacity_bytes: int = 0
    smallest_flavor_name: str = ""
    total_capacity: Amounts = Amounts()
    """If nothing ran anywhere."""
    free_capacity: Amounts = Amounts()
    """Of hosts that other groups may use as well."""
    exclusively_free_capacity: Amounts = Amounts()
    """After free capacity was split fairly between groups: these never add up to more than there is."""
    exclusively_free_slots: int = 0
    """The same in VMs of the smallest flavor."""
    running_instances: int = 0
    running_resources: Amounts = Amounts()
    last_reconcile_at: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class FlavorGroupCapacity(Resource, frozen=True, kw_only=True, tag="FlavorGroupCapacity"):
    """What a flavor group has in a zone: total, committed, running and free."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="flavorgroupcapacities",
        short_names=("ofgc",),
        writers=Writers(
            fields={"spec": ("commitments",), "status": ("commitments",)},
            creates=("commitments",),
            deletes=("commitments",),
            labels="refused",
        ),
        columns=(
            ("FlavorGroup", ".spec.flavorGroup", 0),
            ("AZ", ".spec.availabilityZone", 0),
            ("Running", ".status.runningInstances", 0),
            ("Free", ".status.exclusivelyFreeSlots", 0),
            ("Committed", ".status.committedCapacity", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
        ),
    )

    spec: FlavorGroupCapacitySpec
    status: FlavorGroupCapacityStatus = FlavorGroupCapacityStatus()


class ProjectQuotaSpec(Part, frozen=True, kw_only=True):
    """What a project may use in a zone."""

    project_id: str = msgspec.field(name="projectID")
    project_name: str = ""
    domain_id: str = msgspec.field(default="", name="domainID")
    domain_name: str = ""
    availability_zone: str
    quota: dict[str, int] = {}
    """Resource of LIQUID → amount, memory in GiB; -1: no limit."""


class ProjectQuotaStatus(Part, frozen=True, kw_only=True):
    """What it uses: maps like ``spec.quota``."""

    observed_generation: int = 0
    total_usage: dict[str, int] = {}
    payg_usage: dict[str, int] = {}
    """What no commitment covers."""
    total_usage_summary: str = ""
    payg_usage_summary: str = ""
    limes_usage_summary: str = ""
    limes_quota_summary: str = ""
    last_reconcile_at: datetime | None = None
    last_full_reconcile_at: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class ProjectQuota(Resource, frozen=True, kw_only=True, tag="ProjectQuota"):
    """What a project may use and uses in a zone."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="projectquotas",
        short_names=("opq",),
        writers=Writers(
            fields={"spec": ("commitments",), "status": ("commitments",)},
            creates=("commitments",),
            deletes=("commitments",),
            labels="refused",
        ),
        columns=(
            ("Project", ".spec.projectID", 0),
            ("AZ", ".spec.availabilityZone", 0),
            ("Usage", ".status.totalUsageSummary", 0),
            ("PAYG", ".status.paygUsageSummary", 0),
            ("Name", ".spec.projectName", 1),
            ("LimesUsage", ".status.limesUsageSummary", 1),
            ("LimesQuota", ".status.limesQuotaSummary", 1),
        ),
    )

    spec: ProjectQuotaSpec
    status: ProjectQuotaStatus = ProjectQuotaStatus()

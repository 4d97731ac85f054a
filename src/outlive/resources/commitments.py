"""What is sold: commitments of customers, what they may use, and what flavor groups have to sell.

A commitment is fulfilled by reservations of type ``CommittedResourceReservation`` (``reservations``). The rules are in
docs/reference/commitments.md.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from outlive.base import BadInput, parse_bytes
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
    """Uuid of the commitment; 6 to 40 letters, digits and dashes."""
    scheduling_domain: str = "nova"
    """The scheduler that it is for; Outlive handles those of ``nova``."""
    flavor_group_name: str
    """The flavor group whose capacity the customer committed to."""
    resource_type: CommittedType
    """Whether it is a commitment of memory or of cores."""
    amount: str
    """Memory in bytes as a quantity (``1536Gi``), or a whole number of cores."""
    availability_zone: str
    """The zone that the capacity is in."""
    project_id: str = msgspec.field(name="projectID")
    """Id of the customer's project."""
    domain_id: str = msgspec.field(default="", name="domainID")
    """Id of the domain that the project is in; empty: none."""
    start_time: datetime | None = None
    """When it begins; absent: it has no begin."""
    end_time: datetime | None = None
    """Absent: it does not end."""
    state: CommitmentState
    """The promise (docs/reference/commitments.md#states)."""
    allow_rejection: bool = False
    """Whether it is refused if it cannot be placed; else it is tried as long as it lasts."""

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
    """The state of the commitment."""

    accepted_spec: CommittedResourceSpec | None = None
    """The last spec for which capacity was found."""
    accepted_at: datetime | None = None
    """When capacity was found for ``acceptedSpec``; absent: never."""
    assigned_instances: tuple[str, ...] = ()
    """VMs that are charged to it."""
    used_resources: Amounts | None = None
    """``memory`` and ``cpu`` of these VMs."""
    last_usage_reconcile_at: datetime | None = None
    """When the VMs that are charged to it were last counted; absent: never."""
    usage_observed_generation: int | None = None
    """Generation of the commitment at the last write of its usage."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``; its reasons are listed in docs/reference/commitments.md#states."""
    status_summary: str = ""
    """One line: its state, why it waits or was refused, its VMs, and when it ends."""


class CommittedResource(Resource, frozen=True, kw_only=True, tag="CommittedResource"):
    """A commitment of a customer: memory or cores of a flavor group in a zone, for a time."""

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
    """Name of the slot, a ``Reservation``."""
    deleted: bool = False
    """Whether the slot is deleted."""
    host: str = ""
    """Its host; empty: none was found yet."""
    flavor: str = ""
    """The flavor that the slot is made for."""
    memory_bytes: int = 0
    """Memory of the slot, in bytes."""
    cpu_milli: int = 0
    """Cores of the slot, in thousandths."""
    vm: str = ""
    """A VM of the project that runs there already and becomes its first allocation."""
    kept: bool = False
    """It is there already and goes to this commitment."""


class CommitmentStep(Part, frozen=True, kw_only=True):
    """What a batch does with one commitment."""

    uuid: str
    """Id of the commitment."""
    before: CommittedResourceSpec | None = None
    """The commitment before; absent: there was none."""
    after: CommittedResourceSpec | None = None
    """The commitment afterwards; absent: it is deleted."""
    accepted: bool = False
    """Whether capacity was found for it; else its controller looks for it."""
    slots: tuple[SlotChange, ...] = ()
    """What becomes of its slots."""


class CommitmentChange(Resource, frozen=True, kw_only=True, tag="CommitmentChange"):
    """An accepted batch of changes, which counts as a whole from its creation; the leader carries it out
    (docs/reference/commitments.md#batches). A large batch has several documents; the further ones are created before
    it. Batches are numbered, and the number is the name, so that of two processes that believe they lead only one can
    commit the next batch.
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
    """For a further document: the nonce of its change."""
    parts: Annotated[int, Meta(ge=0)] = 0
    """Further documents, named after its nonce with ``-1`` and so on."""
    phase: Literal["decided", "applied", "withdrawn"] = "decided"
    """``withdrawn``: no effect; it prevents a batch of doubtful creation, or any batch of a former leader."""
    availability_zone: str = ""
    """The zone that the whole batch is about."""
    request_id: str = ""
    """Id of the request, by which a repeated request is recognised."""
    request_digest: str = ""
    """Digest of the request, if the caller named it (docs/reference/commitments.md#repeated)."""
    requested_by: str = ""
    """Who asked for the batch, as the server knows the caller."""
    decided_at: datetime | None = None
    """When the batch was decided."""
    applied_at: datetime | None = None
    """When all of it was carried out; absent: not yet."""
    steps: tuple[CommitmentStep, ...] = ()
    """What the batch does to each commitment; further documents have a part of it."""


class CommitmentCoverage(Part, frozen=True, kw_only=True):
    """When VMs were charged to one commitment in a month, in seconds since the month began."""

    resource_type: CommittedType = "memory"
    """Whether it is a commitment of memory or of cores."""
    covered_seconds: Annotated[int, Meta(ge=0)] = 0
    """Seconds in which at least one VM was charged to it, without the present time …"""
    covered_since: Annotated[int, Meta(ge=0)] | None = None
    """… which began then; absent: no VM is charged to it."""
    vms: dict[str, tuple[int, ...]] = {}
    """VM → begin and end of each time that it was charged; an odd number: it still is."""


class UsageHistory(Resource, frozen=True, kw_only=True, tag="UsageHistory"):
    """Which VMs of a project were charged to which of its commitments in a month, and when
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
    """The project, by the id that Keystone has for it."""
    month: str = ""
    """The month in UTC, such as ``2026-11``."""
    commitments: dict[str, CommitmentCoverage] = {}
    """Uuid of the commitment → when VMs were charged to it."""
    left_out: Annotated[int, Meta(ge=0)] = 0
    """Times of single VMs that are not listed because there were too many; ``coveredSeconds`` includes them."""


class FlavorCapacity(Part, frozen=True, kw_only=True):
    """How many VMs of a flavor fit into a zone, without competition."""

    flavor_name: str
    """Nova's name of the flavor."""
    placeable_hosts: int = 0
    """Hosts that take at least one such VM now."""
    placeable_vms: int = 0
    """Such VMs that fit now."""
    total_capacity_hosts: int = 0
    """Hosts that would take at least one such VM if no VM ran."""
    total_capacity_vm_slots: int = 0
    """Such VMs that would fit if nothing ran anywhere."""
    running_vms: int = 0
    """VMs of the flavor that run in the zone."""


class FlavorGroupCapacitySpec(Part, frozen=True, kw_only=True):
    """A flavor group in a zone."""

    flavor_group: str
    """Name of the flavor group."""
    availability_zone: str
    """The zone that is counted."""


class FlavorGroupCapacityStatus(Part, frozen=True, kw_only=True):
    """What a flavor group has in a zone. Amounts have ``memory`` and ``cores``."""

    flavors: tuple[FlavorCapacity, ...] = ()
    """The figures of each flavor of the group."""
    committed_capacity: int = 0
    """Memory of active commitments, in VMs of the smallest flavor."""
    committed_capacity_bytes: int = 0
    """Memory of active commitments in bytes, in whole VMs of the smallest flavor."""
    smallest_flavor_name: str = ""
    """The smallest flavor of the group, in which capacity is counted."""
    total_capacity: Amounts = Amounts()
    """If nothing ran anywhere."""
    free_capacity: Amounts = Amounts()
    """Of hosts that other groups may use as well."""
    exclusively_free_capacity: Amounts = Amounts()
    """Free for this group alone after the fair split between groups."""
    exclusively_free_slots: int = 0
    """The same in VMs of the smallest flavor."""
    running_instances: int = 0
    """VMs of the group that run in the zone."""
    running_resources: Amounts = Amounts()
    """Memory and cores of the VMs of the group that run in the zone, by their flavors."""
    last_reconcile_at: datetime | None = None
    """When the figures were written last; absent: never."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``: whether all figures could be counted."""


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
    """The project, by the id that Keystone has for it."""
    project_name: str = ""
    """Name of the project, for people."""
    domain_id: str = msgspec.field(default="", name="domainID")
    """Id of the project's domain; empty: not known."""
    domain_name: str = ""
    """Name of the project's domain; empty: not known."""
    availability_zone: str
    """The zone that the quota is for."""
    quota: dict[str, int] = {}
    """Resource of LIQUID → amount, memory in GiB; -1: no limit."""


class ProjectQuotaStatus(Part, frozen=True, kw_only=True):
    """What it uses: maps like ``spec.quota``."""

    observed_generation: int = 0
    """Generation of the quota when its usage was counted last."""
    total_usage: dict[str, int] = {}
    """All that the project uses, covered by commitments or not."""
    payg_usage: dict[str, int] = {}
    """What no commitment covers."""
    total_usage_summary: str = ""
    """``totalUsage`` in one line: cores, instances and GiB of memory of each flavor group."""
    payg_usage_summary: str = ""
    """``paygUsage`` in one line, as ``totalUsageSummary``."""
    limes_usage_summary: str = ""
    """``totalUsage`` in one line, with memory in the units of Limes."""
    limes_quota_summary: str = ""
    """``spec.quota`` in one line, with memory in the units of Limes."""
    last_reconcile_at: datetime | None = None
    """When the usage was counted last; absent: never."""
    last_full_reconcile_at: datetime | None = None
    """When all usage was last counted anew; absent: never."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``: whether the usage is counted."""


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

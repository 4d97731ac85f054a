"""Reservations: capacity held on one host. A failover reservation is called a slot."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

import msgspec

from outlive.resources.amounts import Amounts, Size
from outlive.resources.meta import Condition, KindInfo, Part, Resource, Writers

FAILOVER = "FailoverReservation"
COMMITTED = "CommittedResourceReservation"
IN_FLIGHT = "InFlightReservation"
ReservationType = Literal["FailoverReservation", "CommittedResourceReservation", "InFlightReservation"]

TYPE_LABEL_VALUES = {FAILOVER: "failover", COMMITTED: "committed-resource", IN_FLIGHT: "in-flight"}
"""Values of the label ``reservations.outlive.dev/type``."""


class FailoverSpec(Part, frozen=True, kw_only=True):
    """Failover part of the spec."""

    resource_group: str = ""
    """Flavor group whose VMs share the slot, or the flavor of its first VM."""


class SpecAllocation(Part, frozen=True, kw_only=True):
    """A VM that a commitment slot is meant for."""

    creation_timestamp: datetime | None = None
    """When placement sent the VM there."""
    resources: Size = Amounts()
    """Size of the VM."""


class CommittedSpec(Part, frozen=True, kw_only=True):
    """Commitment part of the spec. Initialisms keep the spelling of the interchange format."""

    resource_name: str = ""
    """The flavor that the slot was made for."""
    commitment_uuid: str = msgspec.field(default="", name="commitmentUUID")
    """Uuid of the commitment that the slot belongs to."""
    resource_group: str = ""
    """Flavor group of the commitment."""
    project_id: str = msgspec.field(default="", name="projectID")
    """Id of the project that committed."""
    domain_id: str = msgspec.field(default="", name="domainID")
    """Id of the domain that the project is in; empty: none."""
    creator: str = ""
    """Who made the slot."""
    parent_generation: int = 0
    """Generation of the ``CommittedResource`` that the slot was written for."""
    allocations: dict[str, SpecAllocation] = {}
    """VM → since when the slot expects it, and its size."""


class InFlightSpec(Part, frozen=True, kw_only=True):
    """In-flight part of the spec."""

    vm_id: str = msgspec.field(default="", name="vmID")
    """Name of the VM that is on its way."""
    user_id: str = msgspec.field(default="", name="userID")
    """Id of the user who asked for it; empty: not known."""
    project_id: str = msgspec.field(default="", name="projectID")
    """Id of its project; empty: not known."""
    intent: str = ""
    """What the caller is up to, such as ``create`` (docs/reference/placement.md#intents)."""
    resource_group: str = ""
    """Flavor group of the VM, if any: quota counts it there until a host reports it."""
    instances: int = 1
    """VMs of one call; ``resources`` are those of all."""


class ReservationSpec(Part, frozen=True, kw_only=True):
    """What is reserved, and where."""

    type: ReservationType
    """Purpose of the reservation: failover, a commitment, or VMs in flight."""
    scheduling_domain: str = "nova"
    """The scheduler that made it; Outlive acts on those of ``nova``."""
    availability_zone: str = ""
    """The zone that the capacity is to be in; empty: any."""
    resources: Size = Amounts()
    """What is reserved; in flight, for all instances together."""
    start_time: datetime | None = None
    """From when on it is meant; absent: at once."""
    end_time: datetime | None = None
    """When it ends; absent: it does not."""
    target_host: str = ""
    """The wanted host; empty: none, and then a commitment slot reserves nothing."""
    failover_reservation: FailoverSpec | None = None
    committed_resource_reservation: CommittedSpec | None = None
    in_flight_reservation: InFlightSpec | None = None


class FailoverStatus(Part, frozen=True, kw_only=True):
    """Members of a slot: VM → the host it ran on when it was added."""

    allocations: dict[str, str] = {}
    """VM → the host it ran on when it was added."""
    last_changed: datetime | None = None
    """When the members changed last."""
    acknowledged_at: datetime | None = None
    """When the members were found valid after ``lastChanged``; absent or earlier: not yet."""


class CommittedStatus(Part, frozen=True, kw_only=True):
    """Seen part of a commitment slot."""

    observed_parent_generation: int = 0
    """``parentGeneration`` for which the slot was judged last."""
    allocations: dict[str, str] = {}
    """VM → the host that reports it: VMs that are confirmed in the slot."""


class Consumer(Part, frozen=True, kw_only=True):
    """The VM that recovery starts in the slot, and the fence that allowed it."""

    vm: str
    """Name of the VM."""
    fence: str
    """Identity of the recovery, as in ``status.recovery.fence`` of the VM."""


class ReservationStatus(Part, frozen=True, kw_only=True):
    """Where the reservation is and its users."""

    host: str = ""
    """The host with the reserved capacity; empty: none yet."""
    conditions: tuple[Condition, ...] = ()
    """Only ``Ready``: whether the capacity is reserved, and why not."""
    failover_reservation: FailoverStatus | None = None
    committed_resource_reservation: CommittedStatus | None = None
    consumer: Consumer | None = None


class Reservation(Resource, frozen=True, kw_only=True, tag="Reservation"):
    """Capacity reserved on one host."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="reservations",
        short_names=("ores",),
        writers=Writers(
            fields={
                "spec": ("failover", "commitments", "placement"),
                "status": ("failover", "commitments", "placement"),
                "status.consumer": ("recovery",),
            },
            creates=("failover", "commitments", "placement"),
            deletes=("failover", "commitments", "placement"),
            labels="refused",
        ),
        columns=(
            ("Type", ".metadata.labels.reservations\\.outlive\\.dev/type", 0),
            ("Host", ".status.host", 0),
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("Group", ".spec.failoverReservation.resourceGroup", 0),
            ("Zone", ".spec.availabilityZone", 0),
            ("End", ".spec.endTime", 0),
            ("Start", ".spec.startTime", 1),
            ("CPU", ".spec.resources.cpu", 1),
            ("Memory", ".spec.resources.memory", 1),
            ("Changed", ".status.failoverReservation.lastChanged", 1),
            ("Acknowledged", ".status.failoverReservation.acknowledgedAt", 1),
            ("Allocations", ".status.failoverReservation.allocations", 1),
        ),
    )

    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()

    @property
    def members(self) -> dict[str, str]:
        """Of a slot: VM → the host that it ran on when it was added."""
        failover = self.status.failover_reservation
        return failover.allocations if failover is not None else {}

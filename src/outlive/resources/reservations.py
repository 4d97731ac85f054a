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


class SpecAllocation(Part, frozen=True, kw_only=True):
    """A VM that a commitment slot is meant for."""

    creation_timestamp: datetime | None = None
    resources: Size = Amounts()


class CommittedSpec(Part, frozen=True, kw_only=True):
    """Commitment part of the spec. Initialisms keep the spelling of the interchange format."""

    resource_name: str = ""
    commitment_uuid: str = msgspec.field(default="", name="commitmentUUID")
    resource_group: str = ""
    project_id: str = msgspec.field(default="", name="projectID")
    domain_id: str = msgspec.field(default="", name="domainID")
    creator: str = ""
    parent_generation: int = 0
    allocations: dict[str, SpecAllocation] = {}


class InFlightSpec(Part, frozen=True, kw_only=True):
    """In-flight part of the spec."""

    vm_id: str = msgspec.field(default="", name="vmID")
    user_id: str = msgspec.field(default="", name="userID")
    project_id: str = msgspec.field(default="", name="projectID")
    intent: str = ""
    resource_group: str = ""
    """Flavor group of the VM, where its flavor has one: quota counts it there until a host reports it."""
    instances: int = 1
    """VMs that one call asked for together; ``resources`` are those of all."""


class ReservationSpec(Part, frozen=True, kw_only=True):
    """What is held, and where it is wanted."""

    type: ReservationType
    scheduling_domain: str = "nova"
    availability_zone: str = ""
    resources: Size = Amounts()
    start_time: datetime | None = None
    end_time: datetime | None = None
    target_host: str = ""
    failover_reservation: FailoverSpec | None = None
    committed_resource_reservation: CommittedSpec | None = None
    in_flight_reservation: InFlightSpec | None = None


class FailoverStatus(Part, frozen=True, kw_only=True):
    """Membership of a slot: VM → the host it ran on when it was added."""

    allocations: dict[str, str] = {}
    last_changed: datetime | None = None
    acknowledged_at: datetime | None = None


class CommittedStatus(Part, frozen=True, kw_only=True):
    """Seen part of a commitment slot."""

    observed_parent_generation: int = 0
    allocations: dict[str, str] = {}


class Consumer(Part, frozen=True, kw_only=True):
    """The VM that recovery lets into the slot, and the fence that allowed it."""

    vm: str
    fence: str


class ReservationStatus(Part, frozen=True, kw_only=True):
    """Where the reservation is and who has it."""

    host: str = ""
    conditions: tuple[Condition, ...] = ()
    failover_reservation: FailoverStatus | None = None
    committed_resource_reservation: CommittedStatus | None = None
    consumer: Consumer | None = None


class Reservation(Resource, frozen=True, kw_only=True, tag="Reservation"):
    """Capacity held on one host."""

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

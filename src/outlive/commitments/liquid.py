"""The messages of LIQUID, the public contract by which Limes asks a service for capacity, usage and commitments.

Member names, and which members are left out when, are the contract's (docs/reference/commitments.md#liquid). Unknown
members are ignored; numbers are unsigned and have 64 bits; a list or a map may be ``null``, which is an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from outlive.base import BadInput

LARGEST: Final = 2**64 - 1
"""The largest number of the contract."""

NAME_CHARACTERS: Final = 255
"""Of an id or a name."""
ZONES_LIMIT: Final = 1_000
"""Zones of a report, and of a push of quota."""

Unsigned = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS)]
Time = Annotated[datetime, Meta(tz=True)]
Topology = Literal["flat", "az-aware", "az-separated"]
M = TypeVar("M", bound=msgspec.Struct)


def _check_range(message: msgspec.Struct) -> None:
    """``ValueError`` for a number beyond 64 bits."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, int) and value > LARGEST:
            raise ValueError(f"{name} is more than {LARGEST}")


# -- who ----------------------------------------------------------------------------------------------------


class DomainMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A domain of Keystone."""

    uuid: Name = ""
    name: Name = ""


class ProjectMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A project of Keystone."""

    uuid: Name = ""
    name: Name = ""
    domain: DomainMetadata = DomainMetadata()


# -- the catalogue ------------------------------------------------------------------------------------------


class Attributes(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Ratios of a flavor group, in GiB for each core; those that it does not have are left out."""

    ram_core_ratio: int | None = None
    ram_core_ratio_min: int | None = None
    ram_core_ratio_max: int | None = None


class ResourceInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource of the catalogue."""

    display_name: str
    unit: str
    topology: Topology = "az-separated"
    has_capacity: bool
    needs_resource_demand: bool = False
    has_quota: bool
    handles_commitments: bool | UnsetType = UNSET
    """Left out when it is false."""
    attributes: Attributes


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The catalogue. Its version is in every report; a batch that was made for another one is refused."""

    version: int
    display_name: str = ""
    categories: None = None
    resources: dict[str, ResourceInfo]
    rates: None = None
    capacity_metric_families: None = None
    usage_metric_families: None = None
    quota_update_needs_project_metadata: bool = True
    commitment_handling_needs_project_metadata: bool = True


# -- changes of commitments ---------------------------------------------------------------------------------


class LiquidCommitment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happens to one commitment. No old status: there was none; no new status: it is deleted."""

    uuid: str
    old_status: str | None = None
    new_status: str | None = None
    amount: Unsigned = 0
    """In the resource's unit."""
    confirm_by: Time | None = None
    """Times of the year 1 stand for no time at all."""
    expires_at: Time | None = None
    old_expires_at: Time | None = None
    """Only if the end changed."""

    def __post_init__(self) -> None:
        _check_range(self)


class ResourceChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happens to the commitments of a project for one resource, with their sums before and after."""

    total_confirmed_before: Unsigned = 0
    total_confirmed_after: Unsigned = 0
    total_guaranteed_before: Unsigned = 0
    total_guaranteed_after: Unsigned = 0
    commitments: tuple[LiquidCommitment, ...] | None = ()

    def __post_init__(self) -> None:
        _check_range(self)


class ProjectChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happens to the commitments of a project."""

    project_metadata: ProjectMetadata | None = None
    by_resource: dict[Name, ResourceChange] | None = {}


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A batch of changes in one zone."""

    az: Name = ""
    dry_run: bool = False
    info_version: int = 0
    by_project: dict[Name, ProjectChange] | None = {}

    def iterate_commitments(self) -> Iterator[LiquidCommitment]:
        """Every commitment that it changes."""
        for project in (self.by_project or {}).values():
            for resource in (project.by_resource or {}).values():
                yield from resource.commitments or ()

    @property
    def commitments(self) -> int:
        """How many commitments it changes."""
        return sum(1 for _ in self.iterate_commitments())


class ChangeAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Empty: the batch was accepted."""

    rejection_reason: str | UnsetType = UNSET
    retry_at: datetime | UnsetType = UNSET
    """When it may be accepted, where that is known."""


# -- reports ------------------------------------------------------------------------------------------------


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """For which zones."""

    all_azs: Annotated[tuple[Name, ...], Meta(max_length=ZONES_LIMIT)] | None = msgspec.field(default=(), name="allAZs")


class ZoneCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a resource in a zone, and what of it is used, where that is known."""

    capacity: int
    usage: int | UnsetType = UNSET


class ResourceCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity of a resource."""

    per_az: dict[str, ZoneCapacity] = msgspec.field(name="perAZ")


class CapacityReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Capacity of the resources that have one."""

    info_version: int
    resources: dict[str, ResourceCapacity]


class FlavorAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a VM."""

    name: str
    vcpu: int
    ram_mib: int
    disk_gib: int
    video_ram_mib: int | UnsetType = UNSET


class VmAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of a VM."""

    status: str
    flavor: FlavorAttributes
    os_type: str
    commitment_id: str | None
    """The commitment that it is charged to; ``null``: it is paid as it goes."""


class Subresource(msgspec.Struct, frozen=True, kw_only=True):
    """A VM."""

    id: str
    name: str
    attributes: VmAttributes


class ZoneUsage(msgspec.Struct, kw_only=True):
    """What a project uses of a resource in a zone."""

    usage: int
    quota: int | UnsetType = UNSET
    """Only of resources with quota; -1: no limit."""
    subresources: list[Subresource] | UnsetType = UNSET


class ResourceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a resource."""

    forbidden: bool = False
    per_az: dict[str, ZoneUsage] = msgspec.field(name="perAZ")


class UsageReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a project uses of every resource."""

    info_version: int
    resources: dict[str, ResourceUsage]


# -- quota --------------------------------------------------------------------------------------------------


class ZoneQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What a project may use of a resource in a zone."""

    quota: Unsigned = 0

    def __post_init__(self) -> None:
        _check_range(self)


class ResourceQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What a project may use of a resource. Only the zones count."""

    quota: Unsigned = 0
    per_az: dict[Name, ZoneQuota] | None = msgspec.field(default_factory=dict, name="perAZ")

    def __post_init__(self) -> None:
        _check_range(self)


class QuotaRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All quota of a project."""

    resources: dict[Name, ResourceQuota] | None = {}
    project_metadata: ProjectMetadata | None = None


def decode(body: bytes, message: type[M]) -> M:
    """The body as this message; ``BadInput`` says in one line what is wrong, and where."""
    try:
        return msgspec.json.decode(body, type=message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"Invalid request body: {detail}") from None


def encode(message: msgspec.Struct) -> bytes:
    """The message as JSON."""
    return msgspec.json.encode(message)

"""Kinds of clouds whose hypervisors are Kubernetes objects (docs/how-to/hypervisors.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from outlive.resources.foreign.base import ForeignPart, ForeignResource, foreign_kind
from outlive.resources.foreign.kubernetes import ForeignConditions
from outlive.resources.meta import KindInfo

Quantities = dict[str, str | int | float]


class CloudAggregate(ForeignPart, frozen=True, kw_only=True):
    """A host aggregate of Nova."""

    name: str
    uuid: str | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET


class CloudInstance(ForeignPart, frozen=True, kw_only=True):
    """A VM that a hypervisor reports."""

    id: str
    name: str | UnsetType | None = UNSET
    active: bool | UnsetType | None = UNSET


class CloudHypervisorSpec(ForeignPart, frozen=True, kw_only=True):
    """What is wanted of a hypervisor."""

    custom_traits: tuple[str, ...] | UnsetType | None = UNSET
    allowed_projects: tuple[str, ...] | UnsetType | None = UNSET
    groups: tuple[Any, ...] | UnsetType | None = UNSET
    overcommit: dict[str, float] | UnsetType | None = UNSET
    high_availability: bool | UnsetType | None = UNSET
    maintenance: str | UnsetType | None = UNSET


class CloudHypervisorStatus(ForeignConditions, frozen=True, kw_only=True):
    """What is seen of a hypervisor."""

    capacity: Quantities | UnsetType | None = UNSET
    effective_capacity: Quantities | UnsetType | None = UNSET
    allocation: Quantities | UnsetType | None = UNSET
    instances: tuple[CloudInstance, ...] | UnsetType | None = UNSET
    num_instances: int | UnsetType | None = UNSET
    aggregates: tuple[CloudAggregate, ...] | UnsetType | None = UNSET
    traits: tuple[str, ...] | UnsetType | None = UNSET
    evicted: bool | UnsetType | None = UNSET


class CloudHypervisor(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A host of such a cloud; another kind than ``Hypervisor`` of Outlive."""

    info: ClassVar[KindInfo] = foreign_kind("kvm.cloud.sap/v1", "Hypervisor", "hypervisors")
    spec: CloudHypervisorSpec | UnsetType | None = UNSET
    status: CloudHypervisorStatus | UnsetType | None = UNSET


class CloudReservation(ForeignResource, frozen=True, kw_only=True, tag=False):
    """Capacity that the scheduler of such a cloud leaves free; another kind than ``Reservation`` of Outlive."""

    info: ClassVar[KindInfo] = foreign_kind("cortex.cloud/v1alpha1", "Reservation", "reservations")

"""What is known of commitments, quota, capacity and VMs, as reports need it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from outlive.base import Unavailable
from outlive.placement import VmView
from outlive.resources import CommittedResource, FlavorGroupCapacity, ObjectRef, ProjectQuota, R
from outlive.runtime import Informer

BY_PROJECT: Final = "project"
"""The index of informers of commitments and of quota."""


def project_of(obj: CommittedResource | ProjectQuota) -> tuple[str, ...]:
    """The key of an object in ``BY_PROJECT``."""
    return (obj.spec.project_id,)


class InformedRecords:
    """Everything that reports are made of, from informers; those of commitments and of quota have the index
    ``BY_PROJECT``. ``Unavailable`` while it is not known."""

    def __init__(
        self,
        *,
        commitments: Informer[CommittedResource],
        quotas: Informer[ProjectQuota],
        capacities: Informer[FlavorGroupCapacity],
        project_vms: Callable[[str], Awaitable[Sequence[VmView]]],
        host_zone: Callable[[str], str],
    ) -> None:
        self._commitments = commitments
        self._quotas = quotas
        self._capacities = capacities
        self._project_vms = project_vms
        self._host_zone = host_zone

    def commitments_of(self, project: str) -> Sequence[CommittedResource]:
        """Of the project."""
        return _require_synced(self._commitments, "commitments").list_by_index(BY_PROJECT, project)

    def quotas_of(self, project: str) -> Sequence[ProjectQuota]:
        """Of the project."""
        return _require_synced(self._quotas, "quota").list_by_index(BY_PROJECT, project)

    def list_capacities(self) -> Sequence[FlavorGroupCapacity]:
        """Of all flavor groups in all zones."""
        return _require_synced(self._capacities, "capacity").items()

    async def list_vms(self, project: str) -> Sequence[VmView]:
        """Of the project, those that have a host and a known flavor. A VM without a zone of its own has its host's."""
        return [
            vm if vm.zone else msgspec.structs.replace(vm, zone=self._host_zone(vm.host))
            for vm in await self._project_vms(project)
        ]

    def note(self, quota: ProjectQuota) -> None:
        """A quota was written by this process."""
        self._quotas.note(quota)

    def note_deleted(self, quota: ObjectRef) -> None:
        """A quota was deleted by this process."""
        self._quotas.note_deleted(quota)


def _require_synced(informer: Informer[R], what: str) -> Informer[R]:
    if not informer.synced:
        raise Unavailable(f"{what} is not known yet")
    return informer

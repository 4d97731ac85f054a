"""What is known of commitments, quota, capacity and VMs, as reports need it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from outlive.base.errors import Unavailable
from outlive.placement.vms import VmView
from outlive.resources import CommittedResource, FlavorGroupCapacity, ObjectRef, ProjectQuota, R
from outlive.runtime.informer import Informer

BY_PROJECT: Final = "project"
"""The index of informers of commitments and of quota."""


def project_of(obj: CommittedResource | ProjectQuota) -> tuple[str, ...]:
    """The key of an object in ``BY_PROJECT``."""
    return (obj.spec.project_id,)


class Records(Protocol):
    """Everything that reports are made of. ``Unavailable`` while it is not known."""

    def commitments(self, project: str) -> Sequence[CommittedResource]:
        """Of the project."""
        ...

    def quotas(self, project: str) -> Sequence[ProjectQuota]:
        """Of the project."""
        ...

    def capacities(self) -> Sequence[FlavorGroupCapacity]:
        """Of all flavor groups in all zones."""
        ...

    async def vms(self, project: str) -> Sequence[VmView]:
        """Of the project, those that have a host and a known flavor. A VM without a zone of its own has its host's."""
        ...

    def note(self, quota: ProjectQuota) -> None:
        """A quota was written by this process."""
        ...

    def note_gone(self, quota: ObjectRef) -> None:
        """A quota was deleted by this process."""
        ...


class InformedRecords:
    """Records from informers; those of commitments and of quota have the index ``BY_PROJECT``."""

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

    def commitments(self, project: str) -> Sequence[CommittedResource]:
        """Of the project."""
        return _known(self._commitments, "commitments").by_index(BY_PROJECT, project)

    def quotas(self, project: str) -> Sequence[ProjectQuota]:
        """Of the project."""
        return _known(self._quotas, "quota").by_index(BY_PROJECT, project)

    def capacities(self) -> Sequence[FlavorGroupCapacity]:
        """Of all flavor groups in all zones."""
        return _known(self._capacities, "capacity").items()

    async def vms(self, project: str) -> Sequence[VmView]:
        """Of the project; a VM without a zone of its own has its host's."""
        return [
            vm if vm.zone else msgspec.structs.replace(vm, zone=self._host_zone(vm.host))
            for vm in await self._project_vms(project)
        ]

    def note(self, quota: ProjectQuota) -> None:
        """A quota was written by this process."""
        self._quotas.note(quota)

    def note_gone(self, quota: ObjectRef) -> None:
        """A quota was deleted by this process."""
        self._quotas.note_gone(quota)


def _known(informer: Informer[R], what: str) -> Informer[R]:
    if not informer.synced:
        raise Unavailable(f"{what} is not known yet")
    return informer

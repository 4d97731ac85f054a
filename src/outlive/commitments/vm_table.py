"""All VMs by project, from our own objects as they change or from a VM source that is asked now and then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from outlive.base.clock import Clock
from outlive.base.errors import Unavailable
from outlive.placement.vms import VMSource, VmView, vm_of_resource
from outlive.resources import VirtualMachine
from outlive.runtime.informer import Informer

STALE_S: Final = 900.0
"""A listing of a VM source that is older is not used any more."""


class VmTable:
    """See the module. Without a ``source`` it follows ``vms``."""

    def __init__(self, vms: Informer[VirtualMachine], source: VMSource | None, *, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._vms: dict[str, VmView] = {}
        self._projects: dict[str, dict[str, VmView]] = {}
        self._listed_s: float | None = None
        if source is None:
            vms.subscribe(self._changed)

    async def refresh(self) -> None:
        """Ask the VM source for all VMs; nothing where our own objects are followed. ``Unavailable``."""
        if self._source is None:
            return
        listing = await self._source.list_vms()
        self._vms, self._projects = {}, {}
        for vm in listing.vms:
            self._put(vm)
        self._listed_s = self._clock.monotonic()

    def check(self) -> None:
        """``Unavailable`` while nobody knows which VMs there are."""
        if self._source is None:
            return
        if self._listed_s is None or self._clock.monotonic() - self._listed_s > STALE_S:
            raise Unavailable("the list of VMs is missing or too old", remedy="see why the VM source does not answer")

    def get(self, vm: str) -> VmView | None:
        """The VM, if it has a host and a known size."""
        return self._vms.get(vm)

    def of_project(self, project: str) -> Iterable[VmView]:
        """The project's VMs."""
        return self._projects.get(project, {}).values()

    def all(self) -> Mapping[str, VmView]:
        """Every VM, by id."""
        return self._vms

    def _changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        if old is not None:
            self._drop(old.name)
        view = vm_of_resource(new) if new is not None else None
        if view is not None:
            self._put(view)

    def _put(self, vm: VmView) -> None:
        self._vms[vm.id] = vm
        self._projects.setdefault(vm.project, {})[vm.id] = vm

    def _drop(self, vm: str) -> None:
        known = self._vms.pop(vm, None)
        if known is None:
            return
        mates = self._projects[known.project]
        del mates[vm]
        if not mates:
            del self._projects[known.project]

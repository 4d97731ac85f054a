"""All VMs by project, from our own objects as they change or from a VM source that is asked now and then.

A source is asked for everything every minute, and for single VMs at once when a host begins or ceases to report them.
Counts of VMs follow the table change by change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from outlive.base import Clock, OutliveError, Unavailable, get_logger, set_within
from outlive.placement import VMSource, VmView, vm_of_resource
from outlive.resources import Hypervisor, VirtualMachine
from outlive.runtime import Informer

VMS_S: Final = 60.0
"""How often a VM source is asked for all VMs."""
RETRY_S: Final = 10.0
"""How soon it is asked again where it did not answer."""
STALE_S: Final = 900.0
"""A listing of a VM source that is older is not used any more."""
DOUBTED_LIMIT: Final = 1_000
"""VMs that wait to be asked for one by one; further ones are left to the next listing."""
YIELD_EVERY: Final = 1_000
"""VMs of a listing after which others get their turn."""

Follower = Callable[[VmView | None, VmView | None], None]
"""Called with a VM before and after a change; ``None`` for absent. It must not block."""

_log = get_logger("commitments.vms")


class VmTable:
    """See the module. Without a ``source`` it follows ``vms``."""

    def __init__(self, vms: Informer[VirtualMachine], source: VMSource | None, *, clock: Clock) -> None:
        self._own = vms
        self._source = source
        self._clock = clock
        self._vms: dict[str, VmView] = {}
        self._projects: dict[str, dict[str, VmView]] = {}
        self._listed_s: float | None = None
        self._followers: list[Follower] = []
        self._doubted: dict[str, None] = {}
        self._doubts = asyncio.Event()
        if source is None:
            vms.subscribe(self._on_vm)

    def follow(self, follower: Follower) -> None:
        """Call this for every VM that is there, and then of each change."""
        for vm in self._vms.values():
            follower(None, vm)
        self._followers.append(follower)

    async def run(self) -> None:
        """Keep the table as the source has it, until cancelled; nothing to do where our own objects are followed."""
        if self._source is None:
            return
        again_s = self._clock.monotonic()
        while True:
            now_s = self._clock.monotonic()
            if now_s >= again_s:
                again_s = now_s + VMS_S
                try:
                    await self.refresh()
                except OutliveError as error:  # ``check`` says it to callers that need VMs; nothing else waits for it
                    _log.warning("vms.not_listed", error=str(error))
                    again_s = now_s + RETRY_S
            await self._ask_for_doubted()
            await set_within(self._doubts, max(0.0, again_s - self._clock.monotonic()))

    async def refresh(self) -> None:
        """Ask the VM source for all VMs; nothing where our own objects are followed. ``Unavailable``."""
        if self._source is None:
            return
        listing = await self._source.list_vms()
        listed: set[str] = set()
        for number, vm in enumerate(listing.vms, 1):
            listed.add(vm.id)
            self._put(vm)
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        for name in [name for name in self._vms if name not in listed]:
            self._drop(name)
        self._listed_s = self._clock.monotonic()

    def on_host(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        """A host changed: of VMs that it reports now and did not before, or the other way round, the source may know
        more than it said last."""
        if self._source is None:
            return
        before = {one.id for one in old.status.instances} if old is not None else set()
        after = {one.id for one in new.status.instances} if new is not None else set()
        for vm in sorted((before - after) | (after - before - self._vms.keys())):
            if len(self._doubted) < DOUBTED_LIMIT:
                self._doubted[vm] = None
        if self._doubted:
            self._doubts.set()

    def check(self) -> None:
        """``Unavailable`` while nobody knows which VMs there are."""
        if self._source is None:
            if not self._own.synced:
                raise Unavailable("the list of VMs is not complete yet", remedy="ask again in a moment")
            return
        if self._listed_s is None or self._clock.monotonic() - self._listed_s > STALE_S:
            raise Unavailable("the list of VMs is missing or too old", remedy="see why the VM source does not answer")

    def get(self, vm: str) -> VmView | None:
        """The VM, if it has a host and a known size."""
        return self._vms.get(vm)

    def list_of_project(self, project: str) -> Iterable[VmView]:
        """The project's VMs."""
        return self._projects.get(project, {}).values()

    def vms_by_id(self) -> Mapping[str, VmView]:
        """Every VM, by id."""
        return self._vms

    async def _ask_for_doubted(self) -> None:
        assert self._source is not None
        self._doubts.clear()
        doubted, self._doubted = self._doubted, {}
        for vm in doubted:
            try:
                found = await self._source.get_vm(vm)
            except OutliveError as error:
                _log.warning("vm.not_asked", vm=vm, error=str(error))
                return  # the next listing says
            if found is None:
                self._drop(vm)
            else:
                self._put(found)

    def _on_vm(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        view = vm_of_resource(new) if new is not None else None
        if view is not None:
            self._put(view)
        elif old is not None:
            self._drop(old.name)

    def _put(self, vm: VmView) -> None:
        before = self._vms.get(vm.id)
        if before == vm:
            return
        if before is not None and before.project != vm.project:
            self._leave(before)
        self._vms[vm.id] = vm
        self._projects.setdefault(vm.project, {})[vm.id] = vm
        for follower in self._followers:
            follower(before, vm)

    def _drop(self, vm: str) -> None:
        known = self._vms.pop(vm, None)
        if known is None:
            return
        self._leave(known)
        for follower in self._followers:
            follower(known, None)

    def _leave(self, vm: VmView) -> None:
        mates = self._projects[vm.project]
        del mates[vm.id]
        if not mates:
            del self._projects[vm.project]

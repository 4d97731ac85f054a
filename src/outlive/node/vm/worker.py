"""One worker for each virtual machine that needs one: looks, does one job, looks again.

A worker exists only while there is something to do or to wait for, so that a host whose virtual machines just run costs
nothing. Jobs of one virtual machine never overlap; a job that waits is woken by every change. What a look comes to is
the business of ``outlive.node.vm.looking``.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlive.base.deadline import deadline
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.base.random import Random
from outlive.node.vm.looking import Looker
from outlive.node.vm.shared import VmHost, VmMemory
from outlive.resources import VirtualMachine
from outlive.runtime.tasks import OrderedTaskGroup

RETRY_BASE_S: Final = 0.5
"""The first wait after an error; it doubles."""
RETRY_CAP_S: Final = 30.0
"""The longest."""
CALM_S: Final = 2.0
"""How much of a wait after an error nothing shortens."""
FOLLOW_S: Final = 1.0
"""How often a virtual machine is read that is here and labelled for another host: nobody tells of its changes."""
LEAST_S: Final = 0.001
"""The shortest wait between two looks."""
LOOKS: Final = 50
"""Looks of one worker without a rest; more of them mean that two rules contradict each other."""

_log = get_logger("node.vm")


class Workers:
    """See the module. ``poke`` from anywhere; jobs run in the group that ``run`` opens."""

    def __init__(self, shared: VmHost, looker: Looker, *, random: Random) -> None:
        self._shared = shared
        self._looker = looker
        self._random = random
        self._group: OrderedTaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, None] = {}
        self._early: dict[str, None] = {}
        """Asked for while nobody works yet."""
        self._closed = False
        self._closing = asyncio.Event()

    @property
    def busy(self) -> int:
        """Virtual machines that are being worked on."""
        return len(self._running)

    def poke(self, vm: str) -> None:
        """Have a look at this virtual machine soon."""
        if vm in self._running:
            self._again[vm] = None
            self._shared.memory(vm).changed.set()
        elif self._group is not None and not self._closed:
            self._running[vm] = self._group.create_task(self._work(vm), name=f"vm {vm}")
        elif not self._closed:
            self._early[vm] = None

    def poke_all(self) -> None:
        """Have a look at all that this host has to do with."""
        known = {vm.name for vm in self._shared.informer.items()}
        early, self._early = self._early, {}
        for vm in sorted({*known, *self._shared.here.names(), *self._running, *early}):
            self.poke(vm)

    def changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        """What the informer tells."""
        vm = new if new is not None else old
        if vm is not None:
            self.poke(vm.name)

    async def run(self) -> None:
        """Until cancelled, or until ``close`` and the last job has ended."""
        stop = self._shared.informer.subscribe(self.changed, replay=False)
        try:
            async with OrderedTaskGroup() as group:
                self._group = group
                self.poke_all()
                group.create_task(self._until_closed(), name="vms open")
        finally:
            self._group = None
            stop()

    def close(self) -> None:
        """Take nothing new, and let jobs end that do not wait for anything."""
        self._closed = True
        self._closing.set()
        for vm in self._running:
            self._shared.memory(vm).changed.set()

    async def _until_closed(self) -> None:
        await self._closing.wait()

    # One virtual machine

    async def _work(self, vm: str) -> None:
        memory = self._shared.memory(vm)
        try:
            await self._looks(vm, memory)
        except Exception:  # noqa: BLE001 - logged; one virtual machine's trouble must not end the daemon
            _log.exception("vm.worker_crashed", vm=vm, host=self._shared.host)
            await self._shared.clock.sleep(RETRY_CAP_S)
            self._again[vm] = None
        del self._running[vm]
        if vm in self._again:
            del self._again[vm]
            self.poke(vm)
        elif vm not in self._shared.here.names() and self._shared.informer.get(vm) is None and not memory.late_create:
            self._shared.memories.pop(vm, None)

    async def _looks(self, vm: str, memory: VmMemory) -> None:
        """Look until there is nothing to wait for."""
        failures = looks = 0
        while not self._closed:
            self._again.pop(vm, None)
            memory.changed.clear()
            try:
                with request_context(greq=new_global_request_id(self._shared.ids, "vm"), req=""):
                    wait_s = await self._looker.look_at(vm, memory)
                failures = 0
            except (OutliveError, TimeoutError) as error:
                failures += 1
                _log.warning("vm.look_failed", vm=vm, host=self._shared.host, error=str(error))
                longest_s = min(RETRY_CAP_S, RETRY_BASE_S * 2.0 ** min(failures - 1, 10))
                wait_s = longest_s * self._random.uniform(0.5, 1.0)
                await self._calm(min(wait_s, CALM_S))
            looks += 1
            if vm in self._again or wait_s == 0.0:
                if looks < LOOKS:
                    continue
                _log.error("vm.too_many_looks", vm=vm, host=self._shared.host, looks=looks)
                wait_s = RETRY_CAP_S
            if vm in self._shared.here.domains and self._shared.informer.get(vm) is None:
                wait_s = FOLLOW_S if wait_s is None else min(wait_s, FOLLOW_S)
            if wait_s is None:
                return
            looks = 0
            await changed_within(memory, wait_s)

    async def _calm(self, seconds: float) -> None:
        """Wait whatever changes meanwhile: a look that failed may itself have changed the virtual machine before."""
        try:
            with deadline(seconds):
                await self._closing.wait()
        except TimeoutError:
            return


async def changed_within(memory: VmMemory, seconds: float) -> None:
    """Until something changes, or so long; never so short that no clock moves: what is due then would never be."""
    try:
        with deadline(max(seconds, LEAST_S)):
            await memory.changed.wait()
    except TimeoutError:
        return

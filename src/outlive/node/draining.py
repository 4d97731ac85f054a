"""Emptying this host, and taking its virtual machines back: one job at most, one virtual machine after the other.

``Hypervisor.spec.drain`` says which; the job looks at it before each virtual machine, so a wish that changes ends the
job after the move under way, and the opposite job begins. What is done with each is decided by ``flush.run`` on fresh
figures. A host counts as emptied only when nothing runs on it any more and nothing is on its way to it; while something
stays the job comes again.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.node.gauging import Gauge
from outlive.node.reporting import Reporter
from outlive.node.vacating import Vacator
from outlive.node.vm.departing import Departures
from outlive.node.vm.flushing import FlushStep
from outlive.node.vm.ordering import in_order
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import START, STOP, STOPPED_BY_DRAIN, active_move, assigned_to, state_of
from outlive.resources import ObjectRef, VirtualMachine
from outlive.resources.hosts import DomainState
from outlive.resources.vms import VirtualMachineStatus
from outlive.store import Store, list_all

AGAIN_S: Final = 15.0
"""The wait before what did not leave is tried again."""
INCOMPLETE: Final = "drain-incomplete"

_replace = msgspec.structs.replace
_log = get_logger("node.draining")


class Drainer:
    """See the module. ``poke`` says that the wish may have changed."""

    def __init__(
        self, store: Store, shared: VmHost, reporter: Reporter, gauge: Gauge, *, clock: Clock, ids: Ids
    ) -> None:
        self.active = False
        """Whether a job runs."""
        self._store = store
        self._shared = shared
        self._reporter = reporter
        self._departures = Departures(store, shared, clock=clock, ids=ids)
        self._vacator = Vacator(store, shared, reporter, gauge, self._departures, clock=clock)
        self._state: DomainState = ""
        self._stopped = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def poke(self) -> None:
        """Look at the wish."""
        self._wake.set()

    async def stop(self) -> None:
        """Begin nothing more; returns once the step under way has ended."""
        self._stopped = self._departures.stopped = True
        self._wake.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Follow the wish until cancelled."""
        while not self._stopped:
            await self._wake.wait()
            self._wake.clear()
            if not self._shared.keeper.standing or self._shared.wishes.hypervisor is None or self._stopped:
                continue
            self._state = self._state or self._shared.wishes.hypervisor.status.domain_state
            job = self._job()
            if job is None:
                continue
            self.active = True
            self._idle.clear()
            try:
                await self._run(job)
            except OutliveError as error:
                _log.warning("drain.failed", host=self._shared.host, job=job, error=str(error))
            self.active = False
            self._idle.set()
            await self._rest()

    def _job(self) -> Literal["flush", "unflush", "start", "leave"] | None:
        """What is to be done to get to what is wished; ``None``: nothing."""
        if self._shared.wishes.spec.drain:
            return None if self._state == "flushed" and not self._left() else "flush"
        if self._state in ("flush", "flushed", "unflush"):
            return "unflush"
        self._say("ready")
        if self._stopped_here():
            return "start"
        return "leave" if self._vacator.due() else None

    async def _rest(self) -> None:
        """After a job that left something; the wish is looked at meanwhile."""
        if self._job() in (None, "start", "leave"):
            return
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._wake.wait()
        except TimeoutError:
            self._wake.set()

    def _say(self, state: DomainState) -> None:
        if self._state != state or self._reporter.domain_state != state:
            _log.info("drain.state", host=self._shared.host, state=state)
            self._state = state
            self._reporter.domain_state = state
            self._reporter.poke()

    async def _cancelled(self, draining: bool) -> bool:
        """Whether the wish is another one by now, read again."""
        try:
            await self._shared.wishes.look()
        except OutliveError as error:
            _log.warning("drain.wish_not_read", host=self._shared.host, error=str(error))
        return self._stopped or self._shared.wishes.spec.drain != draining or not self._shared.keeper.standing

    async def _run(self, job: Literal["flush", "unflush", "start", "leave"]) -> None:
        if job == "start":
            for name in self._stopped_here():
                await self._start_again(name)
            return
        if job == "leave":
            await self._vacator.run()
            return
        self._say(job)
        subject = ObjectRef(kind="Hypervisor", name=self._shared.host)
        if job == "unflush":
            if await self._take_back():
                self._say("ready")
            await self._shared.faults.end(INCOMPLETE, subject)
            return
        if not await self._empty():
            return
        await self._shared.here.look()
        left = self._left()
        if not left:
            self._say("flushed")
            await self._shared.faults.end(INCOMPLETE, subject)
            return
        await self._shared.faults.raise_(
            INCOMPLETE,
            subject,
            f"{len(left)} virtual machines are still on {self._shared.host} or on their way to it, such as {left[0]}",
            remedy="make room on other hosts, widen their host limits, or stop them",
            delta=5,
        )

    # Emptying

    def _left(self) -> list[str]:
        """Virtual machines that are here, and those that come: by a move, or because recovery sent them."""
        host, here = self._shared.host, self._shared.here.names()
        coming = (vm.name for vm in self._shared.informer.items() if assigned_to(vm) == host and _on_its_way(vm))
        return sorted({*here, *coming})

    async def _empty(self) -> bool:
        """Every virtual machine here, once; ``False`` if that was cancelled."""
        for name in [one.vm for one in self._shared.here.present()]:
            vm = await self._departures.settled(name)
            if await self._cancelled(draining=True):
                return False
            if vm is None or name not in self._shared.here.domains or active_move(vm) is not None:
                continue
            nodes = await self._departures.figures()
            step = self._departures.decide(vm, "flush", nodes)
            if step is not None and await self._leave(vm, step):
                await self._departures.gone(name)
        return True

    async def _leave(self, vm: VirtualMachine, step: FlushStep) -> bool:
        """Begin that step; whether the virtual machine is on its way."""
        if step.do == "migrate" and step.to is not UNSET:
            home = step.last_node if step.last_node is not UNSET else ""
            return await self._departures.send(vm, step.to, home)
        return step.do == "shutdown" and await self._departures.shut_down(vm)

    # Taking back

    async def _take_back(self) -> bool:
        """Every virtual machine that belongs here, once; ``False`` if that was cancelled."""
        host = self._shared.host
        after = {
            vm.name: vm.spec.start_after
            async for vm in list_all(self._store, VirtualMachine)
            if vm.status.home == host or assigned_to(vm) == host
        }
        for name in in_order(tuple(after), after):
            if await self._cancelled(draining=False):
                return False
            vm = await self._shared.records.read(self._store, name)
            if vm is None or (vm.status.home == assigned_to(vm) == host and state_of(vm) == START):
                continue
            vm = await self._departures.settled(name)
            if await self._cancelled(draining=False):
                return False  # it may have taken long to settle
            step = None if vm is None or active_move(vm) is not None else self._departures.decide(vm, "unflush", ())
            if vm is not None and step is not None:
                await self._take(vm, step)
        return True

    async def _take(self, vm: VirtualMachine, step: FlushStep) -> None:
        if step.do in ("migrate_home", "rehome"):
            self._say("unflush")
            if await self._departures.send(vm, self._shared.host, ""):
                await self._departures.gone(vm.name)
            return
        if step.do == "start":
            await self._start_again(vm.name)

    def _stopped_here(self) -> list[str]:
        """Virtual machines of this host that only a drain has stopped: they are to start whenever it is ready.

        Also those that came to it since, or ended after it had taken the others back.
        """
        host, known = self._shared.host, self._shared.informer.items()
        mine = [vm for vm in known if assigned_to(vm) == host and vm.status.reason == STOPPED_BY_DRAIN]
        return [vm.name for vm in mine if state_of(vm) == STOP]

    async def _start_again(self, name: str) -> None:
        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != self._shared.host or state_of(now) != STOP:
                return None
            return _replace(now.status, phase=START, reason="", home=self._shared.host)

        await self._shared.records.change(self._store, name, change)


def _on_its_way(vm: VirtualMachine) -> bool:
    """To where it is assigned: a move has yet to end, or its recovery."""
    move, recovery, where = active_move(vm), vm.status.recovery, assigned_to(vm)
    return (move is not None and move.target == where) or (
        recovery is not None and recovery.phase == "assigned" and recovery.host == where
    )

"""Emptying this host, and taking its virtual machines back: one job at most, one virtual machine after the other.

``Hypervisor.spec.drain`` says which; the job looks at it before each virtual machine, so a wish that changes ends the
job after the move under way, and the opposite job begins. What is done with each is decided by ``flush.run`` on fresh
figures. A host counts as emptied only when nothing runs on it any more; while something stays the job comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.node.decisions import FLUSH_RUN
from outlive.node.reporting import Reporter
from outlive.node.vm.flushing import FlushedVm, FlushInput, FlushStep
from outlive.node.vm.relocating import MEBIBYTE, away_from, figures, relocated
from outlive.node.vm.selecting import NodeFigures, booked
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import START, STOP, STOPPED_BY_DRAIN, active_move, assigned_to, state_of
from outlive.resources import ObjectRef, VirtualMachine
from outlive.resources.hosts import DomainState
from outlive.resources.vms import VirtualMachineStatus
from outlive.store import Store, list_all

WATCH_S: Final = 1.0
"""How often a virtual machine on its way is looked at."""
AGAIN_S: Final = 15.0
"""The wait before what did not leave is tried again."""
ON_THE_WAY: Final = frozenset({"migrate", "migrate-live", "unmigrate", "shutdown", "restart"})
"""States that are awaited."""
INCOMPLETE: Final = "drain-incomplete"

_replace = msgspec.structs.replace
_log = get_logger("node.draining")


class Drainer:
    """See the module. ``poke`` says that the wish may have changed."""

    def __init__(self, store: Store, shared: VmHost, reporter: Reporter, *, clock: Clock, ids: Ids) -> None:
        self.active = False
        """Whether a job runs."""
        self._store = store
        self._shared = shared
        self._reporter = reporter
        self._clock = clock
        self._ids = ids
        self._state: DomainState = ""
        self._stopped = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._late: dict[str, tuple[str, VirtualMachine]] = {}
        """Virtual machines that are on their way longer than they were waited for: they stay booked."""

    def poke(self) -> None:
        """Look at the wish."""
        self._wake.set()

    async def stop(self) -> None:
        """Begin nothing more; returns once the step under way has ended."""
        self._stopped = True
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

    def _job(self) -> Literal["flush", "unflush"] | None:
        """What is to be done to get to what is wished; ``None``: nothing."""
        if self._shared.wishes.spec.drain:
            return None if self._state == "flushed" and not self._shared.here.names() else "flush"
        if self._state in ("flush", "flushed", "unflush"):
            return "unflush"
        self._say("ready")
        return None

    async def _rest(self) -> None:
        """After a job that left something; the wish is looked at meanwhile."""
        if self._job() is None:
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

    async def _run(self, job: Literal["flush", "unflush"]) -> None:
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
        left = self._shared.here.names()
        if not left:
            self._say("flushed")
            await self._shared.faults.end(INCOMPLETE, subject)
            return
        await self._shared.faults.raise_(
            INCOMPLETE,
            subject,
            f"{len(left)} virtual machines are still on {self._shared.host}, such as {left[0]}",
            remedy="make room on other hosts, widen their host limits, or stop them",
            delta=5,
        )

    # Emptying

    async def _empty(self) -> bool:
        """Every virtual machine here, once; ``False`` if that was cancelled."""
        for name in [one.vm for one in self._shared.here.present()]:
            if await self._cancelled(draining=True):
                return False
            vm = await self._settled(name)
            if vm is None or name not in self._shared.here.domains or active_move(vm) is not None:
                continue
            nodes = await self._figures()
            step = self._decide(vm, "flush", nodes)
            if step is not None and await self._leave(vm, step):
                await self._gone(name)
        return True

    async def _figures(self) -> tuple[NodeFigures, ...]:
        """What hosts have published, and what is still on its way to them."""
        nodes = await figures(self._store)
        for name, (target, vm) in sorted(self._late.items()):
            now = await self._shared.records.read(self._store, name)
            if now is None or active_move(now) is None:
                del self._late[name]
                continue
            need = vm.spec.resources
            memory, vcpus = need.memory_bytes / MEBIBYTE, need.cpu_milli / 1000
            nodes = tuple(booked(one, memory=memory, vcpus=vcpus) if one.name == target else one for one in nodes)
        return nodes

    def _decide(
        self, vm: VirtualMachine, op: Literal["flush", "unflush"], nodes: tuple[NodeFigures, ...]
    ) -> FlushStep | None:
        shared = self._shared
        state = state_of(vm)
        item = FlushedVm(
            uuid=vm.name,
            state=state,
            node=assigned_to(vm) or None,
            memory=vm.spec.resources.memory_bytes / MEBIBYTE,
            vcpus=vm.spec.resources.cpu_milli / 1000,
            last_node=away_from(vm),
            node_limit=vm.spec.host_limit or None,
            selector=vm.spec.selector or None,
            autostart=vm.spec.autostart or vm.status.reason == STOPPED_BY_DRAIN,
        )
        given = FlushInput(
            node=shared.host,
            op=op,
            vms=(item,),
            nodes=nodes,
            running=(vm.name,) if op == "flush" else (),
            default_selector=shared.wishes.cluster_spec.default_selector or None,
            require_fit=shared.settings.require_fit,
            mem_means=shared.settings.mem_means,
        )
        return next(iter(shared.decisions.use(FLUSH_RUN, given, subject=vm.name).steps), None)

    async def _leave(self, vm: VirtualMachine, step: FlushStep) -> bool:
        """Begin that step; whether the virtual machine is on its way."""
        if step.do == "migrate" and step.to is not UNSET:
            home = step.last_node if step.last_node is not UNSET else ""
            self._late[vm.name] = (step.to, vm)
            return await self._send(vm, step.to, home)
        if step.do != "shutdown":
            return False

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != self._shared.host or state_of(now) != START:
                return None
            return _replace(now.status, phase="shutdown", reason=STOPPED_BY_DRAIN)

        return await self._shared.records.change(self._store, vm.name, change) is not None

    async def _send(self, vm: VirtualMachine, target: str, home: str) -> bool:
        source, move_id = assigned_to(vm), self._ids.uuid()
        await self._shared.records.relabel(self._store, vm.name, target)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != source or active_move(now) is not None or state_of(now) != state_of(vm):
                return None
            phase = "migrate" if state_of(now) == START else now.status.phase
            return relocated(now, target=target, home=home, phase=phase, move_id=move_id)

        after = await self._shared.records.change(self._store, vm.name, change)
        if after is not None and assigned_to(after) != target:
            await self._shared.records.relabel(self._store, vm.name, assigned_to(after))
            return False
        return after is not None

    async def _settled(self, name: str) -> VirtualMachine | None:
        """The virtual machine once nothing of it is on its way, or as it is after the limit."""
        return await self._until(name, lambda vm: state_of(vm) not in ON_THE_WAY)

    async def _gone(self, name: str) -> None:
        """Until it has left, or came back; after the limit the next one goes all the same."""
        vm = await self._until(name, lambda now: state_of(now) not in ON_THE_WAY and active_move(now) is None)
        if vm is None or active_move(vm) is None:
            self._late.pop(name, None)
        else:
            _log.warning("drain.late", host=self._shared.host, vm=name, state=state_of(vm))

    async def _until(self, name: str, reached: Callable[[VirtualMachine], bool]) -> VirtualMachine | None:
        deadline_s = self._clock.monotonic() + float(self._shared.settings.drain_wait)
        while True:
            vm = await self._shared.records.read(self._store, name)
            if vm is None or reached(vm) or self._clock.monotonic() >= deadline_s or self._stopped:
                return vm
            await self._clock.sleep(WATCH_S)

    # Taking back

    async def _take_back(self) -> bool:
        """Every virtual machine that belongs here, once; ``False`` if that was cancelled."""
        host = self._shared.host
        names = [
            vm.name
            async for vm in list_all(self._store, VirtualMachine)
            if vm.status.home == host or assigned_to(vm) == host
        ]
        for name in names:
            if await self._cancelled(draining=False):
                return False
            vm = await self._shared.records.read(self._store, name)
            if vm is None or (vm.status.home == assigned_to(vm) == host and state_of(vm) == START):
                continue
            vm = await self._settled(name)
            step = None if vm is None or active_move(vm) is not None else self._decide(vm, "unflush", ())
            if vm is not None and step is not None:
                await self._take(vm, step)
        return True

    async def _take(self, vm: VirtualMachine, step: FlushStep) -> None:
        if step.do in ("migrate_home", "rehome"):
            self._say("unflush")
            if await self._send(vm, self._shared.host, ""):
                await self._gone(vm.name)
            return
        if step.do != "start":
            return

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != self._shared.host or state_of(now) != STOP:
                return None
            return _replace(now.status, phase=START, reason="", home=self._shared.host)

        await self._shared.records.change(self._store, vm.name, change)

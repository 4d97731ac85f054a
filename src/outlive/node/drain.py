"""Draining this host, taking its virtual machines back, and evacuating it while it degrades: one job at a time.

``Hypervisor.spec.drain`` says which; it is read before each virtual machine, so that a job ends after the migration
under way when it changes. A host counts as drained only when nothing runs on it any more and nothing is on its way to
it; while something stays the job comes again. A host that degrades is evacuated by live migrations if ``host.leave``
says so: nobody is stopped, nobody comes back by itself, and home stays home.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Literal

import msgspec

from outlive.base import NotFound, OutliveError, deadline, get_logger
from outlive.node.health import LEAVE_HOST, EvacuationInput, HealthPeer, Leaver, LeaveResult, LeaveVerdict, explain_stay
from outlive.node.health_monitor import HealthMonitor, PeerHealth
from outlive.node.relocation import RelocationResult, Relocations, prefers_return
from outlive.node.status import HostReporter
from outlive.node.vm.context import VmContext
from outlive.node.vm.start_order import sort_by_order
from outlive.node.vm.states import VmState, active_move, set_phase, state_of
from outlive.resources import Coverage, DomainState, ObjectRef, RecoveryPhase, VirtualMachine, VirtualMachineStatus
from outlive.resources.reasons import FaultCode, VmReason
from outlive.store import list_all

IN_LINE_S: Final = 10.0
"""The wait of a host that waits in line."""
EVACUATE_AGAIN_S: Final = 30.0
"""The wait after nothing came of it; it doubles …"""
EVACUATE_CAP_S: Final = 300.0
"""… up to this."""
FAILING_S: Final = 600.0
"""How long the virtual machines stay after live moves failed one after the other."""
PEERS_S: Final = 30.0
"""How often the other hosts are looked at while virtual machines leave."""
EMPTY_RATHER: Final = (LeaveVerdict.ALONE, LeaveVerdict.LIKE_OTHERS, LeaveVerdict.IN_LINE)
"""Reasons to stay that say nothing where nobody is there."""
ATTEMPTS_KEPT: Final = 10_000
"""Virtual machines of which it is remembered that they would not leave."""
_log = get_logger("node.drain")


class Evacuation:
    """See the module. The drainer asks ``is_due`` and carries ``run`` out, between its own jobs."""

    def __init__(
        self,
        node: VmContext,
        reporter: HostReporter,
        health: HealthMonitor,
        relocations: Relocations,
    ) -> None:
        self._node = node
        self._reporter = reporter
        self._health = health
        self._relocations = relocations
        self._clock = node.clock
        self._others = PeerHealth(node.store, node.host, node.clock)
        self._not_before_s = 0.0
        self._wait_s = EVACUATE_AGAIN_S
        self._failures = 0
        """Live moves in a row that failed."""
        self._failed_s = 0.0
        self._tried: dict[str, None] = {}
        """Virtual machines that would not leave in this time of degrading."""
        self._leaves = False
        self._answer: LeaveResult | None = None
        self._looked_s = 0.0

    def is_due(self) -> bool:
        """Whether there is something to look at."""
        if self._health.degrading_for_s is None:
            self._not_before_s, self._wait_s = 0.0, EVACUATE_AGAIN_S
            self._failures = 0
            self._tried.clear()
            self._answer = None
            return False
        return self._clock.monotonic() >= self._not_before_s

    async def run(self) -> None:
        """Ask whether they leave; if so, let them, one after the other, until something says no."""
        answer = await self._ask(fresh=True)
        if not answer.go:
            nobody = answer.why in EMPTY_RATHER and not self._node.domains.list_present()
            self._wait(answer.why)
            self._say(go=False, why=LeaveVerdict.LEFT if nobody else answer.why)
            return
        self._leaves = True
        self._say(go=True)
        _log.info("host.left", host=self._node.host)
        try:
            why = await self._move_all()
        finally:
            self._leaves = False
        self._wait(why)
        self._say(go=False, why=why)

    def _say(self, *, go: bool, why: str = "") -> None:
        if self._health.leave(go=go, why=why):
            self._reporter.notify()

    def _wait(self, why: str) -> None:
        now, settle_s = self._clock.monotonic(), self._health.policy.settle_s
        if why == LeaveVerdict.UNSETTLED:
            self._not_before_s = now + max(0.0, settle_s - (self._health.degrading_for_s or 0.0))
        elif why == LeaveVerdict.IN_LINE:
            self._not_before_s = now + IN_LINE_S
        else:
            self._not_before_s = now + self._wait_s
            self._wait_s = min(2 * self._wait_s, EVACUATE_CAP_S)

    # Asking

    async def _ask(self, *, fresh: bool = False) -> LeaveResult:
        """What the policy and the other hosts say."""
        now = self._clock.monotonic()
        if self._failures and now - self._failed_s > FAILING_S:
            self._failures = 0
            self._tried.clear()
        alone = self._decide(())
        if alone.why not in (LeaveVerdict.GO, LeaveVerdict.ALONE):
            return alone
        if self._answer is None or fresh or now - self._looked_s > PEERS_S:
            peers = await self._others.list_peers(self._health.policy.common_share)
            self._answer, self._looked_s = self._decide(peers), now
            if self._answer.why is LeaveVerdict.IN_LINE:
                self._answer = self._decide(await self._others.filter_living(peers))
            self._health.together = self._answer.together
        return self._answer

    def _decide(self, peers: tuple[HealthPeer, ...]) -> LeaveResult:
        node, policy = self._node, self._health.policy
        now, spec = self._clock.now(), node.desired.spec
        given = EvacuationInput(
            host=node.host,
            action=policy.action,
            degrading_for=self._health.degrading_for_s,
            settle=max(0.0, policy.settle_s),
            common_share=max(0.0, policy.common_share),
            leaving_share=max(0.0, policy.leaving_share),
            failures_limit=max(0, policy.failures),
            causes=self._health.standing.causes,
            scores=self._health.read_figures()[0],
            leaves=self._leaves,
            draining=spec.drain or self._reporter.domain_state not in ("", "ready"),
            maintenance=node.desired.active_maintenance(now) != "",
            storage_lost=bool(node.losses.by_vm),
            failures=self._failures,
            peers=peers,
        )
        return node.decisions.use(LEAVE_HOST, given, subject=node.host)

    # Leaving

    async def _move_all(self) -> str:
        """Every virtual machine that may leave, once, those that restart first first; why that ended."""
        refused = False
        here = [one.vm for one in self._node.domains.list_present() if one.vm not in self._tried]
        vms = {name: await self._node.find(name) for name in here}
        priorities = {name: vm.spec.restart_priority or 0 for name, vm in vms.items() if vm is not None}
        for name in sorted(priorities, key=lambda name: (-priorities[name], name)):
            await self._node.desired.try_refresh()
            if not self._node.lease.held or self._relocations.stopped:
                return LeaveVerdict.UNSETTLED
            answer = await self._ask()
            if not answer.go:
                return answer.why
            match await self._move_one(name):
                case RelocationResult.FAILED:
                    self._failures += 1
                    self._failed_s = self._clock.monotonic()
                    if len(self._tried) < ATTEMPTS_KEPT:
                        self._tried[name] = None
                case RelocationResult.LEFT:
                    self._failures = 0
                case RelocationResult.NO_ROOM:
                    refused = True
                case RelocationResult.STAYS:
                    pass
        answer = await self._ask()
        if not answer.go:
            return answer.why
        return LeaveVerdict.NO_ROOM if refused else LeaveVerdict.LEFT

    async def _move_one(self, name: str) -> RelocationResult:
        vm = await self._relocations.wait_settled(name)
        if vm is None or name not in self._node.domains.by_vm:
            return RelocationResult.STAYS
        try:
            required: int | None = (await self._node.store.get(Coverage, vm.name)).status.required
        except NotFound:
            required = None
        leaver = Leaver(
            state=state_of(vm),
            power=vm.spec.power_state,
            method=vm.spec.move_method,
            moving=active_move(vm) is not None,
            required=required,
        )
        return RelocationResult.STAYS if explain_stay(leaver) else await self._relocations.leave(vm, evacuate=True)


AGAIN_S: Final = 15.0
"""The wait before what did not leave is tried again."""
_replace = msgspec.structs.replace


class DrainController:
    """See the module. ``notify`` when what is wanted may have changed."""

    def __init__(self, node: VmContext, reporter: HostReporter, health: HealthMonitor) -> None:
        self._node = node
        self._reporter = reporter
        self._relocations = Relocations(node)
        self._evacuation = Evacuation(node, reporter, health, self._relocations)
        self._state: DomainState = ""
        self._stopped = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def active(self) -> bool:
        """Whether a job runs."""
        return not self._idle.is_set()

    def notify(self) -> None:
        """Look at what is wanted."""
        self._wake.set()

    async def stop(self) -> None:
        """Begin nothing more; returns once the step under way has ended."""
        self._stopped = self._relocations.stopped = True
        self._wake.set()
        await self._idle.wait()

    async def vacate(self, limit_s: float) -> None:
        """Before the machine goes down: have what can move leave, in a drain's order; what finds no room stays.

        The host counts as being emptied: it takes nothing new, and once it is up again its VMs return to it.
        """
        self._stopped = True
        self._wake.set()
        try:
            with deadline(limit_s):
                await self._idle.wait()
                self._say("flush")
                await self._empty(self._lost_membership, stay=True)
        except TimeoutError:
            _log.warning("drain.no_time_left", host=self._node.host, limit_s=limit_s, left=len(self._remaining_vms()))

    async def _lost_membership(self) -> bool:
        return not self._node.lease.held

    async def run(self) -> None:
        """Do what is wanted until cancelled."""
        while not self._stopped:
            await self._wake.wait()
            self._wake.clear()
            if not self._node.lease.held or self._node.desired.hypervisor is None or self._stopped:
                continue
            self._state = self._state or self._node.desired.hypervisor.status.domain_state
            job = self._next_job()
            if job is None:
                continue
            self._idle.clear()
            try:
                await self._run(job)
            except OutliveError as error:
                _log.warning("drain.failed", host=self._node.host, job=job, error=str(error))
            self._idle.set()
            await self._rest()

    def _next_job(self) -> Literal["flush", "unflush", "start", "leave"] | None:
        """What is to be done to get to what is wanted; ``None``: nothing."""
        if self._node.frozen:
            return None
        if self._node.desired.spec.drain:
            return None if self._state == "flushed" and not self._remaining_vms() else "flush"
        if self._state in ("flush", "flushed", "unflush"):
            return "unflush"
        self._say("ready")
        if self._find_stopped():
            return "start"
        return "leave" if self._evacuation.is_due() else None

    async def _rest(self) -> None:
        """After a job that left something; what is wanted is looked at meanwhile."""
        if self._next_job() in (None, "start", "leave"):
            return
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._wake.wait()
        except TimeoutError:
            self._wake.set()

    def _say(self, state: DomainState) -> None:
        if self._state != state or self._reporter.domain_state != state:
            _log.info("drain.state", host=self._node.host, state=state)
            self._state = state
            self._reporter.domain_state = state
            self._reporter.notify()

    async def _is_cancelled(self, draining: bool) -> bool:
        """Whether something else is wanted by now, read again."""
        await self._node.desired.try_refresh()
        called_off = self._node.desired.spec.drain != draining or self._node.frozen
        return self._stopped or called_off or not self._node.lease.held

    async def _run(self, job: Literal["flush", "unflush", "start", "leave"]) -> None:
        if job == "start":
            for name in self._find_stopped():
                await self._start_vm(name)
            return
        if job == "leave":
            await self._evacuation.run()
            return
        self._say(job)
        subject = ObjectRef(kind="Hypervisor", name=self._node.host)
        if job == "unflush":
            if await self._return_vms():
                self._say("ready")
            self._node.faults.clear(FaultCode.DRAIN_INCOMPLETE, subject)
            return
        if not await self._empty(partial(self._is_cancelled, draining=True)):
            return
        await self._node.domains.refresh()
        left = self._remaining_vms()
        if not left:
            self._say("flushed")
            self._node.faults.clear(FaultCode.DRAIN_INCOMPLETE, subject)
            return
        self._node.faults.activate(FaultCode.DRAIN_INCOMPLETE, subject, count=len(left), vm=left[0])

    # Emptying

    def _remaining_vms(self) -> list[str]:
        """Virtual machines that are here, and those that come: by a move, or because recovery sent them."""
        host, found = self._node.host, set(self._node.domains.list_names())
        for vm in self._node.informer.items():
            move, recovery = active_move(vm), vm.status.recovery
            recovers = recovery is not None and recovery.phase is RecoveryPhase.ASSIGNED and recovery.host == host
            if vm.host == host and (recovers or (move is not None and move.target == host)):
                found.add(vm.name)
        return sorted(found)

    async def _empty(self, cancelled: Callable[[], Awaitable[bool]], *, stay: bool = False) -> bool:
        """Every virtual machine here, once; ``False`` if that was cancelled. ``stay``: a VM that finds no room
        stays."""
        for name in [one.vm for one in self._node.domains.list_present()]:
            vm = await self._relocations.wait_settled(name)
            if await cancelled():
                return False
            if vm is None or name not in self._node.domains.by_vm or active_move(vm) is not None:
                continue
            await self._relocations.leave(vm, stay=stay)
        return True

    # Taking back

    async def _return_vms(self) -> bool:
        """Every virtual machine that belongs here, once; ``False`` if that was cancelled."""
        host = self._node.host
        after = {
            vm.name: vm.spec.start_after
            async for vm in list_all(self._node.store, VirtualMachine)
            if vm.status.home == host or vm.host == host or prefers_return(vm, host)
        }
        for name in sort_by_order(tuple(after), after):
            if await self._is_cancelled(draining=False):
                return False
            vm = await self._node.read(name)
            if vm is None or (vm.status.home == vm.host == host and state_of(vm) == VmState.START):
                continue
            vm = await self._relocations.wait_settled(name)
            if await self._is_cancelled(draining=False):
                return False  # it may have taken long to settle
            step = None if vm is None or active_move(vm) is not None else await self._relocations.return_vm(vm)
            if vm is None or step is None:
                continue
            if step.do in ("migrate_home", "rehome"):
                self._say("unflush")
                if await self._relocations.send(vm, host, ""):
                    await self._relocations.wait_gone(vm.name)
            elif step.do == "start":
                await self._start_vm(vm.name)
        return True

    def _find_stopped(self) -> list[str]:
        """Virtual machines of this host that only a drain has stopped: they are to start whenever it is ready.

        Also those that came to it since, or ended after it had taken the others back.
        """
        host, known = self._node.host, self._node.informer.items()
        mine = [vm for vm in known if vm.host == host and vm.status.reason == VmReason.STOPPED_BY_DRAIN]
        return [vm.name for vm in mine if state_of(vm) == VmState.STOP]

    async def _start_vm(self, name: str) -> None:
        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if now.host != self._node.host or state_of(now) != VmState.STOP:
                return None
            return _replace(set_phase(now.status, VmState.START), home=self._node.host)

        await self._node.change(name, change)

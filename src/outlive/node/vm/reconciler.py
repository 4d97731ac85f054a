"""The reconciler of one virtual machine: what is here of it, what is wanted, and the one job that follows.

The order of the questions is what counts: what may yet run, what was received, migrations, runs that nobody holds, and
only then ``vm.event``. Level-triggered: what was missed is seen at the next pass. Whether a start is allowed is not
decided here, but by the protocol steps that the jobs take. A worker exists only while there is something to do or to
wait for; jobs of one virtual machine never overlap, and a job that waits is woken by every change.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from outlive.base.deadline import deadline
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger, new_global_request_id, request_context
from outlive.base.random import Random
from outlive.node.membership.registration import tell_unknown
from outlive.node.migration.migration import Migrations
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.requests import RequestHandler
from outlive.node.vm.start import BACK_OFF_S, SOON_S, DomainCreator, VmStarter
from outlive.node.vm.states import (
    VM_EVENT,
    VmAction,
    VmEventInput,
    VmState,
    active_move,
    assigned_to,
    ended,
    in_phase,
    mine,
    of_host,
    rejected_by,
    state_of,
)
from outlive.node.vm.stop import Shutdown, VmStopper
from outlive.resources import HOST_LABEL, ObjectRef, VirtualMachine
from outlive.resources.reasons import VmReason, reason
from outlive.resources.reasons.faults import FaultCode
from outlive.resources.vms import VirtualMachineStatus
from outlive.runtime.tasks import OrderedTaskGroup

CRASH_RESET_S: Final = 600.0
"""After running for so long, a virtual machine that ends by itself begins with the first back-off again."""
RELABEL_S: Final = 20.0
"""How long a label may name another host than the one that is assigned, as it does for a moment in every move."""
ORPHAN_S: Final = 10.0
"""How long a document must have been missing before its domain is destroyed."""
UNKNOWN_S: Final = 30.0
"""How often is looked for the document of a domain that the store does not know."""
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


class VmReconciler:
    """See the module."""

    def __init__(
        self,
        shared: VmContext,
        creator: DomainCreator,
        starter: VmStarter,
        ender: VmStopper,
        migrations: Migrations,
        requests: RequestHandler,
    ) -> None:
        self._shared = shared
        self._creator = creator
        self._starter = starter
        self._ender = ender
        self._migrations = migrations
        self._requests = requests
        self.cleaned = True
        """Whether nothing of an earlier epoch is left to be taken over; until then no foreign run is destroyed."""

    async def reconcile(self, name: str, memory: VmMemory) -> float | None:
        """One look and at most one job; in how many seconds to look again, ``None``: when something changes."""
        shared = self._shared
        if not shared.keeper.held or not shared.here.looked:
            return None  # called again once the host has entered
        starting = shared.here.domains.get(name)
        if memory.late_create or name in shared.here.creating or _starts(starting):
            await shared.here.look()
            if not await self._creator.followed(name, memory):
                return SOON_S  # nothing is decided about what may yet run
        cached = shared.informer.get(name)
        if cached is not None and self._settled(cached) and (shared.known(name) or name not in shared.here.domains):
            return None
        incarnation = shared.desired.incarnation
        vm = await shared.records.read(shared.daemon, name)
        domain = shared.here.domains.get(name)
        if vm is None and domain is not None:
            return await self._orphan(name, memory)
        memory.orphaned_s = None
        if memory.unknown:
            memory.unknown = False
            shared.faults.clear(FaultCode.UNKNOWN_VM, ObjectRef(kind="VirtualMachine", name=name))
        if vm is None:
            shared.read_in.pop(name, None)
            return None
        shared.read_in[name] = incarnation
        if self._requests.asked(vm) and assigned_to(vm) == shared.host:
            await self._requests.answer(vm)
            return 0.0
        if domain is not None and domain.state is DomainState.RUNNING and self._received(vm, domain):
            return await self._migrations.adopt(vm)
        move = active_move(vm)
        if move is not None and shared.host in (move.source, move.target):
            if shared.host == move.target and self._ran_in_a_restored_store(domain):
                if not self.cleaned:
                    return 1.0
                if domain is not None and self._is_run_of(vm, domain):
                    return await self._migrations.keep(vm)  # that move is over: it runs here
            label_s = await self._labelled(vm, memory)  # the target hears of it by its label
            wait_s = await self._migrations.step(vm, memory)
            return _sooner(wait_s, label_s)
        if domain is not None and not self._is_run_of(vm, domain):
            return await self._stray(vm, domain)
        if domain is not None and domain.state in (DomainState.INCOMING, DomainState.HANDED_OVER):
            return await self._migrations.left_over(vm, domain, memory)
        label_s = await self._labelled(vm, memory)
        wait_s = await self._act(vm, domain, memory)
        return _sooner(wait_s, label_s)

    async def _labelled(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """Set the label right where whoever changed it did not finish; until when to wait for that, else ``None``."""
        shared, label = self._shared, vm.metadata.labels.get(HOST_LABEL, "")
        if assigned_to(vm) in ("", label) or shared.host not in (assigned_to(vm), label):
            memory.mislabelled_s = None
            return None
        now_s = shared.clock.monotonic()
        if memory.mislabelled_s is None:
            memory.mislabelled_s = now_s
        left_s = memory.mislabelled_s + RELABEL_S - now_s
        if left_s > 0:
            return left_s
        memory.mislabelled_s = None
        _log.warning("vm.relabelled", vm=vm.name, label=label, assigned=assigned_to(vm))
        await shared.records.relabel(shared.move, vm.name, assigned_to(vm))
        return None

    def _settled(self, vm: VirtualMachine) -> bool:
        """Whether there is certainly nothing to do: it runs here as it should, or it neither is nor belongs here."""
        me, domain = self._shared.keeper.me, self._shared.here.domains.get(vm.name)
        if self._requests.asked(vm) or active_move(vm) is not None:
            return False
        here = assigned_to(vm) == me.host
        if assigned_to(vm) not in ("", vm.metadata.labels.get(HOST_LABEL, "")):
            return False
        if domain is None:
            idle = not here or state_of(vm) in (VmState.STOP, VmState.DISABLE, VmState.FAIL) or rejected_by(vm, me.host)
            return idle and not of_host(vm, me) and state_of(vm) != VmState.SHUTDOWN
        entries = mine(vm, me)
        alone = len(vm.status.holders) == 1 and len(entries) == 1
        seen = alone and entries[0].run_id == domain.run_id and entries[0].seen == "running"
        known = vm.status.phase == VmState.START and not vm.status.reason
        return here and seen and known and domain.state is DomainState.RUNNING and state_of(vm) == VmState.START

    def _is_run_of(self, vm: VirtualMachine, domain: Domain) -> bool:
        """Whether the domain is a run that this host holds now."""
        return any(one.run_id == domain.run_id for one in mine(vm, self._shared.keeper.me))

    def _ran_in_a_restored_store(self, domain: Domain | None) -> bool:
        """Whether it runs here, and the store had gone back when this host entered."""
        entered = self._shared.keeper.entered
        if entered is None or not entered.restored or domain is None:
            return False
        return domain.state is DomainState.RUNNING

    def _received(self, vm: VirtualMachine, domain: Domain) -> bool:
        """Whether the domain came from another host, and this one has not made it its own yet."""
        entries = mine(vm, self._shared.keeper.me)
        return any(one.run_id == domain.run_id and one.role == "incoming" for one in entries)

    async def _orphan(self, name: str, memory: VmMemory) -> float | None:
        """A domain without a document: destroyed once it is certain that somebody has deleted that.

        That this daemon has read it, in the store as it is now, is the only sign of it: a restored store does not know
        what was made after its backup. Anything else runs on, and it is reported to an operator.
        """
        shared = self._shared
        now_s = shared.clock.monotonic()
        if memory.orphaned_s is None:
            memory.orphaned_s = now_s
        certain = now_s - memory.orphaned_s >= ORPHAN_S and shared.keeper.acknowledged_since(memory.orphaned_s)
        if not self.cleaned or not certain:
            return ORPHAN_S
        await shared.desired.look()  # whether it is still the same store
        if not shared.known(name):
            memory.unknown = True
            tell_unknown(shared.faults, shared.host, name)
            return UNKNOWN_S
        _log.warning("vm.orphan_destroyed", vm=name, host=shared.host)
        return None if await self._ender.destroy(name) else ORPHAN_S

    async def _stray(self, vm: VirtualMachine, domain: Domain) -> float | None:
        """A domain of a run that is not held: destroyed, unless it may still be taken over."""
        if not self.cleaned:
            return 1.0
        if not await self._shared.keeper.stands():
            self._shared.keeper.renew_soon()
            return 1.0
        _log.warning("vm.stray_destroyed", vm=vm.name, host=self._shared.host, run_id=domain.run_id)
        return 0.0 if await self._ender.destroy(vm.name, run_id=domain.run_id) else 1.0

    async def _act(self, vm: VirtualMachine, domain: Domain | None, memory: VmMemory) -> float | None:
        shared, name = self._shared, vm.name
        if domain is not None and domain.state is DomainState.OFF:
            await self._ender.destroy(name, run_id=domain.run_id)
            return 0.0
        state = state_of(vm)
        view = VmEventInput(
            this_node=shared.host, state=state, node=assigned_to(vm) or None, running=domain is not None
        )
        action = shared.decisions.use(VM_EVENT, view, subject=name).action
        match action:
            case VmAction.ADOPT:
                return await self._adopt(vm, domain, memory)
            case VmAction.SETTLE_START | VmAction.WRITE_START | VmAction.RECEIVE:
                # A move of which no record is left is over: the virtual machine is to run where it is assigned.
                await self._write(name, VmState.START)
                return 0.0
            case VmAction.START:
                return await self._start(vm, memory)
            case VmAction.SHUTDOWN:
                return await self._shut_down(vm, memory)
            case VmAction.RESTART:
                return await self._restart(name, memory)
            case VmAction.DESTROY:
                return await self._destroy(vm, memory)
            case VmAction.SETTLE_STOP:
                return await self._stopped(vm, memory)
            case VmAction.FORGET if domain is None and vm.status.reason == VmReason.TO_BE_DISABLED:
                return await self._stopped(vm, memory)  # whoever stopped it for that did not come to say so
            case VmAction.TERMINATE | VmAction.SEND | VmAction.SEND_LIVE:
                return await self._terminate(vm)
            case _:
                return await self._forget(vm, memory)

    async def _adopt(self, vm: VirtualMachine, domain: Domain | None, memory: VmMemory) -> float | None:
        """It runs where it should: say so, and clear away entries of runs that are over."""
        wait_s = await self._starter.settle(vm.name, memory)
        if domain is None or len(vm.status.holders) == 1:
            return wait_s
        if any(one.run_id != domain.run_id for one in of_host(vm, self._shared.keeper.me)):
            released = await self._ender.release(vm.name, but=domain.run_id)
            return 0.0 if released else 5.0
        return await self._migrations.tidy(vm)

    async def _start(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """Start, unless this host has said that it cannot, or it ended by itself just now."""
        if rejected_by(vm, self._shared.host):
            return await self._forget(vm, memory)
        if any(one.seen for one in mine(vm, self._shared.keeper.me)):
            return await self._crashed(vm, memory)
        if vm.status.phase == VmState.STOP:
            await self._write(vm.name, VmState.START)
        return await self._starter.start(vm, memory)

    async def _crashed(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """Its domain ended by itself: say so, and start it again after a while that grows."""
        shared = self._shared
        now_s = shared.clock.monotonic()
        since_s, memory.running_since_s = memory.running_since_s, None
        calm = since_s is not None and now_s - since_s >= CRASH_RESET_S
        memory.crashes = 1 if calm else memory.crashes + 1
        wait_s = BACK_OFF_S[min(memory.crashes, len(BACK_OFF_S)) - 1]
        memory.not_before_s = now_s + wait_s
        why = reason(VmReason.CRASHED, crashes=memory.crashes, wait_s=f"{wait_s:g}")
        _log.warning("vm.crashed", vm=vm.name, host=shared.host, crashes=memory.crashes, wait_s=wait_s)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            me = shared.keeper.me
            holders = tuple(_replace(one, seen="") if one in mine(now, me) else one for one in now.status.holders)
            return _replace(in_phase(now.status, now.status.phase, why), holders=holders)

        await shared.records.change(shared.daemon, vm.name, change)
        shared.reported()
        return wait_s

    async def _shut_down(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        ended = await self._ender.shut_down(vm.name, memory)
        if ended in (Shutdown.ABORTED, Shutdown.FAILED):
            return 0.0 if ended is Shutdown.ABORTED else 1.0
        return await self._stopped(vm, memory)

    async def _stopped(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """It is down as it was asked for: say so, and take the entry back."""
        phase, why = ended(vm)
        memory.running_since_s = None
        released = await self._ender.release(vm.name, phase=phase, why=why)
        self._shared.reported()
        return None if released else 1.0

    async def _restart(self, name: str, memory: VmMemory) -> float | None:
        ended = await self._ender.shut_down(name, memory)
        if ended in (Shutdown.ABORTED, Shutdown.FAILED):
            return 0.0 if ended is Shutdown.ABORTED else 1.0
        memory.running_since_s = None
        await self._ender.release(name, phase=VmState.START)
        return 0.0

    async def _destroy(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        if not await self._ender.destroy(vm.name):
            return 1.0
        if state_of(vm) == VmState.DISABLE:
            released = await self._ender.release(vm.name)
            self._shared.reported()
            return None if released else 1.0
        return await self._stopped(vm, memory)

    async def _terminate(self, vm: VirtualMachine) -> float | None:
        """It belongs to another host now: not a word about its phase."""
        shared = self._shared
        if not await shared.keeper.stands():
            shared.keeper.renew_soon()
            return 1.0
        entered, domain = shared.keeper.entered, shared.here.domains.get(vm.name)
        if entered is not None and entered.restored and domain is not None and domain.state is DomainState.RUNNING:
            return await self._migrations.keep(vm)
        _log.info("vm.terminated", vm=vm.name, host=self._shared.host, assigned=assigned_to(vm))
        if not await self._ender.destroy(vm.name):
            return 1.0
        released = await self._ender.release(vm.name)
        self._shared.reported()
        return None if released else 1.0

    async def _forget(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """Nothing of it is, or should be, here: take back what entries are left."""
        if vm.name in self._shared.here.domains or not of_host(vm, self._shared.keeper.me):
            return None
        return None if await self._ender.release(vm.name) else 5.0

    async def _write(self, name: str, phase: VmState) -> None:
        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != self._shared.host:
                return None
            return in_phase(now.status, phase)

        await self._shared.records.change(self._shared.daemon, name, change)


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    """When to look again; ``None``: when something changes."""
    given = [wait_s for wait_s in (one_s, other_s) if wait_s is not None]
    return min(given) if given else None


def _starts(domain: Domain | None) -> bool:
    return domain is not None and domain.state is DomainState.STARTING


RETRY_BASE_S: Final = 0.5
"""The first wait after an error; it doubles."""
RETRY_CAP_S: Final = 30.0
"""The longest."""
CALM_S: Final = 2.0
"""How much of a wait after an error nothing shortens."""
FOLLOW_S: Final = 1.0
"""How often a virtual machine is read that is here and labelled for another host: nobody reports its changes."""
LEAST_S: Final = 0.001
"""The shortest wait between two looks."""
LOOKS: Final = 50
"""Looks of one worker without a rest; more of them mean that two rules contradict each other."""


class Workers:
    """See the module. ``enqueue`` from anywhere; jobs run in the group that ``run`` opens."""

    def __init__(self, shared: VmContext, looker: VmReconciler, *, random: Random) -> None:
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

    def enqueue(self, vm: str) -> None:
        """Have a look at this virtual machine soon."""
        if vm in self._running:
            self._again[vm] = None
            self._shared.memory(vm).changed.set()
        elif self._group is not None and not self._closed:
            self._running[vm] = self._group.create_task(self._work(vm), name=f"vm {vm}")
        elif not self._closed:
            self._early[vm] = None

    def enqueue_all(self) -> None:
        """Have a look at all that this host has to do with."""
        known = {vm.name for vm in self._shared.informer.items()}
        early, self._early = self._early, {}
        for vm in sorted({*known, *self._shared.here.names(), *self._running, *early}):
            self.enqueue(vm)

    def changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        """What the informer reports."""
        vm = new if new is not None else old
        if vm is not None:
            self.enqueue(vm.name)

    async def run(self) -> None:
        """Until cancelled, or until ``close`` and the last job has ended."""
        stop = self._shared.informer.subscribe(self.changed, replay=False)
        try:
            async with OrderedTaskGroup() as group:
                self._group = group
                self.enqueue_all()
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
            self.enqueue(vm)
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
                    wait_s = await self._looker.reconcile(vm, memory)
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

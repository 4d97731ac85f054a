"""One look at a virtual machine: what is here of it, what is wanted, and the one job that follows.

The order of the questions is what counts: what may yet run, what was received, moves, runs that nobody holds, and only
then ``vm.event``. Level-triggered: what was missed is seen at the next look. Whether a start is allowed is not decided
here, but by the steps that the jobs take.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from outlive.base.logging import get_logger
from outlive.node.decisions import VM_EVENT
from outlive.node.membership.cleaning import UNKNOWN_VM, tell_unknown
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.creating import Creator
from outlive.node.vm.ending import Ender, Shutdown
from outlive.node.vm.events import VmAction, VmEventInput
from outlive.node.vm.shared import VmHost, VmMemory
from outlive.node.vm.starting import BACK_OFF_S, SOON_S, Starter
from outlive.node.vm.states import (
    START,
    STOP,
    STOPPED_BY_DRAIN,
    STOPPED_BY_SPEC,
    THEN_DISABLE,
    active_move,
    assigned_to,
    mine,
    of_host,
    rejected_by,
    state_of,
)
from outlive.resources import HOST_LABEL, ObjectRef, VirtualMachine
from outlive.resources.vms import VirtualMachineStatus

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


class Mover(Protocol):
    """Carries a move on, on either side."""

    async def step(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """One step; when to look again."""
        ...

    async def left_over(self, vm: VirtualMachine, domain: Domain, memory: VmMemory) -> float | None:
        """A domain on its way in or out, of a move that is over."""
        ...

    async def adopt(self, vm: VirtualMachine) -> float | None:
        """A domain that was received runs here."""
        ...

    async def tidy(self, vm: VirtualMachine) -> float | None:
        """It runs here as it should, and others have entries as well."""
        ...

    async def keep(self, vm: VirtualMachine) -> float | None:
        """A domain runs here, and a store that was restored says that it belongs elsewhere."""
        ...


class Answerer(Protocol):
    """Answers requests of users."""

    def asked(self, vm: VirtualMachine) -> bool:
        """Whether there is a request that was not answered."""
        ...

    async def answer(self, vm: VirtualMachine) -> None:
        """Answer it."""
        ...


class Looker:
    """See the module."""

    def __init__(
        self, shared: VmHost, creator: Creator, starter: Starter, ender: Ender, mover: Mover, answerer: Answerer
    ) -> None:
        self._shared = shared
        self._creator = creator
        self._starter = starter
        self._ender = ender
        self._mover = mover
        self._answerer = answerer
        self.cleaned = True
        """Whether nothing of an earlier epoch is left to be taken over; until then no foreign run is destroyed."""

    async def look_at(self, name: str, memory: VmMemory) -> float | None:
        """One look and at most one job; in how many seconds to look again, ``None``: when something changes."""
        shared = self._shared
        if not shared.keeper.standing or not shared.here.looked:
            return None  # told again once the host has entered
        starting = shared.here.domains.get(name)
        if memory.late_create or name in shared.here.creating or _starts(starting):
            await shared.here.look()
            if not await self._creator.followed(name, memory):
                return SOON_S  # nothing is decided about what may yet run
        cached = shared.informer.get(name)
        if cached is not None and self._settled(cached) and (shared.known(name) or name not in shared.here.domains):
            return None
        incarnation = shared.wishes.incarnation
        vm = await shared.records.read(shared.daemon, name)
        domain = shared.here.domains.get(name)
        if vm is None and domain is not None:
            return await self._orphan(name, memory)
        memory.orphaned_s = None
        if memory.unknown:
            memory.unknown = False
            await shared.faults.end(UNKNOWN_VM, ObjectRef(kind="VirtualMachine", name=name))
        if vm is None:
            shared.read_in.pop(name, None)
            return None
        shared.read_in[name] = incarnation
        if self._answerer.asked(vm) and assigned_to(vm) == shared.host:
            await self._answerer.answer(vm)
            return 0.0
        if domain is not None and domain.state is DomainState.RUNNING and self._received(vm, domain):
            return await self._mover.adopt(vm)
        move = active_move(vm)
        if move is not None and shared.host in (move.source, move.target):
            if shared.host == move.target and self._ran_in_a_restored_store(domain):
                if not self.cleaned:
                    return 1.0
                if domain is not None and self._is_run_of(vm, domain):
                    return await self._mover.keep(vm)  # that move is over: it runs here
            label_s = await self._labelled(vm, memory)  # the target hears of it by its label
            wait_s = await self._mover.step(vm, memory)
            return _sooner(wait_s, label_s)
        if domain is not None and not self._is_run_of(vm, domain):
            return await self._stray(vm, domain)
        if domain is not None and domain.state in (DomainState.INCOMING, DomainState.HANDED_OVER):
            return await self._mover.left_over(vm, domain, memory)
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
        if self._answerer.asked(vm) or active_move(vm) is not None:
            return False
        here = assigned_to(vm) == me.host
        if assigned_to(vm) not in ("", vm.metadata.labels.get(HOST_LABEL, "")):
            return False
        if domain is None:
            idle = not here or state_of(vm) in (STOP, "disable", "fail") or rejected_by(vm, me.host)
            return idle and not of_host(vm, me) and state_of(vm) != "shutdown"
        entries = mine(vm, me)
        alone = len(vm.status.holders) == 1 and len(entries) == 1
        seen = alone and entries[0].run_id == domain.run_id and entries[0].seen == "running"
        known = vm.status.phase == START and not vm.status.reason
        return here and seen and known and domain.state is DomainState.RUNNING and state_of(vm) == START

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
        what was made after its backup. Anything else runs on, and an operator is told.
        """
        shared = self._shared
        now_s = shared.clock.monotonic()
        if memory.orphaned_s is None:
            memory.orphaned_s = now_s
        certain = now_s - memory.orphaned_s >= ORPHAN_S and shared.keeper.acknowledged_since(memory.orphaned_s)
        if not self.cleaned or not certain:
            return ORPHAN_S
        await shared.wishes.look()  # whether it is still the same store
        if not shared.known(name):
            memory.unknown = True
            await tell_unknown(shared.faults, shared.host, name)
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
                await self._write(name, START, "")
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
            case VmAction.FORGET if domain is None and vm.status.reason == THEN_DISABLE:
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
        return await self._mover.tidy(vm)

    async def _start(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """Start, unless this host has said that it cannot, or it ended by itself just now."""
        if rejected_by(vm, self._shared.host):
            return await self._forget(vm, memory)
        if any(one.seen for one in mine(vm, self._shared.keeper.me)):
            return await self._crashed(vm, memory)
        if vm.status.phase == STOP:
            await self._write(vm.name, START, "")
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
        reason = f"its domain ended by itself ({memory.crashes} in a row); started again after {wait_s:g} s"
        _log.warning("vm.crashed", vm=vm.name, host=shared.host, crashes=memory.crashes, wait_s=wait_s)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            me = shared.keeper.me
            holders = tuple(_replace(one, seen="") if one in mine(now, me) else one for one in now.status.holders)
            return _replace(now.status, holders=holders, reason=reason)

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
        phase, reason = STOP, ""
        if vm.spec.power_state == "stopped":
            reason = STOPPED_BY_SPEC
        elif vm.status.reason == STOPPED_BY_DRAIN:
            reason = STOPPED_BY_DRAIN
        elif vm.status.reason == THEN_DISABLE:
            phase = "disable"
        memory.running_since_s = None
        released = await self._ender.release(vm.name, phase=phase, reason=reason)
        self._shared.reported()
        return None if released else 1.0

    async def _restart(self, name: str, memory: VmMemory) -> float | None:
        ended = await self._ender.shut_down(name, memory)
        if ended in (Shutdown.ABORTED, Shutdown.FAILED):
            return 0.0 if ended is Shutdown.ABORTED else 1.0
        memory.running_since_s = None
        await self._ender.release(name, phase=START)
        return 0.0

    async def _destroy(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        if not await self._ender.destroy(vm.name):
            return 1.0
        if state_of(vm) == "disable":
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
            return await self._mover.keep(vm)
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

    async def _write(self, name: str, phase: str, reason: str) -> None:
        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != self._shared.host:
                return None
            return _replace(now.status, phase=phase, reason=reason)

        await self._shared.records.change(self._shared.daemon, name, change)


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    """When to look again; ``None``: when something changes."""
    given = [wait_s for wait_s in (one_s, other_s) if wait_s is not None]
    return min(given) if given else None


def _starts(domain: Domain | None) -> bool:
    return domain is not None and domain.state is DomainState.STARTING

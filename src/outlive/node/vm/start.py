"""Starting a virtual machine: wait for others, hold, remove stale locks, create, and report that it runs.

Nothing is created before the store has acknowledged the hold; between that answer and the domain the guard, the
membership and the store's incarnation are checked once more. A start that failed releases its entry only after its
domain was seen to be absent. A host that cannot start what a recovery assigned to it writes ``status.rejection``, and
the next slot is tried. Where nobody but its host is to start it and an operator must act, the phase becomes ``fail``.

The guard counts a create as under way until it is notified of its end, and it is notified only once a listing has shown
what became of it. What this does not give: between the guard's yes and the domain the gate may shut; then the guard
waits for the end of that create before it calls the host empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from outlive.base.errors import InUse, OutliveError, Refused, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.membership.holders import CREATE, HOLD, CreateView, HoldView, others
from outlive.node.ports.guard import GuardPort
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.domains import LocalDomains
from outlive.node.vm.locks import DiskLocks
from outlive.node.vm.start_order import StartOrderObserver, StartTurn
from outlive.node.vm.states import (
    VmState,
    assigned_to,
    brought,
    fence_of,
    in_phase,
    mine,
    reach_of,
    state_of,
    wanted,
)
from outlive.node.vm.stop import VmStopper
from outlive.resources import VirtualMachine
from outlive.resources.reasons import Reason, VmReason, reason, render
from outlive.resources.vms import Rejection, VirtualMachineStatus
from outlive.runtime.steps import Refusal

END_CREATE_TRIES: Final = 5
"""How often the guard is notified that a create is over."""
_CREATE: Final = CREATE.decision
_log = get_logger("node.vm")


@dataclass(frozen=True, slots=True)
class Created:
    """What came of it."""

    passed: bool
    """Whether the run got past the gate; if not, its entry was given back and nothing was created."""
    domain: Domain | None = None
    """The domain of the run, as a look afterwards showed it; ``None``: there is none."""
    problem: str = ""
    """What the hypervisor said, where it was no plain yes."""


class DomainCreator:
    """See the module."""

    def __init__(self, shared: VmContext, ender: VmStopper) -> None:
        self._shared = shared
        self._ender = ender
        self._open: dict[str, None] = {}
        """Runs that this daemon has asked the guard for, and of whose end it has not notified it."""

    async def create(
        self, vm: VirtualMachine, run_id: str, held_in: str, memory: VmMemory, *, incoming: bool = False
    ) -> Created:
        """Go past the gate with this run, create its domain and look.

        ``vm``: with the entry, as the store acknowledged it. ``held_in``: the store's incarnation before the hold
        was decided on. ``incoming``: the domain listens for a guest of another host.
        """
        epoch = await self._pass(vm, run_id, held_in)
        if epoch is None:
            return Created(passed=False)
        problem = await self._made(vm, run_id, epoch, memory, incoming=incoming)
        domain = self._shared.here.domains.get(vm.name)
        ours = domain is not None and domain.run_id == run_id
        return Created(passed=True, domain=domain if ours else None, problem=problem)

    async def followed(self, name: str, memory: VmMemory) -> bool:
        """Whether no create of it is under way any more, by the last look; the guard is notified of its end."""
        domain = self._shared.here.domains.get(name)
        if name in self._shared.here.creating or (domain is not None and domain.state is DomainState.STARTING):
            return False
        if memory.late_create:
            await self._end(memory.late_create)
            memory.late_create = ""
        return True

    async def end_former(self) -> None:
        """Tell the guard the end of creates that this daemon does not follow, as of one that was killed before it."""
        await end_former_creates(self._shared.guard, self._shared.here, self._open)

    async def _pass(self, vm: VirtualMachine, run_id: str, held_in: str) -> int | None:
        """The epoch in which the domain may be created; ``None``: it may not, and the entry was given back."""
        shared = self._shared
        self._open[run_id] = None
        gate_open = await shared.guard.begin_create(run_id)
        me = shared.keeper.me
        view = CreateView(
            vm=vm.name,
            me=me,
            run_id=run_id,
            holders=vm.status.holders,
            gate_open=gate_open,
            held_in=held_in,
            incarnation=shared.desired.incarnation,
        )
        outcome = shared.decisions.use(_CREATE, view, subject=vm.name)
        if outcome.refused is None:
            return me.epoch
        _log.info("vm.gate_not_passed", vm=vm.name, host=shared.host, run_id=run_id, why=outcome.refused.why)
        if gate_open:
            await self._end(run_id)
        self._open.pop(run_id, None)  # where only the guard's yes was lost, it is ended as a former one
        await self._ender.release(vm.name)
        return None

    async def _made(self, vm: VirtualMachine, run_id: str, epoch: int, memory: VmMemory, *, incoming: bool) -> str:
        """Create the domain and look; why that went wrong, empty if it did not."""
        shared, name = self._shared, vm.name
        problem = ""
        shared.here.begin(name, run_id)
        try:
            async with asyncio.timeout(float(shared.settings.create_limit)):
                await shared.here.hypervisor.create(vm, run_id=run_id, epoch=epoch, incoming=incoming)
        except (Refused, InUse, Unavailable) as error:
            problem = error.message
        except (Unknown, TimeoutError) as error:
            problem = str(error) or f"not created within {float(shared.settings.create_limit):g} s"
        except OutliveError as error:
            problem = str(error)
        finally:
            shared.here.ended(name)
        memory.late_create = run_id
        await shared.here.look()
        await self.followed(name, memory)
        if problem:
            _log.warning("vm.not_created", vm=name, host=shared.host, run_id=run_id, why=problem)
        return problem

    async def _end(self, run_id: str) -> None:
        """Notify the guard that a create is over; again while it does not answer, and in the end as a former."""
        self._open.pop(run_id, None)
        for attempt in range(END_CREATE_TRIES):
            try:
                await self._shared.guard.end_create(run_id)
            except OutliveError as error:
                _log.warning("guard.not_notified", run_id=run_id, error=str(error))
                await self._shared.clock.sleep(0.2 * 2.0**attempt)
            else:
                return


async def end_former_creates(guard: GuardPort, here: LocalDomains, own: Collection[str]) -> int:
    """Tell the guard the end of every create but ``own`` ones that a look shows to be over; how many.

    The guard is asked first, then the hypervisor: what is begun in between is not among what is ended. ``Unavailable``
    where one of them does not answer; then it is for the next time.
    """
    former = [run for run in (await guard.report()).creates if run not in own]
    if not former:
        return 0
    await here.look()
    starting = {domain.run_id for domain in here.domains.values() if domain.state is DomainState.STARTING}
    over = [run for run in former if run not in starting]
    for run in over:
        await guard.end_create(run)
        _log.info("guard.former-create-ended", run_id=run)
    return len(over)


BACK_OFF_S: Final = (5.0, 15.0, 45.0, 135.0, 300.0)
"""Waits before a virtual machine that ended by itself, or did not start, is started again."""
WAIT_S: Final = 2.0
"""First wait for somebody else, such as a holder that is not fenced; it doubles."""
WAIT_CAP_S: Final = 15.0
"""The longest."""
UNSEEN_TRIES: Final = 3
"""How often in a row storage may not report the disks of what a recovery brought, before this host rejects it."""
AGAIN_S: Final = 0.1
"""Until the next try where only a swap was lost."""
SOON_S: Final = 1.0
"""Until the next look at a domain that was created and does not run yet."""
_HOLD: Final = HOLD.decision
_replace = msgspec.structs.replace


class VmStarter:
    """See the module. Answers say in how many seconds to look again; ``None``: when something changes."""

    def __init__(self, shared: VmContext, creator: DomainCreator, ender: VmStopper) -> None:
        self._shared = shared
        self._awaiting = StartOrderObserver(shared)
        self._clearer = DiskLocks(shared)
        self._creator = creator
        self._ender = ender

    async def start(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """One try, once those run that it starts after."""
        wait_s = memory.not_before_s - self._shared.clock.monotonic()
        if wait_s > 0:
            return wait_s
        turn = await self._awaiting.turn(vm, memory)
        if turn.wait_s is not None:
            return turn.wait_s
        async with self._shared.starts:
            return await self._start(vm.name, turn, memory)

    async def _start(self, name: str, turn: StartTurn, memory: VmMemory) -> float | None:
        shared = self._shared
        held_in, me = shared.desired.incarnation, shared.keeper.me
        vm = await shared.records.read(shared.daemon, name)
        if vm is None or assigned_to(vm) != shared.host:
            return None
        if vm.spec.start_after != turn.after:
            return AGAIN_S
        members = shared.own_member() + await shared.records.members(
            shared.daemon, others(vm.status.holders, me), but=shared.host
        )
        paused = await shared.pause.paused()
        if not await shared.keeper.stands():
            shared.keeper.renew_soon()
            return SOON_S
        run_id = shared.ids.uuid()
        report = await shared.guard.report()
        refusal: Refusal | None = None

        def hold(now: VirtualMachine) -> VirtualMachineStatus | None:
            nonlocal refusal
            if any(one.run_id == run_id for one in now.status.holders):
                return None
            if now.metadata.resource_version != vm.metadata.resource_version or shared.keeper.me != me:
                return None  # all that was looked at was looked at after that version was read, in this very epoch
            view = HoldView(
                vm=name,
                me=me,
                assigned=assigned_to(now),
                wanted=wanted(now),
                holders=now.status.holders,
                members=members,
                reach=reach_of(now),
                gate_open=report.gate_open,
                run_id=run_id,
                here=name in shared.here.names(),
                paused=paused,
            )
            outcome = shared.decisions.use(_HOLD, view, subject=name)
            refusal = outcome.refused
            if refusal is not None:
                return None
            return _replace(now.status, holders=outcome.holders, start_order=turn.order)

        held = await shared.records.change(shared.daemon, name, hold)
        if held is None or not any(one.run_id == run_id for one in held.status.holders):
            _log.info("vm.not_held", vm=name, host=shared.host, why=refusal.why if refusal is not None else "changed")
            if held is not None and refusal is not None:
                await self._awaiting.over(held, turn)
            return self._later(memory) if refusal is not None else AGAIN_S
        return await self._create(held, run_id, held_in, memory)

    def _later(self, memory: VmMemory) -> float:
        memory.waits += 1
        return float(min(WAIT_CAP_S, WAIT_S * 2.0 ** min(memory.waits - 1, 10)))

    def _not_before(self, memory: VmMemory) -> float:
        """The same, also when something changes before: giving the hold back is such a change itself."""
        wait_s = self._later(memory)
        memory.not_before_s = self._shared.clock.monotonic() + wait_s
        return wait_s

    async def _create(self, vm: VirtualMachine, run_id: str, held_in: str, memory: VmMemory) -> float | None:
        obstacle = await self._clearer.obstacle(vm)
        if obstacle is not None:
            return await self._obstructed(vm, obstacle, memory)
        memory.unseen = 0
        created = await self._creator.create(vm, run_id, held_in, memory)
        if not created.passed:
            return self._not_before(memory)
        if created.domain is not None:
            memory.waits = 0
            return await self.settle(vm.name, memory)
        return await self._failed(vm, created.problem or "its domain ended at once", memory)

    async def _obstructed(self, vm: VirtualMachine, obstacle: Reason, memory: VmMemory) -> float | None:
        """A lock on its disks is in the way: release the hold, and report what would help.

        A lock of somebody else is in the way of every host: what a recovery assigned here stays and is tried again.
        What only this host cannot do makes room for the next slot.
        """
        shared, name = self._shared, vm.name
        unseen = obstacle.code == VmReason.LOCKS_UNREADABLE
        memory.unseen = memory.unseen + 1 if unseen else 0
        _log.warning("vm.obstructed", vm=name, host=shared.host, reason=obstacle.code, why=render(obstacle).text)
        passes = obstacle.code in (VmReason.LOCKS_UNREADABLE, VmReason.LOCK_UNCONFIRMED)
        if (unseen and memory.unseen < UNSEEN_TRIES) or (passes and not brought(vm)):
            await self._ender.release(name, why=obstacle)
            return self._not_before(memory)
        if not brought(vm):
            return None if await self._ender.release(name, phase=VmState.FAIL, why=obstacle) else SOON_S
        stays = obstacle.code in (VmReason.LOCK_UNCONFIRMED, VmReason.LOCK_FOREIGN)
        memory.unseen = 0
        rejection = self._rejection(vm, obstacle, stays=stays)
        released = await self._ender.release(name, rejection=rejection, why=obstacle if stays else None)
        if stays:
            return self._not_before(memory)
        return None if released else SOON_S

    def _rejection(self, vm: VirtualMachine, why: Reason, *, stays: bool = False) -> Rejection:
        said = render(why)
        return Rejection(
            hypervisor=self._shared.host, fence=fence_of(vm), reason=why.code, message=said.text, stays=stays
        )

    async def _failed(self, vm: VirtualMachine, problem: str, memory: VmMemory) -> float | None:
        shared = self._shared
        memory.failures += 1
        wait_s = BACK_OFF_S[min(memory.failures, len(BACK_OFF_S)) - 1]
        memory.not_before_s = shared.clock.monotonic() + wait_s
        if brought(vm):
            rejection = self._rejection(vm, reason(VmReason.NOT_CREATED, problem=problem))
            return None if await self._ender.release(vm.name, rejection=rejection) else SOON_S
        if memory.failures >= shared.settings.start_tries:
            why = reason(VmReason.START_FAILED, host=shared.host, tries=memory.failures, problem=problem)
            return None if await self._ender.release(vm.name, phase=VmState.FAIL, why=why) else SOON_S
        await self._ender.release(vm.name)
        return wait_s

    async def settle(self, name: str, memory: VmMemory) -> float | None:
        """Say that the domain is seen running, and that the virtual machine is where it should be."""
        shared = self._shared
        domain = shared.here.domains.get(name)
        if domain is None or domain.state not in (DomainState.RUNNING, DomainState.PAUSED):
            return SOON_S
        seen = "running" if domain.state is DomainState.RUNNING else "paused"

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            holders = tuple(
                _replace(one, seen=seen) if one in mine(now, shared.keeper.me) and one.run_id == domain.run_id else one
                for one in now.status.holders
            )
            status = _replace(now.status, holders=holders)
            if assigned_to(now) == shared.host and state_of(now) == VmState.START and seen == "running":
                rejection = status.rejection
                if rejection is not None and rejection.hypervisor == shared.host:
                    rejection = None
                status = _replace(in_phase(status, VmState.START), rejection=rejection)
            return status

        await shared.records.change(shared.daemon, name, change)
        if memory.running_since_s is None:
            memory.running_since_s = shared.clock.monotonic()
        memory.failures = 0
        memory.order = None
        shared.reported()
        return None if seen == "running" else SOON_S * 5

"""Starting a virtual machine: wait for others, hold, clear its disks of stale locks, create, and say that it runs.

Nothing is created before the store has acknowledged the hold, and a start that went wrong takes its entry back only
after its domain was seen to be absent. Where this host cannot start what a recovery brought to it, it says so in
``status.rejection``, and the next slot is tried; where no host could, it says that too, and tries again. Where nobody
but its host is to start it and an operator must act, the phase becomes ``fail``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.logging import get_logger
from outlive.node.membership.holding import HOLD, HoldView, others
from outlive.node.ports.hypervisor import DomainState
from outlive.node.vm.awaiting import Awaiting, Turn
from outlive.node.vm.clearing import Clearer, Obstacle, ObstacleKind
from outlive.node.vm.creating import Creator
from outlive.node.vm.ending import Ender
from outlive.node.vm.shared import VmHost, VmMemory
from outlive.node.vm.states import FAIL, START, assigned_to, brought, fence_of, mine, reach_of, state_of, wanted
from outlive.resources import VirtualMachine
from outlive.resources.vms import Rejection, VirtualMachineStatus
from outlive.runtime.steps import Refusal

BACK_OFF_S: Final = (5.0, 15.0, 45.0, 135.0, 300.0)
"""Waits before a virtual machine that ended by itself, or did not start, is started again."""
WAIT_S: Final = 2.0
"""First wait for somebody else, such as a holder that is not mute; it doubles."""
WAIT_CAP_S: Final = 15.0
"""The longest."""
UNSEEN_TRIES: Final = 3
"""How often in a row storage may not tell of the disks of what a recovery brought, before this host rejects it."""
AGAIN_S: Final = 0.1
"""Until the next try where only a swap was lost."""
SOON_S: Final = 1.0
"""Until the next look at a domain that was created and does not run yet."""

_HOLD: Final = HOLD.decision
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


class Starter:
    """See the module. Answers say in how many seconds to look again; ``None``: when something changes."""

    def __init__(self, shared: VmHost, creator: Creator, ender: Ender) -> None:
        self._shared = shared
        self._awaiting = Awaiting(shared)
        self._clearer = Clearer(shared)
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

    async def _start(self, name: str, turn: Turn, memory: VmMemory) -> float | None:
        shared = self._shared
        held_in, me = shared.wishes.incarnation, shared.keeper.me
        vm = await shared.records.read(shared.daemon, name)
        if vm is None or assigned_to(vm) != shared.host:
            return None
        if vm.spec.start_after != turn.after:
            return AGAIN_S
        members = shared.own_member() + await shared.records.members(
            shared.daemon, others(vm.status.holders, me), but=shared.host
        )
        settled = await shared.settling.settled()
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
                settled=settled,
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

    async def _obstructed(self, vm: VirtualMachine, obstacle: Obstacle, memory: VmMemory) -> float | None:
        """Its disks are in nobody's way, or seem to be: give the hold back, and say what would help.

        Somebody else's lock is in the way of every host: what a recovery brought here stays and is tried again. What
        only this host cannot do makes room for the next slot.
        """
        shared, name = self._shared, vm.name
        unseen, untold = obstacle.kind is ObstacleKind.UNSEEN, obstacle.kind is ObstacleKind.UNTOLD
        memory.unseen = memory.unseen + 1 if unseen else 0
        _log.warning("vm.obstructed", vm=name, host=shared.host, kind=obstacle.kind.value, why=obstacle.reason)
        if unseen and not (brought(vm) and memory.unseen >= UNSEEN_TRIES):
            await self._ender.release(name, why=f"{obstacle.reason}; it is tried again")
            return self._not_before(memory)
        if untold and not brought(vm):
            await self._ender.release(name, why=f"{obstacle.reason}; it is tried again")
            return self._not_before(memory)
        if not brought(vm):
            return None if await self._ender.release(name, phase=FAIL, reason=obstacle.reason) else SOON_S
        stays = untold or obstacle.kind is ObstacleKind.FOREIGN
        memory.unseen = 0
        rejection = Rejection(hypervisor=shared.host, fence=fence_of(vm), reason=obstacle.reason, stays=stays)
        why = f"{obstacle.reason}; it is tried again" if stays else ""
        released = await self._ender.release(name, rejection=rejection, why=why)
        if stays:
            return self._not_before(memory)
        return None if released else SOON_S

    async def _failed(self, vm: VirtualMachine, problem: str, memory: VmMemory) -> float | None:
        shared = self._shared
        memory.failures += 1
        wait_s = BACK_OFF_S[min(memory.failures, len(BACK_OFF_S)) - 1]
        memory.not_before_s = shared.clock.monotonic() + wait_s
        if brought(vm):
            rejection = Rejection(hypervisor=shared.host, fence=fence_of(vm), reason=problem)
            return None if await self._ender.release(vm.name, rejection=rejection) else SOON_S
        if memory.failures >= shared.settings.start_tries:
            reason = f"{shared.host} could not start it in {memory.failures} tries: {problem}"
            return None if await self._ender.release(vm.name, phase=FAIL, reason=reason) else SOON_S
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
            if assigned_to(now) == shared.host and state_of(now) == START and seen == "running":
                rejection = status.rejection
                if rejection is not None and rejection.hypervisor == shared.host:
                    rejection = None
                status = _replace(status, phase=START, reason="", rejection=rejection)
            return status

        await shared.records.change(shared.daemon, name, change)
        if memory.running_since_s is None:
            memory.running_since_s = shared.clock.monotonic()
        memory.failures = 0
        memory.order = None
        shared.reported()
        return None if seen == "running" else SOON_S * 5

"""What both sides of a migration share: the record's next phase, its abort, and who owns what runs.

Every change is a compare-and-swap on exactly the record that was read, so that two sides that decide at once do not
undo each other's step; the label is set before the assignment and set right again where the assignment failed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.membership.holders import ADOPT, RESUME, MoveView
from outlive.node.membership.states import MemberView
from outlive.node.migration.states import BEFORE_HANDOVER, aborted, to_phase
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.states import (
    HALTED,
    MIGRATING,
    VmState,
    active_move,
    assigned_to,
    mine,
    reach_of,
)
from outlive.node.vm.stop import VmStopper
from outlive.resources import Assigned, Holder, VirtualMachine
from outlive.resources.reasons import MigrationReason, Reason, reason
from outlive.resources.vms import Migration, MigrationPhase, VirtualMachineStatus

LOOK_S: Final = 1.0
"""How often a side that waits reads the record."""
SILENT_S: Final = 3.0
"""How long the other side may be silent before it is looked whether it holds its membership."""
_ADOPT: Final = ADOPT.decision
_RESUME: Final = RESUME.decision
_replace = msgspec.structs.replace
_log = get_logger("node.move")


class MigrationRecords:
    """See the module."""

    def __init__(self, shared: VmContext, ender: VmStopper) -> None:
        self._shared = shared
        self._ender = ender

    def adopted(
        self, now: VirtualMachine, members: tuple[MemberView, ...], *, home: str, migration: Migration | None
    ) -> VirtualMachineStatus | None:
        """The status in which this host owns what runs here, without fenced entries; ``None`` where it must not."""
        shared = self._shared
        view = self.view(now, members, runs=self._runs(now))
        outcome = shared.decisions.use(_ADOPT, view, subject=now.name)
        if outcome.refused is not None:
            return None
        me = shared.keeper.me
        held = _replace(now, status=_replace(now.status, holders=outcome.holders))
        holders = tuple(_replace(one, seen="running") if one in mine(held, me) else one for one in outcome.holders)
        assigned = now.status.assigned
        if assigned is None or assigned.hypervisor != shared.host:
            assigned = Assigned(hypervisor=shared.host)
        halted = active_move(now) is not None and now.status.phase in HALTED
        return _replace(
            now.status,
            holders=holders,
            assigned=assigned,
            home=home,
            phase=now.status.phase if halted else VmState.START,
            reason=now.status.reason if halted else "",
            message=now.status.message if halted else "",
            migration=migration,
        )

    def _runs(self, vm: VirtualMachine) -> bool:
        """Whether the last look showed a running domain here, of a run that this host holds."""
        domain = self._shared.here.domains.get(vm.name)
        if domain is None or domain.state is not DomainState.RUNNING:
            return False
        return any(one.run_id == domain.run_id for one in mine(vm, self._shared.keeper.me))

    async def advance(self, name: str, move: Migration, phase: MigrationPhase, **changes: object) -> bool:
        """The next phase of exactly this record; whether it is written."""
        target = _replace(move, phase=to_phase(move, phase), **changes)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            return _replace(now.status, migration=target) if now.status.migration == move else None

        after = await self._shared.records.change(self._shared.move, name, change)
        done = after is not None and after.status.migration == target
        if done:
            _log.info("move.phase", vm=name, move=move.id, phase=phase, host=self._shared.host)
        return done

    async def abort(
        self, name: str, move: Migration, why: Reason, phases: frozenset[MigrationPhase] = BEFORE_HANDOVER
    ) -> float | None:
        """Everything as before, if neither side has gone too far."""
        shared = self._shared

        def may(now: VirtualMachine) -> bool:
            current = active_move(now)
            return current is not None and current.id == move.id and current.phase in phases

        fresh = await shared.records.read(shared.daemon, name)
        if fresh is None or not may(fresh):
            return LOOK_S  # a label that is changed for nothing would only wake everybody
        await shared.records.relabel(shared.move, name, move.source)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            current = active_move(now)
            if current is None or not may(now):
                return None
            over = aborted(current, why)
            phase = VmState.START if now.status.phase in MIGRATING else now.status.phase
            return _replace(
                now.status,
                assigned=Assigned(hypervisor=move.source),
                home=move.prior_home or move.source,
                phase=phase,
                migration=over,
            )

        after = await shared.records.change(shared.move, name, change)
        if after is not None and assigned_to(after) not in (move.source, ""):
            await shared.records.relabel(shared.move, name, assigned_to(after))
        _log.warning("move.aborted", vm=name, host=shared.host, reason=why.code)
        return LOOK_S

    async def members(self, vm: VirtualMachine) -> tuple[MemberView, ...]:
        """The memberships of all holders."""
        shared = self._shared
        others = await shared.records.members(shared.daemon, vm.status.holders, but=shared.host)
        return shared.own_member() + others

    def others(self, vm: VirtualMachine) -> list[Holder]:
        """Entries of other hosts."""
        return [one for one in vm.status.holders if one.hypervisor != self._shared.host]

    def view(
        self,
        vm: VirtualMachine,
        members: tuple[MemberView, ...],
        *,
        run_id: str = "",
        gate_open: bool = True,
        runs: bool = False,
        sent_to: str = "",
        paused: bool = False,
    ) -> MoveView:
        """The virtual machine as the steps of a move look at it."""
        shared, move = self._shared, vm.status.migration
        others = self.others(vm)
        return MoveView(
            vm=vm.name,
            me=shared.keeper.me,
            id=move.id if move is not None else "",
            source=move.source if move is not None else shared.host,
            target=move.target if move is not None else (others[0].hypervisor if others else ""),
            holders=vm.status.holders,
            members=members,
            reach=reach_of(vm),
            gate_open=gate_open,
            run_id=run_id,
            here=vm.name in shared.here.names(),
            runs=runs,
            sent_to=sent_to,
            declined=move.declined if move is not None else "",
            paused=paused,
        )

    def late(self, memory: VmMemory, limit_s: float | None = None) -> bool:
        """Whether the move has been in its present phase for so long; ``None``: for the limit of a step."""
        limit_s = float(self._shared.settings.move_limit) if limit_s is None else limit_s
        return self._shared.clock.monotonic() - memory.phase_since_s >= limit_s

    async def take_back(
        self, vm: VirtualMachine, domain: Domain, members: tuple[MemberView, ...], memory: VmMemory
    ) -> float | None:
        """No target runs it any more: it runs on here if none ever did; else what is here is of the past, and goes.

        Then it starts anew where it is assigned, from its disks, like after a crash.
        """
        shared, name = self._shared, vm.name
        if not await shared.keeper.stands():
            shared.keeper.renew_soon()
            return LOOK_S
        view = self.view(vm, members, sent_to=memory.sent_to)
        outcome = shared.decisions.use(_RESUME, view, subject=name)
        if outcome.refused is None:
            try:
                await shared.here.resume(name)
            except OutliveError as error:
                _log.warning("move.not_resumed", vm=name, why=str(error))
                return LOOK_S
            await shared.here.look()
            return await self.come_back(vm, reason(MigrationReason.TARGET_LOST))
        _log.warning("move.not_resumed", vm=name, why=outcome.refused.why)
        move = active_move(vm)
        if move is not None:
            return await self.abort(name, move, reason(MigrationReason.TARGET_LOST), frozenset({move.phase}))
        return await self.drop(name, domain)

    async def come_back(self, vm: VirtualMachine, why: Reason) -> float | None:
        """It runs here after all: it is assigned here again, and fenced entries of the target go."""
        shared = self._shared
        members = await self.members(vm)
        await shared.records.relabel(shared.move, vm.name, shared.host)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            move = now.status.migration
            if move is None or (move.phase is MigrationPhase.ABORTED and assigned_to(now) == shared.host):
                return None
            over = aborted(move, why)
            return self.adopted(now, members, home=move.prior_home or now.status.home, migration=over)

        await shared.records.change(shared.move, vm.name, change)
        _log.warning("move.came_back", vm=vm.name, host=shared.host, reason=why.code)
        return 0.0

    async def drop(self, name: str, domain: Domain | None) -> float | None:
        """Nothing of it stays here; what waits for a guest goes only if it certainly never ran, and that is said.

        What runs goes only by the word of a store that has not gone back behind this host's membership.
        """
        never_ran = ""
        keeper = self._shared.keeper
        if domain is not None and domain.state is DomainState.RUNNING and not await keeper.stands():
            keeper.renew_soon()
            return LOOK_S
        if domain is not None and domain.state is DomainState.INCOMING:
            if await self._shared.here.decline(name, domain.run_id):
                never_ran = domain.run_id
            elif name in self._shared.here.domains:
                return LOOK_S
        elif not await self._ender.destroy(name, run_id=domain.run_id if domain is not None else ""):
            return LOOK_S
        released = await self._ender.release(name, never_ran=never_ran)
        self._shared.reported()
        return LOOK_S if not released else 0.0

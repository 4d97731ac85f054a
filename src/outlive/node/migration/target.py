"""The target's side of a migration: it enters itself, lets a domain listen, and owns what runs here; or starts it cold.

Until the guest was handed over the target may give up at any time; then nothing of it stays here, and the source goes
on. Where the source is lost, recovery lets it start here. A guest that runs here is adopted by ``Migration``, whatever
the record says.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.logging import get_logger
from outlive.node.membership.holders import ENTER
from outlive.node.membership.states import fenced
from outlive.node.migration.record import LOOK_S, SILENT_S, MigrationRecords
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.start import DomainCreator
from outlive.node.vm.states import (
    HALTED,
    VmState,
    active_move,
    assigned_to,
    in_phase,
    mine,
    reach_of,
)
from outlive.node.vm.stop import VmStopper
from outlive.resources import VirtualMachine
from outlive.resources.reasons import MigrationReason, reason
from outlive.resources.vms import Migration, MigrationPhase, VirtualMachineStatus

_ENTER: Final = ENTER.decision
_replace = msgspec.structs.replace
_log = get_logger("node.move")


class MigrationTarget:
    """See the module."""

    def __init__(self, shared: VmContext, creator: DomainCreator, ender: VmStopper, move: MigrationRecords) -> None:
        self._shared = shared
        self._creator = creator
        self._ender = ender
        self._move = move
        self._incoming: dict[str, None] = {}

    async def step(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        """One step; when to look again."""
        shared = self._shared
        await shared.here.look()
        domain = shared.here.domains.get(vm.name)
        if domain is not None and domain.state is DomainState.RUNNING and self._is_of_move(vm, domain):
            return 0.0  # it arrived in this moment, and is adopted
        if assigned_to(vm) != shared.host:
            return await self._move.drop(vm.name, domain)
        match move.phase:
            case MigrationPhase.REQUESTED:
                return await self._make_ready(vm, move, domain, memory)
            case MigrationPhase.STOPPED:
                if domain is not None:
                    return await self._move.drop(vm.name, domain)
                return await self._begin_cold(vm.name, move)
            case MigrationPhase.STOPPING:
                if domain is not None:
                    return await self._move.drop(vm.name, domain)
                if not any(one.hypervisor == move.source for one in vm.status.holders):
                    return await self._begin_cold(vm.name, move)  # released, and the source was lost before it said so
                return LOOK_S
            case _:
                return await self._await_guest(vm, move, domain, memory)

    def _is_of_move(self, vm: VirtualMachine, domain: Domain) -> bool:
        """Whether it is the run for which this host entered itself."""
        entries = mine(vm, self._shared.keeper.me)
        return any(one.run_id == domain.run_id and one.role == "incoming" for one in entries)

    async def _make_ready(
        self, vm: VirtualMachine, move: Migration, domain: Domain | None, memory: VmMemory
    ) -> float | None:
        shared, name = self._shared, vm.name
        if domain is not None and domain.state is DomainState.INCOMING and move.mode == "live":
            await self._move.advance(name, move, MigrationPhase.TARGET_READY)
            return LOOK_S
        if domain is not None:
            return await self._move.drop(name, domain)
        if mine(vm, shared.keeper.me) and not await self._ender.release(name):
            return LOOK_S
        if move.mode == "cold":
            await self._move.advance(name, move, MigrationPhase.TARGET_READY)
            return LOOK_S
        if len(self._incoming) >= shared.settings.moves:
            memory.phase_since_s = shared.clock.monotonic()
            return LOOK_S
        if self._move.late(memory):
            return await self._move.abort(name, move, reason(MigrationReason.PEER_TIMEOUT))
        self._incoming[name] = None
        try:
            return await self._enter(vm, move, memory)
        finally:
            self._incoming.pop(name, None)

    async def _enter(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        shared, name = self._shared, vm.name
        held_in = shared.desired.incarnation
        fresh = await shared.records.read(shared.daemon, name)
        if fresh is None:
            return LOOK_S
        members = await self._move.members(fresh)
        paused = await shared.pause.paused()
        if not await shared.keeper.stands():
            return LOOK_S
        report = await shared.guard.report()
        run_id = shared.ids.uuid()
        why = ""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            nonlocal why
            if any(one.run_id == run_id for one in now.status.holders) or now.status.migration != move:
                return None
            if now.metadata.resource_version != fresh.metadata.resource_version:
                return None  # all that was looked at was looked at after that version was read
            view = self._move.view(now, members, run_id=run_id, gate_open=report.gate_open, paused=paused)
            outcome = shared.decisions.use(_ENTER, view, subject=name)
            why = outcome.refused.why if outcome.refused is not None else ""
            return None if why else _replace(now.status, holders=outcome.holders)

        entered = await shared.records.change(shared.daemon, name, change)
        if entered is None or not any(one.run_id == run_id for one in entered.status.holders):
            _log.info("move.not_entered", vm=name, host=shared.host, why=why)
            return LOOK_S
        created = await self._creator.create(entered, run_id, held_in, memory, incoming=True)
        if not created.passed:
            return LOOK_S
        if created.domain is None:
            await self._ender.release(name)
            problem = created.problem or "its domain ended"
            return await self._move.abort(
                name, move, reason(MigrationReason.CANNOT_RECEIVE, host=shared.host, problem=problem)
            )
        if created.domain.state is not DomainState.STARTING:
            await self._move.advance(name, move, MigrationPhase.TARGET_READY)
        return LOOK_S

    async def _await_guest(
        self, vm: VirtualMachine, move: Migration, domain: Domain | None, memory: VmMemory
    ) -> float | None:
        """Target-ready, transferring, transferred: until the guest runs here, or certainly will not."""
        name = vm.name
        if move.mode == "cold" and move.phase is MigrationPhase.TARGET_READY:
            if self._move.late(memory):
                return await self._move.abort(name, move, reason(MigrationReason.PEER_TIMEOUT))
            return LOOK_S
        if domain is None:
            await self._ender.release(name)
            if self._move.others(vm) and await self._sources_are_lost(vm):
                return LOOK_S  # recovery lets it start here, in the room that is kept for it
            if move.phase is MigrationPhase.TARGET_READY:
                return await self._move.abort(name, move, reason(MigrationReason.TARGET_LOST))
            return LOOK_S if self._move.others(vm) else await self._begin_cold(name, move)
        if not self._move.late(memory, SILENT_S):
            return LOOK_S
        if await self._sources_are_lost(vm):
            return await self._move.drop(name, domain)  # nobody is left to send it
        if move.phase is MigrationPhase.TARGET_READY and self._move.late(memory):
            return await self._move.abort(name, move, reason(MigrationReason.PEER_TIMEOUT))
        if move.phase is MigrationPhase.TRANSFERRED and self._move.late(memory):
            return await self._move.drop(name, domain)  # all was sent and it does not run: the source goes on
        return LOOK_S

    async def _sources_are_lost(self, vm: VirtualMachine) -> bool:
        """Whether nobody else can run it any more, nor send it or run on with what is paused there."""
        members = await self._move.members(vm)
        return all(fenced(one, members, reach_of(vm)) for one in self._move.others(vm))

    async def _begin_cold(self, name: str, move: Migration) -> float | None:
        """The source has released it: start it here."""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if active_move(now) != move or assigned_to(now) != self._shared.host:
                return None
            if now.status.phase in HALTED:
                return _replace(now.status, migration=None)
            return _replace(in_phase(now.status, VmState.START), migration=None)

        await self._shared.records.change(self._shared.move, name, change)
        return 0.0

"""The source's side of a migration: it sends the guest, or shuts it down, and releases it once the target has it.

A guest that was handed over is kept paused until the target has adopted it; it runs on here only if the target says
that it never ran it. Of a target that died nobody knows that: then it is started anew, from its disks.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlive.base.errors import Refused, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.membership.holders import SEND
from outlive.node.membership.states import fenced
from outlive.node.migration.record import LOOK_S, SILENT_S, MigrationRecords
from outlive.node.migration.states import LIVE_ATTEMPTS
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.states import (
    VmState,
    assigned_to,
    reach_of,
)
from outlive.node.vm.stop import Shutdown, VmStopper
from outlive.resources import Holder, VirtualMachine
from outlive.resources.reasons import MigrationReason, reason
from outlive.resources.vms import Migration, MigrationPhase

ATTEMPT_PAUSE_S: Final = 0.5
"""Between two attempts to move a running guest."""
QUEUE_LIMITS: Final = 10
"""So many times the limit of a step a move may wait for its turn on the target."""
AFTER_STOP: Final = frozenset({MigrationPhase.STOPPED})
"""The phase in which the source takes it back from a target that is lost; it does not run anywhere then."""
_SEND: Final = SEND.decision
_log = get_logger("node.move")


class MigrationSource:
    """See the module."""

    def __init__(self, shared: VmContext, ender: VmStopper, move: MigrationRecords) -> None:
        self._shared = shared
        self._ender = ender
        self._move = move
        self._outgoing: dict[str, None] = {}

    async def step(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        """One step; when to look again."""
        shared, name = self._shared, vm.name
        await shared.here.look()
        domain = shared.here.domains.get(name)
        if move.phase is MigrationPhase.STOPPED:
            return await self._after_stop(vm, move, memory)
        if domain is None or domain.state is DomainState.OFF:
            if move.phase is MigrationPhase.STOPPING:
                return await self._stopped(name, move)
            if domain is not None:
                await self._ender.destroy(name, run_id=domain.run_id)
            if move.phase is MigrationPhase.TRANSFERRED:
                return await self._lost(vm, move)
            return await self._move.abort(name, move, reason(MigrationReason.ENDED_BY_ITSELF))
        if domain.state is not DomainState.RUNNING:
            return await self._handed_over(vm, move, domain, memory)
        if assigned_to(vm) != move.target:
            return await self._move.abort(name, move, reason(MigrationReason.TARGET_CHANGED))
        match move.phase:
            case MigrationPhase.REQUESTED:
                return await self._await_target(vm, move, memory)
            case MigrationPhase.TARGET_READY if move.mode == "cold":
                await self._move.advance(name, move, MigrationPhase.STOPPING)
                return 0.0
            case MigrationPhase.STOPPING:
                return await self._stop(name, move, memory)
            case MigrationPhase.TRANSFERRED:  # it was sent, and runs here all the same: it came back
                return await self._move.come_back(vm, reason(MigrationReason.LIVE_FAILED))
            case _:
                return await self._send(vm, move, memory)

    async def _await_target(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        if self._move.late(memory, float(self._shared.settings.move_limit) * QUEUE_LIMITS):
            return await self._move.abort(vm.name, move, reason(MigrationReason.PEER_TIMEOUT))
        if self._move.late(memory, SILENT_S) and not await self._holds(move.target):
            return await self._move.abort(vm.name, move, reason(MigrationReason.TARGET_LOST))
        return LOOK_S

    async def _holds(self, host: str) -> bool:
        """Whether a host holds its membership."""
        found = await self._shared.records.members(self._shared.daemon, (Holder(hypervisor=host),))
        return any(one.record.state == "Held" for one in found)

    async def _send(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        """One attempt to move it while it runs."""
        shared, name = self._shared, vm.name
        if vm.spec.migration_method == "shutdown":
            return await self._move.abort(name, move, reason(MigrationReason.LIVE_FORBIDDEN))
        if move.attempts >= LIVE_ATTEMPTS:
            return await self._live_failed(vm, move)
        if len(self._outgoing) >= shared.settings.moves:
            memory.phase_since_s = shared.clock.monotonic()
            return LOOK_S
        members = await self._move.members(vm)
        paused = await shared.pause.paused()
        outcome = shared.decisions.use(_SEND, self._move.view(vm, members, paused=paused), subject=name)
        if outcome.refused is not None:
            if move.phase is MigrationPhase.TRANSFERRING or self._move.late(memory):
                return await self._move.abort(name, move, reason(MigrationReason.TARGET_LOST))
            return LOOK_S
        self._outgoing[name] = None
        memory.sent_to = outcome.run_id
        try:
            begun = await self._move.advance(name, move, MigrationPhase.TRANSFERRING, attempts=move.attempts + 1)
            if begun:
                await self._transfer(vm, move, memory)
        finally:
            self._outgoing.pop(name, None)
        return 0.0

    async def _transfer(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> None:
        shared, name = self._shared, vm.name
        asked = vm.spec.migration_downtime_ms
        downtime_ms = asked if asked is not None and asked > 0 else shared.settings.downtime_ms
        try:
            async with asyncio.timeout(float(shared.settings.transfer_limit)):
                await shared.here.hypervisor.migrate(name, move.target, max_downtime_ms=downtime_ms)
        except Refused as error:
            _log.warning("move.attempt_failed", vm=name, target=move.target, why=error.message)
            await shared.clock.sleep(ATTEMPT_PAUSE_S)
        except (Unknown, Unavailable, TimeoutError) as error:
            _log.warning("move.attempt_unknown", vm=name, target=move.target, why=str(error) or "no answer in time")
        await shared.here.look()

    async def _live_failed(self, vm: VirtualMachine, move: Migration) -> float | None:
        if vm.status.phase == VmState.MIGRATE_LIVE or vm.spec.migration_method == "live":
            return await self._move.abort(vm.name, move, reason(MigrationReason.LIVE_FAILED))
        # The guest is stopped only once the target has said again that it is there to start it.
        await self._move.advance(vm.name, move, MigrationPhase.REQUESTED, mode="cold")
        return 0.0

    async def _handed_over(self, vm: VirtualMachine, move: Migration, domain: Domain, memory: VmMemory) -> float | None:
        """It was sent, or is paused somewhere on that way: the target reports whether it has it."""
        if move.phase is not MigrationPhase.TRANSFERRED:
            await self._move.advance(vm.name, move, MigrationPhase.TRANSFERRED)
            return 0.0
        members = await self._move.members(vm)
        targets = [one for one in vm.status.holders if one.hypervisor == move.target]
        if any(not fenced(one, members, reach_of(vm)) for one in targets):
            return LOOK_S
        return await self._move.take_back(vm, domain, members, memory)

    async def _lost(self, vm: VirtualMachine, move: Migration) -> float | None:
        """What was handed over is gone here: the target has it, or it starts anew here once no target can have it."""
        members = await self._move.members(vm)
        if any(not fenced(one, members, reach_of(vm)) for one in self._move.others(vm)):
            return LOOK_S
        return await self._move.abort(vm.name, move, reason(MigrationReason.TARGET_LOST), frozenset({move.phase}))

    async def _stop(self, name: str, move: Migration, memory: VmMemory) -> float | None:
        match await self._ender.shut_down(name, memory):
            case Shutdown.ABORTED:
                return await self._move.abort(name, move, reason(MigrationReason.CANCELLED))
            case Shutdown.FAILED:
                return LOOK_S
            case _:
                return await self._stopped(name, move)

    async def _stopped(self, name: str, move: Migration) -> float | None:
        """The guest is down: release it, and say so to the target."""
        if not await self._ender.destroy(name) or not await self._ender.release(name):
            return LOOK_S
        self._shared.reported()
        self._shared.memory(name).running_since_s = None
        await self._move.advance(name, move, MigrationPhase.STOPPED)
        return 0.0

    async def _after_stop(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        """The target is to start it; if the target is lost before it held it, this host takes it back."""
        if not await self._ender.release(vm.name):
            return LOOK_S
        if self._move.late(memory, SILENT_S) and not await self._holds(move.target):
            members = await self._move.members(vm)
            if not any(not fenced(one, members, reach_of(vm)) for one in self._move.others(vm)):
                return await self._move.abort(vm.name, move, reason(MigrationReason.TARGET_LOST), AFTER_STOP)
        return LOOK_S

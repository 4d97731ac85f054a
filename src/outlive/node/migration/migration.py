"""Migrations from host to host: both sides advance one record, each by compare-and-swap, none with a lock.

Live: the target enters itself and lets a domain listen, the source sends, the target adopts what runs there. Cold: the
source shuts the guest down and releases it, the target starts it. Each phase has a deadline on the clock of whoever
waits; until the guest was handed over or stopped, either side may abort, and then everything is as before. Whichever
side really runs the guest decides: a target that runs it adopts it whatever the record says, and a source that has
handed it over lets it run again only if the target says that it never ran it; else it starts anew, from its disks.
Where both sides are dead, recovery decides.
"""

from __future__ import annotations

from typing import Final

from outlive.base.logging import get_logger
from outlive.node.membership.states import fenced
from outlive.node.migration.record import LOOK_S, MigrationRecords
from outlive.node.migration.source import MigrationSource
from outlive.node.migration.target import MigrationTarget
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.start import DomainCreator
from outlive.node.vm.states import (
    active_move,
    assigned_to,
    mine,
    reach_of,
)
from outlive.node.vm.stop import VmStopper
from outlive.resources import VirtualMachine
from outlive.resources.reasons import MigrationReason, reason
from outlive.resources.vms import VirtualMachineStatus

TIDY_S: Final = 10.0
"""How often a host looks whether another holder of what it runs has gone."""
_log = get_logger("node.move")


class Migrations:
    """See the module. Answers say in how many seconds to look again; ``None``: when something changes."""

    def __init__(self, shared: VmContext, creator: DomainCreator, ender: VmStopper) -> None:
        self._shared = shared
        self._move = MigrationRecords(shared, ender)
        self._receiver = MigrationTarget(shared, creator, ender, self._move)
        self._sender = MigrationSource(shared, ender, self._move)

    async def step(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """One step of a move under way, on this side."""
        move = active_move(vm)
        assert move is not None
        seen = (move.id, move.phase, move.attempts)
        if memory.phase != seen:
            memory.phase, memory.phase_since_s = seen, self._shared.clock.monotonic()
        if move.source == move.target:
            return await self._move.abort(vm.name, move, reason(MigrationReason.SELF_TARGET))
        if self._shared.host == move.source:
            return await self._sender.step(vm, move, memory)
        return await self._receiver.step(vm, move, memory)

    async def left_over(self, vm: VirtualMachine, domain: Domain, memory: VmMemory) -> float | None:
        """A domain on its way in or out, of a move that is over."""
        if domain.state is DomainState.INCOMING:
            return await self._move.drop(vm.name, domain)
        members = await self._move.members(vm)
        not_fenced = [one for one in self._move.others(vm) if not fenced(one, members, reach_of(vm))]
        if any(one.role == "" for one in not_fenced):
            return await self._move.drop(vm.name, domain)
        if not_fenced:
            return LOOK_S
        return await self._move.take_back(vm, domain, members, memory)

    async def adopt(self, vm: VirtualMachine) -> float | None:
        """The domain that was received runs here: this host owns it now, whatever else was meant."""
        shared = self._shared
        members = await self._move.members(vm)
        await shared.records.relabel(shared.move, vm.name, shared.host)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if not any(one.role == "incoming" for one in mine(now, shared.keeper.me)):
                return None
            move = now.status.migration
            home = move.new_home if move is not None and move.target == shared.host else now.status.home
            return self._move.adopted(now, members, home=home or shared.host, migration=None)

        await shared.records.change(shared.move, vm.name, change)
        shared.memory(vm.name).running_since_s = shared.clock.monotonic()
        shared.reported()
        _log.info("move.adopted", vm=vm.name, host=shared.host)
        return 0.0

    async def tidy(self, vm: VirtualMachine) -> float | None:
        """It runs here as it should, and others have entries as well: those that are fenced go."""
        shared = self._shared
        members = await self._move.members(vm)
        if not any(fenced(one, members, reach_of(vm)) for one in self._move.others(vm)):
            return TIDY_S

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if now.status.holders != vm.status.holders or active_move(now) is not None:
                return None
            return self._move.adopted(now, members, home=now.status.home, migration=now.status.migration)

        await shared.records.change(shared.move, vm.name, change)
        return TIDY_S

    async def keep(self, vm: VirtualMachine) -> float | None:
        """It runs here, whatever a restored store says: this host owns it, once nobody else may be running it."""
        shared = self._shared
        members = await self._move.members(vm)
        if any(not fenced(one, members, reach_of(vm)) for one in self._move.others(vm)):
            return LOOK_S
        await shared.records.relabel(shared.move, vm.name, shared.host)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            settled = assigned_to(now) == shared.host and active_move(now) is None
            if settled or now.status.holders != vm.status.holders:
                return None
            return self._move.adopted(now, members, home=now.status.home or shared.host, migration=None)

        await shared.records.change(shared.move, vm.name, change)
        _log.warning("vm.kept_after_restore", vm=vm.name, host=shared.host, assigned=assigned_to(vm))
        return 0.0

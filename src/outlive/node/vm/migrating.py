"""Moves from host to host: the record of a move is advanced by both sides, each by compare-and-swap, none with a lock.

Live: the target enters itself and lets a domain listen, the source sends, the target adopts what runs there. Cold: the
source shuts the guest down and releases it, the target starts it. Each phase has a deadline on the clock of whoever
waits; until the guest was handed over or stopped, either side may abort, and then everything is as before. Whichever
side really runs the guest decides: a target that runs it adopts it whatever the record says, and a source that has
handed it over lets it run again only once no target can. Where both sides are dead, recovery decides.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from outlive.base.errors import OutliveError, Refused, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.membership.death import MemberView, mute
from outlive.node.membership.holding import CREATE, CreateView
from outlive.node.membership.moving import ADOPT, ENTER, RESUME, SEND, MoveView
from outlive.node.ports.hypervisor import Domain, DomainState
from outlive.node.vm.ending import Ender, Shutdown
from outlive.node.vm.moves import LIVE_ATTEMPTS
from outlive.node.vm.shared import VmHost, VmMemory
from outlive.node.vm.starting import Starter
from outlive.node.vm.states import START, active_move, assigned_to, mine, reach_of
from outlive.resources import Assigned, Holder, VirtualMachine
from outlive.resources.vms import Migration, VirtualMachineStatus

LOOK_S: Final = 1.0
"""How often a side that waits reads the record."""
TIDY_S: Final = 10.0
"""How often a host looks whether another holder of what it runs has gone."""
ATTEMPT_PAUSE_S: Final = 0.5
"""Between two attempts to move a running guest."""
QUEUE_LIMITS: Final = 10
"""So many times the limit of a step a move may wait for its turn on the target."""
BEFORE_HANDOVER: Final = frozenset({"requested", "target-ready", "transferring", "stopping"})
"""Phases in which either side may abort."""
AFTER_STOP: Final = frozenset({"stopped"})
"""The phase in which the source takes it back from a target that is lost; it does not run anywhere then."""

_ENTER, _SEND, _ADOPT, _RESUME = ENTER.decision, SEND.decision, ADOPT.decision, RESUME.decision
_CREATE: Final = CREATE.decision
_replace = msgspec.structs.replace
_log = get_logger("node.move")


class Migrator:
    """See the module. Answers say in how many seconds to look again; ``None``: when something changes."""

    def __init__(self, shared: VmHost, starter: Starter, ender: Ender) -> None:
        self._shared = shared
        self._starter = starter
        self._ender = ender
        self._outgoing: dict[str, None] = {}
        self._incoming: dict[str, None] = {}

    async def step(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """One step of a move under way, on this side."""
        move = active_move(vm)
        assert move is not None
        seen = (move.id, move.phase, move.attempts)
        if memory.phase != seen:
            memory.phase, memory.phase_since_s = seen, self._shared.clock.monotonic()
        if move.source == move.target:
            return await self._abort(vm.name, move, "self_target")
        if self._shared.host == move.source:
            return await self._source(vm, move, memory)
        return await self._target(vm, move, memory)

    async def left_over(self, vm: VirtualMachine, domain: Domain, memory: VmMemory) -> float | None:
        """A domain on its way in or out, of a move that is over."""
        if domain.state is DomainState.INCOMING:
            return await self._drop(vm.name, domain.run_id)
        members = await self._members(vm)
        loud = [one for one in self._others(vm) if not mute(one, members, reach_of(vm))]
        if any(one.role == "" for one in loud):
            return await self._drop(vm.name, domain.run_id)
        if loud:
            return LOOK_S
        return await self._resume(vm, members, "target_lost")

    async def adopt(self, vm: VirtualMachine) -> float | None:
        """The domain that was received runs here: this host owns it now, whatever else was meant."""
        shared = self._shared
        members = await self._members(vm)
        await shared.records.relabel(shared.move, vm.name, shared.host)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if not any(one.role == "incoming" for one in mine(now, shared.keeper.me)):
                return None
            move = now.status.migration
            home = move.new_home if move is not None and move.target == shared.host else now.status.home
            return self._adopted(now, members, home=home or shared.host, migration=None)

        await shared.records.change(shared.move, vm.name, change)
        shared.memory(vm.name).running_since_s = shared.clock.monotonic()
        shared.reported()
        _log.info("move.adopted", vm=vm.name, host=shared.host)
        return 0.0

    async def tidy(self, vm: VirtualMachine) -> float | None:
        """It runs here as it should, and others have entries as well: those that are mute go."""
        shared = self._shared
        members = await self._members(vm)
        if not any(mute(one, members, reach_of(vm)) for one in self._others(vm)):
            return TIDY_S

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if now.status.holders != vm.status.holders or active_move(now) is not None:
                return None
            return self._adopted(now, members, home=now.status.home, migration=now.status.migration)

        await shared.records.change(shared.move, vm.name, change)
        return TIDY_S

    async def keep(self, vm: VirtualMachine) -> float | None:
        """It runs here, whatever a restored store says: this host owns it, once nobody else may be running it."""
        shared = self._shared
        members = await self._members(vm)
        if any(not mute(one, members, reach_of(vm)) for one in self._others(vm)):
            return LOOK_S
        await shared.records.relabel(shared.move, vm.name, shared.host)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) == shared.host or now.status.holders != vm.status.holders:
                return None
            return self._adopted(now, members, home=now.status.home or shared.host, migration=None)

        await shared.records.change(shared.move, vm.name, change)
        _log.warning("vm.kept_after_restore", vm=vm.name, host=shared.host, assigned=assigned_to(vm))
        return 0.0

    # The target

    async def _target(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        shared = self._shared
        await shared.here.look()
        domain = shared.here.domains.get(vm.name)
        if assigned_to(vm) != shared.host:
            return await self._drop(vm.name, domain.run_id if domain is not None else "")
        match move.phase:
            case "requested":
                return await self._make_ready(vm, move, domain, memory)
            case "stopped":
                if domain is not None:
                    return await self._drop(vm.name, domain.run_id)
                return await self._begin_cold(vm.name, move)
            case "stopping":
                return await self._drop(vm.name, domain.run_id) if domain is not None else LOOK_S
            case _:
                return await self._await_guest(vm, move, domain, memory)

    async def _make_ready(
        self, vm: VirtualMachine, move: Migration, domain: Domain | None, memory: VmMemory
    ) -> float | None:
        shared, name = self._shared, vm.name
        if domain is not None and domain.state is DomainState.INCOMING and move.mode == "live":
            await self._advance(name, move, "target-ready")
            return LOOK_S
        if domain is not None and not await self._ender.destroy(name, run_id=domain.run_id):
            return LOOK_S
        if mine(vm, shared.keeper.me) and not await self._ender.release(name):
            return LOOK_S
        if move.mode == "cold":
            await self._advance(name, move, "target-ready")
            return LOOK_S
        if len(self._incoming) >= shared.settings.moves:
            memory.phase_since_s = shared.clock.monotonic()
            return LOOK_S
        if self._late(memory):
            return await self._abort(name, move, "peer_timeout")
        self._incoming[name] = None
        try:
            return await self._enter(vm, move, memory)
        finally:
            self._incoming.pop(name, None)

    async def _enter(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        shared, name = self._shared, vm.name
        members = await self._members(vm)
        if not await shared.keeper.stands():
            return LOOK_S
        report = await shared.guard.report()
        run_id = shared.ids.uuid()
        why = ""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            nonlocal why
            if any(one.run_id == run_id for one in now.status.holders) or now.status.migration != move:
                return None
            view = self._view(now, members, run_id=run_id, gate_open=report.gate_open)
            outcome = shared.decisions.use(_ENTER, view, subject=name)
            why = outcome.refused.why if outcome.refused is not None else ""
            return None if why else _replace(now.status, holders=outcome.holders)

        memory.own_runs.add(run_id)
        entered = await shared.records.change(shared.daemon, name, change)
        if entered is None or not any(one.run_id == run_id for one in entered.status.holders):
            _log.info("move.not_entered", vm=name, host=shared.host, why=why)
            return LOOK_S
        gate_open = await shared.guard.begin_create(run_id)
        me = shared.keeper.me
        view = CreateView(vm=name, me=me, run_id=run_id, holders=entered.status.holders, gate_open=gate_open)
        if shared.decisions.use(_CREATE, view, subject=name).refused is not None:
            if gate_open:
                await self._starter.end_create(run_id)
            await self._ender.release(name)
            return LOOK_S
        problem = await self._starter.create(entered, run_id, me.epoch, memory, incoming=True)
        domain = shared.here.domains.get(name)
        if domain is None or domain.run_id != run_id:
            await self._ender.release(name)
            return await self._abort(name, move, f"{shared.host} cannot receive it: {problem or 'its domain ended'}")
        await self._advance(name, move, "target-ready")
        return LOOK_S

    async def _await_guest(
        self, vm: VirtualMachine, move: Migration, domain: Domain | None, memory: VmMemory
    ) -> float | None:
        """Target-ready, transferring, transferred: until the guest runs here, or certainly will not."""
        name = vm.name
        if move.mode == "cold" and move.phase == "target-ready":
            if self._late(memory):
                return await self._abort(name, move, "peer_timeout")
            return LOOK_S
        if domain is None:
            await self._ender.release(name)
            return await self._abort(name, move, "target_lost") if move.phase == "target-ready" else LOOK_S
        if not self._late(memory, 3.0):
            return LOOK_S
        members = await self._members(vm)
        sources = [one for one in vm.status.holders if one.hypervisor == move.source]
        if all(mute(one, members, reach_of(vm)) for one in sources):
            return await self._drop(name, domain.run_id)  # nobody is left to send it; recovery decides
        if move.phase == "target-ready" and self._late(memory):
            return await self._abort(name, move, "peer_timeout")
        if move.phase == "transferred" and self._late(memory):
            return await self._drop(name, domain.run_id)  # all was sent and it does not run: the source goes on
        return LOOK_S

    async def _begin_cold(self, name: str, move: Migration) -> float | None:
        """The source has released it: start it here."""

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if active_move(now) != move or assigned_to(now) != self._shared.host:
                return None
            return _replace(now.status, phase=START, reason="", migration=None)

        await self._shared.records.change(self._shared.move, name, change)
        return 0.0

    async def _drop(self, name: str, run_id: str) -> float | None:
        """Nothing of it stays here."""
        if not await self._ender.destroy(name, run_id=run_id):
            return LOOK_S
        released = await self._ender.release(name)
        self._shared.reported()
        return LOOK_S if not released else 0.0

    # The source

    async def _source(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        shared, name = self._shared, vm.name
        await shared.here.look()
        domain = shared.here.domains.get(name)
        if move.phase == "stopped":
            return await self._after_stop(vm, move, memory)
        if domain is None or domain.state is DomainState.OFF:
            if move.phase == "stopping":
                return await self._stopped(name, move)
            if domain is not None:
                await self._ender.destroy(name, run_id=domain.run_id)
            return await self._abort(name, move, "it ended by itself before it was moved")
        if domain.state is not DomainState.RUNNING:
            return await self._handed_over(vm, move, domain, memory)
        if assigned_to(vm) != move.target:
            return await self._abort(name, move, "target_changed")
        match move.phase:
            case "requested":
                return await self._await_target(vm, move, memory)
            case "target-ready" if move.mode == "cold":
                await self._advance(name, move, "stopping")
                return 0.0
            case "stopping":
                return await self._stop(name, move, memory)
            case "transferred":  # it was sent, and runs here all the same: it came back
                return await self._come_back(vm, "live_failed")
            case _:
                return await self._send(vm, move, memory)

    async def _await_target(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        if self._late(memory, float(self._shared.settings.move_limit) * QUEUE_LIMITS):
            return await self._abort(vm.name, move, "peer_timeout")
        if self._late(memory, 3.0) and not await self._holds(move.target):
            return await self._abort(vm.name, move, "target_lost")
        return LOOK_S

    async def _holds(self, host: str) -> bool:
        """Whether a host holds its membership."""
        found = await self._shared.records.members(self._shared.daemon, (Holder(hypervisor=host),))
        return any(one.record.state == "Held" for one in found)

    async def _send(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        """One attempt to move it while it runs."""
        shared, name = self._shared, vm.name
        if vm.spec.migration_method == "shutdown":
            return await self._abort(name, move, "live_forbidden")
        if move.attempts >= LIVE_ATTEMPTS:
            return await self._live_failed(vm, move)
        if len(self._outgoing) >= shared.settings.moves:
            memory.phase_since_s = shared.clock.monotonic()
            return LOOK_S
        members = await self._members(vm)
        outcome = shared.decisions.use(_SEND, self._view(vm, members), subject=name)
        if outcome.refused is not None:
            if move.phase == "transferring" or self._late(memory):
                return await self._abort(name, move, "target_lost")
            return LOOK_S
        self._outgoing[name] = None
        try:
            begun = await self._advance(name, move, "transferring", attempts=move.attempts + 1)
            if begun:
                await self._transfer(name, move, memory)
        finally:
            self._outgoing.pop(name, None)
        return 0.0

    async def _transfer(self, name: str, move: Migration, memory: VmMemory) -> None:
        shared = self._shared
        try:
            async with asyncio.timeout(float(shared.settings.transfer_limit)):
                await shared.here.hypervisor.migrate(name, move.target, max_downtime_ms=shared.settings.downtime_ms)
        except Refused as error:
            _log.warning("move.attempt_failed", vm=name, target=move.target, why=error.message)
            await shared.clock.sleep(ATTEMPT_PAUSE_S)
        except (Unknown, Unavailable, TimeoutError) as error:
            _log.warning("move.attempt_unknown", vm=name, target=move.target, why=str(error) or "no answer in time")
        await shared.here.look()

    async def _live_failed(self, vm: VirtualMachine, move: Migration) -> float | None:
        if vm.status.phase == "migrate-live" or vm.spec.migration_method == "live":
            return await self._abort(vm.name, move, "live_failed")
        # The guest is stopped only once the target has said again that it is there to start it.
        await self._advance(vm.name, move, "requested", mode="cold")
        return 0.0

    async def _handed_over(self, vm: VirtualMachine, move: Migration, domain: Domain, memory: VmMemory) -> float | None:
        """It was sent, or stands still somewhere on that way: the target says whether it has it."""
        if move.phase != "transferred":
            await self._advance(vm.name, move, "transferred")
            return 0.0
        members = await self._members(vm)
        targets = [one for one in vm.status.holders if one.hypervisor == move.target]
        if any(not mute(one, members, reach_of(vm)) for one in targets):
            return LOOK_S
        return await self._resume(vm, members, "target_lost")

    async def _stop(self, name: str, move: Migration, memory: VmMemory) -> float | None:
        match await self._ender.shut_down(name, memory):
            case Shutdown.ABORTED:
                return await self._abort(name, move, "cancelled")
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
        await self._advance(name, move, "stopped")
        return 0.0

    async def _after_stop(self, vm: VirtualMachine, move: Migration, memory: VmMemory) -> float | None:
        """The target is to start it; if the target is lost before it held it, this host takes it back."""
        if not await self._ender.release(vm.name):
            return LOOK_S
        if self._late(memory, 3.0) and not await self._holds(move.target):
            members = await self._members(vm)
            if not any(not mute(one, members, reach_of(vm)) for one in self._others(vm)):
                return await self._abort(vm.name, move, "target_lost", AFTER_STOP)
        return LOOK_S

    async def _resume(self, vm: VirtualMachine, members: tuple[MemberView, ...], reason: str) -> float | None:
        """No target can run it any more: it runs on here."""
        shared, name = self._shared, vm.name
        settled = await shared.settling.settled() and await shared.keeper.stands()
        fresh = await shared.records.read(shared.daemon, name)
        if fresh is None or fresh.metadata.resource_version != vm.metadata.resource_version:
            return LOOK_S
        view = _replace(self._view(fresh, members), settled=settled)
        outcome = shared.decisions.use(_RESUME, view, subject=name)
        if outcome.refused is not None:
            _log.info("move.not_resumed", vm=name, why=outcome.refused.why)
            return LOOK_S
        try:
            await shared.here.hypervisor.resume(name)
        except OutliveError as error:
            _log.warning("move.not_resumed", vm=name, why=str(error))
            return LOOK_S
        await shared.here.look()
        return await self._come_back(fresh, reason)

    async def _come_back(self, vm: VirtualMachine, reason: str) -> float | None:
        """It runs here after all: it is assigned here again, and mute entries of the target go."""
        shared = self._shared
        members = await self._members(vm)
        await shared.records.relabel(shared.move, vm.name, shared.host)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            move = now.status.migration
            if move is None or (move.phase == "aborted" and assigned_to(now) == shared.host):
                return None
            over = _replace(move, phase="aborted", reason=reason)
            return self._adopted(now, members, home=move.prior_home or now.status.home, migration=over)

        await shared.records.change(shared.move, vm.name, change)
        _log.warning("move.came_back", vm=vm.name, host=shared.host, reason=reason)
        return 0.0

    # Both

    def _adopted(
        self, now: VirtualMachine, members: tuple[MemberView, ...], *, home: str, migration: Migration | None
    ) -> VirtualMachineStatus | None:
        shared = self._shared
        view = self._view(now, members, runs=True)
        outcome = shared.decisions.use(_ADOPT, view, subject=now.name)
        if outcome.refused is not None:
            return None
        me = shared.keeper.me
        held = _replace(now, status=_replace(now.status, holders=outcome.holders))
        holders = tuple(_replace(one, seen="running") if one in mine(held, me) else one for one in outcome.holders)
        assigned = now.status.assigned
        if assigned is None or assigned.hypervisor != shared.host:
            assigned = Assigned(hypervisor=shared.host)
        return _replace(
            now.status,
            holders=holders,
            assigned=assigned,
            home=home,
            phase=START,
            reason="",
            migration=migration,
        )

    async def _advance(self, name: str, move: Migration, phase: str, **changes: object) -> bool:
        """The next phase of exactly this record; whether it is written."""
        target = _replace(move, phase=phase, **changes)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            return _replace(now.status, migration=target) if now.status.migration == move else None

        after = await self._shared.records.change(self._shared.move, name, change)
        done = after is not None and after.status.migration == target
        if done:
            _log.info("move.phase", vm=name, move=move.id, phase=phase, host=self._shared.host)
        return done

    async def _abort(
        self, name: str, move: Migration, reason: str, phases: frozenset[str] = BEFORE_HANDOVER
    ) -> float | None:
        """Everything as before, if neither side has gone too far."""
        shared = self._shared
        await shared.records.relabel(shared.move, name, move.source)

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            current = active_move(now)
            if current is None or current.id != move.id or current.phase not in phases:
                return None
            over = _replace(current, phase="aborted", reason=reason)
            phase = START if now.status.phase in ("migrate", "migrate-live", "unmigrate") else now.status.phase
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
        _log.warning("move.aborted", vm=name, host=shared.host, reason=reason)
        return LOOK_S

    async def _members(self, vm: VirtualMachine) -> tuple[MemberView, ...]:
        shared = self._shared
        others = await shared.records.members(shared.daemon, vm.status.holders, but=shared.host)
        return shared.own_member() + others

    def _others(self, vm: VirtualMachine) -> list[Holder]:
        return [one for one in vm.status.holders if one.hypervisor != self._shared.host]

    def _view(
        self,
        vm: VirtualMachine,
        members: tuple[MemberView, ...],
        *,
        run_id: str = "",
        gate_open: bool = True,
        runs: bool = False,
    ) -> MoveView:
        shared, move = self._shared, vm.status.migration
        others = self._others(vm)
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
        )

    def _late(self, memory: VmMemory, limit_s: float | None = None) -> bool:
        limit_s = float(self._shared.settings.move_limit) if limit_s is None else limit_s
        return self._shared.clock.monotonic() - memory.phase_since_s >= limit_s

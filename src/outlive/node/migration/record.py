"""The record of a migration: its phases, its abort, and who owns what runs.

Both sides advance one record, each by compare-and-swap on exactly what was read, none with a lock, so that two sides
that decide at once do not undo each other's step. Each phase has a deadline on the clock of the side that waits; until
the guest was handed over or stopped, either side may abort, and then everything is as before. Whichever side really
runs the guest decides: a target that runs it adopts it whatever the record says, and a source that has handed it over
lets it run again only if the target says that it never ran it; else it starts anew, from its disks. Where both sides
are dead, recovery decides.

Answers say in how many seconds to look again; ``None``: when something changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from outlive.base import OutliveError, Transitions, follow, get_logger
from outlive.node.membership.holders import ADOPT, RESUME, MoveView, is_mine
from outlive.node.membership.states import MemberView, is_fenced
from outlive.node.ports import Domain, DomainState
from outlive.node.vm.context import VmContext
from outlive.node.vm.start import Fresh
from outlive.node.vm.states import HALTED, MIGRATING, VmState, active_move, reach_of
from outlive.node.vm.stop import destroy, release
from outlive.resources import Assigned, Holder, Migration, MigrationPhase, VirtualMachine, VirtualMachineStatus
from outlive.resources.reasons import MigrationReason, Reason, make_reason, render

P = MigrationPhase
PHASES: Final[Transitions[MigrationPhase]] = {
    P.REQUESTED: frozenset({P.TARGET_READY, P.TRANSFERRED, P.ABORTED}),
    P.TARGET_READY: frozenset({P.REQUESTED, P.TRANSFERRING, P.STOPPING, P.TRANSFERRED, P.ABORTED}),
    P.TRANSFERRING: frozenset({P.REQUESTED, P.TRANSFERRED, P.ABORTED}),
    P.STOPPING: frozenset({P.STOPPED, P.TRANSFERRED, P.ABORTED}),
    P.TRANSFERRED: frozenset({P.ABORTED}),
    P.STOPPED: frozenset({P.ABORTED}),
    P.ABORTED: frozenset(),
}
"""A guest that is found paused at its source counts as transferred, whatever was recorded. A migration that succeeded
leaves no record."""
BEFORE_HANDOVER: Final = frozenset({P.REQUESTED, P.TARGET_READY, P.TRANSFERRING, P.STOPPING})
"""Phases in which either side may abort."""
LOOK_S: Final = 1.0
"""How often a side that waits reads the record."""
TIDY_S: Final = 10.0
"""How often a host looks whether another holder of what it runs has gone."""
_ADOPT: Final = ADOPT.decision
_RESUME: Final = RESUME.decision
_replace = msgspec.structs.replace
_log = get_logger("node.move")


def check_transition(move: Migration, phase: MigrationPhase) -> MigrationPhase:
    """The phase, if it may follow; raises ``IllegalTransition``."""
    return follow(PHASES, move.phase, phase, what=f"migration {move.id}")


def abort_record(move: Migration, why: Reason) -> Migration:
    """The record of a migration that did not end at its target; raises ``IllegalTransition``."""
    return _replace(
        move, phase=check_transition(move, MigrationPhase.ABORTED), reason=why.code, message=render(why).text
    )


def foreign_entries(node: VmContext, vm: VirtualMachine) -> list[Holder]:
    """Entries of other hosts."""
    return [one for one in vm.status.holders if one.hypervisor != node.host]


async def find_unfenced_holders(node: VmContext, vm: VirtualMachine, host: str = "") -> list[Holder]:
    """Entries of other hosts, or of that one, that may still run it."""
    members, reach = await node.read_members(vm), reach_of(vm)
    return [
        one for one in foreign_entries(node, vm) if host in ("", one.hypervisor) and not is_fenced(one, members, reach)
    ]


def move_view(node: VmContext, vm: VirtualMachine, fresh: Fresh, *, sent_to: str = "") -> MoveView:
    """The virtual machine as the steps of a move look at it."""
    move, foreign = vm.status.migration, foreign_entries(node, vm)
    return MoveView(
        vm=vm.name,
        me=node.lease.me,
        id=move.id if move is not None else "",
        source=move.source if move is not None else node.host,
        target=move.target if move is not None else (foreign[0].hypervisor if foreign else ""),
        holders=vm.status.holders,
        members=fresh.members,
        reach=reach_of(vm),
        gate_open=fresh.gate_open,
        run_id=fresh.run_id,
        here=vm.name in node.domains.list_names(),
        runs=node.is_running(vm),
        sent_to=sent_to,
        declined=move.declined if move is not None else "",
        paused=fresh.paused,
        deleting=vm.deleting,
    )


async def advance(node: VmContext, name: str, move: Migration, phase: MigrationPhase, **changes: object) -> bool:
    """The next phase of exactly this record; whether it is written."""
    target = _replace(move, phase=check_transition(move, phase), **changes)

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        return _replace(now.status, migration=target) if now.status.migration == move else None

    after = await node.change(name, change)
    done = after is not None and after.status.migration == target
    if done:
        _log.info("move.phase", vm=name, move=move.id, phase=phase, host=node.host)
    return done


async def abort(
    node: VmContext,
    name: str,
    move: Migration,
    why: Reason,
    phases: frozenset[MigrationPhase] = BEFORE_HANDOVER,
) -> float | None:
    """Everything as before, if neither side has gone too far."""

    def may(now: VirtualMachine) -> Migration | None:
        current = active_move(now)
        return current if current is not None and current.id == move.id and current.phase in phases else None

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        current = may(now)
        if current is None:
            return None
        return _replace(
            now.status,
            assigned=Assigned(hypervisor=move.source),
            home=move.prior_home or move.source,
            phase=VmState.START if now.status.phase in MIGRATING else now.status.phase,
            migration=abort_record(current, why),
        )

    await node.assign(name, move.source, change)
    _log.warning("move.aborted", vm=name, host=node.host, reason=why.code)
    return LOOK_S


async def drop(node: VmContext, name: str, domain: Domain | None) -> float | None:
    """Nothing of it stays here; what waits for a guest goes only if it certainly never ran, and that is said.

    What runs goes only where the store has not gone back behind this host's membership.
    """
    never_ran = ""
    handed_over = domain is not None and domain.state is DomainState.HANDED_OVER
    if domain is not None and domain.split and handed_over and await may_run(node, name):
        return LOOK_S  # without it the target loses its guest, and a target without its guest loses nothing
    if domain is not None and domain.state is DomainState.RUNNING and not await node.confirm_store():
        return LOOK_S
    if domain is not None and domain.state is DomainState.INCOMING:
        if await node.domains.decline(name, domain.run_id):
            never_ran = domain.run_id
        elif name in node.domains.by_vm:
            return LOOK_S
    elif not await destroy(node, name, run_id=domain.run_id if domain is not None else ""):
        return LOOK_S
    released = await release(node, name, never_ran=never_ran)
    node.reported()
    if released and handed_over:
        node.network.announce(name)
    return LOOK_S if not released else 0.0


async def may_run(node: VmContext, name: str, host: str = "") -> bool:
    """Whether another host, or that one, may run it, as the store is now."""
    now = await node.read(name)
    return now is not None and bool(await find_unfenced_holders(node, now, host))


# Who owns what runs here


def _owned_status(
    node: VmContext, now: VirtualMachine, members: tuple[MemberView, ...], home: str, migration: Migration | None
) -> VirtualMachineStatus | None:
    """The status in which this host owns what runs here, without fenced entries; ``None`` where it must not."""
    outcome = node.decisions.use(_ADOPT, move_view(node, now, Fresh("", members)), subject=now.name)
    if outcome.refused is not None:
        return None
    me, status = node.lease.me, now.status
    assigned = status.assigned
    if assigned is None or assigned.hypervisor != node.host:
        assigned = Assigned(hypervisor=node.host)
    status = _replace(
        status,
        holders=tuple(_replace(one, seen="running") if is_mine(one, me) else one for one in outcome.holders),
        assigned=assigned,
        home=home,
        migration=migration,
    )
    if active_move(now) is not None and status.phase in HALTED:
        return status
    return _replace(status, phase=VmState.START, reason="", message="")


Ownership = Callable[[VirtualMachine], "tuple[str, Migration | None] | None"]
"""From what was read to its home and the record that is left; ``None``: there is nothing to write."""


async def take_ownership(node: VmContext, vm: VirtualMachine, ownership: Ownership) -> None:
    """It runs here: this host owns it from now on, and fenced entries of others go."""
    members = await node.read_members(vm)

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        wanted = ownership(now)
        return None if wanted is None else _owned_status(node, now, members, *wanted)

    await node.assign(vm.name, node.host, change)


async def adopt(node: VmContext, vm: VirtualMachine) -> float | None:
    """The domain that was received runs here: this host owns it now, whatever else was meant."""

    def decide_ownership(now: VirtualMachine) -> tuple[str, Migration | None] | None:
        if not any(one.role == "incoming" for one in now.status.holders if is_mine(one, node.lease.me)):
            return None
        move = now.status.migration
        home = move.new_home if move is not None and move.target == node.host else now.status.home
        return home or node.host, None

    await take_ownership(node, vm, decide_ownership)
    node.network.announce(vm.name)
    node.memory_of(vm.name).running_since_s = node.clock.monotonic()
    node.reported()
    _log.info("move.adopted", vm=vm.name, host=node.host)
    return 0.0


async def tidy(node: VmContext, vm: VirtualMachine) -> float | None:
    """It runs here as it should, and others have entries as well: those that are fenced go."""
    if len(await find_unfenced_holders(node, vm)) < len(foreign_entries(node, vm)):

        def decide_ownership(now: VirtualMachine) -> tuple[str, Migration | None] | None:
            if now.status.holders != vm.status.holders or active_move(now) is not None:
                return None
            return now.status.home, now.status.migration

        await take_ownership(node, vm, decide_ownership)
    return TIDY_S


async def claim_after_restore(node: VmContext, vm: VirtualMachine) -> float | None:
    """It runs here, whatever a restored store says: this host owns it, once nobody else may be running it."""
    if await find_unfenced_holders(node, vm):
        return LOOK_S

    def decide_ownership(now: VirtualMachine) -> tuple[str, Migration | None] | None:
        settled = now.host == node.host and active_move(now) is None
        if settled or now.status.holders != vm.status.holders:
            return None
        return now.status.home or node.host, None

    await take_ownership(node, vm, decide_ownership)
    _log.warning("vm.kept_after_restore", vm=vm.name, host=node.host, assigned=vm.host)
    return 0.0


async def return_home(node: VmContext, vm: VirtualMachine, why: Reason) -> float | None:
    """It runs here after all: it is assigned here again, and fenced entries of the target go."""

    def decide_ownership(now: VirtualMachine) -> tuple[str, Migration | None] | None:
        move = now.status.migration
        if move is None or (move.phase is MigrationPhase.ABORTED and now.host == node.host):
            return None
        return move.prior_home or now.status.home, abort_record(move, why)

    await take_ownership(node, vm, decide_ownership)
    _log.warning("move.came_back", vm=vm.name, host=node.host, reason=why.code)
    return 0.0


async def resume_or_drop(node: VmContext, vm: VirtualMachine, domain: Domain) -> float | None:
    """No target runs it any more: it runs on here if none ever did; else what is here is of the past, and goes.

    Then it starts anew where it is assigned, from its disks, like after a crash.
    """
    name, lost = vm.name, make_reason(MigrationReason.TARGET_LOST)
    if not await node.confirm_store():
        return LOOK_S
    fresh = Fresh("", await node.read_members(vm))
    view = move_view(node, vm, fresh, sent_to=node.memory_of(name).sent_to)
    outcome = node.decisions.use(_RESUME, view, subject=name)
    if outcome.refused is None and not domain.split:
        try:
            await node.domains.resume(name, domain.run_id)
        except OutliveError as error:
            _log.warning("move.not_resumed", vm=name, why=str(error))
            return LOOK_S
        await node.domains.refresh()
        return await return_home(node, vm, lost)
    why = outcome.refused.why if outcome.refused is not None else "a part of its memory was on the target alone"
    _log.warning("move.not_resumed", vm=name, why=why)
    move = active_move(vm)
    if move is not None:
        return await abort(node, name, move, lost, frozenset({move.phase}))
    return await drop(node, name, domain)

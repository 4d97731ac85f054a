"""The steps of a migration on both sides, as two tables of what the record says and what is here.

Live: the target enters itself and lets a domain listen, the source sends, the target adopts what runs there. Cold: the
source shuts the guest down and releases it, the target starts it. A guest that was handed over is kept paused at its
source until the target has adopted it, and in post-copy until the target has all of its memory. Of a target that died
nobody knows whether it ran the guest: then it is started anew, from its disks. Until the guest was handed over the
target may give up at any time; then nothing of it stays here, and the source goes on. Where the source is lost,
recovery lets it start at the target.

Answers say in how many seconds to look again; ``None``: when something changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from outlive.base import OutliveError, Refused, Unavailable, Unknown, get_logger
from outlive.node.membership.holders import ENTER, SEND, HoldersOutcome
from outlive.node.migration.record import (
    BEFORE_HANDOVER,
    LOOK_S,
    P,
    abort,
    advance,
    drop,
    find_unfenced_holders,
    foreign_entries,
    may_run,
    move_view,
    resume_or_drop,
    return_home,
)
from outlive.node.ports import Domain, DomainState, MigrationSettings
from outlive.node.vm.affinity import refuses_move
from outlive.node.vm.context import SeenVm, VmContext, settings_for_attempt, settings_of
from outlive.node.vm.locks import find_unshared_user
from outlive.node.vm.start import Fresh, add_entry, create, delay_start
from outlive.node.vm.states import HALTED, VmState, active_move, own_entries, set_phase
from outlive.node.vm.stop import Shutdown, destroy, release, shut_down
from outlive.resources import Membership, Migration, MigrationPhase, VirtualMachine, VirtualMachineStatus
from outlive.resources.reasons import MigrationReason, VmReason, make_reason, render
from outlive.store import read

LIVE_ATTEMPTS: Final = 3
"""Attempts to move a running guest."""
ATTEMPT_PAUSE_S: Final = 0.5
"""Between two of them."""
CALLED_OFF_S: Final = 5.0
"""How long a transfer that was called off may take to end; the last part of it is not called off any more."""
SILENT_S: Final = 3.0
"""How long the other side may be silent before it is looked whether it holds its membership."""
NETWORK_LOOK_S: Final = 0.1
"""How often a target looks whether its network is ready."""
STANDS_STILL_S: Final = 60.0
"""How long a guest may stand still on its way before its virtual machine says so."""
QUEUE_LIMITS: Final = 10
"""So many times the limit of a step a move may wait for its turn on the target."""
_ENTER: Final = ENTER.decision
_SEND: Final = SEND.decision
_replace = msgspec.structs.replace
_log = get_logger("node.move")


@dataclass(frozen=True, slots=True)
class Side(SeenVm):
    """One side of a move, and what it sees."""

    move: Migration

    def is_late(self, limit_s: float | None = None) -> bool:
        """Whether the move has been in its present phase for so long; ``None``: for the limit of a step."""
        limit_s = float(self.node.settings.move_limit) if limit_s is None else limit_s
        return self.node.clock.monotonic() - self.memory.phase_since_s >= limit_s

    def wait_in_line(self) -> float:
        """Too many moves are under way here: its time begins with its turn."""
        self.memory.phase_since_s = self.node.clock.monotonic()
        return LOOK_S

    async def abort(
        self, code: MigrationReason, phases: frozenset[MigrationPhase] = BEFORE_HANDOVER, **fields: str
    ) -> float | None:
        """Everything as before, if neither side has gone too far."""
        return await abort(self.node, self.vm.name, self.move, make_reason(code, **fields), phases)

    async def enter_phase(self, phase: MigrationPhase, wait_s: float, **changes: object) -> float | None:
        """The next phase; when to look again."""
        await advance(self.node, self.vm.name, self.move, phase, **changes)
        return wait_s

    async def drop(self) -> float | None:
        """Nothing of it stays here."""
        return await drop(self.node, self.vm.name, self.domain)


Step = Callable[[Side], Awaitable["float | None"]]


class Here(enum.Enum):
    """What a side has of the guest."""

    NOTHING = enum.auto()
    """No domain, or one that is off."""
    WAITING = enum.auto()
    """A domain that listens, starts, or was handed over."""
    RUNNING = enum.auto()


async def step(seen: SeenVm) -> float | None:
    """One step of a move under way, on this side."""
    node, vm, memory, move = seen.node, seen.vm, seen.memory, active_move(seen.vm)
    assert move is not None
    now = (move.id, move.phase, move.attempts)
    if memory.phase != now:
        memory.phase, memory.phase_since_s = now, node.clock.monotonic()
    if move.source != move.target:
        await node.domains.refresh()
    side = Side(node, vm, node.domains.by_vm.get(vm.name), memory, move)
    if move.source == move.target:
        return await side.abort(MigrationReason.SELF_TARGET)
    if vm.deleting and move.phase is P.REQUESTED:
        return await side.abort(MigrationReason.CANCELLED)
    here = _locate(side.domain)
    if node.host == move.source:
        if here is Here.RUNNING and move.phase is not P.STOPPED and vm.host != move.target:
            return await side.abort(MigrationReason.TARGET_CHANGED)
        return await SOURCE[move.phase][here](side)
    entry = node.find_entry(vm)
    if here is Here.RUNNING and entry is not None and entry.role == "incoming":
        return 0.0  # it arrived in this moment, and is adopted
    if vm.host != node.host:
        return await side.drop()
    return await TARGET[move.phase](side)


def _locate(domain: Domain | None) -> Here:
    if domain is None or domain.state is DomainState.OFF:
        return Here.NOTHING
    return Here.RUNNING if domain.state is DomainState.RUNNING else Here.WAITING


async def clear_leftover(node: VmContext, vm: VirtualMachine, domain: Domain) -> float | None:
    """A domain on its way in or out, of a move that is over."""
    if domain.state is DomainState.INCOMING:
        return await drop(node, vm.name, domain)
    left = await find_unfenced_holders(node, vm)
    if any(one.role == "" for one in left):
        return await drop(node, vm.name, domain)
    return LOOK_S if left else await resume_or_drop(node, vm, domain)


# The source: sends the guest, or shuts it down, and releases it once the target has it


async def _await_target(side: Side) -> float | None:
    if side.is_late(float(side.node.settings.move_limit) * QUEUE_LIMITS):
        return await side.abort(MigrationReason.PEER_TIMEOUT)
    if side.is_late(SILENT_S) and not await _target_holds(side):
        return await side.abort(MigrationReason.TARGET_LOST)
    return LOOK_S


async def _target_holds(side: Side) -> bool:
    """Whether the target holds its membership."""
    member = await read(side.node.store, Membership, side.move.target)
    return member is not None and member.record.state == "Held"


async def _begin(side: Side) -> float | None:
    """The target is ready."""
    return await side.enter_phase(P.STOPPING, 0.0) if side.move.mode == "cold" else await _send(side)


async def _send(side: Side) -> float | None:
    """One attempt to move it while it runs."""
    node, vm, move = side.node, side.vm, side.move
    if vm.spec.move_method == "shutdown":
        return await side.abort(MigrationReason.LIVE_FORBIDDEN)
    if len(node.outgoing) >= node.settings.moves:
        return side.wait_in_line()
    members = await node.read_members(vm)
    fresh = Fresh("", members, paused=await node.pause.is_paused())
    outcome = node.decisions.use(_SEND, move_view(node, vm, fresh), subject=vm.name)
    if outcome.refused is not None:
        return await side.abort(MigrationReason.TARGET_LOST) if side.is_late() else LOOK_S
    node.outgoing[vm.name] = None
    side.memory.sent_to = outcome.run_id
    try:
        if not await advance(node, vm.name, move, P.TRANSFERRING, attempts=move.attempts + 1):
            return 0.0
        own = node.settings
        post_copy_after_s = float(own.migration_post_copy_after)
        settings = settings_for_attempt(settings_of(vm, own), move.attempts + 1, post_copy_after_s)
        try:
            await _transfer_guest(side, settings)
        except Refused as error:
            _log.warning("move.attempt_failed", vm=vm.name, target=move.target, why=error.message)
            await node.clock.sleep(ATTEMPT_PAUSE_S)
        except (Unknown, Unavailable) as error:
            _log.warning("move.attempt_unknown", vm=vm.name, target=move.target, why=error.message)
        await node.domains.refresh()
    finally:
        node.outgoing.pop(vm.name, None)
    return 0.0


async def _attempt_failed(side: Side) -> float | None:
    """It runs here after an attempt: the target says anew that it is ready, and where it listens.

    What listened may have ended, and another guest be waited for there.
    """
    vm, move = side.vm, side.move
    if move.attempts < LIVE_ATTEMPTS:
        return await side.enter_phase(P.REQUESTED, 0.0)
    if vm.status.phase == VmState.MIGRATE_LIVE or vm.spec.move_method == "live":
        return await side.abort(MigrationReason.LIVE_FAILED)
    return await side.enter_phase(P.REQUESTED, 0.0, mode="cold")


async def _transfer_guest(side: Side, settings: MigrationSettings) -> None:
    """Wait for the transfer; it has failed once the target is fenced, which the hypervisor may be late to notice.

    That the store does not answer says nothing of the transfer. The last part is not called off: a guest that stands
    still for long because of it is reported.
    """
    node, vm, target = side.node, side.vm.name, side.move.target
    hypervisor = node.domains.hypervisor
    still_since_s: float | None = None
    sending = asyncio.ensure_future(hypervisor.migrate(vm, target, listens=side.move.listens, settings=settings))
    try:
        while not (await asyncio.wait((sending,), timeout=LOOK_S))[0]:
            with contextlib.suppress(OutliveError, TimeoutError):
                if not await may_run(node, vm, target):
                    break
                still_since_s = await _note_stall(side, still_since_s)
        else:
            return await sending
        with contextlib.suppress(OutliveError):
            await hypervisor.cancel(vm)
        if not (await asyncio.wait((sending,), timeout=CALLED_OFF_S))[0]:
            raise Unknown(f"{target} was lost while it received {vm}", remedy="look at both sides")
        await sending
    finally:
        sending.cancel()


async def _note_stall(side: Side, since_s: float | None) -> float | None:
    """Since when the guest runs on neither side, as far as is seen here; reported once that is long."""
    node, name = side.node, side.vm.name
    domain, now_s = node.domains.by_vm.get(name), node.clock.monotonic()
    if domain is None or domain.split or _locate(domain) is not Here.WAITING:
        return None
    if since_s is None or now_s - since_s < STANDS_STILL_S:
        return now_s if since_s is None else since_s
    why = make_reason(VmReason.HANDOVER_LATE, target=side.move.target, limit_s=STANDS_STILL_S)

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        same = now.status.migration is not None and now.status.migration.id == side.move.id
        return set_phase(now.status, now.status.phase, why) if same and not now.status.reason else None

    await node.change(name, change)
    return since_s


async def _handed_over(side: Side) -> float | None:
    """It was sent, or is paused somewhere on that way: the target reports whether it has it."""
    if side.move.phase is not P.TRANSFERRED:
        return await side.enter_phase(P.TRANSFERRED, 0.0)
    assert side.domain is not None
    if await find_unfenced_holders(side.node, side.vm, side.move.target):
        return LOOK_S
    return await resume_or_drop(side.node, side.vm, side.domain)


async def _keep_returned(side: Side) -> float | None:
    """It was sent, and runs here all the same."""
    return await return_home(side.node, side.vm, make_reason(MigrationReason.LIVE_FAILED))


async def _abort_ended(side: Side) -> float | None:
    await _clear(side)
    return await side.abort(MigrationReason.ENDED_BY_ITSELF)


async def _abort_lost(side: Side) -> float | None:
    """What was handed over is gone here: the target has it, or it starts anew here once no target can have it."""
    await _clear(side)
    if await find_unfenced_holders(side.node, side.vm):
        return LOOK_S
    return await side.abort(MigrationReason.TARGET_LOST, frozenset({P.TRANSFERRED}))


async def _clear(side: Side) -> None:
    if side.domain is not None:
        await destroy(side.node, side.vm.name, run_id=side.domain.run_id)


async def _stop(side: Side) -> float | None:
    match await shut_down(side.node, side.vm.name, side.memory):
        case Shutdown.CALLED_OFF:
            return await side.abort(MigrationReason.CANCELLED)
        case Shutdown.FAILED:
            return LOOK_S
        case Shutdown.DONE:
            return await _release_stopped(side)


async def _release_stopped(side: Side) -> float | None:
    """The guest is down: release it, and say so to the target."""
    if not await destroy(side.node, side.vm.name) or not await release(side.node, side.vm.name):
        return LOOK_S
    side.node.reported()
    side.memory.running_since_s = None
    return await side.enter_phase(P.STOPPED, 0.0)


async def _await_start(side: Side) -> float | None:
    """The target is to start it; if the target is lost before it held it, this host takes it back."""
    if not await release(side.node, side.vm.name):
        return LOOK_S
    lost = side.is_late(SILENT_S) and not await _target_holds(side)
    if lost and not await find_unfenced_holders(side.node, side.vm):
        return await side.abort(MigrationReason.TARGET_LOST, frozenset({P.STOPPED}))
    return LOOK_S


# The target: enters itself, lets a domain listen, and owns what runs here; or starts it cold


async def _make_ready(side: Side) -> float | None:
    node, move = side.node, side.move
    if side.domain is not None:
        listens = side.domain.state is DomainState.INCOMING and move.mode == "live"
        return await _prepare_network(side, side.domain) if listens else await side.drop()
    if own_entries(side.vm, node.lease.me) and not await release(node, side.vm.name):
        return LOOK_S
    if why := await refuses_move(node, side.vm):
        return await side.abort(MigrationReason.AGAINST_RULE, why=why)
    if (lacks := await node.functions.reserve(side.vm)) is not None:
        return await side.abort(MigrationReason.FUNCTION_NOT_FREE, why=render(lacks).text, host=node.host)
    if move.mode == "cold":
        return await side.enter_phase(P.TARGET_READY, LOOK_S)
    if len(node.incoming) >= node.settings.moves:
        return side.wait_in_line()
    if side.is_late():
        return await side.abort(MigrationReason.PEER_TIMEOUT)
    if (wait_s := side.memory.not_before_s - node.clock.monotonic()) > 0:
        return wait_s
    node.incoming[side.vm.name] = None
    try:
        return await _enter(side)
    finally:
        node.incoming.pop(side.vm.name, None)


async def _enter(side: Side) -> float | None:
    node, name = side.node, side.vm.name

    def enter(now: VirtualMachine, fresh: Fresh) -> HoldersOutcome:
        return node.decisions.use(_ENTER, move_view(node, now, fresh), subject=name)

    entry = await add_entry(node, name, lambda now: now.status.migration == side.move, enter)
    if entry is None or entry.refused or entry.problem:
        return LOOK_S
    if why := await find_unshared_user(node, entry.vm):
        await release(node, name)
        return await side.abort(MigrationReason.CANNOT_RECEIVE, host=node.host, problem=render(why).text)
    created = await create(node, entry, side.memory, incoming=settings_of(entry.vm, node.settings))
    if created is None:
        return delay_start(node, side.memory)
    if created.domain is None:
        await release(node, name)
        problem = created.problem or "its domain ended"
        return await side.abort(MigrationReason.CANNOT_RECEIVE, host=node.host, problem=problem)
    side.memory.waits = 0
    return LOOK_S if created.domain.state is DomainState.STARTING else await _prepare_network(side, created.domain)


async def _prepare_network(side: Side, domain: Domain) -> float | None:
    """The target is ready once its network is: nothing was moved before that, and nothing is lost if it never is."""
    node, memory, limit_s = side.node, side.memory, side.node.network.prepare_limit_s
    if memory.preparing is None or memory.preparing[0] != memory.phase:
        memory.preparing = (memory.phase, node.clock.monotonic())
    try:
        why = await node.network.prepare(side.vm, side.move.id)
    except OutliveError as error:
        why = error.message
    if not why:
        return await side.enter_phase(P.TARGET_READY, LOOK_S, listens=domain.listens)
    if node.clock.monotonic() - memory.preparing[1] < limit_s:
        return NETWORK_LOOK_S
    return await side.abort(MigrationReason.NETWORK_NOT_READY, host=node.host, limit_s=f"{limit_s:g}", problem=why)


async def _await_guest(side: Side) -> float | None:
    """Target-ready, transferring, transferred: until the guest runs here, or certainly will not."""
    node, phase = side.node, side.move.phase
    if side.move.mode == "cold" and phase is P.TARGET_READY:
        return await side.abort(MigrationReason.PEER_TIMEOUT) if side.is_late() else LOOK_S
    if side.domain is None:
        await release(node, side.vm.name)
        foreign = foreign_entries(node, side.vm)
        if foreign and not await find_unfenced_holders(node, side.vm):
            return LOOK_S  # recovery lets it start here, in the room that is kept for it
        if phase is P.TARGET_READY:
            return await side.abort(MigrationReason.TARGET_LOST)
        return LOOK_S if foreign else await _begin_cold(side)
    if not side.is_late(SILENT_S):
        return LOOK_S
    if not await find_unfenced_holders(node, side.vm):
        return await side.drop()  # nobody is left to send it
    if phase is P.TARGET_READY and side.is_late():
        return await side.abort(MigrationReason.PEER_TIMEOUT)
    if phase is P.TRANSFERRED and side.is_late():
        return await side.drop()  # all was sent and it does not run: the source goes on
    return LOOK_S


async def _await_release(side: Side) -> float | None:
    if side.domain is not None:
        return await side.drop()
    if not any(one.hypervisor == side.move.source for one in side.vm.status.holders):
        return await _begin_cold(side)  # released, and the source was lost before it said so
    return LOOK_S


async def _begin_cold(side: Side) -> float | None:
    """The source has released it: start it here."""
    if side.domain is not None:
        return await side.drop()

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        if active_move(now) != side.move or now.host != side.node.host:
            return None
        status = now.status if now.status.phase in HALTED else set_phase(now.status, VmState.START)
        return _replace(status, migration=None)

    await side.node.change(side.vm.name, change)
    return 0.0


def _build_row(nothing: Step, waiting: Step, running: Step) -> Mapping[Here, Step]:
    return {Here.NOTHING: nothing, Here.WAITING: waiting, Here.RUNNING: running}


SOURCE: Final[Mapping[MigrationPhase, Mapping[Here, Step]]] = {
    P.REQUESTED: _build_row(_abort_ended, _handed_over, _await_target),
    P.TARGET_READY: _build_row(_abort_ended, _handed_over, _begin),
    P.TRANSFERRING: _build_row(_abort_ended, _handed_over, _attempt_failed),
    P.STOPPING: _build_row(_release_stopped, _handed_over, _stop),
    P.TRANSFERRED: _build_row(_abort_lost, _handed_over, _keep_returned),
    P.STOPPED: _build_row(_await_start, _await_start, _await_start),
}
"""What the source does, by the phase of the record and by what it has of the guest."""
TARGET: Final[Mapping[MigrationPhase, Step]] = {
    P.REQUESTED: _make_ready,
    P.TARGET_READY: _await_guest,
    P.TRANSFERRING: _await_guest,
    P.STOPPING: _await_release,
    P.TRANSFERRED: _await_guest,
    P.STOPPED: _begin_cold,
}
"""What the target does while the guest does not run here."""

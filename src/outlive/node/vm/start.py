"""Starting a virtual machine: wait for others, hold, remove stale locks, create, and report that it runs.

Nothing is created before the store has acknowledged the hold; between that answer and the domain the guard, the
membership and the store's incarnation are checked once more. A start that failed releases its entry only after its
domain was seen to be absent. A host that cannot start it after all its tries writes ``status.rejection`` in the same
write, and recovery finds another host. Where none may start it and somebody must act, the phase becomes ``fail``.

The guard counts a create as under way until it is notified of its end, and it is notified only once a listing has shown
what became of it. What this does not give: between the guard's yes and the domain the gate may shut; then the guard
waits for the end of that create before it calls the host empty.

Answers say in how many seconds to look again; ``None``: when something changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base import BadInput, OutliveError, Unknown, as_datetime, deadline, get_logger
from outlive.node.membership.holders import (
    CREATE,
    GATE_OPEN,
    HOLD,
    NAME_NOT_RUNNING,
    NOT_PAUSED,
    CreateView,
    HoldersOutcome,
    HoldView,
)
from outlive.node.membership.states import MemberView
from outlive.node.ports import Domain, DomainState, GuardPort, MigrationSettings
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.domains import LocalDomains
from outlive.node.vm.locks import find_obstacle
from outlive.node.vm.start_order import StartTurn, turn_of, turn_over
from outlive.node.vm.states import (
    VmState,
    fence_of,
    is_to_run,
    reach_of,
    restarts_elsewhere,
    set_phase,
    state_of,
    was_brought,
)
from outlive.node.vm.stop import destroy, release
from outlive.resources import Rejection, StartOrder, VirtualMachine, VirtualMachineStatus, limits_of
from outlive.resources.reasons import BLOCKED_BY_OTHERS, OF_EVERY_HOST, Reason, VmReason, make_reason, render
from outlive.runtime import Refusal

BACK_OFF_S: Final = (5.0, 15.0, 45.0, 135.0, 300.0)
"""Waits before a virtual machine that ended by itself, or did not start, is started again."""
WAIT_S: Final = 2.0
"""First wait for somebody else, such as a holder that is not fenced; it doubles."""
WAIT_CAP_S: Final = 15.0
"""The longest."""
TRANSIENT: Final = (
    VmReason.LOCKS_UNREADABLE,
    VmReason.ISOLATION_UNCONFIRMED,
    VmReason.GUARD_GAVE_UP,
    VmReason.FOREIGN_DOMAIN,
    VmReason.FUNCTION_NOT_FREE,
)
"""Reasons that may end, and that another host may not have."""
OBSTRUCTION_TRIES: Final = 3
"""How often in a row such a reason is met for what a recovery brought, before this host rejects it."""
AGAIN_S: Final = 0.1
"""Until the next try where only a swap was lost."""
SOON_S: Final = 1.0
"""Until the next look at a domain that was created and does not run yet."""
OUTSIDE_SLICE: Final = "its process came to run outside the slice of guests, where the guard would not end it"
END_CREATE_TRIES: Final = 5
"""How often the guard is notified that a create is over."""
_CREATE: Final = CREATE.decision
_HOLD: Final = HOLD.decision
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


# The entry of a run


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a step that adds an entry looks at: all of it read after the version of the virtual machine."""

    run_id: str
    """Of the new entry."""
    members: tuple[MemberView, ...]
    gate_open: bool = True
    paused: bool = False
    unknown_run: str = ""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the hard affinity rules say of a start on this host."""

    why_not: str = ""
    """Why it must not start here; empty where it may."""
    wait_s: float = 0.0
    """When to look again before it may."""


Rules = Callable[[VirtualMachine], Awaitable[Ruling]]


@dataclass(frozen=True, slots=True)
class StartResult:
    """What came of it."""

    vm: VirtualMachine
    """With the entry, as the store acknowledged it, or as it was read where the step refused."""
    run_id: str = ""
    held_in: str = ""
    """The store's incarnation before the step was decided on."""
    refused: Refusal | None = None
    problem: Reason | None = None
    """What on this host is in the way of every entry."""
    ruling: Ruling = Ruling()


async def add_entry(
    node: VmContext,
    name: str,
    may: Callable[[VirtualMachine], bool],
    step: Callable[[VirtualMachine, Fresh], HoldersOutcome],
    order: StartOrder | UnsetType | None = UNSET,
    rules: Rules | None = None,
) -> StartResult | None:
    """Write this host's entry as the step says, on exactly the version for which ``may`` and the step said yes.

    ``order``: what the document is to say with it of others, if anything else. ``rules``: asked only where nothing else
    is in the way, because they list others. ``None``: that is not what the store has now, or it is not certain that the
    store has not gone back.
    """
    held_in, me = node.desired.incarnation, node.lease.me
    vm = await node.read(name)
    if vm is not None and may(vm) and not vm.guarded:
        vm = await node.guard_deletion(name)
    if vm is None or not may(vm):
        return None
    if foreign := node.foreign.find_blockers(vm):
        return StartResult(vm, problem=make_reason(VmReason.FOREIGN_DOMAIN, domains=", ".join(foreign)))
    if rules is not None and vm.spec.affinity_rules:
        outcome = step(vm, await _read_fresh(node, vm, ""))
        ruling = await rules(vm) if outcome.refused is None else Ruling()
        if outcome.refused is not None or ruling != Ruling():
            return StartResult(vm, refused=outcome.refused, ruling=ruling)
    fresh = await _read_fresh(node, vm, node.ids.new_uuid())
    if not await node.confirm_store():
        return None
    run_id = fresh.run_id
    refusal: Refusal | None = None

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        nonlocal refusal
        if any(one.run_id == run_id for one in now.status.holders):
            return None
        if now.metadata.resource_version != vm.metadata.resource_version or node.lease.me != me:
            return None  # all that was looked at was looked at after that version was read, in this very epoch
        outcome = step(now, fresh)
        refusal = outcome.refused
        if refusal is not None:
            return None
        start_order = now.status.start_order if order is UNSET else order
        return _replace(now.status, holders=outcome.holders, start_order=start_order)

    after = await node.change(name, change)
    if after is not None and any(one.run_id == run_id for one in after.status.holders):
        return StartResult(after, run_id, held_in)
    _log.info("vm.not_held", vm=name, host=node.host, why=refusal.why if refusal is not None else "changed")
    return StartResult(after, refused=refusal) if after is not None and refusal is not None else None


async def _read_fresh(node: VmContext, vm: VirtualMachine, run_id: str) -> Fresh:
    members = await node.read_members(vm)
    paused = await node.pause.is_paused()
    # A host reports what the store did not know before it registers: who saw that all have sees all their reports.
    unknown_run = await node.unknown_run(vm.name) if not vm.status.holders else ""
    return Fresh(run_id, members, (await node.guard.report()).gate_open, paused, unknown_run)


# Creating its domain


@dataclass(frozen=True, slots=True)
class Created:
    """What came of it."""

    domain: Domain | None
    """The domain of the run, as a look afterwards showed it; ``None``: there is none."""
    problem: str
    """What the hypervisor said, where it was no plain yes."""
    invalid: bool = False
    """No hypervisor would create it: the problem is in its definition."""


async def create(
    node: VmContext, entry: StartResult, memory: VmMemory, *, incoming: MigrationSettings | None = None
) -> Created | None:
    """Go past the gate with this run, create its domain and look; ``incoming``: it listens for another host's guest.

    ``None``: it did not get past the gate, its entry was given back, and nothing was created.
    """
    name, run_id = entry.vm.name, entry.run_id
    epoch = await _pass_gate(node, entry)
    if epoch is None:
        return None
    problem, invalid, limit_s = "", False, float(node.settings.create_limit)
    node.domains.begin(name, run_id)
    try:
        with deadline(limit_s):
            plugged = node.functions.plug(await node.network.plug(entry.vm))
            await node.domains.hypervisor.create(plugged, run_id=run_id, epoch=epoch, incoming=incoming)
    except Unknown as error:
        problem = str(error) or f"not created within {limit_s:g} s"
    except BadInput as error:
        problem, invalid = str(error), True
    except OutliveError as error:
        problem = error.message
    except TimeoutError:
        problem = f"not created within {limit_s:g} s"
    finally:
        node.domains.note_created(name)
    memory.late_create = run_id
    await node.domains.refresh()
    domain = node.domains.by_vm.get(name)
    outside = domain is not None and domain.run_id == run_id and not domain.guarded
    ended = outside and node.desired.spec.fencing.armed and await destroy(node, name, run_id=run_id)
    await create_is_over(node, name, memory)
    if problem:
        _log.warning("vm.not_created", vm=name, host=node.host, run_id=run_id, why=problem)
    domain = node.domains.by_vm.get(name)
    if domain is None or domain.run_id != run_id:
        return Created(None, OUTSIDE_SLICE if ended else problem, invalid)
    return Created(domain, problem)


async def _pass_gate(node: VmContext, entry: StartResult) -> int | None:
    """The epoch in which the domain may be created; ``None``: it may not, and the entry was given back."""
    name, run_id = entry.vm.name, entry.run_id
    node.creates[run_id] = None
    begun = await node.guard.begin_create(run_id)
    # A guard that began anew knows of nothing: its gate is open, and fencers still count on the one before it.
    gate_open = begun and (not node.lease.counts_as_armed or (await node.guard.report()).armed)
    me = node.lease.me
    view = CreateView(
        vm=name,
        me=me,
        run_id=run_id,
        holders=entry.vm.status.holders,
        gate_open=gate_open,
        held_in=entry.held_in,
        incarnation=node.desired.incarnation,
    )
    outcome = node.decisions.use(_CREATE, view, subject=name)
    if outcome.refused is None:
        return me.epoch
    _log.info("vm.gate_not_passed", vm=name, host=node.host, run_id=run_id, why=outcome.refused.why)
    if begun:
        await _end_create(node, run_id)
    node.creates.pop(run_id, None)  # where only the guard's yes was lost, it is ended as a former one
    await release(node, name)
    return None


async def create_is_over(node: VmContext, name: str, memory: VmMemory) -> bool:
    """Whether no create of it is under way any more, by the last look; the guard is notified of its end.

    What came to run where the guard would not end it is not over for as long as anybody counts on the guard.
    """
    domain = node.domains.by_vm.get(name)
    if name in node.domains.creating or (domain is not None and domain.state is DomainState.STARTING):
        return False
    if memory.late_create and domain is not None and not domain.guarded and node.lease.counts_as_armed:
        return False
    if memory.late_create:
        await _end_create(node, memory.late_create)
        memory.late_create = ""
    return True


async def _end_create(node: VmContext, run_id: str) -> None:
    """Notify the guard that a create is over; again while it does not answer, and in the end as a former."""
    node.creates.pop(run_id, None)
    for attempt in range(END_CREATE_TRIES):
        try:
            await node.guard.end_create(run_id)
        except OutliveError as error:
            _log.warning("guard.not_notified", run_id=run_id, error=str(error))
            await node.clock.sleep(0.2 * 2.0**attempt)
        else:
            return


async def end_former_creates(guard: GuardPort, domains: LocalDomains, own: Collection[str]) -> int:
    """Notify the guard of the end of every create but ``own`` ones that a look shows to be over; how many.

    The guard is asked first, then the hypervisor: what is begun in between is not among what is ended. ``Unavailable``
    where one of them does not answer; then it is for the next time.
    """
    former = [run for run in (await guard.report()).creates if run not in own]
    if not former:
        return 0
    await domains.refresh()
    starting = {domain.run_id for domain in domains.by_vm.values() if domain.state is DomainState.STARTING}
    over = [run for run in former if run not in starting]
    for run in over:
        await guard.end_create(run)
        _log.info("guard.former-create-ended", run_id=run)
    return len(over)


# Starting


async def start_turn(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> StartTurn:
    """Whether it may be tried now: not too soon after the last try, and once those run that it starts after."""
    wait_s = memory.not_before_s - node.clock.monotonic()
    if wait_s > 0:
        return StartTurn(after=vm.spec.start_after, wait_s=wait_s)
    return await turn_of(node, vm, memory)


async def start(node: VmContext, vm: VirtualMachine, memory: VmMemory, turn: StartTurn, rules: Rules) -> float | None:
    """One try, in its turn, as its rules allow."""
    async with node.starts:
        return await _start(node, vm.name, turn, memory, rules)


async def _start(node: VmContext, name: str, turn: StartTurn, memory: VmMemory, rules: Rules) -> float | None:
    def hold(now: VirtualMachine, fresh: Fresh) -> HoldersOutcome:
        view = HoldView(
            vm=name,
            me=node.lease.me,
            assigned=now.host,
            wanted=is_to_run(now),
            holders=now.status.holders,
            members=fresh.members,
            reach=reach_of(now),
            gate_open=fresh.gate_open,
            run_id=fresh.run_id,
            here=name in node.domains.list_names(),
            paused=fresh.paused,
            deleting=now.deleting,
            guarded=now.guarded,
            unknown_run=fresh.unknown_run,
        )
        return node.decisions.use(_HOLD, view, subject=name)

    def may(now: VirtualMachine) -> bool:
        return now.host == node.host and now.spec.start_after == turn.after

    entry = await add_entry(node, name, may, hold, turn.order, rules)
    if entry is None:
        return AGAIN_S if node.lease.held else SOON_S
    if entry.problem is not None:
        return await _handle_obstacle(node, entry.vm, entry.problem, memory)
    if entry.refused is not None:
        await turn_over(node, entry.vm, turn)
        if entry.refused.precondition == GATE_OPEN.name and (await node.guard.report()).gave_up:
            return await _handle_obstacle(node, entry.vm, make_reason(VmReason.GUARD_GAVE_UP, host=node.host), memory)
        if entry.refused.precondition == NAME_NOT_RUNNING.name:
            return await _handle_obstacle(
                node, entry.vm, make_reason(VmReason.NAME_RUNS, why=entry.refused.why), memory
            )
        if entry.refused.precondition == NOT_PAUSED.name:
            await report_waiting(node, entry.vm, VmReason.CLUSTER_PAUSED)
        return _next_wait(memory)
    if entry.ruling.why_not:
        return await _refuse(node, entry.vm, turn, entry.ruling.why_not)
    if entry.ruling.wait_s:
        return entry.ruling.wait_s
    try:
        why = await find_obstacle(node, entry.vm)
        if why is None and (lacks := await node.functions.assign(entry.vm)) is not None:
            why = make_reason(VmReason.FUNCTION_NOT_FREE, why=render(lacks).text, host=node.host)
    except Exception:
        await release(node, name)  # nothing was created: whatever went wrong, no entry stays behind
        raise
    if why is not None:
        return await _handle_obstacle(node, entry.vm, why, memory)
    memory.obstructions = 0
    created = await create(node, entry, memory)
    if created is None:
        return delay_start(node, memory)
    if created.domain is not None:
        memory.waits = 0
        return await report_running(node, name, memory)
    if created.invalid:
        return await _handle_obstacle(
            node, entry.vm, make_reason(VmReason.DEFINITION_INVALID, problem=created.problem), memory
        )
    return await _handle_failure(node, entry.vm, created.problem or "its domain ended at once", memory)


async def report_waiting(node: VmContext, vm: VirtualMachine, code: VmReason) -> None:
    """Say once that it waits for something to end: of the whole cluster, or its own run of before."""
    if vm.status.reason == code:
        return

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        return set_phase(now.status, now.status.phase, make_reason(code)) if now.host == node.host else None

    await node.change(vm.name, change)


def _next_wait(memory: VmMemory) -> float:
    memory.waits += 1
    return float(min(WAIT_CAP_S, WAIT_S * 2.0 ** min(memory.waits - 1, 10)))


def delay_start(node: VmContext, memory: VmMemory) -> float:
    """The same, also when something changes before: giving the hold back is such a change itself."""
    wait_s = _next_wait(memory)
    memory.not_before_s = node.clock.monotonic() + wait_s
    return wait_s


async def _handle_obstacle(node: VmContext, vm: VirtualMachine, why: Reason, memory: VmMemory) -> float | None:
    """A lock on its disks, or something on this host, is in the way: release the hold, and report what would help.

    What is in the way of every host (``OF_EVERY_HOST``) sends it to none: what a recovery assigned here stays and is
    tried again; what a user started has failed. What only this host cannot do another one may be able to.
    """
    again, unconfirmed = why.code in TRANSIENT, why.code in BLOCKED_BY_OTHERS
    stays = unconfirmed or why.code in OF_EVERY_HOST
    waits = stays or why.code == VmReason.FOREIGN_DOMAIN
    leaves = was_brought(vm) or (restarts_elsewhere(vm) and not waits)
    memory.obstructions = memory.obstructions + 1 if again else 0
    _log.warning("vm.obstructed", vm=vm.name, host=node.host, reason=why.code, why=render(why).text)
    if (again and memory.obstructions < OBSTRUCTION_TRIES) or ((again or unconfirmed) and not leaves):
        await release(node, vm.name, why=why)
        return delay_start(node, memory)
    if not leaves:
        return None if await release(node, vm.name, phase=VmState.FAIL, why=why) else SOON_S
    memory.obstructions = 0
    released = await release(
        node, vm.name, rejection=rejection_by(node, vm, why, stays=stays), why=why if stays else None
    )
    if stays:
        return delay_start(node, memory)
    return None if released else SOON_S


async def _refuse(node: VmContext, vm: VirtualMachine, turn: StartTurn, why: str) -> float | None:
    """It goes to the next host, if another one may start it: where it is, a hard rule of it closes this host."""
    problem = make_reason(VmReason.AGAINST_AFFINITY, why=why)
    _log.warning("vm.start_against_affinity", vm=vm.name, host=node.host, why=why)
    await turn_over(node, vm, turn)
    if restarts_elsewhere(vm):
        return None if await release(node, vm.name, rejection=rejection_by(node, vm, problem)) else SOON_S
    return None if await release(node, vm.name, phase=VmState.FAIL, why=problem) else SOON_S


def rejection_by(node: VmContext, vm: VirtualMachine, why: Reason, *, stays: bool = False) -> Rejection:
    """This host's word for recovery that it does not start it, as it is assigned now; ``stays``: no host may."""
    said = render(why)
    return Rejection(hypervisor=node.host, fence=fence_of(vm), reason=why.code, message=said.text, stays=stays)


async def _handle_failure(node: VmContext, vm: VirtualMachine, problem: str, memory: VmMemory) -> float | None:
    """Try again here for as often as its policy says; what a recovery brought here goes to the next host at once."""
    memory.failures += 1
    wait_s = BACK_OFF_S[min(memory.failures, len(BACK_OFF_S)) - 1]
    memory.not_before_s = node.clock.monotonic() + wait_s
    tried, failed = memory.failures, make_reason(VmReason.NOT_CREATED, problem=problem)
    often = tried > limits_of(vm.spec.recovery, node.desired.cluster_spec.recovery).max_restarts
    if was_brought(vm) or (often and restarts_elsewhere(vm)):
        if not await release(node, vm.name, rejection=rejection_by(node, vm, failed)):
            return SOON_S
        memory.failures, memory.not_before_s = 0, 0.0
        return None
    if often:
        why = make_reason(VmReason.START_FAILED, host=node.host, tries=tried, problem=problem)
        return None if await release(node, vm.name, phase=VmState.FAIL, why=why) else SOON_S
    await release(node, vm.name, why=failed)
    return wait_s


async def report_running(node: VmContext, name: str, memory: VmMemory) -> float | None:
    """Say that the domain is seen running, and that the virtual machine is where it should be."""
    domain = node.domains.by_vm.get(name)
    if domain is None or domain.state not in (DomainState.RUNNING, DomainState.PAUSED):
        return SOON_S
    running, why = domain.state is DomainState.RUNNING, node.losses.reason_of(name)
    seen = "running" if running else "paused"

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        entry, status = node.find_entry(now), now.status
        since = as_datetime(node.clock.now())
        holders = tuple(
            _replace(one, seen=seen, vnc=domain.vnc, since=one.since or since) if one == entry else one
            for one in status.holders
        )
        status = _replace(status, holders=holders)
        if (running or why is not None) and now.host == node.host and state_of(now) == VmState.START:
            mine = status.rejection is not None and status.rejection.hypervisor == node.host
            status = _replace(set_phase(status, VmState.START, why), rejection=None if mine else status.rejection)
        return status

    await node.change(name, change)
    if memory.running_since_s is None:
        memory.running_since_s = node.clock.monotonic()
    memory.order = None
    node.reported()
    return None if running else SOON_S * 5

"""Whether a virtual machine may start now, or waits for those that it is to start after.

The order only ever delays a start, and for a while only: who is missing or stopped is not waited for, who waits for
each other in a circle starts one by one, and after a limit everybody starts, with the reason written down
(docs/design/node-decisions.md#vmstart_order). Not promised: that a guest is ready when its machine is seen running.

Seen running means: its document says so, its host holds its membership in the epoch that runs it, and has renewed it
since this daemon first saw that. Times are this daemon's own: after a restart it waits once more. Nothing that safety
rests on is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from outlive.base import as_datetime, get_logger, join_parts
from outlive.node.ports import DomainState
from outlive.node.vm.context import OrderMemory, VmContext, VmMemory
from outlive.node.vm.states import VmState, active_move, current_order, fence_of, is_to_run, state_of
from outlive.resources import (
    START_AFTER_LIMIT,
    Holder,
    Hypervisor,
    Membership,
    MigrationPhase,
    RecoveryPhase,
    StartOrder,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.resources.reasons import OrderReason, Value, VmReason, make_reason, render
from outlive.runtime import Amount, Decision
from outlive.store import read

LINK_S: Final = 30.0
"""A virtual machine that starts after others that wait themselves waits so much longer for each of them, so that a
chain whose first link does not come still starts one after the other."""
NAMED: Final = 3
"""Virtual machines that a sentence names."""


class NamedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that another is to start after, as it was found now."""

    vm: str
    state: Literal["running", "coming", "stopped", "missing"]
    """``coming``: it is to run, and was not seen running; ``stopped``: nobody wants it to run."""
    why: str = ""
    """What is known of it, to follow "which"."""
    after: tuple[str, ...] = ()
    """Of one that is coming: those that it starts after itself."""


class StartOrderInput(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that could start now. Seconds."""

    vm: str
    after: tuple[str, ...] = ()
    known: tuple[NamedVm, ...] = ()
    """Those that it names, and those that these name; who is left out counts as coming."""
    waited: Amount = 0
    """Since it could have started."""
    limit: Amount = 180
    """How long it waits for one that names nobody itself; 0: it waits for nobody."""


class StartOrderResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it starts; exactly those in ``waits_for`` are what it waits for."""

    start: bool
    waits_for: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Those that it starts without having seen them running."""
    detail: str = ""
    limit: Amount = 0
    """The longest that it waits in all."""


def start_order(given: StartOrderInput) -> StartOrderResult:
    """Whether it may start now, for whom it waits, or without whom it goes."""
    known = {one.vm: one for one in given.known}
    edges = _list_edges(given, known)
    circle = _find_cycle(given.vm, edges)
    first = len(circle) > 1 and given.vm == min(circle)
    limit = given.limit + LINK_S * (_chain_length(given.vm, edges) - 1) if given.limit > 0 else 0
    coming: list[str] = []
    without: list[tuple[str, str]] = []
    for name in dict.fromkeys(given.after):
        one = known.get(name) or NamedVm(vm=name, state="coming")
        if name == given.vm or one.state == "running":
            continue
        if one.state != "coming":
            without.append((name, one.why))
        elif first and name in circle:
            around = join_parts(sorted(circle), most=NAMED)
            without.append((name, _render_reason(OrderReason.CIRCLE, around=around)))
        elif given.limit <= 0:
            without.append((name, _render_reason(OrderReason.NO_LIMIT)))
        elif given.waited >= limit:
            why = f" (it {one.why})" if one.why else ""
            without.append((name, _render_reason(OrderReason.LATE, limit_s=f"{limit:g}", why=why)))
        else:
            coming.append(name)
    left_out = tuple(name for name, _ in without)
    if not coming:
        detail = _render_reason(OrderReason.STARTS_WITHOUT, others=_format_names(without)) if without else ""
        return StartOrderResult(start=True, without=left_out, detail=detail, limit=limit)
    waits = [(name, known[name].why if name in known else "") for name in coming]
    detail = _render_reason(OrderReason.STARTS_AFTER, others=_format_names(waits), limit_s=f"{limit:g}")
    return StartOrderResult(start=False, waits_for=tuple(coming), without=left_out, detail=detail, limit=limit)


START_ORDER: Final = Decision(
    "vm.start_order",
    start_order,
    StartOrderInput,
    StartOrderResult,
    "Whether a virtual machine starts now, or waits for those that it starts after",
    lambda output: output.start and not output.without,
)


def find_cycle(after: Mapping[str, Iterable[str]], vm: str) -> tuple[str, ...]:
    """The virtual machines that wait for each other around ``vm``, by name; empty where nobody does."""
    found = _find_cycle(vm, {name: tuple(names) for name, names in after.items()})
    alone = len(found) == 1 and vm not in after.get(vm, ())
    return () if alone else tuple(sorted(found))


def sort_by_order(names: Sequence[str], after: Mapping[str, Iterable[str]]) -> list[str]:
    """These names as they are, but none before those that it is after, and those where it would have been.

    Of names that are after each other in a circle somebody comes first.
    """
    place = {name: number for number, name in enumerate(names)}
    found: dict[str, None] = {}
    begun: set[str] = set()
    for name in names:
        open_ = [name] if name not in begun else []
        while open_:
            begun.add(open_[-1])
            left = [one for one in after.get(open_[-1], ()) if one in place and one not in begun]
            if left:
                open_.append(min(left, key=place.__getitem__))
            else:
                found[open_.pop()] = None
    return list(found)


def _list_edges(given: StartOrderInput, known: Mapping[str, NamedVm]) -> dict[str, tuple[str, ...]]:
    """Who waits for whom, among those that do not run yet."""
    waiting = {one.vm: one.after for one in given.known if one.state == "coming"} | {given.vm: given.after}
    named = {name for names in waiting.values() for name in names}
    there = waiting.keys() | {name for name in named if name not in known}
    return {vm: tuple(one for one in names if one in there and one != vm) for vm, names in waiting.items()}


def _find_cycle(vm: str, edges: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Itself, and all that it waits for and that wait for it."""
    back: dict[str, list[str]] = {}
    for one, names in edges.items():
        for name in names:
            back.setdefault(name, []).append(one)
    return _find_reachable(vm, edges) & _find_reachable(vm, back)


def _find_reachable(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    found, left = {start}, [start]
    while left:
        new = [name for name in edges.get(left.pop(), ()) if name not in found]
        found.update(new)
        left += new
    return found


def _chain_length(vm: str, edges: Mapping[str, tuple[str, ...]]) -> int:
    """How many follow one upon the other below it, at least 1; a circle counts as one after the other as well."""
    heights: dict[str, int] = {}
    stack: list[tuple[str, bool]] = [(vm, False)]
    open_: set[str] = set()
    while stack:
        one, done = stack.pop()
        if done:
            open_.discard(one)
            heights[one] = 1 + max((heights.get(name, 0) for name in edges.get(one, ())), default=0)
        elif one not in open_ and one not in heights:
            open_.add(one)
            stack.append((one, True))
            stack += [(name, False) for name in edges.get(one, ())]
    return max(1, heights[vm] - 1)


def _format_names(whom: list[tuple[str, str]]) -> str:
    named = [f"{name}, which {why}" if why else name for name, why in whom[:NAMED]]
    return f"{'; '.join(named)}{', …' if len(whom) > NAMED else ''}"


def _render_reason(code: OrderReason, /, **fields: Value) -> str:
    return render(make_reason(code, **fields)).text


LOOKED_AT: Final = 64
"""Virtual machines that are looked at for one that waits: those that it names, those that these name, and so on."""
OFTEN_S: Final = 1.0
"""How often is looked at first …"""
FIRST_S: Final = 20.0
"""… for so long …"""
SELDOM_S: Final = 4.0
"""… and afterwards."""
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Whether it is its turn."""

    after: tuple[str, ...]
    """Those that were looked at for it."""
    wait_s: float | None = None
    """Until the next look; ``None``: it starts."""
    order: StartOrder | None = None
    """What its document is to say with the start; ``None``: nothing."""


async def turn_of(node: VmContext, vm: VirtualMachine, memory: VmMemory) -> StartTurn:
    """Whether it starts now. Errors of the store."""
    after = vm.spec.start_after[:START_AFTER_LIMIT]
    if not after:
        memory.order = None
        return StartTurn(after=vm.spec.start_after)
    now_s = node.clock.monotonic()
    if memory.order is None or memory.order.fence != fence_of(vm):
        memory.order = OrderMemory(fence=fence_of(vm), since_s=now_s)
    waited_s = now_s - memory.order.since_s
    given = StartOrderInput(
        vm=vm.name,
        after=after,
        known=await _read_known(node, vm, after, memory.order),
        waited=waited_s,
        limit=float(node.settings.start_after_limit),
    )
    answer = node.decisions.use(START_ORDER, given, subject=vm.name)
    order = _build_order(node, vm, answer)
    if not answer.start:
        if vm.status.start_order != order:
            await _report(node, vm, order)
        left_s = max(0.0, float(answer.limit) - waited_s)
        return StartTurn(vm.spec.start_after, min(OFTEN_S if waited_s < FIRST_S else SELDOM_S, left_s + 0.01), order)
    if answer.without:
        _log.warning("vm.starts_without", vm=vm.name, host=node.host, without=answer.without, why=answer.detail)
    return StartTurn(vm.spec.start_after, order=order if answer.without else None)


def _build_order(node: VmContext, vm: VirtualMachine, answer: StartOrderResult) -> StartOrder:
    before = current_order(vm)
    goes_on = before is not None and (before.waits_for != () or before.without == answer.without)
    since = before.since if before is not None and goes_on else None
    return StartOrder(
        hypervisor=node.host,
        fence=fence_of(vm),
        waits_for=answer.waits_for,
        without=answer.without,
        detail=answer.detail,
        limit_s=float(answer.limit),
        since=since or as_datetime(node.clock.now()),
    )


async def turn_over(node: VmContext, vm: VirtualMachine, turn: StartTurn) -> None:
    """Its turn has come, and it does not start for another reason: it waits for nobody any more."""
    before = vm.status.start_order
    if before == turn.order or (before is None or before.hypervisor != node.host):
        return

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        return _replace(now.status, start_order=turn.order) if now.status.start_order == before else None

    await node.change(vm.name, change)


async def _report(node: VmContext, vm: VirtualMachine, order: StartOrder) -> None:
    """Write down for whom it waits."""

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        if now.host != order.hypervisor or fence_of(now) != order.fence:
            return None
        return _replace(now.status, start_order=order)

    await node.change(vm.name, change)
    _log.info("vm.waits", vm=vm.name, host=node.host, waits_for=order.waits_for, why=order.detail)


# What is so of the others


async def _read_known(
    node: VmContext, vm: VirtualMachine, after: tuple[str, ...], memory: OrderMemory
) -> tuple[NamedVm, ...]:
    """Those that it names, and, of those that are to come, those that these name."""
    found: dict[str, NamedVm] = {}
    left = list(after)
    while left and len(found) < LOOKED_AT:
        name = left.pop(0)
        if name in found or name == vm.name:
            continue
        found[name] = one = await _find_vm(node, name, memory)
        left += one.after
    memory.seen = {name: seen for name, seen in memory.seen.items() if name in found}
    return tuple(found.values())


async def _find_vm(node: VmContext, name: str, memory: OrderMemory) -> NamedVm:
    vm = await node.read(name)
    if vm is None:
        return NamedVm(vm=name, state="missing", why=_render_reason(OrderReason.MISSING))
    if not is_to_run(vm) and not _restarts_after_drain(vm):
        why = _render_reason(OrderReason.NOT_WANTED)
        if state_of(vm) == VmState.FAIL:
            why = _render_reason(OrderReason.FAILED, why=vm.status.message or "its host did not report why")
        return NamedVm(vm=name, state="stopped", why=why)
    if await _is_running(node, vm, memory):
        return NamedVm(vm=name, state="running")
    return NamedVm(vm=name, state="coming", why=_explain_coming(vm), after=vm.spec.start_after[:START_AFTER_LIMIT])


async def _is_running(node: VmContext, vm: VirtualMachine, memory: OrderMemory) -> bool:
    move = active_move(vm)
    if move is not None and move.phase in (MigrationPhase.TRANSFERRING, MigrationPhase.TRANSFERRED):
        return False  # its guest may end at the source, which waits for what becomes of it at the target
    if vm.status.reason == VmReason.STORAGE_LOST:
        return False  # its host runs it, and its disks do not serve it: the hypervisor may have paused it
    for holder in vm.status.holders:
        if holder.role or holder.seen != "running":
            continue
        if holder.hypervisor == node.host:
            domain = node.domains.by_vm.get(vm.name)
            return domain is not None and (domain.run_id, domain.state) == (holder.run_id, DomainState.RUNNING)
        return await _host_lives(node, vm.name, holder, memory)
    if vm.status.holders or vm.status.assigned is None:
        return False
    host = await read(node.store, Hypervisor, vm.host)
    if host is None or host.spec.management == "node" or host.status.lost:
        return False
    # a host without our daemon is no holder: what it reports counts
    return state_of(vm) == VmState.START and any(one.id == vm.name and one.active for one in host.status.instances)


async def _host_lives(node: VmContext, vm: str, holder: Holder, memory: OrderMemory) -> bool:
    """Whether its host holds the membership that runs it, and has renewed it since that was first seen."""
    member = await read(node.store, Membership, holder.hypervisor)
    known = member is not None and member.metadata.uid == holder.member_uid
    if member is None or not known or (member.record.state, member.record.epoch) != ("Held", holder.epoch):
        memory.seen.pop(vm, None)
        return False
    first = memory.seen.get(vm)
    if first is None or first[0] != holder.run_id:
        memory.seen[vm] = (holder.run_id, member.record.seq)
        return False
    return member.record.seq > first[1]


def _restarts_after_drain(vm: VirtualMachine) -> bool:
    """Whether it was stopped only because its host was emptied, and starts once that is ready."""
    stopped = vm.spec.power_state == "running" and state_of(vm) == VmState.STOP
    return stopped and vm.status.reason == VmReason.STOPPED_BY_DRAIN


def _explain_coming(vm: VirtualMachine) -> str:
    """What a reader wants to know of one that does not run: what its recovery says, what its host says, where it is."""
    status, order, host = vm.status, current_order(vm), vm.host
    if _restarts_after_drain(vm):
        return _render_reason(OrderReason.DRAINED, host=host)
    if status.recovery is not None and status.recovery.phase is RecoveryPhase.HELD:
        return _render_reason(OrderReason.HELD, code=status.recovery.reason, why=status.recovery.message)
    if order is not None and order.waits_for:
        return _render_reason(OrderReason.WAITS, others=order.waits_for)
    if status.holders:
        return _render_reason(OrderReason.NOT_SEEN, host=status.holders[0].hypervisor)
    return _render_reason(OrderReason.TO_START, host=host) if host else _render_reason(OrderReason.NO_HOST)

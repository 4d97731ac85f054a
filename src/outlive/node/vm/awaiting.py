"""Looks at the virtual machines that one is to start after, and says in its document for whom it waits.

Seen running means: its document says so, its host holds its membership in the epoch that runs it, and has renewed it
since this daemon first saw that (a host that has just died says nothing else than one that lives). Of this host's own
the hypervisor says it. Times are this daemon's own: after a restart it waits once more. What is chosen is the business
of ``outlive.node.vm.ordering``; nothing that safety rests on is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from outlive.base.clock import as_datetime
from outlive.base.deadline import deadline
from outlive.base.errors import NotFound, Unavailable
from outlive.base.logging import get_logger
from outlive.node.decisions import START_ORDER
from outlive.node.ports.hypervisor import DomainState
from outlive.node.vm.ordering import NamedVm, StartOrderInput, StartOrderResult
from outlive.node.vm.shared import OrderMemory, VmHost, VmMemory
from outlive.node.vm.states import (
    FAIL,
    START,
    STOP,
    STOPPED_BY_DRAIN,
    active_move,
    assigned_to,
    fence_of,
    state_of,
    wanted,
)
from outlive.resources import Holder, Hypervisor, Membership, Resource, VirtualMachine
from outlive.resources.vms import START_AFTER_LIMIT, StartOrder, VirtualMachineStatus

LOOKED_AT: Final = 64
"""Virtual machines that are looked at for one that waits: those that it names, those that these name, and so on."""
CALL_S: Final = 5.0
"""How long one call of the store may take."""
OFTEN_S: Final = 1.0
"""How often is looked at first …"""
FIRST_S: Final = 20.0
"""… for so long …"""
SELDOM_S: Final = 4.0
"""… and afterwards."""

_R = TypeVar("_R", bound=Resource)

_replace = msgspec.structs.replace
_log = get_logger("node.vm")


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether it is its turn."""

    after: tuple[str, ...]
    """Those that were looked at for it."""
    wait_s: float | None = None
    """Until the next look; ``None``: it starts."""
    order: StartOrder | None = None
    """What its document is to say with the start; ``None``: nothing."""


class Awaiting:
    """See the module."""

    def __init__(self, shared: VmHost) -> None:
        self._shared = shared

    async def turn(self, vm: VirtualMachine, memory: VmMemory) -> Turn:
        """Whether it starts now. Errors of the store."""
        after = vm.spec.start_after[:START_AFTER_LIMIT]
        if not after:
            memory.order = None
            return Turn(after=vm.spec.start_after)
        shared = self._shared
        now_s = shared.clock.monotonic()
        if memory.order is None or memory.order.fence != fence_of(vm):
            memory.order = OrderMemory(fence=fence_of(vm), since_s=now_s)
        waited_s = now_s - memory.order.since_s
        given = StartOrderInput(
            vm=vm.name,
            after=after,
            known=await self._known(vm, after, memory.order),
            waited=waited_s,
            limit=float(shared.settings.start_after_limit),
        )
        answer = shared.decisions.use(START_ORDER, given, subject=vm.name)
        said = self._said(vm, answer)
        if not answer.start:
            await self._say(vm, said)
            left_s = max(0.0, float(answer.limit) - waited_s)
            return Turn(vm.spec.start_after, min(OFTEN_S if waited_s < FIRST_S else SELDOM_S, left_s + 0.01), said)
        if answer.without:
            _log.warning("vm.starts_without", vm=vm.name, host=shared.host, without=answer.without, why=answer.detail)
        return Turn(vm.spec.start_after, order=said if answer.without else None)

    def _said(self, vm: VirtualMachine, answer: StartOrderResult) -> StartOrder:
        before = vm.status.start_order
        mine = before is not None and (before.hypervisor, before.fence) == (self._shared.host, fence_of(vm))
        goes_on = before is not None and mine and (before.waits_for != () or before.without == answer.without)
        since = before.since if before is not None and goes_on else None
        return StartOrder(
            hypervisor=self._shared.host,
            fence=fence_of(vm),
            waits_for=answer.waits_for,
            without=answer.without,
            detail=answer.detail,
            limit_s=float(answer.limit),
            since=since or as_datetime(self._shared.clock.now()),
        )

    async def over(self, vm: VirtualMachine, turn: Turn) -> None:
        """Its turn has come, and it does not start for another reason: it waits for nobody any more."""
        before = vm.status.start_order
        if before == turn.order or (before is None or before.hypervisor != self._shared.host):
            return

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            return _replace(now.status, start_order=turn.order) if now.status.start_order == before else None

        await self._shared.records.change(self._shared.daemon, vm.name, change)

    async def _say(self, vm: VirtualMachine, said: StartOrder) -> None:
        """Write down for whom it waits, where that is news."""
        if vm.status.start_order == said:
            return

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if assigned_to(now) != said.hypervisor or fence_of(now) != said.fence:
                return None
            return _replace(now.status, start_order=said)

        await self._shared.records.change(self._shared.daemon, vm.name, change)
        _log.info("vm.waits", vm=vm.name, host=self._shared.host, waits_for=said.waits_for, why=said.detail)

    # What is so of the others

    async def _known(self, vm: VirtualMachine, after: tuple[str, ...], memory: OrderMemory) -> tuple[NamedVm, ...]:
        """Those that it names, and, of those that are to come, those that these name."""
        found: dict[str, NamedVm] = {}
        left = list(after)
        while left and len(found) < LOOKED_AT:
            name = left.pop(0)
            if name in found or name == vm.name:
                continue
            found[name] = one = await self._look(name, memory)
            left += one.after
        memory.seen = {name: seen for name, seen in memory.seen.items() if name in found}
        return tuple(found.values())

    async def _look(self, name: str, memory: OrderMemory) -> NamedVm:
        vm = await self._shared.records.read(self._shared.daemon, name)
        if vm is None:
            return NamedVm(vm=name, state="missing", why="does not exist")
        if not wanted(vm) and not _comes_back(vm):
            return NamedVm(vm=name, state="stopped", why=_why_not(vm))
        if await self._runs(vm, memory):
            return NamedVm(vm=name, state="running")
        return NamedVm(vm=name, state="coming", why=_why_coming(vm), after=vm.spec.start_after[:START_AFTER_LIMIT])

    async def _runs(self, vm: VirtualMachine, memory: OrderMemory) -> bool:
        shared, move = self._shared, active_move(vm)
        if move is not None and move.phase == "transferred":
            return False  # it stands still on one host, and its target has yet to say that it runs
        for holder in vm.status.holders:
            if holder.role or holder.seen != "running":
                continue
            if holder.hypervisor == shared.host:
                domain = shared.here.domains.get(vm.name)
                return domain is not None and (domain.run_id, domain.state) == (holder.run_id, DomainState.RUNNING)
            return await self._host_lives(vm.name, holder, memory)
        if not vm.status.holders and vm.status.assigned is not None:
            return await self._runs_elsewhere(vm)
        return False

    async def _host_lives(self, vm: str, holder: Holder, memory: OrderMemory) -> bool:
        """Whether the host holds its membership, and has renewed it since this was first seen."""
        member = await self._read(Membership, holder.hypervisor)
        held = member is not None and member.metadata.uid == holder.member_uid
        if member is None or not held or (member.record.state, member.record.epoch) != ("Held", holder.epoch):
            memory.seen.pop(vm, None)
            return False
        first = memory.seen.get(vm)
        if first is None or first[0] != holder.run_id:
            memory.seen[vm] = (holder.run_id, member.record.seq)
            return False
        return member.record.seq > first[1]

    async def _runs_elsewhere(self, vm: VirtualMachine) -> bool:
        """On a host without our daemon it has no holder: that host's own word counts."""
        host = await self._read(Hypervisor, assigned_to(vm))
        if host is None or host.spec.management == "node" or host.status.lost:
            return False
        return state_of(vm) == START and any(one.id == vm.name and one.active for one in host.status.instances)

    async def _read(self, kind: type[_R], name: str) -> _R | None:
        try:
            with deadline(CALL_S):
                return await self._shared.daemon.get(kind, name, fresh=True)
        except NotFound:
            return None
        except TimeoutError:
            raise Unavailable(f"the store did not answer about {name} within {CALL_S:g} s") from None


def _comes_back(vm: VirtualMachine) -> bool:
    """Whether it was stopped only because its host was emptied, and starts once that is ready."""
    stopped = vm.spec.power_state == "running" and state_of(vm) == STOP
    return stopped and vm.status.reason == STOPPED_BY_DRAIN


def _why_not(vm: VirtualMachine) -> str:
    if state_of(vm) == FAIL:
        return f"has failed{f': {vm.status.reason}' if vm.status.reason else ''}"
    return "is not wanted to run"


def _why_coming(vm: VirtualMachine) -> str:
    """What a reader wants to know of one that does not run: what its recovery says, what its host says, where it is."""
    status = vm.status
    if _comes_back(vm):
        return f"was stopped when {assigned_to(vm)} was emptied"
    if status.recovery is not None and status.recovery.phase == "held":
        return f"is held: {status.recovery.reason}"
    said = status.start_order
    if said is not None and said.waits_for and (said.hypervisor, said.fence) == (assigned_to(vm), fence_of(vm)):
        return f"waits itself for {', '.join(said.waits_for)}"
    if status.holders:
        return f"is with {status.holders[0].hypervisor}, and was not seen running there"
    return f"is to start on {assigned_to(vm)}" if assigned_to(vm) else "has no host yet"

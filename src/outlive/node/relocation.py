"""One virtual machine at a time leaves this host: where it goes, the write that begins it, and the wait for it.

A drain and an evacuation use it. ``flush.run`` decides what is done with each virtual machine, in order; steps are
what is *asked for*: whether a virtual machine arrives is seen by the migration itself
(docs/design/node-decisions.md#flushrun). What is on its way longer than it was waited for stays booked
where it goes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base import get_logger
from outlive.node.vm.context import VmContext
from outlive.node.vm.selection import (
    READY,
    RUN,
    Books,
    Choosing,
    ClusterHosts,
    Needing,
    NodeFigures,
    Ruled,
    VmToPlace,
    best_node,
    book_vm,
    build_choice,
    find_home_elsewhere,
    home_after,
    judge_hosts,
    needs_of,
    relocate_status,
    survey_hosts,
)
from outlive.node.vm.states import MIGRATING, VmState, active_move, set_phase, state_of
from outlive.resources import VirtualMachine, VirtualMachineStatus
from outlive.resources.reasons import VmReason, make_reason, render
from outlive.runtime import Count, Decision

SETTLES_TO: Final = {"restart": "start", "shutdown": "stop"}
"""What a state on its way ends in, unless the virtual machine says otherwise."""
MOVES_SETTLE_TO: Final = {"migrate": "start", "migrate-live": "start"}
"""Awaited only when virtual machines return."""


class FlushedVm(Needing, frozen=True, kw_only=True):
    """A virtual machine. Memory in MiB."""

    uuid: str
    state: str
    node: str | None
    settles_to: str | None = None
    """What its state becomes, where it has to be awaited."""
    last_node: str | None = ""
    autostart: bool = False


class FlushInput(Choosing, frozen=True, kw_only=True):
    """A host to be emptied (``flush``) or to take its virtual machines back (``unflush``)."""

    node: str
    op: Literal["flush", "unflush"]
    vms: tuple[FlushedVm, ...]
    nodes: tuple[NodeFigures, ...] = ()
    running: tuple[str, ...] = ()
    """Who runs there, in the order in which they leave."""
    cancel_before: Count | None = None
    """The item before which somebody cancels, from 0; null: nobody does."""
    timeouts: tuple[str, ...] = ()
    """Whose step did not end in time."""
    stay: bool = False
    """Whether a virtual machine that finds no host stays, instead of being shut down."""


class FlushStep(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with one virtual machine."""

    vm: str
    do: Literal["skip", "shutdown", "migrate", "start", "migrate_home", "rehome"]
    autostart: bool | UnsetType = UNSET
    to: str | UnsetType = UNSET
    last_node: str | UnsetType = UNSET
    timed_out: bool | UnsetType = UNSET


class FlushResult(msgspec.Struct, frozen=True, kw_only=True):
    """The steps, and the domain state that the host is left in."""

    steps: tuple[FlushStep, ...]
    domain_state: Literal["flushed", "ready", "flush", "unflush"]
    cancelled: bool


def run_flush(given: FlushInput) -> FlushResult:
    """All steps of a job. A cancelled job hands over to its opposite."""
    draining = given.op == "flush"
    items = len(given.running) if draining else len(given.vms)
    cancelled = given.cancel_before is not None and given.cancel_before < items
    upto = given.cancel_before if cancelled else items
    steps = _plan_drain(given, upto) if draining else _plan_return(given, upto)
    state: Literal["flushed", "ready", "flush", "unflush"] = "flushed" if draining else "ready"
    if cancelled:
        state = "unflush" if draining else "flush"
    return FlushResult(steps=tuple(steps), domain_state=state, cancelled=cancelled)


FLUSH_RUN: Final = Decision(
    "flush.run", run_flush, FlushInput, FlushResult, "How a host is drained, or gets its virtual machines back"
)


def _plan_drain(given: FlushInput, upto: int | None) -> Iterator[FlushStep]:
    books = Books(given.nodes, given)
    vms = {vm.uuid: vm for vm in given.vms}
    for uuid in given.running[:upto]:
        vm = vms.get(uuid)
        if vm is None or _settled_state(vm, SETTLES_TO) != "start":
            yield FlushStep(vm=uuid, do="skip")
            continue
        target = books.place(vm, given.node)
        if target is not None:
            home = home_after(vm.last_node, target=target, source=given.node)
            step = FlushStep(vm=uuid, do="migrate", to=target, last_node=home)
        elif given.stay:
            step = FlushStep(vm=uuid, do="skip")
        else:
            step = FlushStep(vm=uuid, do="shutdown", autostart=True)
        yield _mark_late(step, given)


def _plan_return(given: FlushInput, upto: int | None) -> Iterator[FlushStep]:
    for vm in given.vms[:upto]:
        state = _settled_state(vm, SETTLES_TO | MOVES_SETTLE_TO)
        if vm.autostart and vm.node == given.node:
            yield FlushStep(vm=vm.uuid, do="start" if state == "stop" else "skip")
        elif vm.last_node == given.node and given.node in vm.closed:
            yield FlushStep(vm=vm.uuid, do="skip")
        elif vm.last_node == given.node:
            home = FlushStep(vm=vm.uuid, do="migrate_home")
            yield _mark_late(home, given) if state == "start" else FlushStep(vm=vm.uuid, do="rehome")


def _settled_state(vm: FlushedVm, endings: dict[str, str]) -> str:
    ending = endings.get(vm.state)
    return vm.state if ending is None else vm.settles_to or ending


def _mark_late(step: FlushStep, given: FlushInput) -> FlushStep:
    return msgspec.structs.replace(step, timed_out=True) if step.vm in given.timeouts else step


WATCH_S: Final = 1.0
"""How often a virtual machine on its way is looked at."""
AWAITED: Final = MIGRATING | {VmState.SHUTDOWN, VmState.RESTART}
"""States whose end is waited for."""
_log = get_logger("node.departing")


class RelocationResult(enum.Enum):
    """What came of having a virtual machine leave."""

    LEFT = enum.auto()
    FAILED = enum.auto()
    """It was on its way, and is here again, or down."""
    NO_ROOM = enum.auto()
    STAYS = enum.auto()
    """It is not to leave, or something else came first."""


class Relocations:
    """See the module."""

    def __init__(self, node: VmContext) -> None:
        self.stopped = False
        """Whether nothing more is waited for."""
        self._node = node
        self._late: dict[str, tuple[str, VirtualMachine]] = {}
        """Virtual machines that are on their way longer than they were waited for: they stay booked."""

    async def read_hosts(self) -> ClusterHosts:
        """What hosts have published, and what is still on its way to them."""
        hosts = await survey_hosts(self._node.store)
        nodes = hosts.nodes
        for name, (target, vm) in sorted(self._late.items()):
            now = await self._node.read(name)
            if now is None or active_move(now) is None:
                del self._late[name]
                continue
            nodes = tuple(book_vm(one, VmToPlace(**needs_of(vm))) if one.name == target else one for one in nodes)
        return ClusterHosts(nodes=nodes, facts=hosts.facts)

    def decide(
        self,
        vm: VirtualMachine,
        op: Literal["flush", "unflush"],
        nodes: tuple[NodeFigures, ...] = (),
        *,
        rules: Ruled,
        stay: bool = False,
    ) -> FlushStep | None:
        """What is done with it; ``stay``: whether it stays where no other host has room."""
        item = FlushedVm(
            uuid=vm.name,
            state=state_of(vm),
            node=vm.host or None,
            last_node=find_home_elsewhere(vm),
            autostart=vm.spec.autostart or vm.status.reason == VmReason.STOPPED_BY_DRAIN,
            **needs_of(vm, rules),
        )
        given = FlushInput(
            node=self._node.host,
            op=op,
            vms=(item,),
            nodes=nodes,
            running=(vm.name,) if op == "flush" else (),
            stay=stay,
            **build_choice(self._node),
        )
        return next(iter(self._node.decisions.use(FLUSH_RUN, given, subject=vm.name).steps), None)

    async def leave(self, vm: VirtualMachine, *, evacuate: bool = False, stay: bool = False) -> RelocationResult:
        """Have it leave this host, and wait for that; where no host has room, it is shut down, or stays.

        ``evacuate``: only by a live move, and to hosts that do not degrade; else it stays. In a drain those of its
        groups that are still here do not count: they leave as well.
        """
        if vm.host != self._node.host:  # its move has just ended, and its domain may still be here
            return RelocationResult.STAYS
        hosts = await self.read_hosts()
        nodes = tuple(one for one in hosts.nodes if not (evacuate and one.degrading))
        rules = await judge_hosts(self._node.store, vm, hosts, leaving=self._node.host)
        step = self.decide(vm, "flush", nodes, rules=rules, stay=evacuate or stay)
        if step is not None and step.do == "migrate" and step.to is not UNSET:
            home = step.last_node if step.last_node is not UNSET else ""
            if not await self.send(vm, step.to, home, live_only=evacuate):
                return RelocationResult.STAYS
        elif step is None or step.do != "shutdown":
            return RelocationResult.NO_ROOM
        else:
            # the rule that closes a host to it which is schedulable otherwise
            usable, closed = (node.name for node in nodes if node.usable and node.name != vm.host), rules.closed
            why = next((render(closed[name]).text for name in usable if name in closed), "")
            if not await self.shut_down(vm, why):
                return RelocationResult.STAYS
        after = await self.wait_gone(vm.name)
        return RelocationResult.FAILED if after is not None and after.host == self._node.host else RelocationResult.LEFT

    async def return_vm(self, vm: VirtualMachine) -> FlushStep | None:
        """What is done with a virtual machine that may belong here, once this host takes its own back.

        One that only prefers this host (``prefers_return``) comes where there is room for it beside all others.
        """
        home = self._node.host
        if prefers_return(vm, home) and find_home_elsewhere(vm) != home:
            hosts = await self.read_hosts()
            rules = await judge_hosts(self._node.store, vm, hosts, returning=home)
            here = tuple(
                msgspec.structs.replace(node, daemon_state=RUN, domain_state=READY)  # whatever its record says
                for node in hosts.nodes
                if node.name == home
            )
            fits = best_node(Choosing(require_fit=True), here, Needing(**needs_of(vm, rules)), vm.host)
            return FlushStep(vm=vm.name, do="migrate_home") if fits == home else None
        if find_home_elsewhere(vm) != home:
            return self.decide(vm, "unflush", rules=Ruled({}))
        return self.decide(
            vm,
            "unflush",
            rules=await judge_hosts(self._node.store, vm, await survey_hosts(self._node.store), returning=home),
        )

    async def send(self, vm: VirtualMachine, target: str, home: str, *, live_only: bool = False) -> bool:
        """Begin its move; whether it is on its way. ``live_only``: it stays where it cannot move live."""
        source, move_id = vm.host, self._node.ids.new_uuid()
        self._late[vm.name] = (target, vm)
        moves = VmState.MIGRATE_LIVE if live_only else VmState.MIGRATE

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if now.host != source or active_move(now) is not None or state_of(now) != state_of(vm):
                return None
            phase = moves if state_of(now) == VmState.START else now.status.phase
            return relocate_status(now, target=target, home=home, phase=phase, move_id=move_id)

        after = await self._node.assign(vm.name, target, change)
        return after is not None and after.host == target

    async def shut_down(self, vm: VirtualMachine, ruled_out: str = "") -> bool:
        """Ask it to end until this host is ready again; whether that is under way.

        ``ruled_out``: the rule that closes every host with room to it.
        """
        why = make_reason(VmReason.STOPPED_BY_DRAIN, why=ruled_out or "no other host had room")

        def change(now: VirtualMachine) -> VirtualMachineStatus | None:
            if now.host != self._node.host or state_of(now) != VmState.START:
                return None
            return set_phase(now.status, VmState.SHUTDOWN, why)

        return await self._node.change(vm.name, change) is not None

    async def wait_settled(self, name: str) -> VirtualMachine | None:
        """The virtual machine once nothing of it is on its way, or as it is after the limit."""
        return await self._wait_until(name, lambda vm: state_of(vm) not in AWAITED)

    async def wait_gone(self, name: str) -> VirtualMachine | None:
        """As it is once it has left, or came back; after the limit the next one goes all the same."""
        vm = await self._wait_until(name, lambda now: state_of(now) not in AWAITED and active_move(now) is None)
        if vm is None or active_move(vm) is None:
            self._late.pop(name, None)
        else:
            _log.warning("drain.late", host=self._node.host, vm=name, state=state_of(vm))
        return vm

    async def _wait_until(self, name: str, reached: Callable[[VirtualMachine], bool]) -> VirtualMachine | None:
        deadline_s = self._node.clock.monotonic() + float(self._node.settings.drain_wait)
        while True:
            vm = await self._node.read(name)
            if vm is None or reached(vm) or self._node.clock.monotonic() >= deadline_s or self.stopped:
                return vm
            await self._node.clock.sleep(WATCH_S)


def prefers_return(vm: VirtualMachine, host: str) -> bool:
    """Whether it runs elsewhere, prefers this host, and is to come once this host takes its own back."""
    weights = vm.spec.preferred_hosts.weights
    goes_back = vm.spec.failback in ("planned", "auto") and vm.host != host
    return goes_back and state_of(vm) == VmState.START and weights.get(host, 0) > weights.get(vm.host, 0)

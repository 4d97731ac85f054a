"""Requests of users to one virtual machine: each is answered once, in one write that quotes its id.

The host that the virtual machine is assigned to answers, by ``vm.request`` on what it just read; where that host is not
there, recovery answers by the same decision (``outlive.recovery.requests``). The write is a compare-and-swap on that
very version, so that an answer never rests on an older state (docs/reference/node-decisions.md#vmrequest).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base.errors import BadInput, NotFound, Refused, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.locks import FLUSH_S, flush
from outlive.node.vm.selection import (
    Choice,
    Choosing,
    Hosts,
    Needing,
    NodeFigures,
    Ruled,
    away_from,
    best_node,
    choice,
    home_after,
    needs,
    relocated,
    ruled,
    survey,
)
from outlive.node.vm.states import active_move, in_phase, state_of
from outlive.placement.rules import demands_of
from outlive.resources import VirtualMachine
from outlive.resources.devices import NO_DISK, device_of
from outlive.resources.reasons import PlaceReason, Reason, VmReason, reason, render
from outlive.resources.vms import Answer, Request, RequestVerb, VirtualMachineStatus
from outlive.runtime.decisions import Decision
from outlive.runtime.units import Amount
from outlive.store import Store


class VmRequestCode(enum.StrEnum):
    """How a request was answered."""

    ACCEPTED = "accepted"
    MADE_PERMANENT = "made_permanent"
    MIRROR_PROTECTED = "mirror_protected"
    NOT_RUNNING = "not_running"
    BUSY = "busy"
    LIVE_FORBIDDEN = "live_forbidden"
    ALREADY_MIGRATED = "already_migrated"
    NOT_MIGRATED = "not_migrated"
    NODE_INVALID = "node_invalid"
    NODE_NOT_ALLOWED = "node_not_allowed"
    NODE_NOT_READY = "node_not_ready"
    SAME_NODE = "same_node"
    NO_TARGET = "no_target"
    CLUSTER_DISARMED = "cluster_disarmed"
    NOT_FENCED = "not_fenced"
    CLUSTER_PAUSED = "cluster_paused"
    NOT_STOPPED = "not_stopped"
    FAILED = "failed"
    """Its host could not do it, and nothing of it was done; the answer's message says why."""
    UNKNOWN = "unknown"
    """Its host does not know whether it was done; the answer's message says why."""


class VmRequestArgs(msgspec.Struct, frozen=True, kw_only=True):
    """How the client wants it done."""

    target: str | None = None
    force: bool | None = False
    force_live: bool | None = False


class RequestedVm(Needing, frozen=True, kw_only=True):
    """The virtual machine as it is. Memory in MiB."""

    state: str
    node: str
    last_node: str | None = ""
    """Its home, while it is away."""
    method: str | None = "none"
    memory: Amount = 0
    vcpus: Amount = 0
    migration_active: bool = False
    held: bool = False
    """Whether a host may be running it."""


class VmRequestInput(Choosing, frozen=True, kw_only=True):
    """A request, and what it is about."""

    request: RequestVerb
    vm: RequestedVm
    args: VmRequestArgs | None = None
    nodes: tuple[NodeFigures, ...] = ()
    frozen: bool = False
    """Whether the cluster is disarmed so that VMs stay as they are."""
    not_fenced: bool = False
    """Its host does not answer, and may still run it."""
    paused: bool = False
    """Its host does not answer, and the cluster is paused."""
    host_away: bool = False
    """Its host does not answer, or it has none."""


class VmWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that are written; the others stay."""

    via: Literal["stop", "shutdown"] | UnsetType = UNSET
    """Written first; ``state`` follows once the virtual machine has come to ``stop``."""
    state: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    last_node: str | UnsetType = UNSET


class VmRequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; nothing is written on refusal."""

    ok: bool
    code: VmRequestCode
    writes: VmWrites = VmWrites()


class _Refusal(Exception):
    def __init__(self, code: VmRequestCode) -> None:
        super().__init__(code)
        self.code = code


def vm_request(given: VmRequestInput) -> VmRequestResult:
    """Answer one request."""
    try:
        return _answer(given, given.args or VmRequestArgs())
    except _Refusal as refusal:
        return VmRequestResult(ok=False, code=refusal.code)


VM_REQUEST: Final = Decision(
    "vm.request", vm_request, VmRequestInput, VmRequestResult, "What a request to a virtual machine writes"
)


def _answer(given: VmRequestInput, args: VmRequestArgs) -> VmRequestResult:
    _need(not given.frozen, VmRequestCode.CLUSTER_DISARMED)
    match given.request:
        case "start" | "stop" | "disable":
            _need(given.vm.state != "mirror" or bool(args.force), VmRequestCode.MIRROR_PROTECTED)
            return _accepted(_disabled(given.vm, args) if given.request == "disable" else VmWrites(state=given.request))
        case "shutdown" | "restart":
            _need(given.vm.state == "start", VmRequestCode.NOT_RUNNING)
            return _accepted(VmWrites(state=given.request))
        case "flush-locks":
            _need(not given.host_away, VmRequestCode.NODE_NOT_READY)
            _need(given.vm.state in FLUSHABLE and not given.vm.held, VmRequestCode.NOT_STOPPED)
            _need(not given.vm.migration_active, VmRequestCode.BUSY)
            return _accepted(VmWrites())
        case "attach" | "detach":
            _need(not given.host_away, VmRequestCode.NODE_NOT_READY)
            _need(given.vm.state == "start", VmRequestCode.NOT_RUNNING)
            _need(not given.vm.migration_active, VmRequestCode.BUSY)
            return _accepted(VmWrites())
        case _:
            _need(not given.vm.migration_active, VmRequestCode.BUSY)
            _need(not (args.force_live and given.vm.method == "shutdown"), VmRequestCode.LIVE_FORBIDDEN)
            _need(not given.paused, VmRequestCode.CLUSTER_PAUSED)
            _need(not given.not_fenced, VmRequestCode.NOT_FENCED)
            return _relocation(given, args)


FLUSHABLE: Final = frozenset({"stop", "disable", "fail", "mirror"})
"""States in which locks may be flushed, where no host may be running it."""


def _disabled(vm: RequestedVm, args: VmRequestArgs) -> VmWrites:
    if vm.state != "start":
        return VmWrites(state="disable")
    return VmWrites(via="stop" if args.force else "shutdown", state="disable")


def _relocation(given: VmRequestInput, args: VmRequestArgs) -> VmRequestResult:
    vm = given.vm
    state = _moving_state(vm, args)
    match given.request:
        case "migrate":
            _need(not vm.last_node or bool(args.force), VmRequestCode.ALREADY_MIGRATED)
            target = _target(given, args)
            home = home_after(vm.last_node, target=target, source=vm.node)
            return _accepted(VmWrites(state=state, node=target, last_node=home))
        case "unmigrate":
            return _accepted(VmWrites(state=state, node=_home(given), last_node=""))
        case _:
            if vm.last_node and args.target == vm.node:
                _known_and_allowed(given, vm.node)
                return VmRequestResult(ok=True, code=VmRequestCode.MADE_PERMANENT, writes=VmWrites(last_node=""))
            return _accepted(VmWrites(state=state, node=_target(given, args), last_node=""))


def _moving_state(vm: RequestedVm, args: VmRequestArgs) -> str:
    if vm.state != "start":
        return vm.state
    return "migrate-live" if args.force_live else "migrate"


def _home(given: VmRequestInput) -> str:
    vm = given.vm
    if not vm.last_node:
        raise _Refusal(VmRequestCode.NOT_MIGRATED)
    home = _node(given, vm.last_node)
    _need(home.name != vm.node, VmRequestCode.SAME_NODE)
    _need(home.usable, VmRequestCode.NODE_NOT_READY)
    _need(home.name not in vm.closed, VmRequestCode.NODE_NOT_ALLOWED)
    return home.name


def _target(given: VmRequestInput, args: VmRequestArgs) -> str:
    if not args.target:
        target = best_node(given, given.nodes, given.vm, given.vm.node)
        if target is None:
            raise _Refusal(VmRequestCode.NO_TARGET)
        return target
    node = _known_and_allowed(given, args.target)
    _need(node.name != given.vm.node, VmRequestCode.SAME_NODE)
    _need(node.usable, VmRequestCode.NODE_NOT_READY)
    _need(node.name not in given.vm.closed, VmRequestCode.NODE_NOT_ALLOWED)
    return node.name


def _known_and_allowed(given: VmRequestInput, name: str) -> NodeFigures:
    node = _node(given, name)
    limit = given.vm.node_limit
    _need(not limit or name in limit, VmRequestCode.NODE_NOT_ALLOWED)
    return node


def _node(given: VmRequestInput, name: str) -> NodeFigures:
    for node in given.nodes:
        if node.name == name:
            return node
    raise _Refusal(VmRequestCode.NODE_INVALID)


def _accepted(writes: VmWrites) -> VmRequestResult:
    return VmRequestResult(ok=True, code=VmRequestCode.ACCEPTED, writes=writes)


def _need(condition: bool, code: VmRequestCode) -> None:
    if not condition:
        raise _Refusal(code)


RELOCATIONS: Final = frozenset({"migrate", "unmigrate", "move"})
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


def is_asked(vm: VirtualMachine) -> bool:
    """Whether there is a request that was not answered."""
    request, answered = vm.spec.request, vm.status.answered
    return request is not None and (answered is None or answered.id != request.id)


async def answer(node: VmContext, vm: VirtualMachine) -> None:
    """Answer its request, whatever it comes to."""
    request = vm.spec.request
    assert request is not None
    places = await places_for(node.store, vm, request)
    first = _decide(node, vm, request, places)
    memory = node.memory(vm.name)
    work, why = WORK.get(request.verb) if first.ok else None, None
    if request.verb in WORK and not first.ok and memory.unanswered[0] == request.id:
        why = _refused(f"it was begun, and {vm.name} was found {first.code} before that had ended")
    if work is not None:
        try:
            why = await work(node, vm, request)
        except (Unavailable, Unknown) as error:
            _tried(memory, request, node.clock.monotonic())
            if node.clock.monotonic() - memory.unanswered[1] < WORK_S:
                raise  # it is tried again
            why = _refused(error.message)
    known = memory.unanswered[0] != request.id or request.verb not in ("attach", "detach")
    code = first.code if why is None else VmRequestCode.FAILED if known else VmRequestCode.UNKNOWN
    move_id = node.ids.uuid()

    def change(now: VirtualMachine) -> VirtualMachineStatus | None:
        if now.spec.request != request or not is_asked(now) or now.host != node.host:
            return None
        if demands_of(now) != demands_of(vm):
            return None  # its rules changed meanwhile: look again
        if work is not None or why is not None:
            return _replace(now.status, answered=places.answer(request, _replace(first, code=code), why))
        result = _decide(node, now, request, places)
        if result.writes != first.writes:
            return None  # it changed meanwhile: look again
        status = written(now, result.writes, move_id) if result.ok else now.status
        return _replace(status, answered=places.answer(request, result))

    if first.writes.node is not UNSET:
        await node.assign(vm.name, first.writes.node, change)
    else:
        await node.change(vm.name, change)
    if first.ok:
        memory.shutdown_until_s = None
    if request.verb in ("start", "restart"):
        memory.failures, memory.not_before_s = 0, 0.0
    _log.info("vm.request", vm=vm.name, verb=request.verb, id=request.id, code=code.value)


WORK_S: Final = FLUSH_S
"""For how long a request is tried again whose outcome its host does not know."""


def _tried(memory: VmMemory, request: Request, now_s: float) -> None:
    """Remember that nobody knows what came of a try."""
    if memory.unanswered[0] != request.id:
        memory.unanswered = (request.id, now_s)


async def _flush_locks(node: VmContext, vm: VirtualMachine, request: Request) -> Reason | None:
    """Remove the locks on its disks, unless something of it is on this host after all."""
    await node.domains.look()
    if vm.name in node.domains.names():
        return reason(VmReason.STILL_HERE, host=node.host)
    return await flush(node, vm, vm.spec.disks, strangers=request.force)


RELEASE_S: Final = 10.0
"""How long a guest may take to let go of a device, …"""
RELEASE_LOOK_S: Final = 0.5
"""… and how often is looked whether it has."""


async def _attach(node: VmContext, vm: VirtualMachine, request: Request) -> Reason | None:
    """Give what runs an interface of its definition."""
    name, run_id, domain = request.device, _running(node, vm), node.domains.by_vm.get(vm.name)
    try:
        if domain is not None and name in await node.domains.devices(vm.name, domain.run_id):
            return None  # by an earlier try, whatever state it is in by now
        if not run_id:
            return _refused(f"it does not run on {node.host}")
        if vm.spec.definition and device_of(vm.spec.definition, name).disk:
            return _refused(NO_DISK)
        if (lacks := await node.functions.assign(vm)) is not None:
            return lacks
        await node.domains.attach(node.functions.plug(await node.network.plug(vm)), name, run_id)
    except (BadInput, NotFound, Refused) as error:
        return _refused(error.message)
    return None


async def _detach(node: VmContext, vm: VirtualMachine, request: Request) -> Reason | None:
    """Take a device away from what runs."""
    run_id = _running(node, vm)
    if not run_id:
        return _refused(f"it does not run on {node.host}")
    why, name = f"its guest does not let go of {request.device}", request.device
    until_s = node.clock.monotonic() + RELEASE_S
    try:
        await node.domains.detach(vm.name, name, run_id)
    except Refused as error:
        why = error.message  # it may have been asked before
    except Unknown:
        pass  # the hypervisor may wait for the guest for longer than it is given
    try:
        while name in await node.domains.devices(vm.name, run_id):
            if node.clock.monotonic() >= until_s:
                return _refused(why)
            await node.clock.sleep(RELEASE_LOOK_S)
    except Refused as error:
        return _refused(error.message)
    return None


def _running(node: VmContext, vm: VirtualMachine) -> str:
    """Its run on this host, if it runs with all of its memory here."""
    domain = node.domains.by_vm.get(vm.name)
    return domain.run_id if domain is not None and node.runs(vm) and not domain.split else ""


def _refused(why: str) -> Reason:
    return reason(VmReason.DEVICE_REFUSED, error=why)


WORK: Final[Mapping[str, Callable[[VmContext, VirtualMachine, Request], Awaitable[Reason | None]]]] = {
    "flush-locks": _flush_locks,
    "attach": _attach,
    "detach": _detach,
}
"""Requests that the host of the virtual machine carries out before it answers, and again where it ended before it had
answered; what keeps it from that."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a virtual machine might go that a request is about, and what its rules say of it."""

    hosts: Hosts = field(default_factory=Hosts)
    rules: Ruled = field(default_factory=lambda: Ruled({}))
    home: str = ""
    """Where it is to go back to."""
    passed_through: tuple[str, ...] = ()
    """Its virtual functions because of which it is moved while it is down."""

    def answer(self, request: Request, result: VmRequestResult, why: Reason | None = None) -> Answer:
        """With the rule by which it is refused, or the soft ones that it goes against where it goes; ``why``: what kept
        its host from doing it."""
        if why is not None:
            return Answer(id=request.id, code=result.code, message=str(render(why)))
        told = self._told(result, request.target or self.home)
        if self.passed_through and result.ok and result.writes.node is not UNSET:
            told = (*told, reason(PlaceReason.MOVED_DOWN, functions=self.passed_through))
        message = "; ".join(str(render(one)) for one in told)
        return Answer(id=request.id, code=result.code, message=message)

    def _told(self, result: VmRequestResult, target: str) -> tuple[Reason, ...]:
        closed = self.rules.closed
        match result.code:
            case VmRequestCode.NODE_NOT_ALLOWED if target in closed:
                return (closed[target],)
            case VmRequestCode.NO_TARGET:
                return tuple(closed[node.name] for node in self.hosts.nodes if node.usable and node.name in closed)[:1]
            case _:
                return self.rules.against(result.writes.node) if result.writes.node is not UNSET else ()


async def places_for(store: Store, vm: VirtualMachine, request: Request) -> Places:
    """By a fresh look; nothing is looked at where the request sends it nowhere."""
    if request.verb not in RELOCATIONS:
        return Places()
    hosts, home = await survey(store), vm.status.home if request.verb == "unmigrate" else ""
    leaving = vm.host if request.with_group else ""
    rules = await ruled(store, vm, hosts, leaving=leaving, returning=home)
    return Places(hosts, rules, home, tuple(one.label for one in vm.spec.passed_through))


def _decide(node: VmContext, vm: VirtualMachine, request: Request, places: Places) -> VmRequestResult:
    given = request_input(vm, request, places, choice(node), frozen=node.frozen)
    return node.decisions.use(VM_REQUEST, given, subject=vm.name)


def request_input(
    vm: VirtualMachine,
    request: Request,
    places: Places,
    chosen: Choice,
    *,
    frozen: bool = False,
    not_fenced: bool = False,
    paused: bool = False,
    host_away: bool = False,
) -> VmRequestInput:
    """The request as the decision sees it; ``chosen``: how a host is chosen."""
    return VmRequestInput(
        request=request.verb,
        args=VmRequestArgs(target=request.target or None, force=request.force, force_live=request.force_live),
        vm=RequestedVm(
            state=state_of(vm),
            node=vm.host,
            last_node=away_from(vm),
            method=vm.spec.move_method or "none",
            migration_active=active_move(vm) is not None,
            held=bool(vm.status.holders),
            **needs(vm, places.rules),
        ),
        nodes=places.hosts.nodes,
        frozen=frozen,
        not_fenced=not_fenced,
        paused=paused,
        host_away=host_away,
        **chosen,
    )


def written(vm: VirtualMachine, writes: VmWrites, move_id: str) -> VirtualMachineStatus:
    """The status after what an accepted request writes."""
    status = vm.status
    if writes.node is not UNSET:
        phase = writes.state if writes.state is not UNSET else status.phase
        home = writes.last_node if writes.last_node is not UNSET else away_from(vm)
        return relocated(vm, target=writes.node, home=home, phase=phase, move_id=move_id)
    if writes.last_node is not UNSET:
        status = _replace(status, home=writes.last_node or vm.host)
    if writes.via is not UNSET:
        return in_phase(status, writes.via, reason(VmReason.TO_BE_DISABLED))
    if writes.state is not UNSET:
        status = _replace(in_phase(status, writes.state), rejection=None)
    return status

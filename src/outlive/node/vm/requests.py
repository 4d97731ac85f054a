"""Requests of users to one virtual machine: each is answered once, in one write that quotes its id.

The host that the virtual machine is assigned to answers, by ``vm.request`` on what it just read; where that host is not
there, recovery answers by the same decision (``outlive.recovery.requests``). The write is a compare-and-swap on that
very version, so that an answer never rests on an older state (docs/design/node-decisions.md#vmrequest).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base import BadInput, NotFound, Refused, Unavailable, Unknown, get_logger
from outlive.node.vm.context import VmContext
from outlive.node.vm.locks import FLUSH_S, flush
from outlive.node.vm.selection import (
    Choice,
    Choosing,
    ClusterHosts,
    Needing,
    NodeFigures,
    Ruled,
    best_node,
    build_choice,
    find_home_elsewhere,
    home_after,
    judge_hosts,
    needs_of,
    relocate_status,
    survey_hosts,
)
from outlive.node.vm.states import active_move, set_phase, state_of
from outlive.placement import demands_of
from outlive.resources import NO_DISK, Answer, Request, RequestVerb, VirtualMachine, VirtualMachineStatus, device_of
from outlive.resources.reasons import PlaceReason, Reason, VmReason, make_reason, render
from outlive.runtime import Amount, Decision
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


class _RequestRefused(Exception):
    def __init__(self, code: VmRequestCode) -> None:
        super().__init__(code)
        self.code = code


def vm_request(given: VmRequestInput) -> VmRequestResult:
    """Answer one request."""
    try:
        return _answer(given, given.args or VmRequestArgs())
    except _RequestRefused as refusal:
        return VmRequestResult(ok=False, code=refusal.code)


VM_REQUEST: Final = Decision(
    "vm.request", vm_request, VmRequestInput, VmRequestResult, "What a request to a virtual machine writes"
)


def _answer(given: VmRequestInput, args: VmRequestArgs) -> VmRequestResult:
    _need(not given.frozen, VmRequestCode.CLUSTER_DISARMED)
    match given.request:
        case "start" | "stop" | "disable":
            _need(given.vm.state != "mirror" or bool(args.force), VmRequestCode.MIRROR_PROTECTED)
            if given.request != "disable" or given.vm.state != "start":
                return _accept(VmWrites(state=given.request))
            return _accept(VmWrites(via="stop" if args.force else "shutdown", state="disable"))
        case "shutdown" | "restart":
            _need(given.vm.state == "start", VmRequestCode.NOT_RUNNING)
            return _accept(VmWrites(state=given.request))
        case "flush-locks":
            _need(not given.host_away, VmRequestCode.NODE_NOT_READY)
            _need(given.vm.state in FLUSHABLE and not given.vm.held, VmRequestCode.NOT_STOPPED)
            _need(not given.vm.migration_active, VmRequestCode.BUSY)
            return _accept(VmWrites())
        case "attach" | "detach":
            _need(not given.host_away, VmRequestCode.NODE_NOT_READY)
            _need(given.vm.state == "start", VmRequestCode.NOT_RUNNING)
            _need(not given.vm.migration_active, VmRequestCode.BUSY)
            return _accept(VmWrites())
        case _:
            _need(not given.vm.migration_active, VmRequestCode.BUSY)
            _need(not (args.force_live and given.vm.method == "shutdown"), VmRequestCode.LIVE_FORBIDDEN)
            _need(not given.paused, VmRequestCode.CLUSTER_PAUSED)
            _need(not given.not_fenced, VmRequestCode.NOT_FENCED)
            return _decide_relocation(given, args)


FLUSHABLE: Final = frozenset({"stop", "disable", "fail", "mirror"})
"""States in which locks may be flushed, where no host may be running it."""


def _decide_relocation(given: VmRequestInput, args: VmRequestArgs) -> VmRequestResult:
    vm = given.vm
    state = vm.state if vm.state != "start" else "migrate-live" if args.force_live else "migrate"
    match given.request:
        case "migrate":
            _need(not vm.last_node or bool(args.force), VmRequestCode.ALREADY_MIGRATED)
            target = _choose_target(given, args)
            home = home_after(vm.last_node, target=target, source=vm.node)
            return _accept(VmWrites(state=state, node=target, last_node=home))
        case "unmigrate":
            if not vm.last_node:
                raise _RequestRefused(VmRequestCode.NOT_MIGRATED)
            node = _find_node(given, vm.last_node)
            _need(node.name != vm.node, VmRequestCode.SAME_NODE)
            _need(node.usable, VmRequestCode.NODE_NOT_READY)
            _need(node.name not in vm.closed, VmRequestCode.NODE_NOT_ALLOWED)
            return _accept(VmWrites(state=state, node=node.name, last_node=""))
        case _:
            if vm.last_node and args.target == vm.node:
                _find_allowed_node(given, vm.node)
                return VmRequestResult(ok=True, code=VmRequestCode.MADE_PERMANENT, writes=VmWrites(last_node=""))
            return _accept(VmWrites(state=state, node=_choose_target(given, args), last_node=""))


def _choose_target(given: VmRequestInput, args: VmRequestArgs) -> str:
    if not args.target:
        target = best_node(given, given.nodes, given.vm, given.vm.node)
        if target is None:
            raise _RequestRefused(VmRequestCode.NO_TARGET)
        return target
    node = _find_allowed_node(given, args.target)
    _need(node.name != given.vm.node, VmRequestCode.SAME_NODE)
    _need(node.usable, VmRequestCode.NODE_NOT_READY)
    _need(node.name not in given.vm.closed, VmRequestCode.NODE_NOT_ALLOWED)
    return node.name


def _find_allowed_node(given: VmRequestInput, name: str) -> NodeFigures:
    node = _find_node(given, name)
    limit = given.vm.node_limit
    _need(not limit or name in limit, VmRequestCode.NODE_NOT_ALLOWED)
    return node


def _find_node(given: VmRequestInput, name: str) -> NodeFigures:
    for node in given.nodes:
        if node.name == name:
            return node
    raise _RequestRefused(VmRequestCode.NODE_INVALID)


def _accept(writes: VmWrites) -> VmRequestResult:
    return VmRequestResult(ok=True, code=VmRequestCode.ACCEPTED, writes=writes)


def _need(condition: bool, code: VmRequestCode) -> None:
    if not condition:
        raise _RequestRefused(code)


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
    memory = node.memory_of(vm.name)
    work, why = WORK.get(request.verb) if first.ok else None, None
    if request.verb in WORK and not first.ok and memory.unanswered[0] == request.id:
        why = _refuse_device(f"it was begun, and {vm.name} was found {first.code} before that had ended")
    if work is not None:
        try:
            why = await work(node, vm, request)
        except (Unavailable, Unknown) as error:
            if memory.unanswered[0] != request.id:
                memory.unanswered = (request.id, node.clock.monotonic())
            if node.clock.monotonic() - memory.unanswered[1] < WORK_S:
                raise  # it is tried again
            why = _refuse_device(error.message)
    known = memory.unanswered[0] != request.id or request.verb not in ("attach", "detach")
    code = first.code if why is None else VmRequestCode.FAILED if known else VmRequestCode.UNKNOWN
    move_id = node.ids.new_uuid()

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
        status = apply_writes(now, result.writes, move_id) if result.ok else now.status
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


async def _flush_locks(node: VmContext, vm: VirtualMachine, request: Request) -> Reason | None:
    """Remove the locks on its disks, unless something of it is on this host after all."""
    await node.domains.refresh()
    if vm.name in node.domains.list_names():
        return make_reason(VmReason.STILL_HERE, host=node.host)
    return await flush(node, vm, vm.spec.disks, strangers=request.force)


RELEASE_S: Final = 10.0
"""How long a guest may take to let go of a device, …"""
RELEASE_LOOK_S: Final = 0.5
"""… and how often is looked whether it has."""


async def _attach(node: VmContext, vm: VirtualMachine, request: Request) -> Reason | None:
    """Give what runs an interface of its definition."""
    name, run_id, domain = request.device, _running_id(node, vm), node.domains.by_vm.get(vm.name)
    try:
        if domain is not None and name in await node.domains.list_devices(vm.name, domain.run_id):
            return None  # by an earlier try, whatever state it is in by now
        if not run_id:
            return _refuse_device(f"it does not run on {node.host}")
        if vm.spec.definition and device_of(vm.spec.definition, name).disk:
            return _refuse_device(NO_DISK)
        if (lacks := await node.functions.assign(vm)) is not None:
            return lacks
        await node.domains.attach(node.functions.plug(await node.network.plug(vm)), name, run_id)
    except (BadInput, NotFound, Refused) as error:
        return _refuse_device(error.message)
    return None


async def _detach(node: VmContext, vm: VirtualMachine, request: Request) -> Reason | None:
    """Take a device away from what runs."""
    run_id = _running_id(node, vm)
    if not run_id:
        return _refuse_device(f"it does not run on {node.host}")
    why, name = f"its guest does not let go of {request.device}", request.device
    until_s = node.clock.monotonic() + RELEASE_S
    try:
        await node.domains.detach(vm.name, name, run_id)
    except Refused as error:
        why = error.message  # it may have been asked before
    except Unknown:
        pass  # the hypervisor may wait for the guest for longer than it is given
    try:
        while name in await node.domains.list_devices(vm.name, run_id):
            if node.clock.monotonic() >= until_s:
                return _refuse_device(why)
            await node.clock.sleep(RELEASE_LOOK_S)
    except Refused as error:
        return _refuse_device(error.message)
    return None


def _running_id(node: VmContext, vm: VirtualMachine) -> str:
    """Its run on this host, if it runs with all of its memory here."""
    domain = node.domains.by_vm.get(vm.name)
    return domain.run_id if domain is not None and node.is_running(vm) and not domain.split else ""


def _refuse_device(why: str) -> Reason:
    return make_reason(VmReason.DEVICE_REFUSED, error=why)


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

    hosts: ClusterHosts = field(default_factory=ClusterHosts)
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
        target, closed, reasons = request.target or self.home, self.rules.closed, tuple[Reason, ...]()
        if result.code is VmRequestCode.NODE_NOT_ALLOWED and target in closed:
            reasons = (closed[target],)
        elif result.code is VmRequestCode.NO_TARGET:
            reasons = tuple(closed[node.name] for node in self.hosts.nodes if node.usable and node.name in closed)[:1]
        elif result.writes.node is not UNSET:
            reasons = self.rules.rules_against(result.writes.node)
        if self.passed_through and result.ok and result.writes.node is not UNSET:
            reasons = (*reasons, make_reason(PlaceReason.MOVED_DOWN, functions=self.passed_through))
        message = "; ".join(str(render(one)) for one in reasons)
        return Answer(id=request.id, code=result.code, message=message)


async def places_for(store: Store, vm: VirtualMachine, request: Request) -> Places:
    """By a fresh look; nothing is looked at where the request sends it nowhere."""
    if request.verb not in RELOCATIONS:
        return Places()
    hosts, home = await survey_hosts(store), vm.status.home if request.verb == "unmigrate" else ""
    leaving = vm.host if request.with_group else ""
    rules = await judge_hosts(store, vm, hosts, leaving=leaving, returning=home)
    return Places(hosts, rules, home, tuple(one.label for one in vm.spec.passed_through))


def _decide(node: VmContext, vm: VirtualMachine, request: Request, places: Places) -> VmRequestResult:
    given = request_input(vm, request, places, build_choice(node), frozen=node.frozen)
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
            last_node=find_home_elsewhere(vm),
            method=vm.spec.move_method or "none",
            migration_active=active_move(vm) is not None,
            held=bool(vm.status.holders),
            **needs_of(vm, places.rules),
        ),
        nodes=places.hosts.nodes,
        frozen=frozen,
        not_fenced=not_fenced,
        paused=paused,
        host_away=host_away,
        **chosen,
    )


def apply_writes(vm: VirtualMachine, writes: VmWrites, move_id: str) -> VirtualMachineStatus:
    """The status after what an accepted request writes."""
    status = vm.status
    if writes.node is not UNSET:
        phase = writes.state if writes.state is not UNSET else status.phase
        home = writes.last_node if writes.last_node is not UNSET else find_home_elsewhere(vm)
        return relocate_status(vm, target=writes.node, home=home, phase=phase, move_id=move_id)
    if writes.last_node is not UNSET:
        status = _replace(status, home=writes.last_node or vm.host)
    if writes.via is not UNSET:
        return set_phase(status, writes.via, make_reason(VmReason.TO_BE_DISABLED))
    if writes.state is not UNSET:
        status = _replace(set_phase(status, writes.state), rejection=None)
    return status

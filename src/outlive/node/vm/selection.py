"""The choice of another host for a virtual machine, and what is written when it is to go there.

Figures that hosts publish are up to an interval old, so a caller that places several virtual machines in a row has to
book each of them (``book_vm``) before choosing again, else all of them go to the host that looked emptiest
(docs/design/node-decisions.md#selectnode). A choice reserves nothing: the host itself may still refuse.

A move begins with one write of the virtual machine (where it is assigned, where its home is, and the record of the
migration) after the label by which the target finds it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

import msgspec

from outlive.base import natural_key
from outlive.node.functions.books import move_refusals
from outlive.node.membership.states import member_view
from outlive.node.vm.context import VmContext
from outlive.node.vm.states import VmState, state_of
from outlive.placement import (
    HostFacts,
    Peers,
    RuleVerdict,
    arrival_host,
    blocked_hosts,
    demands_of,
    facts_of,
    has_landed,
    judge,
    storage_refusal,
    unused_amounts,
)
from outlive.resources import (
    WEIGHT_LIMIT,
    Amounts,
    Assigned,
    HostUsage,
    Hypervisor,
    HypervisorUsage,
    MemberRecord,
    Membership,
    Migration,
    Reservation,
    VirtualMachine,
    VirtualMachineStatus,
    explain_out_of_service,
    first_lost,
    lost_places,
    observed_condition,
)
from outlive.resources.reasons import Reason
from outlive.runtime import Amount, Decision, Number
from outlive.store import Store, list_all, read

RUN: Final = "run"
"""Daemon state of a host that works."""
READY: Final = "ready"
"""Domain state of a host that is schedulable."""


class HostSelector(enum.StrEnum):
    """By which figure the best host is found."""

    MEM = "mem"
    MEMPROV = "memprov"
    MEMFREE = "memfree"
    LOAD = "load"
    VCPUS = "vcpus"
    VMS = "vms"


MemMeans = Literal["provisioned", "free"]
"""Figure for the selector ``mem``."""


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a host, in MiB."""

    total: Amount = 0
    used: Number = 0
    free: Number = 0
    """What is available now."""
    allocated: Number = 0
    provisioned: Number = 0
    """What all virtual machines assigned to the host need if all of them run."""
    reserved: Number = 0
    """Held for somebody else."""


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a host published, as far as choosing needs it."""

    name: str
    daemon_state: str
    domain_state: str
    memory: NodeMemory = NodeMemory()
    vcpu_allocated: Number = 0
    load: Number = 0
    domains_count: Number = 0
    degrading: bool = False
    """Whether it gets slow: it is chosen only where no other host will do."""

    @property
    def usable(self) -> bool:
        """Whether it works and is schedulable."""
        return self.daemon_state == RUN and self.domain_state == READY


class Needing(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that needs a host. Memory in MiB."""

    memory: Amount
    vcpus: Amount
    node_limit: tuple[str, ...] | None = None
    """The only hosts that it may run on; none, or an empty list: any."""
    selector: str | None = None
    closed: dict[str, Reason] = {}
    """Hosts that rules of it close to it beside ``node_limit``, and which."""
    ranks: dict[str, int] = {}
    """How well it would be on a host by its soft rules and preferred hosts: larger is better, absent: 0."""


class VmToPlace(Needing, frozen=True, kw_only=True):
    """The same, and where it is now: never the answer."""

    node: str | None = None


class Choosing(msgspec.Struct, frozen=True, kw_only=True):
    """How a host is chosen."""

    default_selector: str | None = None
    mem_means: MemMeans = "provisioned"
    require_fit: bool = False


class SelectNodeInput(Choosing, frozen=True, kw_only=True):
    """Which host for this virtual machine?"""

    vm: VmToPlace
    nodes: tuple[NodeFigures, ...]


class SelectNodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The host, by which selector, and who else would have done."""

    target: str | None
    selector: HostSelector
    candidates: tuple[str, ...]


def select_node(given: SelectNodeInput) -> SelectNodeResult:
    """The best of all hosts that work, take virtual machines, are allowed and have room; ties by natural order.

    Hosts that degrade come after all others; among the rest those come first that suit its rules better.
    """
    selector = chosen_selector(given.vm.selector, given.default_selector)
    figure = selector
    if selector is HostSelector.MEM:
        figure = HostSelector.MEMFREE if given.mem_means == "free" else HostSelector.MEMPROV
    candidates = [node for node in given.nodes if _is_allowed(node, given.vm) and _has_room(node, given, figure)]
    candidates.sort(key=lambda node: natural_key(node.name))
    merit, ranks = _MERIT[figure], given.vm.ranks
    best = max(  # the first of equals
        candidates, key=lambda node: (not node.degrading, ranks.get(node.name, 0), merit(node)), default=None
    )
    return SelectNodeResult(
        target=None if best is None else best.name,
        selector=selector,
        candidates=tuple(node.name for node in candidates),
    )


SELECT_NODE: Final = Decision(
    "select.node", select_node, SelectNodeInput, SelectNodeResult, "Which host a virtual machine goes to"
)


def chosen_selector(own: str | None, default: str | None) -> HostSelector:
    """The virtual machine's selector if there is such a one, else the default if there is, else ``mem``."""
    for name in (own, default):
        if name in set(HostSelector):
            return HostSelector(name)
    return HostSelector.MEM


def book_vm(node: NodeFigures, vm: Needing) -> NodeFigures:
    """The host with one more virtual machine. Used grows as free shrinks, or it would be counted twice."""
    before, memory = node.memory, vm.memory
    memory_after = msgspec.structs.replace(
        before,
        used=before.used + memory,
        free=before.free - memory,
        allocated=before.allocated + memory,
        provisioned=before.provisioned + memory,
    )
    return msgspec.structs.replace(
        node,
        memory=memory_after,
        vcpu_allocated=node.vcpu_allocated + vm.vcpus,
        domains_count=node.domains_count + 1,
    )


def best_node(given: Choosing, nodes: tuple[NodeFigures, ...], vm: Needing, source: str | None) -> str | None:
    """The host for the virtual machine, which is on ``source`` now; ``None`` where no host will do."""
    wanted = VmToPlace(
        node=source,
        memory=vm.memory,
        vcpus=vm.vcpus,
        node_limit=vm.node_limit,
        selector=vm.selector,
        closed=vm.closed,
        ranks=vm.ranks,
    )
    return select_node(
        SelectNodeInput(
            vm=wanted,
            nodes=nodes,
            default_selector=given.default_selector,
            mem_means=given.mem_means,
            require_fit=given.require_fit,
        )
    ).target


class Books:
    """The hosts' figures while several virtual machines are placed one after the other. Not shared between threads."""

    def __init__(self, nodes: tuple[NodeFigures, ...], given: Choosing) -> None:
        self.nodes = nodes
        """The figures as they are booked now."""
        self._given = given

    def place(self, vm: Needing, source: str | None = None) -> str | None:
        """Choose a host and book the virtual machine there; ``None`` where no host will do."""
        target = best_node(self._given, self.nodes, vm, source)
        self.nodes = tuple(book_vm(one, vm) if one.name == target else one for one in self.nodes)
        return target


def home_after(old: str | None, *, target: str, source: str) -> str:
    """The home to remember once a virtual machine has moved: none at home, else the first one it had."""
    if target == old:
        return ""
    return old or source


def _is_allowed(node: NodeFigures, vm: VmToPlace) -> bool:
    allowed = (not vm.node_limit or node.name in vm.node_limit) and node.name not in vm.closed
    return node.usable and node.name != vm.node and allowed


def _room_provisioned(node: NodeFigures) -> Number:
    memory = node.memory
    return memory.used + memory.free - memory.provisioned - memory.reserved


def _room_free(node: NodeFigures) -> Number:
    return node.memory.free - node.memory.reserved


_MERIT: Final[dict[HostSelector, Callable[[NodeFigures], Number]]] = {
    HostSelector.MEMPROV: _room_provisioned,
    HostSelector.MEMFREE: _room_free,
    HostSelector.LOAD: lambda node: -node.load,
    HostSelector.VCPUS: lambda node: -node.vcpu_allocated,
    HostSelector.VMS: lambda node: -node.domains_count,
}
"""The host with the most of it is the best; ``mem`` is one of the first two."""


def _has_room(node: NodeFigures, given: SelectNodeInput, figure: HostSelector) -> bool:
    if given.require_fit:
        fits = _room_free(node) >= given.vm.memory
        return fits and (figure is not HostSelector.MEMPROV or _room_provisioned(node) >= given.vm.memory)
    return figure not in (HostSelector.MEMPROV, HostSelector.MEMFREE) or _MERIT[figure](node) > 0


MEBIBYTE: Final = 1 << 20
_replace = msgspec.structs.replace


class Choice(TypedDict):
    """How a host chooses for others."""

    default_selector: str | None
    require_fit: bool
    mem_means: MemMeans


def build_choice(node: VmContext) -> Choice:
    """As the cluster and this host's settings say."""
    settings, cluster = node.settings, node.desired.cluster_spec
    return Choice(
        default_selector=cluster.default_selector or None,
        require_fit=settings.require_fit,
        mem_means=settings.mem_means,
    )


class Needs(TypedDict):
    """What a virtual machine asks of its host. Memory in MiB."""

    memory: Amount
    vcpus: Amount
    node_limit: tuple[str, ...] | None
    selector: str | None
    closed: dict[str, Reason]
    ranks: dict[str, int]


def needs_of(vm: VirtualMachine, ruled: Ruled | None = None) -> Needs:
    """As its spec says; ``ruled``: and as its rules say of hosts."""
    return Needs(
        memory=vm.spec.resources.memory_bytes / MEBIBYTE,
        vcpus=vm.spec.resources.cpu_milli / 1000,
        node_limit=vm.allowed_hosts or None,
        selector=vm.spec.selector or None,
        closed=ruled.closed if ruled is not None else {},
        ranks=ruled.ranks if ruled is not None else {},
    )


def find_home_elsewhere(vm: VirtualMachine) -> str:
    """Its home, while it is somewhere else; empty at home."""
    return "" if vm.status.home == vm.host else vm.status.home


def relocate_status(vm: VirtualMachine, *, target: str, home: str, phase: str, move_id: str) -> VirtualMachineStatus:
    """The status of a virtual machine that is to go to ``target``; with a move if it is up, at once if it is down.

    ``home`` empty: the target is its home from now on.
    """
    new_home = home or target
    status = _replace(vm.status, assigned=Assigned(hypervisor=target), home=new_home, phase=phase, rejection=None)
    if state_of(vm) != VmState.START:
        return _replace(status, migration=None)
    move = Migration(
        id=move_id,
        source=vm.host,
        target=target,
        mode="cold" if vm.spec.move_method == "shutdown" else "live",
        prior_home=vm.status.home,
        new_home=new_home,
        functions=tuple(one.name or one.pci for one in vm.spec.functions),
    )
    return _replace(status, migration=move, reason="", message="")


@dataclass(frozen=True, slots=True)
class ClusterHosts:
    """All hosts, as one look shows them."""

    nodes: tuple[NodeFigures, ...] = ()
    facts: dict[str, HostFacts] = field(default_factory=dict)
    lost_places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Host → places of storage that it does not reach; without hosts that reach all."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """What the rules of one virtual machine say of all hosts."""

    verdicts: dict[str, RuleVerdict]

    @property
    def closed(self) -> dict[str, Reason]:
        """The hosts that are closed to it, and by which rule."""
        return {host: one.refusal for host, one in self.verdicts.items() if one.refusal is not None}

    @property
    def ranks(self) -> dict[str, int]:
        """How well it would be on the others: a soft rule counts more than any preference."""
        found = {host: one.weight - len(one.against) * (WEIGHT_LIMIT + 1) for host, one in self.verdicts.items()}
        return {host: rank for host, rank in found.items() if rank}

    def rules_against(self, host: str) -> tuple[Reason, ...]:
        """The soft rules that it would go against there."""
        verdict = self.verdicts.get(host)
        return verdict.against if verdict is not None else ()


async def judge_hosts(
    store: Store, vm: VirtualMachine, hosts: ClusterHosts, *, leaving: str = "", returning: str = ""
) -> Ruled:
    """What its rules say of each host but its own, by a fresh look at the others of its groups.

    All virtual machines are listed for one that is in a group or has virtual functions, and none for any other. Those
    on a host that does not work do not count. ``leaving``: a host that all leave: who is there goes where this
    one goes. ``returning``: a host that takes its own back: who belongs there counts as there.
    """
    demands, peers = demands_of(vm), Peers()
    lacking: dict[str, Reason] = {}
    if vm.spec.functions:
        everyone = [one async for one in list_all(store, VirtualMachine)]
        lacking = move_refusals(vm, {host: one.functions for host, one in hosts.facts.items()}, everyone)
    works = {node.name for node in hosts.nodes if node.daemon_state == RUN} - {leaving}
    if demands.rules:
        async for one in list_all(store, VirtualMachine):
            shared = [rule for rule in one.spec.affinity_rules if rule in demands.rules]
            if shared and one.name != vm.name:
                at = {returning} if returning and one.status.home == returning else one.involved_hosts() & works
                peers.put(one.name, shared, sorted(at))

    def judge_host(host: str) -> RuleVerdict:
        place = first_lost(vm.spec.disks, hosts.lost_places.get(host, ()))
        if place is not None:
            return RuleVerdict(refusal=storage_refusal(vm.name, host, place))
        if host in lacking:
            return RuleVerdict(refusal=lacking[host])
        return judge(demands, host, peers, hosts.facts.get(host))

    return Ruled({node.name: judge_host(node.name) for node in hosts.nodes if node.name != vm.host})


async def survey_hosts(store: Store) -> ClusterHosts:
    """What all hosts have published. Memory in MiB; what reservations hold counts as reserved, as for placement."""
    usages = {each.name: each.usage async for each in list_all(store, HypervisorUsage)}
    members = {each.name: member_view(each).record async for each in list_all(store, Membership)}
    hosts = [each async for each in list_all(store, Hypervisor)]
    listed = {host.name: {each.id for each in host.status.instances} for host in hosts}
    reserved: dict[str, int] = {}
    async for slot in list_all(store, Reservation):
        if not has_landed(slot, listed.get(arrival_host(slot), ())):
            for name in blocked_hosts(slot):
                reserved[name] = reserved.get(name, 0) + unused_amounts(slot, running=listed.get(name, ())).memory_bytes
    return ClusterHosts(
        nodes=tuple(
            _build_figures(one, members.get(one.name), usages.get(one.name), reserved.get(one.name, 0)) for one in hosts
        ),
        facts={host.name: facts_of(host) for host in hosts},
        lost_places={host.name: places for host in hosts if (places := lost_places(host))},
    )


def _build_figures(
    host: Hypervisor, member: MemberRecord | None, usage: HostUsage | None, reserved: int
) -> NodeFigures:
    capacity, allocation = host.effective_capacity() or Amounts(), host.status.allocation or Amounts()
    total, allocated = capacity.memory_bytes / MEBIBYTE, allocation.memory_bytes / MEBIBYTE
    provisioned = usage.provisioned.memory_bytes / MEBIBYTE if usage is not None else 0
    return NodeFigures(
        name=host.name,
        daemon_state=RUN if _is_working(host, member) else "stop",
        domain_state=host.status.domain_state or READY,
        memory=NodeMemory(
            total=total,
            used=allocated,
            free=max(0, total - allocated),
            allocated=allocated,
            provisioned=max(allocated, provisioned),
            reserved=reserved / MEBIBYTE,
        ),
        vcpu_allocated=allocation.cpu_milli / 1000,
        load=usage.load if usage is not None else 0,
        domains_count=host.status.num_instances,
        degrading=host.status.degrading is not None,
    )


def _is_working(host: Hypervisor, member: MemberRecord | None) -> bool:
    return (
        member is not None
        and member.state == "Held"
        and not explain_out_of_service(host)
        and observed_condition(host) is None
    )


async def is_working(store: Store, name: str) -> bool:
    """Whether the host works and takes virtual machines, by a fresh look."""
    host, member = await read(store, Hypervisor, name), await read(store, Membership, name)
    return host is not None and member is not None and _is_working(host, member_view(member).record)

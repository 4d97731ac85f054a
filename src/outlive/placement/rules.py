"""Whether a VM may be brought up on a host: each rule once, asked by everybody who sends a VM anywhere.

Recovery, drains, moves of users, failback and rebalancing ask ``judge``; planning of slots binds the same groups
(``outlive.failover.separation``), and the filters of placement state what a host must be with the functions of this
module. A hard rule refuses a host. A soft rule and a preferred host only rank, and a caller that goes against a soft
rule reports it. Room and health are not looked at. Plain data, without a store and without numpy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from outlive.base import join_parts
from outlive.resources import (
    WORKING_CONDITIONS,
    ZONE_LABEL,
    AffinityRule,
    FreeFunction,
    FunctionNeed,
    Hypervisor,
    Part,
    VirtualMachine,
    find_condition,
    free_functions,
    function_problem,
    lost_places,
)
from outlive.resources.reasons import PlaceReason, Reason, make_reason

AFFINITY: Final = "affinity"
ANTI_AFFINITY: Final = "anti-affinity"
HARD: Final = frozenset({AFFINITY, ANTI_AFFINITY})
"""Policies that refuse hosts; the others only rank them."""
HOSTS_NAMED: Final = 6
"""Hosts that a sentence names."""
_TOGETHER: Final = frozenset({AFFINITY, "soft-affinity"})
_CODES: Final = {policy: PlaceReason(policy) for policy in (*HARD, "soft-affinity", "soft-anti-affinity")}

# What a host is


@dataclass(frozen=True)
class HostFacts:
    """Facts of one host that change rarely; hosts with equal ones are alike to every ``FactsFilter``."""

    zone: str | None
    """``None`` without a zone label."""
    traits: frozenset[str]
    allowed_projects: frozenset[str]
    aggregates: frozenset[str]
    """Aggregate uuids."""
    tenants: frozenset[str]
    """Projects for which its aggregates are reserved; empty: not reserved."""
    bad_condition: tuple[str, str, str] | None
    """The first condition (type, status, reason) that keeps requests away."""
    in_service: bool
    high_availability: bool
    maintenance: str
    lost_places: frozenset[str]
    """Places of storage that it does not reach."""
    functions: tuple[FreeFunction, ...]
    """Virtual functions of its cards, and who has them."""
    hypervisor_type: str
    """As flavors say it (``QEMU``, ``CH``); empty when libvirt's word is not known."""
    raw_type: str
    """libvirt's word."""
    cpu_arch: str
    cpu_modes: frozenset[str]
    features: frozenset[str]
    devices: frozenset[str]

    @property
    def works(self) -> bool:
        """Whether nothing that it says of itself keeps VMs away."""
        return self.in_service and self.bad_condition is None


_HYPERVISOR_TYPES: Final = {"ch": "CH", "kvm": "QEMU"}
_OUT_OF_SERVICE: Final = frozenset({"manual", "termination"})
_TENANT_KEY: Final = "filter_tenant_id"


def facts_of(host: Hypervisor) -> HostFacts:
    """The facts of a host record."""
    spec, status = host.spec, host.status
    machine = status.domain_capabilities
    # Projects that the metadata of the host's aggregates name; several aggregates add up.
    values = [value for one in status.aggregates for key, value in one.metadata.items() if key.startswith(_TENANT_KEY)]
    tenants = frozenset(part for value in values for piece in value.split(",") if (part := piece.strip()))
    return HostFacts(
        zone=host.metadata.labels.get(ZONE_LABEL),
        traits=frozenset(status.traits) | frozenset(spec.custom_traits),
        allowed_projects=frozenset(spec.allowed_projects),
        aggregates=frozenset(aggregate.uuid for aggregate in status.aggregates if aggregate.uuid),
        tenants=tenants,
        bad_condition=_bad_condition(host),
        in_service=spec.maintenance not in _OUT_OF_SERVICE,
        high_availability=spec.high_availability is not False,
        maintenance=spec.maintenance,
        lost_places=frozenset(lost_places(host)),
        functions=free_functions(host),
        hypervisor_type=_HYPERVISOR_TYPES.get(machine.hypervisor_type, ""),
        raw_type=machine.hypervisor_type,
        cpu_arch=status.capabilities.cpu_arch,
        cpu_modes=frozenset(machine.supported_cpu_modes),
        features=frozenset(machine.supported_features),
        devices=frozenset(machine.supported_devices),
    )


def _bad_condition(host: Hypervisor) -> tuple[str, str, str] | None:
    """The first condition with a status other than the wanted one; absent conditions are fine.

    A host that is lost, or that is being emptied, counts as one in such a condition.
    """
    if host.status.lost:
        return "Lost", "True", f"fence {host.status.lost}"
    if host.closed_reason():
        return "Emptied", "True", host.status.domain_state or "drain"
    for kind, wanted in WORKING_CONDITIONS:
        found = find_condition(host.status.conditions, kind)
        if found is not None and found.status != wanted:
            return kind, found.status, found.reason
    return None


# What a VM asks of a host itself


class Unsuited(NamedTuple):
    """Why a host is not for a VM: a word that never changes, and a sentence."""

    code: str
    message: str


def unsuited_zone(zone: str, facts: HostFacts) -> Unsuited | None:
    """The zone that the host is in instead; a host without the label is in none."""
    if facts.zone == zone:
        return None
    where = "has no zone" if facts.zone is None else f"is in zone {facts.zone}"
    return Unsuited("wrong-zone", f"the host {where}, requested is {zone}")


def unsuited_project(project: str, facts: HostFacts) -> Unsuited | None:
    """Whether the host's list of projects leaves this one out."""
    if not facts.allowed_projects or project in facts.allowed_projects:
        return None
    others = len(facts.allowed_projects)
    return Unsuited("project-not-allowed", f"the host is for {others} other project(s), not for {project}")


def unsuited_aggregate(project: str, facts: HostFacts) -> Unsuited | None:
    """Whether the host's aggregates are for others."""
    if not facts.tenants or project in facts.tenants:
        return None
    who = project or "a request without project"
    return Unsuited("aggregate-reserved", f"its aggregates are for {len(facts.tenants)} other project(s), not {who}")


_TRAIT: Final = "trait:"
_CAPABILITY: Final = "capabilities:"
DEVICE_PROFILE: Final = "accel:device_profile"
ACCELERATORS_TRAIT: Final = "COMPUTE_ACCELERATORS"


def traits_asked(extra_specs: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    """(trait, required or else forbidden); other values than these two words say nothing."""
    return tuple(
        sorted(
            (key[len(_TRAIT) :], value == "required")
            for key, value in extra_specs.items()
            if key.startswith(_TRAIT) and value in ("required", "forbidden")
        )
    )


def unsuited_traits(asked: Iterable[tuple[str, bool]], facts: HostFacts) -> Unsuited | None:
    """The first trait that is missing, or that should be."""
    for trait, required in asked:
        if required and trait not in facts.traits:
            return Unsuited("missing-trait", f"trait {trait} is required and missing")
        if not required and trait in facts.traits:
            return Unsuited("forbidden-trait", f"trait {trait} is forbidden and present")
    return None


def capabilities_asked(extra_specs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The capabilities and their wanted values."""
    return tuple(sorted((key, value) for key, value in extra_specs.items() if key.startswith(_CAPABILITY)))


def unsuited_capabilities(asked: Iterable[tuple[str, str]], facts: HostFacts) -> Unsuited | None:
    """The first capability that the host does not have."""
    if not facts.hypervisor_type:
        return Unsuited("unmapped-hypervisor", f"hypervisor type {facts.raw_type!r} is not known")
    has = {"capabilities:hypervisor_type": facts.hypervisor_type, "capabilities:cpu_arch": facts.cpu_arch}
    for key, value in asked:
        if key not in has:
            return Unsuited("unknown-capability", f"no host states {key}")
        if not satisfies(has[key], value):
            return Unsuited("wrong-capability", f"{key} is {has[key]!r}, requested is {value!r}")
    return None


_NUMBERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


def satisfies(has: str, wanted: str) -> bool:
    """Whether what a host has meets what an extra spec wants."""
    words = wanted.split()
    first = words[0] if words else ""
    if first == "<or>":
        return has in [word for word in words if word != "<or>"]
    if first == "<in>":
        return len(words) > 1 and " ".join(words[1:]) in has
    if first == "<all-in>":
        return len(words) > 1 and all(word in has for word in words[1:])
    if first in _TEXTS:
        return _TEXTS[first](has, " ".join(words[1:]))
    if first in _NUMBERS:
        try:
            return _NUMBERS[first](float(has), float(" ".join(words[1:])))
        except ValueError:
            return False
    return has == wanted


def unsuited_functions(vm: str, needs: Iterable[FunctionNeed], facts: HostFacts) -> Unsuited | None:
    """The first virtual function that the VM needs, and that the host does not have free for it."""
    found = function_problem(vm, needs, facts.functions)
    if found is None:
        return None
    return Unsuited("function-in-use" if found.other else "function-missing", found.message)


# What a VM asks of where others are


class Choosy(Protocol):
    """A VM, as far as it says where it may run."""

    @property
    def host_limit(self) -> tuple[str, ...]:
        """The only hosts that it may run on; empty: any."""
        ...


class RuledVm(Choosy, Protocol):
    """A VM, as far as its rules go."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def rules(self) -> tuple[AffinityRule, ...]:
        """Every group that it is in."""
        ...

    @property
    def preferred(self) -> Mapping[str, int]:
        """Host → weight."""
        ...


V = TypeVar("V", bound=RuledVm)
G = TypeVar("G")


class VmConstraints(Part, frozen=True, kw_only=True):
    """A VM, as far as it says where it may run."""

    id: str
    rules: tuple[AffinityRule, ...] = ()
    host_limit: tuple[str, ...] = ()
    """All limits together."""
    network_hosts: dict[str, tuple[str, ...]] = {}
    """Of these, what its networks reach."""
    preferred: dict[str, int] = {}
    zone: str = ""
    project: str = ""
    extra_specs: dict[str, str] = {}
    functions: tuple[FunctionNeed, ...] = ()

    def find_unsuited(self, facts: HostFacts) -> Unsuited | None:
        """The first thing that a host with these facts is not, and that the VM asks for."""
        specs = self.extra_specs
        return (
            (unsuited_zone(self.zone, facts) if self.zone else None)
            or (unsuited_project(self.project, facts) if self.project else None)
            or unsuited_aggregate(self.project, facts)
            or unsuited_traits(traits_asked(specs), facts)
            or (unsuited_traits([(ACCELERATORS_TRAIT, True)], facts) if DEVICE_PROFILE in specs else None)
            or (unsuited_capabilities(asked, facts) if (asked := capabilities_asked(specs)) else None)
        )


def demands_of(vm: VirtualMachine) -> VmConstraints:
    """As its spec says."""
    spec = vm.spec
    return VmConstraints(
        id=vm.name,
        rules=spec.affinity_rules,
        host_limit=vm.allowed_hosts,
        network_hosts=vm.status.network_hosts,
        preferred=spec.preferred_hosts.weights,
        zone=spec.zone,
        project=spec.project,
        extra_specs=spec.extra_specs,
        functions=spec.functions,
    )


def describe_network_limits(vm: VirtualMachine) -> list[str]:
    """Each of its networks that does not reach every host, with those that it reaches, in words."""
    return [
        f"network {name} reaches {join_parts(hosts, most=HOSTS_NAMED) if hosts else 'no host at all'}: "
        "it may run nowhere else"
        for name, hosts in vm.status.network_hosts.items()
    ]


class Group(Part, frozen=True, kw_only=True):
    """The VMs of one rule, and the hosts where each of them runs, may run or goes."""

    rule: AffinityRule
    members: dict[str, tuple[str, ...]] = {}


class Peers:
    """Where the members of groups are. VMs that name the same group with another policy are of another group."""

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self._hosts: dict[AffinityRule, dict[str, tuple[str, ...]]] = {}
        """Rule → member → its hosts, …"""
        self._members: dict[AffinityRule, dict[str, dict[str, None]]] = {}
        """… and rule → host → members there."""
        for group in groups:
            for vm, hosts in group.members.items():
                self.put(vm, (group.rule,), hosts)

    def put(self, vm: str, rules: Iterable[AffinityRule], hosts: Iterable[str]) -> None:
        """The VM is on these hosts now, or goes there, and nowhere else; on none: nobody has to regard it."""
        now = tuple(hosts)
        for rule in rules:
            members, there = self._hosts.setdefault(rule, {}), self._members.setdefault(rule, {})
            for host in members.pop(vm, ()):
                del there[host][vm]
            if now:
                members[vm] = now
            for host in now:
                there.setdefault(host, {})[vm] = None

    def members_on(self, rule: AffinityRule, vm: str, host: str) -> tuple[str, ...]:
        """Other members of the group on the host, by name."""
        return tuple(sorted(one for one in self._members.get(rule, {}).get(host, ()) if one != vm))

    def iter_hosts(self, rule: AffinityRule, vm: str) -> Iterator[str]:
        """The hosts of other members of the group; one as often as members are there."""
        return (host for member, hosts in self._hosts.get(rule, {}).items() if member != vm for host in hosts)


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a VM's rules say of a host."""

    refusal: Reason | None = None
    """The hard rule that closes the host to it."""
    against: tuple[Reason, ...] = ()
    """Soft rules that it would go against there."""
    weight: int = 0
    """Of the host, among the preferred ones."""

    @property
    def allowed(self) -> bool:
        """Whether it may run there."""
        return self.refusal is None

    @property
    def merit(self) -> tuple[int, int]:
        """The larger the better, among hosts that are allowed: soft rules first, then preference."""
        return -len(self.against), self.weight


ANYWHERE: Final = RuleVerdict()
NOBODY: Final = Peers()


def may_run_on(vm: Choosy, host: str) -> bool:
    """Whether the VM may run on the host, by its own limit of hosts and its strict preferred hosts."""
    return not vm.host_limit or host in vm.host_limit


def judge(vm: RuledVm, host: str, peers: Peers = NOBODY, facts: HostFacts | None = None) -> RuleVerdict:
    """Whether the VM may be brought up on the host, and how well it would be there.

    ``peers``: where the members of its groups are or go, on hosts that live and that are not being left.
    ``facts``: of the host; ``None`` where placement has looked at them already.
    """
    if not vm.host_limit and not vm.rules and not vm.preferred and facts is None:
        return ANYWHERE
    against: list[Reason] = []
    for hard, why in _iter_objections(vm, host, peers, facts):
        if hard:
            return RuleVerdict(refusal=why)
        against.append(why)
    return RuleVerdict(against=tuple(against), weight=vm.preferred.get(host, 0))


def find_companions(vm: V, vms: Iterable[V]) -> tuple[V, ...]:
    """The VM, and those of the others that hard affinity rules keep on one host with it, also by way of further ones;
    by name."""
    views: dict[str, V] = {}
    of_rule: dict[AffinityRule, list[str]] = {}
    for one in vms:
        views[one.id] = one
        for rule in _binding_together(one):
            of_rule.setdefault(rule, []).append(one.id)
    views[vm.id] = vm
    found = bound_together(vm.id, lambda one: _binding_together(views[one]), lambda rule: of_rule.get(rule, ()))
    return tuple(views[name] for name in sorted(found))


def bound_together(
    vm: str, groups_of: Callable[[str], Iterable[G]], members_of: Callable[[G], Iterable[str]]
) -> set[str]:
    """The VM and all that share a group with it, with one of these, and so on."""
    found, followed, left = {vm}, set[G](), list(groups_of(vm))
    while left:
        group = left.pop()
        if group not in followed:
            followed.add(group)
            for one in members_of(group):
                if one not in found:
                    found.add(one)
                    left += groups_of(one)
    return found


def _binding_together(vm: RuledVm) -> Iterator[AffinityRule]:
    return (rule for rule in vm.rules if rule.policy == AFFINITY)


def judge_together(
    vms: Iterable[RuledVm], host: str, peers: Peers = NOBODY, facts: HostFacts | None = None
) -> Reason | None:
    """The first hard rule that closes the host to one of these VMs, which go there together; ``None``: none does.

    ``peers``: where all others are; these VMs are in it nowhere, or on that host.
    """
    seen: dict[AffinityRule, str] = {}
    for vm in vms:
        refusal = judge(vm, host, peers, facts).refusal
        if refusal is not None:
            return refusal
        for rule in vm.rules:
            if rule.policy == ANTI_AFFINITY and rule in seen:
                return make_reason(_CODES[rule.policy], vm=vm.id, host=host, group=rule.group, others=(seen[rule],))
            seen[rule] = vm.id
    return None


def storage_refusal(vm: str, host: str, place: str) -> Reason:
    """That the host does not reach a place of the VM's disks."""
    return make_reason(PlaceReason.STORAGE_UNREACHED, vm=vm, host=host, place=place or "its daemon does not say which")


def function_refusal(
    vm: str, host: str, needs: Iterable[FunctionNeed], functions: Iterable[FreeFunction]
) -> Reason | None:
    """The virtual function that the VM needs and that the host does not have free for it; ``None``: it has all."""
    found = function_problem(vm, needs, functions)
    if found is None:
        return None
    if not found.other:
        return make_reason(PlaceReason.FUNCTION_MISSING, vm=vm, host=host, function=found.function)
    return make_reason(PlaceReason.FUNCTION_IN_USE, vm=vm, host=host, function=found.function, other=found.other)


def find_objections(vm: RuledVm, host: str, peers: Peers = NOBODY, facts: HostFacts | None = None) -> list[Reason]:
    """All that ``judge`` would say of the host, hard rules and soft ones: of a VM that runs there already."""
    return [why for _, why in _iter_objections(vm, host, peers, facts)]


def _iter_objections(vm: RuledVm, host: str, peers: Peers, facts: HostFacts | None) -> Iterator[tuple[bool, Reason]]:
    """What speaks against the host, and whether it is a hard rule."""
    if not may_run_on(vm, host):
        # What its networks reach, as far as the view tells it apart from its other limits.
        reached = vm.network_hosts if isinstance(vm, VmConstraints) else {}
        far = next((name for name, hosts in reached.items() if host not in hosts), None)
        if far is not None:
            yield True, make_reason(PlaceReason.NETWORK_UNREACHED, vm=vm.id, host=host, network=far)
        else:
            yield True, make_reason(PlaceReason.NOT_ALLOWED, vm=vm.id, host=host, hosts=vm.host_limit)
    if facts is not None and isinstance(vm, VmConstraints) and (unsuited := vm.find_unsuited(facts)) is not None:
        yield True, make_reason(PlaceReason.UNSUITED, vm=vm.id, host=host, why=unsuited.message)
    if facts is not None and isinstance(vm, VmConstraints):
        lacks = function_refusal(vm.id, host, vm.functions, facts.functions)
        if lacks is not None:
            yield True, lacks
    for rule in vm.rules:
        here, code = peers.members_on(rule, vm.id, host), _CODES[rule.policy]
        if rule.policy not in _TOGETHER:
            if here:
                yield rule.policy in HARD, make_reason(code, vm=vm.id, host=host, group=rule.group, others=here)
        elif not here and (hosts := tuple(sorted(set(peers.iter_hosts(rule, vm.id))))):
            yield rule.policy in HARD, make_reason(code, vm=vm.id, host=host, group=rule.group, hosts=hosts)

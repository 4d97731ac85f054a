"""All VMs without their slots at once, grouped by what would help: "two more hosts cover 143 of 150".

First everybody is served as a plan would, so that what a cycle gives is separated from what it cannot give; then the
VMs that are left are grouped by what they ask of a host, and for each group the least number of such hosts is looked
for with the planner, by doubling and halving (docs/design/failover.md#explaining-a-fleet).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from outlive.base import count_of, join_parts, noun_for
from outlive.failover.analysis.explain.model import (
    CLEANED_UP,
    NOT_CLEANED_UP,
    WAIT_OR_PLAN,
    AddHosts,
    NewHost,
    PlacementAnswer,
    Remedy,
    RemedyKind,
    build_remedy,
)
from outlive.failover.analysis.explain.search import RemedySearch, new_names
from outlive.failover.analysis.explain.trials import Change
from outlive.failover.analysis.explain.vm import Explainer
from outlive.failover.analysis.whatif.answers import WholeRemedy
from outlive.failover.planner.actions import Fail, Need
from outlive.failover.planner.selection import service_rank
from outlive.failover.slots import enlarge_for_vm, format_amounts, resolve_size
from outlive.placement import VmView
from outlive.resources.reasons import CoverageReason

GROUPS_TRIED: Final = 50
"""Groups for which hosts to add are looked for, the largest first."""
GROUP_VMS: Final = 2_000
"""VMs of a group that take part in a trial, those that are served first."""
HOSTS_TRIED: Final = 1_024
"""Most hosts that are tried to add for one group."""
PLAN_ANEW: Final = "a plan that places slots anew covers them: `outlive failover plan --apply`"
SMALL: Final = 3
"""Groups of so many VMs are explained one by one, since something cheaper than a host may help."""


class RemedyGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """VMs that the same thing would help."""

    reason: str
    """The word of coverage."""
    who: str
    """What they have in common."""
    count: int
    covers: int
    """How many of them have all their slots once the remedy is carried out."""
    text: str
    """What helps, and how far."""
    remedy: Remedy
    vms: tuple[str, ...]
    """In the order in which they are served."""


class FleetExplanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everybody without slots."""

    vms: int
    required: int
    """VMs that need slots."""
    covered: int
    text: str
    groups: tuple[RemedyGroup, ...]
    """The largest first."""
    everybody: str = ""
    """What covers everybody at once, where somebody needs more than the next cycle gives."""

    @property
    def needs_hosts(self) -> bool:
        """Whether hosts are proposed for any group."""
        return any(group.remedy.kind is RemedyKind.ADD_HOSTS for group in self.groups)


def adopt_whole_remedy(
    found: FleetExplanation, whole: WholeRemedy, *, zones: Mapping[str, str], hosts: Set[str]
) -> FleetExplanation:
    """The explanation with what the planner says of the whole fleet, as what-if says it: each group is served by adding
    to what is there, and the planner may place everybody anew. ``zones``: VM → zone; ``hosts``: the names taken."""
    if whole.hosts is None:
        return found
    short = {one.zone: one.hosts for one in whole.by}
    groups = []
    for group in found.groups:
        hosts_short = short.get(zones.get(group.vms[0], ""), 0)
        if group.remedy.kind is not RemedyKind.ADD_HOSTS:
            groups.append(group)
        elif not hosts_short:
            anew = build_remedy(RemedyKind.REPLAN, text=PLAN_ANEW)
            groups.append(msgspec.structs.replace(group, remedy=anew, text=anew.text, covers=group.count))
        else:
            (before,) = (action for action in group.remedy.actions if isinstance(action, AddHosts))
            add = msgspec.structs.replace(before, count=hosts_short, names=new_names(hosts, hosts_short))
            remedy = build_remedy(RemedyKind.ADD_HOSTS, (add,))
            text = f"{add.describe()}: with these a plan covers all of its zone"
            groups.append(msgspec.structs.replace(group, remedy=remedy, covers=group.count, text=text))
    return msgspec.structs.replace(found, groups=tuple(groups), everybody=whole.text)


class _Request(NamedTuple):
    """A VM that misses slots."""

    vm: VmView
    need: Need
    answer: PlacementAnswer


def explain_fleet(explainer: Explainer) -> FleetExplanation:
    """Everybody without slots, by what would help."""
    state, ground = explainer.state, explainer.ground
    needing = [vm for vm in state.vms if state.required.get(vm.id, 0) > 0]
    uncovered = [vm for vm in needing if not ground.is_covered(vm)]
    groups = _build_groups(explainer, uncovered) if uncovered else []
    covered = len(needing) - len(uncovered)
    if not needing:
        text = "no VM needs slots"
    elif not uncovered:
        text = f"all {count_of(len(needing), 'VM')} that need slots have them"
    else:
        text = f"{len(uncovered):,} of {len(needing):,} VMs that need slots miss some"
    return FleetExplanation(
        vms=len(ground.views), required=len(needing), covered=covered, text=text, groups=tuple(groups)
    )


def _build_groups(explainer: Explainer, uncovered: Sequence[VmView]) -> list[RemedyGroup]:
    requests, found = _build_requests(explainer, uncovered)
    model, before = explainer.model, explainer.ground.index
    cleared = [one.vm.id for one in requests if not before.holds_for(one.vm.id)]
    answers = {request.need.offer_class: request.answer for request in requests}
    with model.try_serving([(request.vm, request.need) for request in requests], answers) as fails:
        clashing = {one.vm.id for one in requests if not model.index.holds_for(one.vm.id)}
        given = [one.vm.id for one in requests if one.vm.id not in fails and one.vm.id not in clashing]
        broken = "a rule is broken for them"
        wait, cleaned = (
            build_remedy(RemedyKind.CYCLE, text=WAIT_OR_PLAN),
            build_remedy(RemedyKind.CYCLE, text=CLEANED_UP),
        )
        stays = build_remedy(RemedyKind.NONE, text=NOT_CLEANED_UP, tried=False)
        alike = (
            (CoverageReason.WAITING, "could be served now", [vm for vm in given if vm not in cleared], wait),
            (CoverageReason.MEMBERSHIPS_CLASH, broken, [vm for vm in given if vm in cleared], cleaned),
            (CoverageReason.MEMBERSHIPS_CLASH, broken, [one.vm.id for one in requests if one.vm.id in clashing], stays),
        )
        found += [_build_group(reason, who, vms, helps) for reason, who, vms, helps in alike if vms]
        by_need: dict[tuple[str, NewHost | None], list[_Request]] = {}
        for one in requests:
            if one.vm.id in fails and one.vm.id not in clashing:
                host = one.answer.new_host
                kind = None if host is None else msgspec.structs.replace(host, cpu_milli=0, memory_bytes=0)
                by_need.setdefault((fails[one.vm.id].reason, kind), []).append(one)
        ordered = sorted(by_need.items(), key=lambda item: (-len(item[1]), item[0][0]))
        for number, (_, members) in enumerate(ordered):
            found += _explain_group(explainer, fails[members[0].vm.id], members, tried=number < GROUPS_TRIED)
    return sorted(found, key=lambda group: (-group.count, group.reason, group.vms[:1]))


def _build_requests(explainer: Explainer, uncovered: Iterable[VmView]) -> tuple[list[_Request], list[RemedyGroup]]:
    """Who misses what, in the order of service; and those about whom placement says nothing."""
    state, model = explainer.state, explainer.model
    requests: list[_Request] = []
    silent: list[str] = []
    classes: dict[int, int] = {}
    """Answers by address, which stays theirs because the requests hold them."""
    for vm in uncovered:
        size = enlarge_for_vm(vm, state.sizes.get(vm.id) or resolve_size(vm))
        answer = explainer.answers.find_answer(msgspec.structs.replace(vm, host=""), size)
        if answer is None:
            silent.append(vm.id)
            continue
        needed = model.ground.count_missing(vm)
        number = classes.setdefault(id(answer), len(classes))
        need = Need(vm=vm.id, needed=needed, size=size, offer_class=str(number))
        requests.append(_Request(vm, need, answer))
    requests.sort(
        key=lambda request: service_rank(
            request.vm,
            priority=state.priorities.get(request.vm.id, 0),
            present=state.required[request.vm.id] - request.need.needed,
        )
    )
    nothing = build_remedy(RemedyKind.ASK_AGAIN, text="placement says nothing about them", tried=False)
    return requests, [_build_group(CoverageReason.PLACEMENT_UNAVAILABLE, "", silent, nothing)] if silent else []


def _build_group(
    reason: str, who: str, vms: Sequence[str], helps: Remedy, *, covers: int | None = None, text: str = ""
) -> RemedyGroup:
    """Those whom the same thing helps: all of them if it was tried, or so many."""
    if covers is None:
        covers = len(vms) if helps.tried else 0
    return RemedyGroup(
        reason=str(reason),
        who=who,
        count=len(vms),
        covers=covers,
        text=text or helps.text,
        remedy=helps,
        vms=tuple(vms),
    )


def _explain_group(explainer: Explainer, fail: Fail, members: Sequence[_Request], *, tried: bool) -> list[RemedyGroup]:
    """One group, or each VM of a small one by itself where something cheaper than a host helps it."""
    small = len(members) <= SMALL
    alone: dict[str, Remedy] = {}
    """What is cheaper than a host and helps the VM, besides what all VMs are given."""
    for one in members if small else ():
        against = explainer.find_obstacles(one.vm)
        found = None if against is None else RemedySearch(against, explainer.model, explainer.answers).find_cheapest()
        if found is not None and found.tried and found.kind not in (RemedyKind.CYCLE, RemedyKind.ADD_HOSTS):
            alone[one.vm.id] = found
    singles = [
        _build_group(fail.reason, _describe_demand([one]), [one.vm.id], alone[one.vm.id])
        for one in members
        if one.vm.id in alone
    ]
    rest = [one for one in members if one.vm.id not in alone]
    if not rest:
        return singles
    host = rest[0].answer.new_host
    sized = fail.reason not in (CoverageReason.ZERO_SIZE, CoverageReason.MEMBERSHIPS_CLASH)
    if host is None or not sized or not tried:
        return [*singles, _group_without_remedy(fail, rest, host)]
    host = _describe_new_host(explainer, rest)
    count, covers = _find_fewest_hosts(explainer, rest, host)
    if covers == 0:
        return [*singles, _group_without_remedy(fail, rest, host)]
    known = {one.name for one in explainer.state.hosts}
    add = AddHosts.from_host(host, new_names(known, count))
    some = min(len(rest), GROUP_VMS)
    looked = "" if some == len(rest) else f" (of the first {some:,})"
    text = f"{add.describe()}: covers {covers:,} of {some:,}{looked}"
    hosts = build_remedy(RemedyKind.ADD_HOSTS, (add,))
    names = [one.vm.id for one in rest]
    group = _build_group(fail.reason, _describe_demand(rest), names, hosts, covers=covers, text=text)
    return [*singles, group]


def _group_without_remedy(fail: Fail, members: Sequence[_Request], host: NewHost | None) -> RemedyGroup:
    text = fail.remedy
    kind = RemedyKind.NONE
    if fail.reason == CoverageReason.ZERO_SIZE:
        text, kind = "give their flavors cpu and memory above zero", RemedyKind.SIZE
    elif host is None:
        text = "no host can be described that placement would take for them; see their flavors' extra specs"
    return _build_group(
        fail.reason,
        _describe_demand(members),
        [one.vm.id for one in members],
        build_remedy(kind, text=text, tried=False),
    )


def _describe_new_host(explainer: Explainer, members: Sequence[_Request]) -> NewHost:
    """A new host like the largest that is there of the kind, and large enough for each of the VMs."""
    state = explainer.state
    sizes = [host for one in members if (host := one.answer.new_host) is not None]
    answer = members[0].answer
    able = [
        capacity
        for name, capacity in state.capacity.items()
        if all(answer.refusals[number].is_capacity for number in answer.against_new.get(name, ()))
    ]
    cpu, memory = max(able, key=lambda one: (one[1], one[0]), default=(0, 0))
    return msgspec.structs.replace(
        sizes[0],
        cpu_milli=max(cpu, *(one.cpu_milli for one in sizes)),
        memory_bytes=max(memory, *(one.memory_bytes for one in sizes)),
    )


def _find_fewest_hosts(explainer: Explainer, members: Sequence[_Request], host: NewHost) -> tuple[int, int]:
    """(hosts, VMs covered): as many VMs as can be, with the fewest hosts that were found to do."""
    some = members[:GROUP_VMS]
    taken = {one.name for one in explainer.state.hosts}
    needs = [(one.vm, one.need) for one in some]
    answers = {one.need.offer_class: one.answer for one in some}
    known: dict[int, int] = {0: 0}

    def count_covered(count: int) -> int:
        if count not in known:
            names = new_names(taken, count)
            change = Change(new_hosts=names, free=dict.fromkeys(names, (host.cpu_milli, host.memory_bytes)))
            known[count] = explainer.model.count_served(needs, answers, change)
        return known[count]

    count, most_needed = 1, max(one.need.needed for one in some)
    while count_covered(count) < len(some) and count < HOSTS_TRIED:
        count *= 2
        no_better = 0 < count_covered(count) == known[count // 2]
        if no_better and count > 2 * most_needed:
            break
    best = max(known.values())
    high = min(number for number, found in known.items() if found == best)
    low = max((number for number, found in known.items() if number < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        if count_covered(middle) >= best:
            high = middle
        else:
            low = middle
    return high, known[high]


def _describe_demand(members: Sequence[_Request]) -> str:
    host = members[0].answer.new_host
    largest = max(members, key=lambda one: (one.vm.memory_bytes, one.vm.cpu_milli)).vm
    upto = "up to " if len(members) > 1 else ""
    parts = [f"{upto}{format_amounts(largest.cpu_milli, largest.memory_bytes)}"]
    if largest.zone:
        parts.append(f"zone {largest.zone}")
    if host is not None and host.traits:
        parts.append(f"{noun_for(len(host.traits), 'trait')} {join_parts(host.traits)}")
    if host is not None and host.cpu_arch:
        parts.append(host.cpu_arch)
    return ", ".join(parts)

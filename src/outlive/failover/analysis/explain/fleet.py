"""All VMs without their slots at once, grouped by what would help: "two more hosts cover 143 of 150".

First everybody is served as a plan would, so that what a cycle gives is separated from what it cannot give; then the
VMs that are left are grouped by what they ask of a host, and for each group the least number of such hosts is looked
for with the planner, by doubling and halving (docs/reference/failover-analysis.md#explaining-a-fleet).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from outlive.base.phrases import count_of, listing, noun_for
from outlive.failover.analysis.explain.model import (
    CLEANED_UP,
    NOT_CLEANED_UP,
    WAIT_OR_PLAN,
    AddHosts,
    Answer,
    Kind,
    NewHost,
    Remedy,
    remedy,
)
from outlive.failover.analysis.explain.search import Search, new_names
from outlive.failover.analysis.explain.trials import Change
from outlive.failover.analysis.explain.vm import Explainer
from outlive.failover.analysis.whatif.answers import WholeRemedy
from outlive.failover.planner.actions import Fail, Need
from outlive.failover.planner.selection import service_rank
from outlive.failover.sizes import amounts, enough_for, resolve_size
from outlive.placement.vms import VmView
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


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
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
    groups: tuple[Group, ...]
    """The largest first."""
    everybody: str = ""
    """What covers everybody at once, where somebody needs more than the next cycle gives."""

    @property
    def needs_hosts(self) -> bool:
        """Whether hosts are proposed for any group."""
        return any(group.remedy.kind is Kind.ADD_HOSTS for group in self.groups)


def agreed(
    found: FleetExplanation, whole: WholeRemedy, *, zones: Mapping[str, str], hosts: Set[str]
) -> FleetExplanation:
    """The explanation with what the planner says of the whole fleet, as what-if says it: each group is served by adding
    to what is there, and the planner may place everybody anew. ``zones``: VM → zone; ``hosts``: the names taken."""
    if whole.hosts is None:
        return found
    short = {one.zone: one.hosts for one in whole.by}
    groups = [_agreed(group, whole, short.get(zones.get(group.vms[0], ""), 0), hosts) for group in found.groups]
    return msgspec.structs.replace(found, groups=tuple(groups), everybody=whole.text)


def _agreed(group: Group, whole: WholeRemedy, short: int, hosts: Set[str]) -> Group:
    if group.remedy.kind is not Kind.ADD_HOSTS:
        return group
    if not short:
        anew = remedy(Kind.REPLAN, text=PLAN_ANEW)
        return msgspec.structs.replace(group, remedy=anew, text=anew.text, covers=group.count)
    (before,) = (action for action in group.remedy.actions if isinstance(action, AddHosts))
    add = msgspec.structs.replace(before, count=short, names=new_names(hosts, short))
    return msgspec.structs.replace(
        group,
        remedy=remedy(Kind.ADD_HOSTS, (add,)),
        covers=group.count,
        text=f"{add.text()}: with these a plan covers all of its zone",
    )


class _Request(NamedTuple):
    """A VM that misses slots."""

    vm: VmView
    need: Need
    answer: Answer


def explain_fleet(explainer: Explainer) -> FleetExplanation:
    """Everybody without slots, by what would help."""
    state, ground = explainer.state, explainer.ground
    needing = [vm for vm in state.vms if state.required.get(vm.id, 0) > 0]
    uncovered = [vm for vm in needing if not ground.is_covered(vm)]
    groups = _groups(explainer, uncovered) if uncovered else []
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


def _groups(explainer: Explainer, uncovered: Sequence[VmView]) -> list[Group]:
    requests, found = _requests(explainer, uncovered)
    model, before = explainer.model, explainer.ground.index
    cleared = [one.vm.id for one in requests if not before.holds_for(one.vm.id)]
    answers = {request.need.offer_class: request.answer for request in requests}
    with model.serving([(request.vm, request.need) for request in requests], answers) as fails:
        clashing = {one.vm.id for one in requests if not model.index.holds_for(one.vm.id)}
        given = [one.vm.id for one in requests if one.vm.id not in fails and one.vm.id not in clashing]
        broken = "a rule is broken for them"
        wait, cleaned = remedy(Kind.CYCLE, text=WAIT_OR_PLAN), remedy(Kind.CYCLE, text=CLEANED_UP)
        stays = remedy(Kind.NONE, text=NOT_CLEANED_UP, tried=False)
        alike = (
            (CoverageReason.WAITING, "could be served now", [vm for vm in given if vm not in cleared], wait),
            (CoverageReason.MEMBERSHIPS_CLASH, broken, [vm for vm in given if vm in cleared], cleaned),
            (CoverageReason.MEMBERSHIPS_CLASH, broken, [one.vm.id for one in requests if one.vm.id in clashing], stays),
        )
        found += [_group(reason, who, vms, helps) for reason, who, vms, helps in alike if vms]
        by_need: dict[tuple[str, NewHost | None], list[_Request]] = {}
        for one in requests:
            if one.vm.id in fails and one.vm.id not in clashing:
                by_need.setdefault((fails[one.vm.id].reason, _kind(one.answer.new_host)), []).append(one)
        ordered = sorted(by_need.items(), key=lambda item: (-len(item[1]), item[0][0]))
        for number, (_, members) in enumerate(ordered):
            found += _explained(explainer, fails[members[0].vm.id], members, tried=number < GROUPS_TRIED)
    return sorted(found, key=lambda group: (-group.count, group.reason, group.vms[:1]))


def _requests(explainer: Explainer, uncovered: Iterable[VmView]) -> tuple[list[_Request], list[Group]]:
    """Who misses what, in the order of service; and those about whom placement says nothing."""
    state, model = explainer.state, explainer.model
    requests: list[_Request] = []
    silent: list[str] = []
    classes: dict[int, int] = {}
    """Answers by address, which stays theirs because the requests hold them."""
    for vm in uncovered:
        size = enough_for(vm, state.sizes.get(vm.id) or resolve_size(vm))
        answer = explainer.answers.of(msgspec.structs.replace(vm, host=""), size)
        if answer is None:
            silent.append(vm.id)
            continue
        needed = model.ground.misses(vm)
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
    nothing = remedy(Kind.ASK_AGAIN, text="placement says nothing about them", tried=False)
    return requests, [_group(CoverageReason.PLACEMENT_UNAVAILABLE, "", silent, nothing)] if silent else []


def _group(
    reason: str, who: str, vms: Sequence[str], helps: Remedy, *, covers: int | None = None, text: str = ""
) -> Group:
    """Those whom the same thing helps: all of them if it was tried, or so many."""
    if covers is None:
        covers = len(vms) if helps.tried else 0
    return Group(
        reason=str(reason),
        who=who,
        count=len(vms),
        covers=covers,
        text=text or helps.text,
        remedy=helps,
        vms=tuple(vms),
    )


def _kind(host: NewHost | None) -> NewHost | None:
    """What a group asks of a host, whatever its size."""
    return None if host is None else msgspec.structs.replace(host, cpu_milli=0, memory_bytes=0)


def _explained(explainer: Explainer, fail: Fail, members: Sequence[_Request], *, tried: bool) -> list[Group]:
    """One group, or each VM of a small one by itself where something cheaper than a host helps it."""
    small = len(members) <= SMALL
    alone = {one.vm.id: found for one in members if small and (found := _cheaper(explainer, one.vm)) is not None}
    singles = [_group(fail.reason, _who([one]), [one.vm.id], alone[one.vm.id]) for one in members if one.vm.id in alone]
    rest = [one for one in members if one.vm.id not in alone]
    if not rest:
        return singles
    host = rest[0].answer.new_host
    sized = fail.reason not in (CoverageReason.ZERO_SIZE, CoverageReason.MEMBERSHIPS_CLASH)
    if host is None or not sized or not tried:
        return [*singles, _helpless(fail, rest, host)]
    host = _largest(explainer, rest)
    count, covers = _least(explainer, rest, host)
    return [*singles, _of_hosts(explainer, fail, rest, host, count, covers)]


def _cheaper(explainer: Explainer, vm: VmView) -> Remedy | None:
    """What is cheaper than a host and helps the VM, besides what everybody is given."""
    against = explainer.against(vm)
    if against is None:
        return None
    found = Search(against, explainer.model, explainer.answers).cheapest()
    return found if found.tried and found.kind not in (Kind.CYCLE, Kind.ADD_HOSTS) else None


def _helpless(fail: Fail, members: Sequence[_Request], host: NewHost | None) -> Group:
    text = fail.remedy
    kind = Kind.NONE
    if fail.reason == CoverageReason.ZERO_SIZE:
        text, kind = "give their flavors cpu and memory above zero", Kind.SIZE
    elif host is None:
        text = "no host can be described that placement would take for them; see their flavors' extra specs"
    return _group(fail.reason, _who(members), _names(members), remedy(kind, text=text, tried=False))


def _largest(explainer: Explainer, members: Sequence[_Request]) -> NewHost:
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


def _least(explainer: Explainer, members: Sequence[_Request], host: NewHost) -> tuple[int, int]:
    """(hosts, VMs covered): as many VMs as can be, with the fewest hosts that were found to do."""
    some = members[:GROUP_VMS]
    taken = {one.name for one in explainer.state.hosts}
    needs = [(one.vm, one.need) for one in some]
    answers = {one.need.offer_class: one.answer for one in some}
    known: dict[int, int] = {0: 0}

    def covers(count: int) -> int:
        if count not in known:
            names = new_names(taken, count)
            change = Change(new_hosts=names, free=dict.fromkeys(names, (host.cpu_milli, host.memory_bytes)))
            known[count] = explainer.model.count_served(needs, answers, change)
        return known[count]

    count, most_needed = 1, max(one.need.needed for one in some)
    while covers(count) < len(some) and count < HOSTS_TRIED:
        count *= 2
        no_better = 0 < covers(count) == known[count // 2]
        if no_better and count > 2 * most_needed:
            break
    best = max(known.values())
    high = min(number for number, found in known.items() if found == best)
    low = max((number for number, found in known.items() if number < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        if covers(middle) >= best:
            high = middle
        else:
            low = middle
    return high, known[high]


def _of_hosts(
    explainer: Explainer, fail: Fail, members: Sequence[_Request], host: NewHost, count: int, covers: int
) -> Group:
    if covers == 0:
        return _helpless(fail, members, host)
    known = {one.name for one in explainer.state.hosts}
    add = AddHosts.like(host, new_names(known, count))
    some = min(len(members), GROUP_VMS)
    looked = "" if some == len(members) else f" (of the first {some:,})"
    text = f"{add.text()}: covers {covers:,} of {some:,}{looked}"
    hosts = remedy(Kind.ADD_HOSTS, (add,))
    return _group(fail.reason, _who(members), _names(members), hosts, covers=covers, text=text)


def _names(members: Sequence[_Request]) -> list[str]:
    return [one.vm.id for one in members]


def _who(members: Sequence[_Request]) -> str:
    """What the VMs ask of a host."""
    host = members[0].answer.new_host
    largest = max(members, key=lambda one: (one.vm.memory_bytes, one.vm.cpu_milli)).vm
    upto = "up to " if len(members) > 1 else ""
    parts = [f"{upto}{amounts(largest.cpu_milli, largest.memory_bytes)}"]
    if largest.zone:
        parts.append(f"zone {largest.zone}")
    if host is not None and host.traits:
        parts.append(f"{noun_for(len(host.traits), 'trait')} {listing(host.traits)}")
    if host is not None and host.cpu_arch:
        parts.append(host.cpu_arch)
    return ", ".join(parts)

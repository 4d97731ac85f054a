"""Which memberships must go so that the rules hold again: culprits first, and as few as possible.

Three steps (docs/design/failover.md#culprits): members that run elsewhere than recorded; members that break
rule 1 or 2 by themselves; and for what still clashes a smallest set of memberships. "Smallest" is exact for components
of up to ``EXACT_ALLOCATIONS`` memberships; above, the set has nothing superfluous but need not be smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec

from outlive.failover.conflicts import Breach, ConflictIndex, Meeting
from outlive.failover.model import SlotView
from outlive.failover.topology import HOSTS_ALONE, Topology

EXACT_ALLOCATIONS = 20
"""The largest component for which the smallest set is found exactly."""

Membership = tuple[str, str]
"""(slot, VM); also the order of preference for removal."""


class Culprit(NamedTuple):
    """A membership that has to go."""

    slot: str
    vm: str
    breach: Breach | None = None
    """What is broken by it; ``None`` where the VM runs elsewhere than recorded."""


def find_culprits(
    slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology = HOSTS_ALONE
) -> list[Culprit]:
    """The memberships to remove, by slot and VM. ``locations``: VM → host as known now.

    A member without a known location is never removed, keeps its recorded location and counts as a co-user. A clash
    between such members alone cannot be resolved and is left.
    """
    found = [
        Culprit(slot.name, vm)
        for slot in slots
        for vm, host in slot.members.items()
        if vm in locations and locations[vm] != host
    ]
    rest = remove_memberships(slots, [(one.slot, one.vm) for one in found])
    own_fault = _find_self_conflicting(rest, locations, topology)
    found.extend(own_fault)
    rest = remove_memberships(rest, [(one.slot, one.vm) for one in own_fault])
    found.extend(_find_clashing(rest, locations, topology))
    return sorted(found, key=lambda one: (one.slot, one.vm))


def find_removals(
    slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology = HOSTS_ALONE
) -> dict[str, list[str]]:
    """Slot → members to remove, by id; slots that keep everybody are left out."""
    removed: dict[str, list[str]] = {}
    for culprit in find_culprits(slots, locations, topology):
        removed.setdefault(culprit.slot, []).append(culprit.vm)
    return {slot: sorted(ids) for slot, ids in sorted(removed.items())}


def remove_memberships(slots: Iterable[SlotView], gone: Iterable[Membership]) -> list[SlotView]:
    """The slots without these memberships; the order is kept."""
    by_slot: dict[str, set[str]] = {}
    for slot_name, vm in gone:
        by_slot.setdefault(slot_name, set()).add(vm)
    if not by_slot:
        return list(slots)
    return [
        msgspec.structs.replace(slot, members={vm: host for vm, host in slot.members.items() if vm not in leaving})
        if (leaving := by_slot.get(slot.name))
        else slot
        for slot in slots
    ]


def _find_self_conflicting(
    slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology = HOSTS_ALONE
) -> list[Culprit]:
    """Members of a slot in their own unit, and all but the last by name of a VM's slots in one unit."""
    found: list[Culprit] = []
    first: dict[tuple[str, str], SlotView] = {}
    for slot in sorted(slots, key=lambda one: one.name, reverse=True):
        unit = topology.unit_of_host(slot.host)
        for vm, host in slot.members.items():
            if vm not in locations:
                continue
            if unit == topology.unit_of_host(host):
                breach = _to_breach(1, vm, unit, {host, slot.host}, slot.name)
                found.append(Culprit(slot.name, vm, breach=breach))
                continue
            kept = first.setdefault((vm, unit), slot)
            if kept is not slot:
                breach = _to_breach(2, vm, unit, {slot.host, kept.host}, slot.name, kept.name)
                found.append(Culprit(slot.name, vm, breach=breach))
    return found


def _to_breach(rule: int, vm: str, unit: str, hosts: set[str], *slots: str) -> Breach:
    return Breach(rule=rule, vm=vm, host=unit, hosts=() if hosts == {unit} else tuple(sorted(hosts)), slots=slots)


class _Knot(NamedTuple):
    """A meeting with, for each thing that is there, the removable memberships that bring it; one thing may stay."""

    meeting: Meeting
    sources: list[tuple[Membership, ...]]
    """Empty for what cannot be removed, such as the VM itself."""


def _find_clashing(slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology) -> list[Culprit]:
    found: list[Culprit] = []
    for component in _find_components(_build_knots(slots, locations, topology)):
        first: dict[Membership, Meeting] = {}
        for knot in component:
            for source in knot.sources:
                for one in source:
                    first.setdefault(one, knot.meeting)
        # A smallest set that resolves the component's knots; among equals earlier slots, then smaller ids.
        members = sorted({one for knot in component for source in knot.sources for one in source})
        if len(members) > EXACT_ALLOCATIONS:
            chosen = _find_small_set(component)
        else:
            number = {one: position for position, one in enumerate(members)}
            edges: set[int] = set()
            for knot in component:
                masks = [sum(1 << number[one] for one in source) for source in knot.sources]
                edges.update(a | b for a, b in combinations(masks, 2) if a | b)
            chosen = [members[position] for position in least_hitting_set(sorted(edges), len(members))]
        for slot, vm in chosen:
            breach = next(first[slot, vm].iter_breaches())
            found.append(Culprit(slot, vm, breach=breach))
    return found


def _build_knots(
    slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology = HOSTS_ALONE
) -> list[_Knot]:
    knots = []
    for meeting in ConflictIndex.build(slots, topology=topology, locations=locations).find_meetings():
        vm = meeting.vm
        sources = [()] if meeting.own else list[tuple[Membership, ...]]()
        sources += [_removable_memberships(locations, (slot, vm)) for slot in meeting.slots]
        sources += [_removable_memberships(locations, (slot, vm), (slot, other)) for slot, other in meeting.shared]
        knots.append(_Knot(meeting, sources))
    return knots


def _removable_memberships(locations: Mapping[str, str], *memberships: Membership) -> tuple[Membership, ...]:
    return tuple(one for one in memberships if one[1] in locations)


def _find_components(knots: list[_Knot]) -> list[list[_Knot]]:
    """Knots that have memberships in common, directly or through others, together; in order of their first one."""
    leader: dict[Membership, Membership] = {}

    def find(one: Membership) -> Membership:
        root = one
        while leader.setdefault(root, root) != root:
            root = leader[root]
        while leader[one] != root:
            leader[one], one = root, leader[one]
        return root

    for knot in knots:
        names = [one for source in knot.sources for one in source]
        for one in names[1:]:
            first, second = sorted((find(names[0]), find(one)))
            leader[second] = first
    grouped: dict[Membership, list[_Knot]] = {}
    for knot in knots:
        anchor = next((one for source in knot.sources for one in source), None)
        if anchor is not None:
            grouped.setdefault(find(anchor), []).append(knot)
    return [grouped[key] for key in sorted(grouped)]


def _find_small_set(component: list[_Knot]) -> list[Membership]:
    """Most entangled first, as long as something still meets; then everybody returns who may."""
    live = [dict(enumerate(knot.sources)) for knot in component]
    where: dict[Membership, list[tuple[int, int]]] = {}
    weight: dict[Membership, int] = {}
    for at, sources in enumerate(live):
        for key, source in sources.items():
            for one in source:
                where.setdefault(one, []).append((at, key))
                weight[one] = weight.get(one, 0) + len(sources) - 1
    gone: list[Membership] = []
    for one in sorted(where, key=lambda m: (-weight[m], m)):
        if any(key in live[at] and len(live[at]) > 1 for at, key in where[one]):
            gone.append(one)
            for at, key in where[one]:
                live[at].pop(key, None)
    # A membership returns if that breaks no rule, the last removed first.
    kept = set(gone)
    for one in reversed(gone):
        back = [
            (at, key)
            for at, key in where[one]
            if key not in live[at] and kept.isdisjoint(set(component[at].sources[key]) - {one})
        ]
        if all(not live[at] for at, _ in back) and len({at for at, _ in back}) == len(back):
            kept.discard(one)
            for at, key in back:
                live[at][key] = component[at].sources[key]
    return sorted(kept)


def least_hitting_set(sets: Sequence[int], elements: int) -> tuple[int, ...]:
    """Numbers below ``elements``, ascending, that hit all ``sets`` (bit masks, none of them 0).

    Of all smallest answers the first in lexicographic order. Takes time exponential in ``elements``: meant for up to
    about 20. Raises ``ValueError`` for an empty set, which nothing can hit.
    """
    if any(one == 0 for one in sets):
        raise ValueError("an empty set cannot be hit")
    minimal = [one for one in sets if not any(other != one and other & one == other for other in sets)]
    for size in range(_count_disjoint(minimal), elements + 1):
        answer = _search(minimal, 0, size)
        if answer is not None:
            return answer
    raise AssertionError("all elements together hit every set")


def _search(sets: list[int], element: int, budget: int) -> tuple[int, ...] | None:
    """The lexicographically first answer of at most ``budget`` elements, none below ``element``."""
    if not sets:
        return ()
    if budget < _count_disjoint(sets):
        return None
    bit = 1 << element
    if any(one & bit for one in sets):
        taken = _search([one for one in sets if not one & bit], element + 1, budget - 1)
        if taken is not None:
            return (element, *taken)
        sets = [one & ~bit for one in sets]
        if any(one == 0 for one in sets):
            return None
    return _search(sets, element + 1, budget)


def _count_disjoint(sets: list[int]) -> int:
    """How many sets that have nothing in common are found quickly: no answer is smaller."""
    used = count = 0
    for one in sorted(sets, key=int.bit_count):
        if not one & used:
            used |= one
            count += 1
    return count

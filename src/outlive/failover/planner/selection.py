"""Who misses slots, in which order they are served, and how, where there is not enough for everybody.

Chance enters as a number in the input, so that a selection replays (docs/design/failover.md#assigning).
Giving each VM all its slots at its turn is best while nobody goes without: a VM's slots are looked for together. Where
somebody fails for want of room or of hosts it would give some VMs two slots and others none. So each priority in which
somebody failed, from the highest down, is served again in rounds (everybody's first slot, then everybody's second), and
again with the largest first, and keeps the way that leaves the fewest of it without any slot, then the fewest slots
missing. What lower priorities want never changes what a higher one is given at its turn
(docs/design/failover.md#scarce-capacity).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeGuard

import msgspec

from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Claim, Fail, Open
from outlive.failover.planner.greedy import Greedy
from outlive.failover.rules import serves
from outlive.placement import VmView
from outlive.resources.reasons import CoverageReason


class Missing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM with fewer slots than it needs."""

    vm: str
    required: int
    present: int

    @property
    def needed(self) -> int:
        """How many slots it misses."""
        return self.required - self.present


class SelectInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All VMs, what they need, the slots after clean-up, and the limits of a cycle."""

    vms: tuple[VmView, ...]
    slots: tuple[SlotView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    priorities: dict[str, int] = {}
    """VM → priority, larger is earlier; missing means 0."""
    limit: int = 0
    """VMs served in a cycle; 0 or less: all."""
    rotation: int = 0
    """Every n-th cycle starts at a random place; 0: never."""
    cycle: int = 1
    """Number of this cycle, the first being 1."""
    draw: float = 0.0
    """A uniform random number in [0, 1), used where rotation applies."""


class SelectResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who misses slots, and who of them is served."""

    missing: tuple[Missing, ...] = ()
    """Everybody, in the order of service."""
    selected: tuple[Missing, ...] = ()
    limit_hit: bool = False
    start: int = 0
    """Place in ``missing`` where the selection began."""

    @property
    def needed(self) -> int:
        """Slots missed by the selected VMs."""
        return sum(one.needed for one in self.selected)


def select(given: SelectInput) -> SelectResult:
    """List the VMs that miss slots and choose whom this cycle serves.

    A slot that is not ready, or smaller than the VM, does not count as present. Slots beyond what a VM
    needs are left alone.
    """
    present = count_present(given.vms, given.slots)
    missing = [
        (vm, Missing(vm=vm.id, required=wanted, present=present.get(vm.id, 0)))
        for vm in given.vms
        if (wanted := given.required.get(vm.id, 0)) > present.get(vm.id, 0)
    ]
    missing.sort(
        key=lambda pair: service_rank(pair[0], priority=given.priorities.get(pair[0].id, 0), present=pair[1].present)
    )
    listed = tuple(one for _, one in missing)
    if given.limit <= 0 or given.limit >= len(listed):
        return SelectResult(missing=listed, selected=listed)
    rotates = given.rotation > 0 and given.cycle % given.rotation == 0
    start = min(int(given.draw * len(listed)), len(listed) - 1) if rotates else 0
    selected = (listed[start:] + listed[:start])[: given.limit]
    return SelectResult(missing=listed, selected=selected, limit_hit=True, start=start)


def service_rank(vm: VmView, *, priority: int, present: int) -> tuple[int, int, int, str]:
    """Sorts VMs that miss slots in the order of service (docs/design/failover.md#assigning).

    Highest priority first, then the most exposed (fewest slots present), largest memory, id.
    """
    return (-priority, present, -vm.memory_bytes, vm.id)


def count_present(vms: Iterable[VmView], slots: Iterable[SlotView]) -> dict[str, int]:
    """VM → slots that count for it, of these VMs; those that have none are left out."""
    views, present = {vm.id: vm for vm in vms}, dict[str, int]()
    for slot in slots:
        for member in slot.members:
            vm = views.get(member)
            if vm is not None and serves(vm, slot):
                present[member] = present.get(member, 0) + 1
    return present


GROUPS_TRIED: Final = 4
"""Priorities that are served again in other ways, the highest first; each costs two more runs."""
MANY_SLOTS: Final = 20_000
"""Missing slots beyond which only one priority is served again, and only in rounds."""
_NOT_FOR_ROOM: Final = frozenset(
    {
        CoverageReason.ZERO_SIZE,
        CoverageReason.PLACEMENT_UNAVAILABLE,
        CoverageReason.MEMBERSHIPS_CLASH,
        CoverageReason.NO_HOSTS,
    }
)
"""Reasons that no order of service changes."""


class SelectionStrategy(enum.IntEnum):
    """How the VMs of one priority are served; among equal outcomes the first is taken."""

    ROUNDS = 0
    """Everybody's first slot, then everybody's second, and so on."""
    AT_ONCE = 1
    """Each gets all that it misses at its turn."""
    LARGEST = 2
    """The same, the largest first, however many slots they have."""


def serve_all(
    claims: Sequence[Claim], begin: Callable[[], Greedy], *, worded: bool = True
) -> tuple[Greedy, list[Action]]:
    """Serve everybody, in the given order; each VM ends with what it misses or with one ``Fail``.

    ``begin`` makes the state to serve from, anew for each attempt. ``worded`` as for ``Greedy.serve``.
    """
    groups = [list(group) for _, group in groupby(claims, key=lambda claim: claim.priority)]
    few = sum(claim.need.needed for claim in claims) <= MANY_SLOTS
    other_ways = [_alternative_ways(group, few=few, alone=len(groups) == 1) for group in groups]
    complete = worded and not any(other_ways)
    greedy, actions = _attempt(groups, begin(), {}, worded=complete)
    ways: dict[int, SelectionStrategy] = {}
    for _ in range(min(len(groups), GROUPS_TRIED if few else 1)):
        number = _first_failing(groups, other_ways, actions, ways)
        if number is None:
            break
        ways[number] = SelectionStrategy.AT_ONCE
        best = (*_count_shortfall(groups[number], actions), SelectionStrategy.AT_ONCE)
        for way in other_ways[number]:
            says_why = worded and way is SelectionStrategy.ROUNDS  # kept wherever no other way is better
            other, others = _attempt(groups, begin(), {**ways, number: way}, worded=says_why)
            found = (*_count_shortfall(groups[number], others), way)
            if found < best:
                best, greedy, actions, ways[number], complete = found, other, others, way, says_why
    if worded and not complete and any(map(_failed_for_room, actions)):
        greedy, actions = _attempt(groups, begin(), ways)
    # VMs that failed before others opened slots ask once more at the end: they may join these.
    opened = max((place for place, action in enumerate(actions) if isinstance(action, Open)), default=-1)
    failed = {action.vm: action.missing for action in actions[: opened + 1] if _failed_for_room(action)}
    kept = [action for action in actions if not (isinstance(action, Fail) and action.vm in failed)]
    for claim in claims:
        if claim.vm.id in failed:
            kept += _serve(greedy, claim, failed[claim.vm.id], worded=worded)
    return greedy, kept


def _alternative_ways(group: Sequence[Claim], *, few: bool, alone: bool) -> list[SelectionStrategy]:
    """Ways that may give the VMs of one priority anything else than each all that it misses at its turn."""
    ways = []
    if len(group) > 1 and not (alone and all(claim.need.needed == 1 for claim in group)):
        ways.append(SelectionStrategy.ROUNDS)
    if few and sorted(group, key=_size_key) != list(group):
        ways.append(SelectionStrategy.LARGEST)
    return ways


def _failed_for_room(action: Action) -> TypeGuard[Fail]:
    """Whether it is a failure that another order of service might have avoided."""
    return isinstance(action, Fail) and action.reason not in _NOT_FOR_ROOM


def _count_shortfall(claims: Sequence[Claim], actions: Sequence[Action]) -> tuple[int, int]:
    """VMs that end without any slot, and slots that are missing, of these VMs after these actions."""
    got = dict.fromkeys((claim.vm.id for claim in claims), 0)
    for action in actions:
        if not isinstance(action, Fail) and action.vm in got:
            got[action.vm] += 1
    bare = sum(claim.present + got[claim.vm.id] == 0 for claim in claims)
    return bare, sum(claim.need.needed - got[claim.vm.id] for claim in claims)


def _first_failing(
    groups: Sequence[Sequence[Claim]],
    ways: Sequence[Sequence[SelectionStrategy]],
    actions: Sequence[Action],
    tried: Collection[int],
) -> int | None:
    """The first group that has other ways, not tried yet, in which somebody failed for want of room or hosts."""
    failed = {action.vm for action in actions if _failed_for_room(action)}
    for number, group in enumerate(groups):
        if number not in tried and ways[number] and any(claim.vm.id in failed for claim in group):
            return number
    return None


def _attempt(
    groups: Sequence[Sequence[Claim]], greedy: Greedy, ways: Mapping[int, SelectionStrategy], *, worded: bool = True
) -> tuple[Greedy, list[Action]]:
    actions: list[Action] = []
    for number, group in enumerate(groups):
        way = ways.get(number, SelectionStrategy.AT_ONCE)
        if way is SelectionStrategy.ROUNDS:
            actions += _serve_in_rounds(group, greedy, worded=worded)
            continue
        for claim in sorted(group, key=_size_key) if way is SelectionStrategy.LARGEST else group:
            actions += _serve(greedy, claim, claim.need.needed, worded=worded)
    return greedy, actions


def _serve_in_rounds(claims: Sequence[Claim], greedy: Greedy, *, worded: bool) -> list[Action]:
    """One slot at a time, always for those who have the fewest. A VM that gets none is tried once more at the end, when
    others have opened slots that it may join, and then for all that it misses."""
    actions: list[Action] = []
    waiting: dict[int, list[Claim]] = {}
    for claim in claims:
        waiting.setdefault(claim.present, []).append(claim)
    failed: list[Claim] = []
    while waiting:
        present = min(waiting)
        for claim in sorted(waiting.pop(present), key=_service_order):
            served = _serve(greedy, claim, 1, worded=False)  # who fails is asked again
            if any(isinstance(action, Fail) for action in served):
                failed.append(claim)
                continue
            actions += served
            if claim.need.needed > 1:
                waiting.setdefault(present + 1, []).append(claim.subtract(1))
    for claim in sorted(failed, key=_service_order):
        actions += _serve(greedy, claim, claim.need.needed, worded=worded)
    return actions


def _serve(greedy: Greedy, claim: Claim, needed: int, *, worded: bool) -> list[Action]:
    need = claim.need
    if need.needed != needed:
        need = msgspec.structs.replace(need, needed=needed)
    return greedy.serve(claim.vm, need, worded=worded)


def _service_order(claim: Claim) -> tuple[int, int, int, str]:
    return service_rank(claim.vm, priority=claim.priority, present=claim.present)


def _size_key(claim: Claim) -> tuple[int, str]:
    return (-claim.vm.memory_bytes, claim.vm.id)

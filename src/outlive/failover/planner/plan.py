"""Plan a whole fleet: from nothing, or topping up what is there.

The greedy order of upkeep (docs/reference/failover-planning.md#packing) without the limits of a cycle: every VM is
served, and a host may receive any number of new slots. For ``failover plan``, a cold start and forecasts; nothing is
written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from outlive.failover.analysis.bound import BoundInput, bound
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planner.actions import Action, Join, Need, Offer, Open
from outlive.failover.planner.assign import AssignInput, assign
from outlive.failover.planner.packing import Ground, Outcome, layers, pack
from outlive.failover.planner.selection import Missing, SelectInput, Turn, presence, select, shortfalls
from outlive.failover.separation import groups_of
from outlive.failover.sizing import ResolvedSize, enough_for, resolve_size
from outlive.failover.topology import Topology

SLOTS_OVER_BOUND = 1.9
"""The estimate of the best size of slots assumes so many times the slots of the lower bound."""
SMALL_MEMBERSHIPS = 5_000
"""Up to so many missing memberships several sizes are tried, and no limit as well."""
MIDDLE_MEMBERSHIPS = 30_000
"""Up to so many two sizes are tried, beyond it one."""


class PlanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, what its VMs need, and what placement offers."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    priorities: dict[str, int] = {}
    """VM → priority, larger is earlier; missing means 0."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    classes: dict[str, str] = {}
    """VM → key of its offers; missing means the empty key."""
    reuse: dict[str, Offer] = {}
    new: dict[str, Offer] = {}
    free: dict[str, tuple[int, int]] = {}
    """Host → free milli-cores and bytes.

    A host that is missing here has no room; an empty table limits nothing.
    """
    hosts: tuple[str, ...] = ()
    one_new_per_host: bool = False
    packing: bool = True
    """Look for a plan that reserves less; off gives the plain greedy one of a cycle."""
    effort_s: float = msgspec.field(default=0.0, name="effort")
    """Nominal seconds of search for a plan that reserves still less; the same number gives the same plan."""
    seed: int = 0
    """Which of the equally likely searches it is."""
    topology: Topology = Topology()


class Reserves(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What slots hold together."""

    slots: int
    cpu_milli: int
    memory_bytes: int


class PlanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to do, in order, and the slots that result."""

    actions: tuple[Action, ...] = ()
    slots: tuple[SlotView, ...] = ()
    missing: int = 0
    """VMs that missed slots before."""
    reused: int = 0
    created: int = 0
    failed: int = 0
    cut_short: bool = False
    """Whether the search was ended before its effort was spent."""
    without_search: Reserves | None = None
    """What the plan that the search began with reserves; only where there was a search."""


def plan(given: PlanInput, *, keep_going: Callable[[], bool] = lambda: True) -> PlanResult:
    """Serve every VM that misses slots, in the order of service.

    With ``packing`` the plan is made with several limits on the members of a slot, and the best one is returned: by
    priority from the highest down the fewest VMs without any slot and the fewest slots missing, then the fewest VMs
    that miss any, then the least reserved memory, then the fewest slots. With ``effort_s`` it is improved by search,
    until ``keep_going`` says that it is enough.
    """
    slots = sorted(given.slots, key=lambda slot: slot.name)
    chosen = select(
        SelectInput(
            vms=given.vms,
            slots=tuple(slots),
            required=given.required,
            priorities=given.priorities,
        )
    ).selected
    vms = {vm.id: vm for vm in given.vms}
    turns = [
        Turn(vm=vms[one.vm], needed=one.needed, present=one.present, priority=given.priorities.get(one.vm, 0))
        for one in chosen
    ]
    layered = _layered(given, slots, turns)
    if layered is not None and _is_least(given, layered):
        return layered
    tried = [_greedy_plan(given, slots, turns, most) for most in _limits(given, chosen)]

    def cost(one: PlanResult) -> Any:
        return (
            shortfalls(turns, one.actions),
            one.failed,
            sum(slot.memory_bytes for slot in one.slots),
            len(one.slots),
        )

    best = min(tried, key=cost)
    if layered is not None:
        return min(layered, best, key=cost)
    if given.effort_s <= 0 or not _may_pack(given, turns):
        return best
    ground = _ground(given)
    found = pack(slots, best.slots, ground, effort_s=given.effort_s, seed=given.seed, keep_going=keep_going)
    packed = None
    if found.outcome is not None:
        promised = Counter(member for slot in best.slots for member in slot.members)
        packed = _completed(given, turns, promised, found.outcome)
    least = min(best, packed, key=cost) if packed is not None else best
    return msgspec.structs.replace(least, cut_short=found.cut_short, without_search=reserves(best.slots))


def reserves(slots: Iterable[SlotView]) -> Reserves:
    """What these slots hold together."""
    held = list(slots)
    return Reserves(
        slots=len(held),
        cpu_milli=sum(slot.cpu_milli for slot in held),
        memory_bytes=sum(slot.memory_bytes for slot in held),
    )


def shortfalls_of(given: PlanInput, slots: Iterable[SlotView]) -> tuple[tuple[int, int], ...]:
    """By priority, the highest first: the VMs without any slot, and the slots that are missing."""
    present = presence(given.vms, slots)
    found: dict[int, tuple[int, int]] = {}
    for vm, needed in given.required.items():
        bare, missing = found.get(given.priorities.get(vm, 0), (0, 0))
        has = min(needed, present.get(vm, 0))
        found[given.priorities.get(vm, 0)] = (bare + (needed > has == 0), missing + needed - has)
    return tuple(found[priority] for priority in sorted(found, reverse=True))


def _may_pack(given: PlanInput, turns: Sequence[Turn]) -> bool:
    """Whether packing knows everything that binds this plan."""
    return given.packing and not given.one_new_per_host and bool(turns)


def _layered(given: PlanInput, slots: list[SlotView], turns: Sequence[Turn]) -> PlanResult | None:
    """The plan in layers, where nobody needs more than one slot and everybody gets it this way."""
    if not _may_pack(given, turns) or any(turn.needed > 1 or turn.present for turn in turns):
        return None
    members = {member for slot in slots for member in slot.members}
    ground = _ground(given)
    if ground.held_fast or any(turn.vm.id in members for turn in turns):
        return None
    made = layers(slots, [turn.vm for turn in turns], ground)
    if made is None:
        return None
    return _completed(given, turns, {turn.vm.id: turn.needed for turn in turns}, made)


def _is_least(given: PlanInput, result: PlanResult) -> bool:
    """Whether no plan can reserve less memory."""
    hosts = tuple(HostView(name=host) for host in given.hosts)
    topology = given.topology
    least = bound(BoundInput(vms=given.vms, required=given.required, hosts=hosts, topology=topology))
    return sum(slot.memory_bytes for slot in result.slots) <= least.memory_bytes


def _ground(given: PlanInput) -> Ground:
    topology = given.topology
    groups = tuple(groups_of(given.vms, given.required)) if topology.server_groups else ()
    return Ground(
        vms={vm.id: vm for vm in given.vms},
        sizes=given.sizes,
        classes=given.classes,
        reuse=given.reuse,
        new=given.new,
        free=given.free,
        hosts=tuple(dict.fromkeys([*given.hosts, *(host for offer in given.new.values() for host in offer.hosts)])),
        topology=topology,
        groups=groups,
    )


def _completed(
    given: PlanInput, turns: Sequence[Turn], promised: Mapping[str, int], made: Outcome
) -> PlanResult | None:
    """A packed plan, if nobody has less than ``promised``, with one more try for those whom the greedy one could not
    serve."""
    has = Counter(member for slot in made.slots for member in slot.members)
    if any(has[vm] < count for vm, count in promised.items()):
        return None
    got = Counter(action.vm for action in made.actions)
    left = [
        msgspec.structs.replace(turn, needed=turn.needed - got[turn.vm.id], present=turn.present + got[turn.vm.id])
        for turn in turns
        if turn.needed > got[turn.vm.id]
    ]
    later = _greedy_plan(_after(given, made), list(made.slots), left, 0) if left else PlanResult(slots=made.slots)
    return PlanResult(
        actions=(*made.actions, *later.actions),
        slots=later.slots,
        missing=len(turns),
        reused=later.reused + sum(isinstance(action, Join) for action in made.actions),
        created=later.created + sum(isinstance(action, Open) for action in made.actions),
        failed=later.failed,
    )


def _after(given: PlanInput, made: Outcome) -> PlanInput:
    """What is left to give out after these actions."""
    free = dict(given.free)
    for action in made.actions:
        if isinstance(action, Open) and action.host in free:
            cpu, memory = free[action.host]
            free[action.host] = (cpu - action.cpu_milli, memory - action.memory_bytes)
    return msgspec.structs.replace(given, free=free)


def _limits(given: PlanInput, chosen: Sequence[Missing]) -> list[int]:
    """Limits on the members of a slot to try; 0 is none.

    Filling slots as far as the rules allow makes a VM's first slot meet nearly every host, so that hardly any slot
    is left for its second one. Slots of an even, middling size do with far fewer; which size is best is found by trying
    around an estimate from the lower bound.
    """
    memberships = sum(one.needed for one in chosen)
    if not given.packing or max((one.required for one in chosen), default=0) < 2:
        return [0]
    hosts = tuple(HostView(name=host) for host in given.hosts)
    least = bound(BoundInput(vms=given.vms, required=given.required, hosts=hosts)).slots
    middle = memberships / (SLOTS_OVER_BOUND * max(1, least))
    if memberships <= SMALL_MEMBERSHIPS:
        factors: tuple[float, ...] = (0.7, 0.85, 1.0, 1.2, 1.45, 1.75)
    else:
        factors = (1.0,) if memberships > MIDDLE_MEMBERSHIPS else (1.0, 1.3)
    limits = sorted({max(2, round(middle * factor)) for factor in factors})
    return [0, *limits] if memberships <= SMALL_MEMBERSHIPS else limits


def _greedy_plan(given: PlanInput, slots: list[SlotView], turns: Sequence[Turn], most_members: int) -> PlanResult:
    done = assign(
        AssignInput(
            slots=tuple(slots),
            vms=given.vms,
            needs=tuple(
                Need(
                    vm=turn.vm.id,
                    needed=turn.needed,
                    size=enough_for(turn.vm, given.sizes.get(turn.vm.id) or resolve_size(turn.vm)),
                    offer_class=given.classes.get(turn.vm.id, ""),
                )
                for turn in turns
            ),
            priorities=given.priorities,
            reuse=given.reuse,
            new=given.new,
            free=given.free,
            hosts=given.hosts,
            one_new_per_host=given.one_new_per_host,
            groups=groups_of(given.vms, given.required) if given.topology.server_groups else (),
            topology=given.topology,
        ),
        most_members=most_members,
    )
    changed = {slot.name: slot for slot in done.slots}
    after = [changed.pop(slot.name, slot) for slot in slots]
    return PlanResult(
        actions=done.actions,
        slots=(*after, *changed.values()),
        missing=len(turns),
        reused=done.reused,
        created=done.created,
        failed=done.failed,
    )

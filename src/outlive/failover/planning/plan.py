"""Plan a whole fleet: from nothing, or topping up what is there.

The greedy order of upkeep (docs/reference/failover.md#packing) without the limits of a cycle: every VM is served, and a
host may receive any number of new slots. For ``failover plan``, a cold start and forecasts; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlive.failover.assurance.bound import BoundInput, bound
from outlive.failover.compat import Compat
from outlive.failover.eligibility.counters import Counters
from outlive.failover.eligibility.separation import groups_of
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.planning.actions import Action, Need, Offer
from outlive.failover.planning.assign import Serving, result_of
from outlive.failover.planning.greedy import Greedy
from outlive.failover.planning.rounds import Turn, serve_all, shortfalls
from outlive.failover.planning.select import Missing, SelectInput, select
from outlive.failover.planning.separating import Separating
from outlive.failover.sizing import ResolvedSize, enough_for, resolve_size
from outlive.failover.topology import Topology, in_force

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

    A host that is missing here has no room (no limit with D13 switched back); an empty table limits nothing.
    """
    hosts: tuple[str, ...] = ()
    one_new_per_host: bool = False
    packing: bool = True
    """Look for a plan that reserves less; off gives the plain greedy one of a cycle."""
    topology: Topology = Topology()
    compat: Compat = Compat()


class PlanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to do, in order, and the slots that result."""

    actions: tuple[Action, ...] = ()
    slots: tuple[SlotView, ...] = ()
    missing: int = 0
    """VMs that missed slots before."""
    reused: int = 0
    created: int = 0
    failed: int = 0


def plan(given: PlanInput) -> PlanResult:
    """Serve every VM that misses slots, in the order of service.

    With ``packing`` the plan is made with several limits on the members of a slot, and the best one is returned: by
    priority from the highest down the fewest VMs without any slot and the fewest slots missing, then the fewest VMs
    that miss any, then the least reserved memory, then the fewest slots.
    """
    slots = sorted(given.slots, key=lambda slot: slot.name)
    chosen = select(
        SelectInput(
            vms=given.vms,
            slots=tuple(slots),
            required=given.required,
            priorities=given.priorities,
            compat=given.compat,
        )
    ).selected
    vms = {vm.id: vm for vm in given.vms}
    turns = [
        Turn(vm=vms[one.vm], needed=one.needed, present=one.present, priority=given.priorities.get(one.vm, 0))
        for one in chosen
    ]
    tried = [_greedy_plan(given, slots, turns, most) for most in _limits(given, chosen)]
    in_rounds = not given.compat.reverted("D19")
    return min(
        tried,
        key=lambda one: (
            shortfalls(turns, one.actions) if in_rounds else (),
            one.failed,
            sum(slot.memory_bytes for slot in one.slots),
            len(one.slots),
        ),
    )


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
    needs = {
        turn.vm.id: Need(
            vm=turn.vm.id,
            needed=turn.needed,
            size=enough_for(turn.vm, given.sizes.get(turn.vm.id) or resolve_size(turn.vm)),
            offer_class=given.classes.get(turn.vm.id, ""),
        )
        for turn in turns
    }
    serving, actions = serve_all(turns, lambda: Serving(_greedy(given, slots, most_members), needs), given.compat)
    done = result_of(slots, actions, serving.greedy.opened)
    return PlanResult(
        actions=done.actions,
        slots=done.slots,
        missing=len(turns),
        reused=done.reused,
        created=done.created,
        failed=done.failed,
    )


def _greedy(given: PlanInput, slots: list[SlotView], most_members: int) -> Greedy:
    topology = in_force(given.topology, given.compat)
    counters = Counters.build(slots, topology=topology)
    groups = groups_of(given.vms, given.required) if topology.server_groups else ()
    return Greedy(
        counters,
        reuse=given.reuse,
        new=given.new,
        free=given.free,
        hosts=given.hosts,
        one_new_per_host=given.one_new_per_host,
        most_members=most_members,
        separating=Separating(counters, groups),
        compat=given.compat,
    )

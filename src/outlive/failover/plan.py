"""Plan a whole fleet: from nothing, or topping up what is there.

The greedy order of upkeep (docs/reference/failover.md#assigning) without the limits of a cycle: every VM is served, and
a host may receive any number of new slots. For ``failover plan``, a cold start and forecasts; nothing is written.
"""

from __future__ import annotations

import msgspec

from outlive.failover.actions import Action, Need, Offer
from outlive.failover.assign import result_of
from outlive.failover.compat import Compat
from outlive.failover.counters import Counters
from outlive.failover.greedy import Greedy
from outlive.failover.model import SlotView, VmView
from outlive.failover.select import SelectInput, select
from outlive.failover.sizing import ResolvedSize, enough_for, resolve_size


class PlanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fleet, what its VMs need, and what placement offers."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    sizes: dict[str, ResolvedSize] = {}
    """VM → size of its slots; missing means its own."""
    classes: dict[str, str] = {}
    """VM → key of its offers; missing means the empty key."""
    reuse: dict[str, Offer] = {}
    new: dict[str, Offer] = {}
    free: dict[str, tuple[int, int]] = {}
    """Host → free milli-cores and bytes; a host that is missing here has no limit."""
    hosts: tuple[str, ...] = ()
    one_new_per_host: bool = False
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
    """Serve every VM that misses slots, largest memory first."""
    slots = sorted(given.slots, key=lambda slot: slot.name)
    chosen = select(
        SelectInput(vms=given.vms, slots=tuple(slots), required=given.required, compat=given.compat)
    ).selected
    greedy = Greedy(
        Counters.build(slots),
        reuse=given.reuse,
        new=given.new,
        free=given.free,
        hosts=given.hosts,
        one_new_per_host=given.one_new_per_host,
        compat=given.compat,
    )
    vms = {vm.id: vm for vm in given.vms}
    actions: list[Action] = []
    for one in chosen:
        vm = vms[one.vm]
        need = Need(
            vm=vm.id,
            needed=one.needed,
            size=enough_for(vm, given.sizes.get(vm.id) or resolve_size(vm)),
            offer_class=given.classes.get(vm.id, ""),
        )
        actions.extend(greedy.serve(vm, need))
    done = result_of(slots, actions, greedy.opened)
    return PlanResult(
        actions=done.actions,
        slots=done.slots,
        missing=len(chosen),
        reused=done.reused,
        created=done.created,
        failed=done.failed,
    )

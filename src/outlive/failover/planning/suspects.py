"""Which slots a clean-up has to look at, out of a whole fleet: all others it would leave as they are.

A pass over everything, in portions, so that a cycle in which nothing is wrong decides about nothing. For the slots
found here ``clean`` gives what it gives for all slots (docs/reference/failover.md#cleaning-up): a membership is judged
by itself (``planning.leaving``), and a rule can only be broken for a VM for which one is broken now, whose slots are
all here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from outlive.failover.eligibility.columns import Columns
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.leaving import departure
from outlive.failover.portions import SLOTS, Portions, portioned
from outlive.failover.topology import HOSTS_ALONE, Topology


class Suspects(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean-up has to look at."""

    slots: tuple[SlotView, ...]
    """In the order given."""
    broken: frozenset[str]
    """The VMs for which a rule does not hold, at their current locations."""
    memberships: int
    """Of all slots."""


def suspects(
    slots: Sequence[SlotView],
    views: Mapping[str, VmView],
    active: Collection[str],
    topology: Topology = HOSTS_ALONE,
) -> Portions[Suspects]:
    """The slots without members, those with a member that has to leave, and those of VMs for which a rule is broken.

    ``views``: VM → where it is; ``active``: the VMs that hosts report.
    """
    found: set[str] = set()
    recorded: dict[str, str] = {}
    torn: set[str] = set()
    memberships = 0
    for portion in portioned(slots, SLOTS):
        for slot in portion:
            memberships += len(slot.members)
            if not slot.members:
                found.add(slot.name)
            for vm, host in slot.members.items():
                view = views.get(vm)
                if view is None and recorded.setdefault(vm, host) != host:
                    torn.add(vm)
                if departure(vm, slot, view, active=vm in active) is not None:
                    found.add(slot.name)
        yield
    columns = yield from Columns.built(slots, views, topology)
    numbers = yield from columns.faults()
    broken = frozenset(columns.vm_ids[number] for number in numbers.tolist())
    # Of unlisted VMs the last record counts as their location, so that all their records have to be seen together.
    concerned = broken | torn
    chosen: list[SlotView] = []
    for portion in portioned(slots, SLOTS):
        chosen += [
            slot for slot in portion if slot.name in found or (concerned and not concerned.isdisjoint(slot.members))
        ]
        yield
    return Suspects(slots=tuple(chosen), broken=broken, memberships=memberships)

"""Give VMs the slots that they miss: reuse an existing slot, else open a new one.

The greedy order of docs/design/failover.md#assigning. It is exact about the rules and about capacity as
offered, and makes no attempt at the smallest number of slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from outlive.base import BadInput
from outlive.failover.fleet import FleetIndex
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Claim, Fail, Join, Need, Open, PlacementOffer, SlotOffers
from outlive.failover.planner.greedy import Greedy
from outlive.failover.planner.selection import count_present, serve_all
from outlive.failover.separation import ServerGroup
from outlive.placement import VmView

__all__ = ["Action", "AssignInput", "AssignResult", "Fail", "Join", "Need", "Open", "PlacementOffer", "assign"]


class AssignInput(SlotOffers, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state after clean-up, who misses slots, and what placement offers."""

    slots: tuple[SlotView, ...]
    vms: tuple[VmView, ...]
    """At least the VMs of ``needs``."""
    needs: tuple[Need, ...]
    """In the order in which they are served; VMs of one priority stand together."""
    used_hosts: tuple[str, ...] = ()
    """Hosts that already received a new slot in this cycle."""
    excluded_slots: tuple[str, ...] = ()
    """Slots whose write failed in this cycle: nobody may join them, but they are still there, and the rules
    count them."""
    key_prefix: str = "new-"
    """Keys of new slots are this and a number that makes them differ from the names of all slots."""
    groups: tuple[ServerGroup, ...] = ()
    """The server groups that bear on the VMs of ``needs``, with all their members; of these ``slots`` has every slot.
    """
    later: tuple[Need, ...] = ()
    """What others are served after these: where they are to be with one of ``needs``, room for both is looked for."""


class AssignResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to do, in order."""

    actions: tuple[Action, ...] = ()
    slots: tuple[SlotView, ...] = ()
    """The slots that the actions change, as they leave them, and new ones, named by their key."""
    reused: int = 0
    created: int = 0
    failed: int = 0


def assign(given: AssignInput) -> AssignResult:
    """Serve every need in order; each VM ends with the slots it misses or with one ``Fail``.

    The VM that is served counts with its current location, everybody else with the recorded one. ``BadInput`` for a
    need of a VM that is not in ``vms``, and for two slots of one name.
    """
    slots = sorted(given.slots, key=lambda slot: slot.name)
    vms = {vm.id: vm for vm in given.vms}
    unknown = next((need.vm for need in given.needs if need.vm not in vms), None)
    if unknown is not None:
        raise BadInput(f"need of VM {unknown!r}, which is not in vms", remedy="give every VM that needs slots")
    present, priorities = count_present(given.vms, slots), given.priorities
    claims = [
        Claim(vm=vms[need.vm], need=need, present=present.get(need.vm, 0), priority=priorities.get(need.vm, 0))
        for need in given.needs
    ]

    def begin() -> Greedy:
        fleet = FleetIndex.build(slots, topology=given.topology)
        fleet.separation.take(given.groups)
        greedy = Greedy(
            fleet,
            reuse=given.reuse,
            new=given.new,
            free=given.free,
            hosts=given.hosts,
            one_new_per_host=given.one_new_per_host,
            key_prefix=given.key_prefix,
        )
        greedy.expect((*given.needs, *given.later))
        greedy.close(given.excluded_slots)
        greedy.mark_new(given.used_hosts)
        return greedy

    greedy, actions = serve_all(claims, begin)
    joined = {action.slot for action in actions if isinstance(action, Join)}
    return result_of([slot for slot in slots if slot.name in joined], actions, greedy.opened)


def result_of(before: Sequence[SlotView], actions: Sequence[Action], opened: Mapping[str, SlotView]) -> AssignResult:
    """The actions, what they make of these slots and of new ones, and their numbers."""
    joined: dict[str, dict[str, str]] = {}
    counts = {Join: 0, Open: 0, Fail: 0}
    for action in actions:
        counts[type(action)] += 1
        if isinstance(action, Join):
            joined.setdefault(action.slot, {})[action.vm] = action.vm_host
        elif isinstance(action, Open):
            joined.setdefault(action.slot_key, {})[action.vm] = action.vm_host
    after = [
        msgspec.structs.replace(slot, members={**slot.members, **more}) if (more := joined.get(slot.name)) else slot
        for slot in [*before, *opened.values()]
    ]
    return AssignResult(
        actions=tuple(actions),
        slots=tuple(after),
        reused=counts[Join],
        created=counts[Open],
        failed=counts[Fail],
    )

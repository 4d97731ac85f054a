"""Is a packed plan what it claims to be? Looked at from scratch, with none of what made it.

Whoever packs is clever and may be wrong; this is plain. Every rule, what is kept apart, sizes, offers and room are
judged on views, and nobody may have fewer memberships than in the plan that it improves on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from outlive.failover.eligibility.check import CheckInput, check
from outlive.failover.eligibility.rules import serves
from outlive.failover.model import SlotView
from outlive.failover.planning.actions import Fail, Join, Offer, Open
from outlive.failover.planning.packing.outcome import Outcome
from outlive.failover.planning.packing.problem import Ground


def is_sound(
    made: Outcome, before: Sequence[SlotView], promised: Mapping[str, int], required: Mapping[str, int], ground: Ground
) -> bool:
    """Whether everything holds, and each VM has as many memberships as ``promised``."""
    return (
        _keeps(made, before)
        and _serves(made, promised)
        and _allowed(made, ground)
        and _room(made, ground)
        and check(
            CheckInput(
                vms=tuple(ground.vms.values()), slots=made.slots, required=dict(required), topology=ground.topology
            )
        ).holds
    )


def _keeps(made: Outcome, before: Sequence[SlotView]) -> bool:
    """Slots that were there are there with all that they had."""
    after = {slot.name: slot for slot in made.slots}
    return all(
        (now := after.get(slot.name)) is not None
        and (now.host, now.cpu_milli, now.memory_bytes) == (slot.host, slot.cpu_milli, slot.memory_bytes)
        and slot.members.items() <= now.members.items()
        for slot in before
    )


def _serves(made: Outcome, promised: Mapping[str, int]) -> bool:
    got = Counter(member for slot in made.slots for member in slot.members)
    told = Counter(action.vm for action in made.actions if not isinstance(action, Fail))
    return all(got[vm] >= count for vm, count in promised.items()) and told.total() <= got.total()


def _allowed(made: Outcome, ground: Ground) -> bool:
    """Each member is where placement offers it a place, in a slot that serves it."""
    reuse, new = _offered(ground.reuse), _offered(ground.new)
    slots = {slot.name: slot for slot in made.slots}
    for action in made.actions:
        if isinstance(action, Fail):
            continue
        offered = (new if isinstance(action, Open) else reuse).get(ground.classes.get(action.vm, ""), frozenset())
        slot = slots[action.slot if isinstance(action, Join) else action.slot_key]
        if action.host not in offered or slot.host != action.host:
            return False
        if not serves(ground.vms[action.vm], slot):
            return False
    return True


def _offered(offers: Mapping[str, Offer]) -> dict[str, frozenset[str]]:
    return {key: frozenset(() if offer.error else offer.hosts) for key, offer in offers.items()}


def _room(made: Outcome, ground: Ground) -> bool:
    taken = Counter[tuple[str, int]]()
    for action in made.actions:
        if isinstance(action, Open):
            taken[action.host, 0] += action.cpu_milli
            taken[action.host, 1] += action.memory_bytes
    if not ground.free:
        return True
    return all(
        host in ground.free and amount <= ground.free[host][resource] for (host, resource), amount in taken.items()
    )

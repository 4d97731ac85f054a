"""What each level of protection costs before one is chosen: plans from nothing with one slot for every VM, two, three.

The plans disregard the slots that there are, and use the room that these hold. VMs that need no slots by the settings
need none here either.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.failover.planner.actions import Fail
from outlive.failover.planner.plan import PlanInput, plan, reserves
from outlive.failover.snapshot import Snapshot, plan_input

LEVELS: Final = (1, 2, 3)
"""Slots of every VM that are priced."""
AT_ONCE_VMS: Final = 1_000
"""Fleets of so many VMs are priced without being asked to: larger ones take longer than the plan itself."""


class LevelCost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What it costs to give every VM so many slots."""

    slots_each: int
    vms: int
    """VMs that need slots."""
    covered: int
    """Of these, the ones that get all of them on the hosts that there are."""
    slots: int
    cpu_milli: int
    memory_bytes: int


async def level_costs(snapshot: Snapshot) -> tuple[LevelCost, ...]:
    """The costs of ``LEVELS``; empty where nobody needs slots."""
    observation = snapshot.observation
    bare = msgspec.structs.replace(snapshot, observation=msgspec.structs.replace(observation, slots=()))
    given = await plan_input(bare, anew=True)
    free = dict(given.free)
    for slot in observation.slots:
        if slot.host in free:
            cpu, memory = free[slot.host]
            free[slot.host] = (cpu + slot.cpu_milli, memory + slot.memory_bytes)
    needing = [vm for vm in given.classes if snapshot.required.get(vm, 0) > 0]
    return tuple(_cost(msgspec.structs.replace(given, free=free), needing, each) for each in LEVELS if needing)


def _cost(given: PlanInput, needing: list[str], each: int) -> LevelCost:
    result = plan(msgspec.structs.replace(given, required=dict.fromkeys(needing, each)))
    short = {action.vm for action in result.actions if isinstance(action, Fail)}
    held = reserves(result.slots)
    return LevelCost(
        slots_each=each,
        vms=len(needing),
        covered=len(needing) - len(short),
        slots=held.slots,
        cpu_milli=held.cpu_milli,
        memory_bytes=held.memory_bytes,
    )

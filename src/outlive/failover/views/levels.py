"""The view of protection levels: who is protected, and what that takes."""

from __future__ import annotations

import msgspec

from outlive.failover.assurance.costs import CostInput, costs
from outlive.failover.assurance.coverage import CoverageInput, assess_state
from outlive.failover.portions import whole
from outlive.failover.views.scene import Scene
from outlive.failover.views.table import Table

COLUMNS = ("level", "priority", "vms", "required", "covered", "slots", "cpu", "memoryBytes", "memoryPerProtected")


def levels(scene: Scene) -> Table:
    """Per level, the highest priority first; over all hosts, whatever the filter, because slots are shared."""
    demands = scene.inventory.demands
    vms = tuple(
        msgspec.structs.replace(server, host=scene.host_of(vm))
        for vm, server in sorted(scene.servers.items())
        if vm in scene.sightings
    )
    demanded = whole(demands.among(vms))
    slots = tuple(scene.slots)
    told = assess_state(CoverageInput(vms=vms, required=demanded.required, slots=slots, topology=scene.topology))
    given = CostInput(
        vms=vms,
        required=demanded.required,
        slots=slots,
        levels=demanded.levels,
        priorities={name: level.priority for name, level in demands.protection.levels.items()},
        covered=tuple(vm for vm in demanded.required if told[vm].covered),
    )
    rows = [
        (
            one.level,
            one.priority,
            one.vms,
            one.required,
            one.covered,
            one.slots,
            one.cpu_milli / 1000,
            one.memory_bytes,
            None if one.per_protected_byte is None else round(one.per_protected_byte, 3),
        )
        for one in costs(given).levels
    ]
    return scene.table("levels", "Protection levels", COLUMNS, rows, needs_source=True)

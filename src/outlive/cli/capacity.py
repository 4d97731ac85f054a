"""``outlive capacity``: how many more VMs of a flavor fit with every promise kept, and what limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import count_of
from outlive.cli.access import Access
from outlive.cli.output import Output, make_table, show_progress
from outlive.cli.snapshot import Config, Slots, take_snapshot
from outlive.cli.whatif import vm_like

if TYPE_CHECKING:
    from outlive.failover.analysis.whatif import FlavorFit


async def capacity(
    access: Access,
    output: Output,
    flavor: Annotated[str, typer.Option("--flavor", help="VMs of this flavor.")] = "",
    cpu: Annotated[str, typer.Option("--cpu", help="Cores of each, such as 4 or 500m.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory of each, such as 16Gi.")] = "",
    zone: Annotated[str, typer.Option("--zone", help="Only in this zone.")] = "",
    project: Annotated[str, typer.Option("--project", help="Of this project, which may use its own commitments.")] = "",
    k: Slots = None,
    config: Config = None,
) -> None:
    """How many more VMs of a flavor fit with every promise kept: commitments, and slots for them and all others."""
    from outlive.cli.values import parse_amounts
    from outlive.failover.analysis.whatif import count_further_vms
    from outlive.placement import groups_by_flavor
    from outlive.resources import FlavorGroup
    from outlive.store import list_all

    size = parse_amounts(cpu, memory)
    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, k)
        like = await vm_like(gathered.vms, store, flavor, size, zone="", project=project)
        groups = None
        if gathered.settings.failover.use_flavor_group_resources:
            groups = groups_by_flavor([one.spec async for one in list_all(store, FlavorGroup)])
    with show_progress("counting"):
        found = await count_further_vms(gathered, like, groups=groups, limit_zone=zone)
    output.show(found, lambda: capacity_lines(found))


def capacity_lines(found: FlavorFit) -> list[Any]:
    """The number, what it includes, and a line for each zone."""
    what = f"of {found.flavor}" if found.flavor else "of this size"
    whose = f" for project {found.project}" if found.project else ""
    number = f"At least {found.vms:,} and at most {found.at_most:,} more VMs"
    if found.vms == found.at_most:
        number = f"{found.vms:,} more VMs" if found.vms != 1 else "1 more VM"
    lines: list[Any] = [f"{number} {what} fit{whose}, with every promise kept."]
    if found.slots_each:
        verb = "is" if found.slots_each == 1 else "are"
        lines.append(f"Each gets {count_of(found.slots_each, 'slot')}, which {verb} counted in.")
    if found.topped_up:
        lines.append(
            f"VMs that are there already have too few slots: a plan of {count_of(found.topped_up, 'step')} goes first "
            "(`outlive failover plan`)."
        )
    if not found.exact:
        lines.append("`outlive whatif add-vms --most` looks for a plan between both numbers.")
    counts = ("VMs", "At most", "New slots", "Hosts", "Without slots", "Commitments hold", "Slots hold")
    columns = ("Zone", *counts, "Limit")
    rows = []
    for one in found.zones:
        limit = f"{one.limit.value}: {one.detail}" if one.detail else one.limit.value
        held = (one.held_by_commitments, one.held_by_failover)
        rows.append((one.zone or "-", one.vms, one.at_most, one.new_slots, one.hosts, one.without_slots, *held, limit))
    return [*lines, "", make_table(columns, rows, numbers=counts)]

"""What ``outlive failover coverage`` says about protection levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlive.failover.analysis.costs import CostResult
    from outlive.failover.analysis.levels import LevelCost


def level_costs_lines(costs: Sequence[LevelCost], vms: int) -> list[Any]:
    """What one slot for every VM costs, two, three; how to find out where the fleet is too large to say so unasked."""
    from outlive.cli.output import table

    if not costs:
        hint = "what one, two or three slots for every VM cost: outlive failover plan --levels"
        return ["", hint] if vms else []
    rows = [
        (
            one.slots_each,
            f"{one.covered} of {one.vms}",
            one.slots,
            f"{one.cpu_milli / 1000:,.0f}",
            f"{one.memory_bytes / 2**30:,.0f}",
        )
        for one in costs
    ]
    columns = ("Slots of every VM", "VMs covered", "Slots in all", "Cores", "GiB")
    return ["", "What each level costs, planned from nothing:", table(columns, rows, numbers=columns)]


NO_LEVEL = "(none)"
"""How a table names VMs without a level."""
UNKNOWN_SHOWN = 5
"""Unknown levels that are named."""


def levels_document(result: CostResult) -> list[dict[str, Any]]:
    """The member ``levels`` for programs, highest priority first."""
    return [
        {
            "level": one.level,
            "priority": one.priority,
            "vms": one.vms,
            "required": one.required,
            "covered": one.covered,
            "tolerance": one.tolerance,
            "slots": one.slots,
            "cpuMilli": one.cpu_milli,
            "memoryBytes": one.memory_bytes,
        }
        for one in result.levels
    ]


def levels_lines(result: CostResult, unknown: Mapping[str, str], *, wide: bool) -> list[Any]:
    """The same for people: where there are levels, or in the wide form, which has flavors as well.

    ``unknown``: VM → the level that it names and that there is not.
    """
    from outlive.cli.output import table

    lines: list[Any] = []
    if wide or any(one.level for one in result.levels):
        columns = ("Level", "Priority", "VMs", "Need slots", "Covered", "Tolerance", "Slots", *_SHARE)
        lines += ["", table(columns, [_level(one) for one in result.levels])]
    if unknown:
        names = ", ".join(sorted(set(unknown.values()))[:UNKNOWN_SHOWN])
        lines.append(f"{len(unknown)} VMs name a level that there is not ({names}); they count as naming none")
    if wide:
        rows = [(one.flavor, one.vms, one.required, one.covered, one.slots, *_share(one)) for one in result.flavors]
        lines += ["", table(("Flavor", "VMs", "Need slots", "Covered", "Slots", *_SHARE), rows)]
    return lines


_SHARE = ("Cores", "GiB", "GiB per protected GiB")


def _level(one: Any) -> tuple[Any, ...]:
    tolerance = "" if one.tolerance is None else one.tolerance
    figures = (one.vms, one.required, one.covered, tolerance, one.slots)
    return (one.level or NO_LEVEL, one.priority, *figures, *_share(one))


def _share(one: Any) -> tuple[str, str, str]:
    each = "" if one.per_protected_byte is None else f"{one.per_protected_byte:.2f}"
    return f"{one.cpu_milli / 1000:,.1f}", f"{one.memory_bytes / 2**30:,.1f}", each

"""How coverage reads: the members that programs rely on, the same for people, and what levels of protection cost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from outlive.base import join_parts
from outlive.cli.output import cut_table, make_table
from outlive.cli.values import gib_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlive.cli.vm_names import VmColumns
    from outlive.failover.analysis import Bound, CostResult, CoverageResult, PlanCost, Reserved

UNCOVERED_SHOWN = 10
"""VMs without their slots that are named in a table; JSON names all."""
NAMED = 5
"""VMs out of protection that a line names."""


def coverage_document(result: CoverageResult) -> dict[str, Any]:
    """The members that programs rely on (docs/reference/cli.md#failover-coverage)."""
    return {
        "vms": result.vms,
        "required": result.required,
        "covered": result.covered,
        "uncovered": [{"vm": one.vm, "reason": one.reason, "remedy": one.remedy} for one in result.uncovered],
        "slots": result.slots,
        "reserved": {"cpuMilli": result.reserved.cpu_milli, "memoryBytes": result.reserved.memory_bytes},
        "bound": {
            "slots": result.bound.slots,
            "gap": result.bound.gap,
            "cpuMilli": result.bound.cpu_milli,
            "cpuGapMilli": result.reserved.cpu_milli - result.bound.cpu_milli,
            "memoryBytes": result.bound.memory_bytes,
            "memoryGapBytes": result.reserved.memory_bytes - result.bound.memory_bytes,
        },
        "tolerance": result.tolerance,
    }


def coverage_lines(result: CoverageResult, named: VmColumns, *, wide: bool = False, unit: str = "host") -> list[Any]:
    """The same for people; the wide form names every VM, and says why in full. ``unit``: what tolerance counts."""
    from outlive.failover.analysis import tolerance_sentence

    reasons = Counter(one.reason for one in result.uncovered)
    rows = [
        ("VMs", result.vms),
        ("need slots", result.required),
        ("covered", f"{result.covered}{'' if result.covered == result.required else ' (not all)'}"),
        *((f"  {one}", f"{count} VMs") for one, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        ("slots", f"{result.slots} (any plan needs at least {result.bound.slots})"),
        ("reserved", f"{_format_amounts(result.reserved)} (at least {_format_amounts(result.bound)})"),
        ("tolerance", tolerance_sentence(result.tolerance, unit, required=result.required)),
        *(
            [("out of protection", join_parts([named.display_name(vm) for vm in result.unprotected], most=NAMED))]
            if result.unprotected
            else []
        ),
        *((f"also need {name}", f"{count} VMs; no slot holds it") for name, count in result.also_needs.items()),
    ]
    columns = (*named.column_titles(), "Reason", *(("Why",) if wide else ()), "Remedy")
    uncovered = [
        (
            *named.name_cells(one.vm),
            one.reason,
            *(named.replace_ids(text, one.vm) for text in (*((one.message,) if wide else ()), one.remedy)),
        )
        for one in result.uncovered
    ]
    return [make_table(("", ""), rows), *cut_table(columns, uncovered, None if wide else UNCOVERED_SHOWN, advice=True)]


def _format_amounts(of: Reserved | Bound) -> str:
    return f"{of.cpu_milli / 1000:,.0f} cores, {gib_text(of.memory_bytes / 2**30)} GiB"


# Costs.


def level_costs_lines(costs: Sequence[PlanCost], vms: int) -> list[Any]:
    """What one slot for every VM costs, two, three; how to find out where the fleet is too large to say so unasked."""
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
    return ["", "What each level costs, planned from nothing:", make_table(columns, rows, numbers=columns)]


NO_LEVEL = "(none)"
"""How a table names VMs without a level."""
UNKNOWN_SHOWN = 5
"""Unknown levels that are named."""


def levels_lines(result: CostResult, unknown: Mapping[str, str], *, wide: bool) -> list[Any]:
    """The same for people: where there are levels, or in the wide form, which has flavors as well.

    ``unknown``: VM → the level that it names and that there is not.
    """
    lines: list[Any] = []
    if wide or any(one.level for one in result.levels):
        columns = ("Level", "Priority", "VMs", "Need slots", "Covered", "Tolerance", "Slots", *_SHARE)
        shown = []
        for one in result.levels:
            tolerance = "" if one.tolerance is None else one.tolerance
            figures = (one.vms, one.required, one.covered, tolerance, one.slots)
            shown.append((one.level or NO_LEVEL, one.priority, *figures, *_share_cells(one)))
        lines += ["", make_table(columns, shown)]
    if unknown:
        names = ", ".join(sorted(set(unknown.values()))[:UNKNOWN_SHOWN])
        lines.append(f"{len(unknown)} VMs name a level that there is not ({names}); they count as naming none")
    if wide:
        rows = [
            (one.flavor, one.vms, one.required, one.covered, one.slots, *_share_cells(one)) for one in result.flavors
        ]
        lines += ["", make_table(("Flavor", "VMs", "Need slots", "Covered", "Slots", *_SHARE), rows)]
    return lines


_SHARE = ("Cores", "GiB", "GiB per protected GiB")


def _share_cells(one: Any) -> tuple[str, str, str]:
    each = "" if one.per_protected_byte is None else f"{one.per_protected_byte:.2f}"
    return f"{one.cpu_milli / 1000:,.1f}", f"{one.memory_bytes / 2**30:,.1f}", each

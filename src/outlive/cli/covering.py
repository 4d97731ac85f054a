"""How coverage reads: the members that programs rely on, and the same for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlive.failover.analysis.coverage import Bound, CoverageResult, Reserved

UNCOVERED_SHOWN = 10
"""VMs without their slots that are named in a table; JSON names all."""


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


def coverage_lines(result: CoverageResult, *, wide: bool = False, unit: str = "host") -> list[Any]:
    """The same for people; the wide form names every VM, and says why in full. ``unit``: what tolerance counts."""
    from outlive.cli.output import and_more, table
    from outlive.failover.analysis.questions import tolerance_sentence

    rows = [
        ("VMs", result.vms),
        ("need slots", result.required),
        ("covered", f"{result.covered}{'' if result.covered == result.required else ' (not all)'}"),
        *((f"  {reason}", f"{count} VMs") for reason, count in _reasons(result).items()),
        ("slots", f"{result.slots} (any plan needs at least {result.bound.slots})"),
        ("reserved", f"{_amounts(result.reserved)} (at least {_amounts(result.bound)})"),
        ("tolerance", tolerance_sentence(result.tolerance, unit, required=result.required)),
        *((f"also need {name}", f"{count} VMs; no slot holds it") for name, count in result.also_needs.items()),
    ]
    lines: list[Any] = [table(("", ""), rows)]
    if not result.uncovered:
        return lines
    shown = result.uncovered if wide else result.uncovered[:UNCOVERED_SHOWN]
    columns = ("VM", "Reason", *(("Why",) if wide else ()), "Remedy")
    lines.append("")
    lines.append(table(columns, [(one.vm, one.reason, *((one.message,) if wide else ()), one.remedy) for one in shown]))
    return [*lines, *and_more(len(result.uncovered), len(shown))]


def _amounts(of: Reserved | Bound) -> str:
    return f"{of.cpu_milli / 1000:,.0f} cores, {of.memory_bytes / 2**30:,.0f} GiB"


def _reasons(result: CoverageResult) -> dict[str, int]:
    """Reason → VMs without their slots, most first."""
    counts: dict[str, int] = {}
    for one in result.uncovered:
        counts[one.reason] = counts.get(one.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

"""``outlive failover``: who is covered, what a plan would do, whether all allocations hold, and views of all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base.errors import ExitCode
from outlive.cli.access import Access
from outlive.cli.certifying import certify, verify
from outlive.cli.commands import command, group
from outlive.cli.explaining import explain
from outlive.cli.output import Output
from outlive.cli.planning import make_plan
from outlive.cli.progress import progress
from outlive.cli.surviving import tolerance
from outlive.cli.viewing import views

if TYPE_CHECKING:
    from outlive.failover.assurance.coverage import Bound, CoverageResult, Reserved
    from outlive.roles.planning import Gathered
    from outlive.store import Store

app = group("Coverage, plans, checks and views of failover reservations.")

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of those of the server.")
]
Slots = Annotated[
    int | None, typer.Option("-k", "--slots", min=0, max=16, help="Slots that every VM needs, instead of the settings.")
]
UNCOVERED_SHOWN = 10
"""VMs without their slots that are named in a table; JSON names all."""


@command(app, "coverage")
async def coverage(
    access: Access,
    output: Output,
    k: Slots = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report to look at.")] = None,
    config: Config = None,
) -> ExitCode | None:
    """Which VMs have the slots that they need; exit code 1 if any has not."""
    from outlive.cli.costing import levels_document, levels_lines
    from outlive.cli.picturing import check_picture, picture_coverage
    from outlive.roles.costing import costs_of
    from outlive.roles.planning import coverage_of, refusals

    check_picture(html)
    async with access.open() as store:
        gathered = await look(access, store, config, k)
        with progress("planning"):
            result = coverage_of(gathered, gathered.observation.slots, await refusals(gathered))
            costs = costs_of(gathered, result)
    unit = gathered.settings.topology_choice.unit
    document = {**coverage_document(result), "levels": levels_document(costs)}

    def lines() -> list[Any]:
        levels = levels_lines(costs, gathered.unknown_levels, wide=output.wide)
        return [*coverage_lines(result, wide=output.wide, unit=unit), *levels]

    output.show(document, lines)
    if html is not None:
        picture_coverage(html, access, gathered, result)
    return None if result.covered == result.required else ExitCode.NO


@command(app, "check")
async def check(access: Access, output: Output, config: Config = None) -> ExitCode | None:
    """Verify every allocation from scratch, by all rules and as far apart as asked; exit code 1 if any is wrong."""
    from outlive.cli.output import table
    from outlive.failover.eligibility.check import CheckInput
    from outlive.failover.eligibility.check import check as verify

    async with access.open() as store:
        gathered = await look(access, store, config, None)
    observation = gathered.observation
    result = verify(
        CheckInput(
            vms=observation.vms,
            slots=observation.slots,
            required=gathered.required,
            topology=gathered.topology,
            compat=gathered.settings.compat,
        )
    )

    def lines() -> list[Any]:
        word = "all hold" if result.holds else f"{len(result.violations)} faults"
        rows = [(one.fault, one.vm, ", ".join(one.slots), one.message) for one in result.violations]
        head = f"{result.allocations} allocations in {result.slots} slots: {word}"
        return [head, *([table(("Fault", "VM", "Slots", "What"), rows)] if rows else [])]

    output.show(result, lines)
    return None if result.holds else ExitCode.NO


command(app, "plan")(make_plan)
command(app, "views")(views)
command(app, "explain")(explain)
command(app, "tolerance")(tolerance)
command(app, "certify")(certify)
command(app, "verify")(verify)


async def look(access: Access, store: Store, config: Path | None, k: int | None) -> Gathered:
    """Everything that answers are made from, by the settings in force for this store."""
    from outlive.cli.settings import config_file, settings_for
    from outlive.failover.keeping.observe import StoreVMs
    from outlive.roles.planning import gather

    file = config_file(config, access.directory) if access.state is None or config is not None else None
    settings = await settings_for(store, file)
    with progress("reading the cluster"):
        if settings.upkeep.vm_source == "resources":
            return await gather(store, StoreVMs(store, access.clock), settings, k=k)
        from outlive.drivers.nova_database import DBVMSource

        source = DBVMSource(settings.database_address, timeout_s=settings.upkeep.database_timeout_s)
        try:
            return await gather(store, source, settings, k=k)
        finally:
            await source.close()


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
    from outlive.failover.pictures.wording import tolerance_sentence

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

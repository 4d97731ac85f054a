"""``outlive failover``: who is covered, what a plan would do, whether all allocations hold, and views of all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outlive.base.errors import ExitCode
from outlive.cli.access import Access
from outlive.cli.certificate import certify, verify
from outlive.cli.commands import command, group
from outlive.cli.coverage import coverage_document, coverage_lines, levels_lines
from outlive.cli.explain import explain
from outlive.cli.output import Output, progress, table
from outlive.cli.plan import make_plan
from outlive.cli.snapshot import Config, Slots, check_picture, look, picture_coverage
from outlive.cli.survive import tolerance
from outlive.cli.views import views

app = group("Coverage, plans, checks and views of failover reservations.")


@command(app, "coverage")
async def coverage(
    access: Access,
    output: Output,
    k: Slots = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report to look at.")] = None,
    config: Config = None,
) -> ExitCode | None:
    """Which VMs have the slots that they need; exit code 1 if any has not."""
    from outlive.failover.analysis.costs import costs_of
    from outlive.failover.snapshot import coverage_of, refusals

    check_picture(html)
    async with access.open() as store:
        gathered = await look(access, store, config, k)
        with progress("planning"):
            result = coverage_of(gathered, gathered.observation.slots, await refusals(gathered))
            costs = costs_of(gathered, result)
    unit = gathered.settings.topology_choice.unit
    document = {**coverage_document(result), "levels": costs.levels}

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
    from outlive.failover.check import CheckInput
    from outlive.failover.check import check as verify

    async with access.open() as store:
        gathered = await look(access, store, config, None)
    observation = gathered.observation
    result = verify(
        CheckInput(
            vms=observation.vms,
            slots=observation.slots,
            required=gathered.required,
            topology=gathered.topology,
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

"""``outlive failover``: who is covered, and why not; what a plan would do; whether all allocations hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import ExitCode, Usage, as_datetime, count_of
from outlive.cli.access import Access
from outlive.cli.arguments import MaybeVm
from outlive.cli.certificate import certify, verify
from outlive.cli.commands import command, make_group
from outlive.cli.coverage import coverage_document, coverage_lines, levels_lines
from outlive.cli.liveness import read_liveness
from outlive.cli.output import Form, Output, cut_table, make_table, show_progress
from outlive.cli.plan import make_plan
from outlive.cli.snapshot import Config, Slots, take_snapshot
from outlive.cli.status import read_coverage_view
from outlive.cli.survive import show_tolerance
from outlive.cli.views import views
from outlive.cli.vm_names import VmColumns, vm_columns, vm_names
from outlive.drivers import check_output, write_output
from outlive.store import choose_named

if TYPE_CHECKING:
    from outlive.failover.analysis.explain import CoverageExplanation, FleetExplanation

SHOWN = 20
"""Hosts, and slots, that a table of ``explain`` names; wide and JSON name all."""

app = make_group("Coverage, plans, checks and views of failover reservations.")


@command(app, "coverage")
async def show_coverage(
    access: Access,
    output: Output,
    k: Slots = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report to look at.")] = None,
    config: Config = None,
) -> ExitCode | None:
    """Show which VMs have the slots that they need; exit code 1 if any has not."""
    from outlive.failover import coverage_of, find_refusals
    from outlive.failover.analysis import costs_of

    check_output(html)
    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, k)
        with show_progress("planning"):
            result = coverage_of(gathered, gathered.observation.slots, await find_refusals(gathered))
            costs = costs_of(gathered, result)
        view = await read_coverage_view(store, await read_liveness(store, access))
    unit, named = gathered.settings.topology_choice.unit, vm_columns(gathered.vms)
    by = {str(one): count for one, count in view.by.items() if count}
    document = {**coverage_document(result), "by": by, "notHeard": sorted(view.doubtful), "levels": costs.levels}

    def render_lines() -> list[Any]:
        lines = coverage_lines(result, named, wide=output.wide, unit=unit)
        if view.describe():
            lines.append(f"covered by what: {view.describe()}")
        if view.doubtful:
            doubt = count_of(len(view.doubtful), "VM")
            lines.append(f"not counted there: {doubt} whose host, or that of a slot, is not heard of")
        return [*lines, *levels_lines(costs, gathered.unknown_levels, wide=output.wide)]

    output.show(document, render_lines)
    if html is not None:
        from outlive.failover.report.html import coverage_picture

        when = as_datetime(access.clock.now())
        write_output(html, coverage_picture(gathered, result, source=access.source, when=when))
    return None if result.covered == result.required else ExitCode.NO


@command(app, "check")
async def check(access: Access, output: Output, config: Config = None) -> ExitCode | None:
    """Verify every allocation from scratch, by all rules and as far apart as asked; exit code 1 if any is wrong."""
    from outlive.failover import CheckInput
    from outlive.failover.check import check as verify

    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, None)
    observation = gathered.observation
    result = verify(
        CheckInput(
            vms=observation.vms,
            slots=observation.slots,
            required=gathered.required,
            topology=gathered.topology,
        )
    )

    def render_lines() -> list[Any]:
        word = "all hold" if result.holds else f"{len(result.violations)} faults"
        named = vm_columns(gathered.vms)
        rows = [
            (one.fault, *named.name_cells(one.vm), ", ".join(one.slots), named.replace_ids(one.message, one.vm))
            for one in result.violations
        ]
        head = f"{result.allocations} allocations in {result.slots} slots: {word}"
        helps = [f"What helps: {one}" for one in dict.fromkeys(one.remedy for one in result.violations) if one]
        return [
            head,
            *([make_table(("Fault", *named.column_titles(), "Slots", "What"), rows, advice=True)] if rows else []),
            *helps,
        ]

    output.show(result, render_lines)
    return None if result.holds else ExitCode.NO


async def explain(
    access: Access,
    output: Output,
    vm: MaybeVm = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="All VMs without their slots, grouped by what helps.")] = False,
    k: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Explain why a VM has no slot, and what would help; exit code 0 if it is covered, 1 if not."""
    from outlive.failover.analysis.explain import adopt_whole_remedy, explain_fleet, explainer_of
    from outlive.failover.analysis.whatif import from_snapshot, whole_remedy

    if (vm is None) == (not fleet):
        raise Usage("which VM?", remedy="name one VM, or give --fleet for all")
    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, k)
        now = await from_snapshot(store, gathered, k=k) if fleet else None
    explainer = explainer_of(gathered, now=access.clock.now())
    if now is not None:
        with show_progress("looking for what helps"):
            groups = explain_fleet(explainer)
            if groups.needs_hosts:
                zones = {one.id: one.zone for one in gathered.vms}
                groups = adopt_whole_remedy(groups, await whole_remedy(now), zones=zones, hosts=now.hosts.keys())
        output.show(groups, lambda: fleet_lines(groups, vm_columns(gathered.vms), wide=output.wide))
        return None if groups.covered == groups.required else ExitCode.NO
    assert vm is not None, "either a VM or the fleet is asked about"
    one = choose_named(vm_names(gathered.vms), vm, "VM", remedy="see outlive vm list")
    explanation = explainer.explain(one.id, shown=SHOWN if output.form is Form.TABLE else None)
    named = vm_columns(gathered.vms)
    output.show(
        explanation,
        lambda: [*([one.text] if one.name not in ("", one.id) else []), *vm_lines(explanation, named, one.id)],
    )
    return None if explanation.covered else ExitCode.NO


def vm_lines(explanation: CoverageExplanation, names: VmColumns, vm: str) -> list[Any]:
    """The answer for people: what it is, why, what helps, and then the details."""

    def replace_ids(text: str) -> str:
        return names.replace_ids(text, vm)

    lines: list[Any] = [_format_sentence(replace_ids(explanation.text))]
    promises = [(one.slot, one.host, one.counts, replace_ids(one.text)) for one in explanation.promises]
    lines += cut_table(("Slot", "Host", "Counts", "What it is worth"), promises, advice=True)
    if explanation.covered:
        return lines
    lines += ["", *(_format_sentence(replace_ids(text)) for text in explanation.summary)]
    if explanation.remedy is not None:
        lines += ["", f"What helps: {replace_ids(explanation.remedy.text)}."]
    if explanation.otherwise is not None:
        lines.append(f"Or: {replace_ids(explanation.otherwise.text)}.")
    hosts = [(one.host, one.reason, replace_ids(one.message)) for one in explanation.hosts]
    slots = [(one.slot, one.host, one.reason, replace_ids(one.message)) for one in explanation.slots]
    refused, unfit = (
        sum(one.count for one in tallies) for tallies in (explanation.host_tallies, explanation.slot_tallies)
    )
    return [
        *lines,
        *cut_table(("Host", "Reason", "Why no new slot"), hosts, total=refused, noun="hosts", advice=True),
        *cut_table(("Slot", "Host", "Reason", "Why not"), slots, total=unfit, noun="slots", advice=True),
    ]


def fleet_lines(explanation: FleetExplanation, named: VmColumns, *, wide: bool) -> list[Any]:
    """All groups for people, the largest first."""
    lines: list[Any] = [_format_sentence(explanation.text)]
    rows = []
    for one in explanation.groups:
        names = one.vms if wide else one.vms[:3]
        more = one.count - len(names)
        which = ", ".join(map(named.display_name, names)) + (f" and {more:,} more" if more > 0 else "")
        rows.append((one.count, one.reason, one.who, which, named.replace_ids(one.text)))
    if explanation.everybody:
        lines.append(_format_sentence(named.replace_ids(explanation.everybody)))
    titles = ("VMs", "Reason", "Need", "Which", "What helps")
    return [*lines, *cut_table(titles, rows, numbers=("VMs",), advice=True)]


def _format_sentence(text: str) -> str:
    """With a capital, unless it begins with the name of a VM, and with a full stop."""
    begins = text.startswith(("of ", "there ", "all ", "no ", "a plan ", "with "))
    return f"{text[0].upper()}{text[1:]}." if begins else f"{text}."


command(app, "plan")(make_plan)
command(app, "views")(views)
command(app, "explain")(explain)
command(app, "tolerance")(show_tolerance)
command(app, "certify")(certify)
command(app, "verify")(verify)

"""``outlive failover``: who is covered, and why not; what a plan would do; whether all allocations hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base.clock import as_datetime
from outlive.base.errors import ExitCode, Usage
from outlive.base.phrases import count_of
from outlive.cli.access import Access
from outlive.cli.arguments import MaybeVm
from outlive.cli.certificate import certify, verify
from outlive.cli.commands import command, group
from outlive.cli.coverage import coverage_document, coverage_lines, levels_lines
from outlive.cli.liveness import read_liveness
from outlive.cli.output import Form, Output, cut_table, progress, table
from outlive.cli.plan import make_plan
from outlive.cli.snapshot import Config, Slots, look
from outlive.cli.status import read_coverage_view
from outlive.cli.survive import tolerance
from outlive.cli.views import views
from outlive.cli.vm_names import VmColumns, vm_columns, vm_names
from outlive.drivers.files import check_output, write_output
from outlive.store.naming import choose

if TYPE_CHECKING:
    from outlive.failover.analysis.explain.fleet import FleetExplanation
    from outlive.failover.analysis.explain.model import Explanation
    from outlive.recovery.cluster_health import CoverageView

SHOWN = 20
"""Hosts, and slots, that a table of ``explain`` names; wide and JSON name all."""

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

    check_output(html)
    async with access.open() as store:
        gathered = await look(access, store, config, k)
        with progress("planning"):
            result = coverage_of(gathered, gathered.observation.slots, await refusals(gathered))
            costs = costs_of(gathered, result)
        view = await read_coverage_view(store, await read_liveness(store, access))
    unit, named = gathered.settings.topology_choice.unit, vm_columns(gathered.vms)
    by = {str(one): count for one, count in view.by.items() if count}
    document = {**coverage_document(result), "by": by, "notHeard": sorted(view.doubtful), "levels": costs.levels}

    def lines() -> list[Any]:
        levels = levels_lines(costs, gathered.unknown_levels, wide=output.wide)
        return [*coverage_lines(result, named, wide=output.wide, unit=unit), *_view_lines(view), *levels]

    output.show(document, lines)
    if html is not None:
        from outlive.failover.report.html.coverage import coverage_picture

        when = as_datetime(access.clock.now())
        write_output(html, coverage_picture(gathered, result, source=access.source, when=when))
    return None if result.covered == result.required else ExitCode.NO


def _view_lines(view: CoverageView) -> list[str]:
    """By what covered VMs are covered, and whose hosts nobody hears of."""
    doubt = count_of(len(view.doubtful), "VM")
    lines = [f"covered by what: {view.sentence()}"] if view.sentence() else []
    if view.doubtful:
        lines.append(f"not counted there: {doubt} whose host, or that of a slot, is not heard of")
    return lines


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
        named = vm_columns(gathered.vms)
        rows = [
            (one.fault, *named.cells(one.vm), ", ".join(one.slots), named.sentence(one.message, one.vm))
            for one in result.violations
        ]
        head = f"{result.allocations} allocations in {result.slots} slots: {word}"
        helps = [f"What helps: {one}" for one in dict.fromkeys(one.remedy for one in result.violations) if one]
        return [
            head,
            *([table(("Fault", *named.titles(), "Slots", "What"), rows, advice=True)] if rows else []),
            *helps,
        ]

    output.show(result, lines)
    return None if result.holds else ExitCode.NO


async def explain(
    access: Access,
    output: Output,
    vm: MaybeVm = None,
    fleet: Annotated[bool, typer.Option("--fleet", help="All VMs without their slots, grouped by what helps.")] = False,
    k: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Why a VM has no slot, and what would help; exit code 0 if it is covered, 1 if not."""
    from outlive.failover.analysis.explain.fleet import agreed, explain_fleet
    from outlive.failover.analysis.explain.placement import explainer_of
    from outlive.failover.analysis.whatif.altered import as_it_is
    from outlive.failover.analysis.whatif.questions import whole_remedy

    if (vm is None) == (not fleet):
        raise Usage("which VM?", remedy="name one VM, or give --fleet for all")
    async with access.open() as store:
        gathered = await look(access, store, config, k)
        now = await as_it_is(store, gathered, k=k) if fleet else None
    explainer = explainer_of(gathered, now=access.clock.now())
    if now is not None:
        with progress("looking for what helps"):
            groups = explain_fleet(explainer)
            if groups.needs_hosts:
                zones = {one.id: one.zone for one in gathered.vms}
                groups = agreed(groups, await whole_remedy(now), zones=zones, hosts=now.hosts.keys())
        output.show(groups, lambda: fleet_lines(groups, vm_columns(gathered.vms), wide=output.wide))
        return None if groups.covered == groups.required else ExitCode.NO
    assert vm is not None, "either a VM or the fleet is asked about"
    one = choose(vm_names(gathered.vms), vm, "VM", remedy="see outlive vm list")
    explanation = explainer.explain(one.id, shown=SHOWN if output.form is Form.TABLE else None)
    named = vm_columns(gathered.vms)
    output.show(
        explanation,
        lambda: [*([one.text] if one.name not in ("", one.id) else []), *vm_lines(explanation, named, one.id)],
    )
    return None if explanation.covered else ExitCode.NO


def vm_lines(explanation: Explanation, names: VmColumns, vm: str) -> list[Any]:
    """The answer for people: what it is, why, what helps, and then the details."""

    def named(text: str) -> str:
        return names.sentence(text, vm)

    lines: list[Any] = [_sentence(named(explanation.text))]
    promises = [(one.slot, one.host, one.counts, named(one.text)) for one in explanation.promises]
    lines += cut_table(("Slot", "Host", "Counts", "What it is worth"), promises, advice=True)
    if explanation.covered:
        return lines
    lines += ["", *(_sentence(named(text)) for text in explanation.summary)]
    if explanation.remedy is not None:
        lines += ["", f"What helps: {named(explanation.remedy.text)}."]
    if explanation.otherwise is not None:
        lines.append(f"Or: {named(explanation.otherwise.text)}.")
    hosts = [(one.host, one.reason, named(one.message)) for one in explanation.hosts]
    slots = [(one.slot, one.host, one.reason, named(one.message)) for one in explanation.slots]
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
    lines: list[Any] = [_sentence(explanation.text)]
    rows = []
    for one in explanation.groups:
        names = one.vms if wide else one.vms[:3]
        more = one.count - len(names)
        which = ", ".join(map(named.text, names)) + (f" and {more:,} more" if more > 0 else "")
        rows.append((one.count, one.reason, one.who, which, named.sentence(one.text)))
    if explanation.everybody:
        lines.append(_sentence(named.sentence(explanation.everybody)))
    titles = ("VMs", "Reason", "Need", "Which", "What helps")
    return [*lines, *cut_table(titles, rows, numbers=("VMs",), advice=True)]


def _sentence(text: str) -> str:
    """With a capital, unless it begins with the name of a VM, and with a full stop."""
    begins = text.startswith(("of ", "there ", "all ", "no ", "a plan ", "with "))
    return f"{text[0].upper()}{text[1:]}." if begins else f"{text}."


command(app, "plan")(make_plan)
command(app, "views")(views)
command(app, "explain")(explain)
command(app, "tolerance")(tolerance)
command(app, "certify")(certify)
command(app, "verify")(verify)

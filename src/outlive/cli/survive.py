"""``outlive survive`` and ``outlive failover tolerance``: what happens if these fail, and how many may."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import ExitCode, Usage, as_datetime
from outlive.cli.access import Access
from outlive.cli.arguments import MaybeHosts
from outlive.cli.output import Form, Output, cut_table, show_progress
from outlive.cli.snapshot import Config, Slots, take_snapshot
from outlive.cli.values import split_words
from outlive.cli.vm_names import VmColumns, vm_columns
from outlive.drivers import check_output, write_output

if TYPE_CHECKING:
    from outlive.failover.analysis import FailuresInput, FailuresResult, Question, ToleranceResult

SHOWN = 20
"""Lines of each table for people; the wide form shows more, JSON everything."""
SHOWN_WIDE = 1_000
"""The same with ``-o wide``."""
WEAKEST = 10
"""Weakest VMs that are shown with failures that are too many for them."""


async def survive(
    access: Access,
    output: Output,
    hosts: MaybeHosts = None,
    failures: Annotated[int | None, typer.Option("--failures", metavar="K", min=1, help="Any K units fail.")] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option("--domain", metavar="NAME[=VALUE]", help="This failure domain fails; without a value: any of it."),
    ] = None,
    enumerate_all: Annotated[bool, typer.Option("--enumerate", help="Evaluate every set of failures.")] = False,
    cases: Annotated[
        bool, typer.Option("--cases", help="One line of JSON for each case, with the slot of every VM.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report to look at.")] = None,
    slots: Slots = None,
    config: Config = None,
) -> ExitCode | None:
    """Check whether every VM that needs slots keeps one of its own when hosts fail; exit code 1 if any does not.

    These hosts, all at once; or --failures K, or --domain.
    """
    from outlive.failover.analysis import parse_question
    from outlive.failover.analysis import survival as assurance

    check_output(html)
    if cases and (html is not None or output.form not in (Form.TABLE, Form.JSON) or output.watching):
        raise Usage("--cases prints lines of JSON and nothing else", remedy="leave --html, --watch and -o out")
    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, slots)
    question = parse_question(
        gathered.observation.hosts,
        hosts=split_words(*hosts or ()),
        domains=split_words(*domain or ()),
        failures=failures,
        default_unit=gathered.settings.topology_choice.unit,
    )
    given = assurance.FailuresInput(
        vms=gathered.counted,
        required=gathered.required,
        slots=gathered.observation.slots,
        hosts=gathered.observation.hosts,
        units=question.units,
        priorities=gathered.priorities,
        cases=question.cases,
        failures=question.failures,
        enumerate=enumerate_all,
    )
    if cases:
        return _print_cases(output, given)
    with show_progress("looking at failures"):
        result = assurance.survive(given)
    named = vm_columns(gathered.vms)
    output.show(survive_document(result, question), lambda: survive_lines(result, question, named, wide=output.wide))
    if html is not None:
        from outlive.failover.report.html import survival_picture

        when = as_datetime(access.clock.now())
        write_output(html, survival_picture(gathered, question, given, result, source=access.source, when=when))
    return None if result.holds else ExitCode.NO


def _print_cases(output: Output, given: FailuresInput) -> ExitCode | None:
    """Each case as a line, as soon as it is known."""
    from outlive.failover.analysis import iter_cases

    holds = True
    for case, answer in iter_cases(given):
        holds = holds and not answer.lost
        line = {"case": case, "landing": answer.landing, "lost": answer.lost}
        output.print_text(msgspec.json.encode(line).decode())
    return None if holds else ExitCode.NO


def survive_document(result: FailuresResult, question: Question) -> dict[str, Any]:
    """The members that programs rely on (docs/reference/cli.md#survive-json)."""
    document: dict[str, Any] = msgspec.to_builtins(result)
    landing = document.pop("landing")
    return {**document, "unit": question.unit, **({"landing": landing} if landing is not None else {})}


def survive_lines(result: FailuresResult, question: Question, named: VmColumns, *, wide: bool) -> list[Any]:
    """The same for people."""
    from outlive.failover.analysis import lost_text, survive_sentences

    most = SHOWN_WIDE if wide else SHOWN
    worst = [(" ".join(one.case), one.lost, one.affected) for one in result.worst]
    lost = [
        (*named.name_cells(one.vm), one.host, " ".join(one.case), one.reason, named.replace_ids(lost_text(one), one.vm))
        for one in result.lost[:most]
    ]
    landing = [
        (*named.name_cells(one.vm), one.source, one.slot, one.host, one.contested) for one in result.landing or ()
    ]
    return [
        *map(named.replace_ids, survive_sentences(result, question)),
        *cut_table(("Worst cases", "Lost", "Affected"), worst, numbers=("Lost", "Affected")),
        *cut_table(
            (*named.column_titles("Lost VM"), "Host", "When these fail", "Reason", "What is left"),
            lost,
            total=result.lost_count,
        ),
        *cut_table((*named.column_titles("Landing VM"), "From", "Slot", "On", "Contested"), landing, most),
    ]


async def show_tolerance(
    access: Access,
    output: Output,
    by: Annotated[
        str, typer.Option("--by", metavar="UNIT", help="Units that fail: host, or a failure domain such as rack.")
    ] = "",
    slots: Slots = None,
    config: Config = None,
) -> None:
    """Show how many failures every VM survives: fleet, zones, and the weakest VMs first."""
    from outlive.failover.analysis import tolerance as assurance
    from outlive.failover.analysis import units_by

    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, slots)
    unit = by or gathered.settings.topology_choice.unit
    given = assurance.ToleranceInput(
        vms=gathered.counted,
        required=gathered.required,
        slots=gathered.observation.slots,
        units=units_by(gathered.observation.hosts, unit),
        weakest=SHOWN_WIDE if output.wide else WEAKEST,
    )
    with show_progress("judging every VM"):
        result = assurance.compute_tolerance(given)
    output.show(
        {"unit": unit, **msgspec.to_builtins(result)}, lambda: _tolerance_lines(result, unit, vm_columns(gathered.vms))
    )


def _tolerance_lines(result: ToleranceResult, unit: str, named: VmColumns) -> list[Any]:
    from outlive.failover.analysis import failures_text, tolerance_sentence

    lines: list[Any] = [tolerance_sentence(result.fleet, unit, required=len(result.vms))]
    if not result.vms:
        return lines
    counts = [(failures_text(int(level), unit), count) for level, count in result.counts.items()]
    lines += cut_table(("Survives", "VMs"), counts, numbers=("VMs",))
    if len(result.zones) > 1:
        zones = [(zone or "(none)", failures_text(level, unit)) for zone, level in result.zones.items()]
        lines += cut_table(("Zone", "Survives"), zones)
    rows = [
        (
            *named.name_cells(one.vm),
            one.host,
            one.zone,
            failures_text(one.tolerance, unit),
            one.slots,
            " ".join(one.case),
        )
        for one in result.weakest
    ]
    columns = (*named.column_titles("Weakest VM"), "Host", "Zone", "Survives", "Slots", "Does not survive")
    lines += cut_table(columns, rows, numbers=("Slots",))
    if result.understated:
        lines.append(f"{len(result.understated)} VMs have too many entangled slots to be judged exactly: at least that")
    return lines

"""The report of ``survive --html``: the answer, the case on the map, who is lost and where the others restart."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from outlive.failover.analysis.questions import (
    Question,
    any_units,
    count_vms,
    lost_text,
    render_case,
    render_whichever,
    survive_sentences,
    units_text,
)
from outlive.failover.analysis.survival import (
    CaseResult,
    Cases,
    FailuresInput,
    FailuresResult,
    LostReason,
    Method,
)
from outlive.failover.report.html.figures import (
    Bar,
    Card,
    FleetFigures,
    HtmlTable,
    Word,
    describe_memory,
    fleet_of,
    render,
)
from outlive.failover.report.html.heatmap import NO_CASE, CaseEffect, heat_map, hosts_table
from outlive.failover.snapshot import Snapshot, coverage_of

LOST_SHOWN = 200
"""Lost VMs that are listed; the count is of all."""
LANDING_SHOWN = 500
"""Restarts that are listed."""


class ShownCase(msgspec.Struct, frozen=True, kw_only=True):
    """The case on the map."""

    case: tuple[str, ...]
    hosts: frozenset[str]
    """The hosts of its units."""
    result: CaseResult


def survival_picture(
    gathered: Snapshot, question: Question, given: FailuresInput, result: FailuresResult, *, source: str, when: datetime
) -> bytes:
    """The report of a question about failures, with the case in question or the worst one shown."""
    uncovered = {one.vm: one.host for one in coverage_of(gathered, gathered.observation.slots).uncovered}
    fleet = fleet_of(gathered, uncovered, source=source, when=when, domain=question.unit)
    case = given.cases[0] if given.cases else result.worst[0].case if result.worst else None
    if case is None and result.lost:
        case = result.lost[0].case
    shown = None
    if case is not None:
        hosts = {host.name for host in given.hosts} | {vm.host for vm in given.vms}
        failed = frozenset(host for host in hosts if given.units.get(host, host) in case)
        shown = ShownCase(case=case, hosts=failed, result=Cases(given).examine(case))
    return survival_report(fleet, question, result, shown)


def survival_report(
    fleet: FleetFigures, question: Question, result: FailuresResult, shown: ShownCase | None = None
) -> bytes:
    """The document. ``shown``: the case in question, or the worst; none where nothing is lost in any."""
    verdict, *more = survive_sentences(result, question)
    effect = NO_CASE
    map_title = "Hosts"
    if shown is not None:
        effect = CaseEffect(failed=shown.hosts, landing=Counter(one.host for one in shown.result.landing))
        map_title = "The case" if question.cases else f"The worst case: {render_case(shown.case)}"
    what = render_case(question.cases[0]) if question.cases else any_units(result.failures, question.unit)
    verb = "fails" if (len(question.cases[0]) if question.cases else result.failures) == 1 else "fail"
    return render(
        "survival.html",
        fleet,
        title=f"What if {what} {verb}?",
        good=result.holds,
        verdict=verdict,
        more=" ".join(more),
        cards=_build_cards(result, question.unit, named=bool(question.cases)),
        map=heat_map(fleet, effect),
        map_title=map_title,
        map_about=_map_about(fleet, shown),
        worst=_worst_table(result),
        lost=_lost_table(result),
        landing=_landing_table(shown) if shown is not None else None,
        hosts=hosts_table(fleet, effect),
    )


def _map_about(fleet: FleetFigures, shown: ShownCase | None) -> str:
    words = [f"Memory of the fleet: {describe_memory(fleet.memory)}."]
    if shown is not None:
        result = shown.result
        contested = sum(one.contested for one in result.landing)
        lost = f"; {count_vms(len(result.lost))} have none" if result.lost else ""
        words.append(f"{count_vms(len(result.landing) - contested)} restart in slots of their own{lost}.")
        if contested:
            words.append(f"{count_vms(contested)} of these may take a slot that others have a claim to as well.")
    return " ".join(words)


def _build_cards(result: FailuresResult, unit: str, *, named: bool) -> list[Card]:
    cards = []
    if not named:
        fails = units_text(result.failures, unit)
        how = "every one was examined" if result.method is Method.ENUMERATION else "known without examining each"
        cards += [
            Card("Fail at once", fails, render_whichever(result.failures)),
            Card("Cases", f"{result.cases:,}", how),
        ]
    cards.append(Card("VMs go down", f"{result.affected:,}", "that need slots" if named else "in all cases together"))
    if result.method is not Method.TOLERANCE or result.holds:
        share = f"of {result.affected:,}" if result.affected else ""
        kept = f"{result.affected - result.lost_count:,}"
        cards.append(Card("Restart in a slot of their own", kept, share, "good" if result.holds else ""))
    where = "VMs" if named or result.holds else "VMs, in some case"
    lost = f"{result.lost_vms:,}"
    cards.append(Card("Without a slot of their own", lost, where, "bad" if result.lost_vms else "good"))
    if result.unprotected:
        cards.append(Card("Need no slots", f"{result.unprotected:,}", "not promised anything, not counted"))
    return cards


def _worst_table(result: FailuresResult) -> HtmlTable | None:
    rows = []
    for one in result.worst:
        share = one.lost / one.affected
        bar = Bar([("good-fill", 1 - share), ("bad-fill", share)], f"{one.lost} of {one.affected} VMs without a slot")
        rows.append((", ".join(one.case), f"{one.affected:,}", f"{one.lost:,}", bar))
    columns = ("These fail", "VMs go down", "Without a slot", "Share")
    numbers = ("VMs go down", "Without a slot")
    return HtmlTable("The cases that lose most VMs", columns, rows, numbers=numbers) if rows else None


def _lost_table(result: FailuresResult) -> HtmlTable | None:
    first = {one.vm: one for one in reversed(result.lost)}
    shown = [first[vm] for vm in sorted(first)][:LOST_SHOWN]
    rows = [
        (
            *(one.vm, one.host, render_case(one.case)),
            Word("warn" if one.reason is LostReason.CONTESTED else "bad", one.reason.value),
            *(f"{one.required}", lost_text(one)),
        )
        for one in shown
    ]
    note = (
        f"{len(shown):,} of {count_vms(result.lost_vms)}, each with one case." if len(shown) < result.lost_count else ""
    )
    columns = ("VM", "Host", "When these fail", "Reason", "Slots needed", "What is left")
    caption, prose = "VMs without a slot of their own", ("What is left",)
    return HtmlTable(caption, columns, rows, numbers=("Slots needed",), prose=prose, note=note) if rows else None


def _landing_table(shown: ShownCase) -> HtmlTable | None:
    listed = shown.result.landing
    rows = [
        (one.vm, one.source, one.host, one.slot, "contested" if one.contested else "its own")
        for one in listed[:LANDING_SHOWN]
    ]
    note = f"The first {LANDING_SHOWN:,} of {len(listed):,}." if len(listed) > LANDING_SHOWN else ""
    return HtmlTable("Restarts", ("VM", "From", "To", "Slot", "The slot is"), rows, note=note) if rows else None

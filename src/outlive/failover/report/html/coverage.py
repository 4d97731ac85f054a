"""The report of ``failover coverage --html``: who is covered, how much is survived, what it costs, where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from outlive.failover.analysis.coverage import CoverageResult
from outlive.failover.analysis.questions import (
    count_vms,
    failures_text,
    render_whichever,
    tolerance_sentence,
    units_text,
)
from outlive.failover.analysis.tolerance import ToleranceInput, ToleranceResult, compute_tolerance
from outlive.failover.report.html.figures import (
    Bar,
    Card,
    FleetFigures,
    HtmlTable,
    Share,
    describe_cpu,
    describe_memory,
    fleet_of,
    format_cores,
    format_gib,
    format_percent,
    format_times,
    render,
)
from outlive.failover.report.html.heatmap import heat_map, hosts_table
from outlive.failover.snapshot import Snapshot
from outlive.failover.topology import HOST_UNIT, TopologyChoice

UNCOVERED_SHOWN = 200
"""VMs without their slots that are listed; the count is of all."""


DOMAINS_JUDGED = 3
"""Failure domains for which tolerance is shown besides that of hosts."""


def coverage_picture(gathered: Snapshot, result: CoverageResult, *, source: str, when: datetime) -> bytes:
    """The report of a coverage."""
    unit = gathered.settings.topology_choice.unit
    views = gathered.observation.hosts
    domains = sorted({name for view in views for name in view.domains})[:DOMAINS_JUDGED]
    judged = {
        one: compute_tolerance(
            ToleranceInput(
                vms=gathered.counted,
                required=gathered.required,
                slots=gathered.observation.slots,
                units=TopologyChoice(unit=one).topology_of(views).units,
            )
        )
        for one in dict.fromkeys((unit, HOST_UNIT, *domains))
    }
    fleet = fleet_of(gathered, {one.vm: one.host for one in result.uncovered}, source=source, when=when)
    return coverage_report(fleet, result, unit, judged)


def coverage_report(
    fleet: FleetFigures, result: CoverageResult, unit: str, tolerances: Mapping[str, ToleranceResult]
) -> bytes:
    """The document. ``unit``: what ``result.tolerance`` counts; ``tolerances``: by hosts and failure
    domains.
    """
    good, verdict, more = _build_verdict(result, unit)
    return render(
        "coverage.html",
        fleet,
        title="Coverage",
        good=good,
        verdict=verdict,
        more=more,
        cards=_build_cards(result, tolerances),
        reasons=_reasons_table(result),
        totals=[
            ("Memory", describe_memory(fleet.memory), _build_bar(fleet.memory)),
            ("CPU", describe_cpu(fleet.cpu), _build_bar(fleet.cpu)),
        ],
        map=heat_map(fleet),
        tolerance=[_tolerance_table(one, unit) for unit, one in tolerances.items()],
        zones=_zones_table(tolerances),
        weakest=_weakest_table(tolerances[unit], unit),
        costs=_costs_table(result),
        missing=_missing_table(result),
        hosts=hosts_table(fleet),
    )


def _build_verdict(result: CoverageResult, unit: str) -> tuple[bool, str, str]:
    missing = result.required - result.covered
    sentence = tolerance_sentence(result.tolerance, unit, required=result.required)
    sentence = f"{sentence[0].upper()}{sentence[1:]}."
    if not result.required:
        return True, "No VM needs slots.", f"{count_vms(result.vms)} are known."
    if not missing:
        return True, f"All {result.required:,} VMs that need slots have them.", sentence
    return False, f"{missing:,} of {result.required:,} VMs that need slots do not have them.", sentence


def _build_cards(result: CoverageResult, tolerances: Mapping[str, ToleranceResult]) -> list[Card]:
    share = result.covered / result.required if result.required else 1.0
    covered = f"{result.covered:,} of {count_vms(result.required)} that need slots"
    cards = [
        Card("Covered", format_percent(share), covered, _card_kind(share == 1)),
        Card("VMs", f"{result.vms:,}", f"{result.vms - result.required:,} need no slots"),
    ]
    for unit, one in tolerances.items():
        remark = render_whichever(one.fleet) if one.fleet else f"not every {unit} failure is survived"
        cards.append(Card(f"Survives, by {unit}", units_text(one.fleet, unit), remark, _card_kind(one.fleet > 0)))
    held, least = result.reserved.memory_bytes, result.bound.memory_bytes
    slots = _compare_to_least(result.slots, result.bound.slots, f"{result.bound.slots:,}")
    return [
        *cards,
        Card("Slots", f"{result.slots:,}", slots),
        Card("Held memory", format_gib(held), _compare_to_least(held, least)),
    ]


def _compare_to_least(amount: int, least: int, text: str = "") -> str:
    known = amount and least
    return (
        f"{format_times(amount, least)} the least possible"
        if known
        else f"any plan needs {text or format_gib(least)} or more"
    )


def _card_kind(good: bool) -> str:
    return "good" if good else "bad"


def _build_bar(share: Share) -> Bar:
    parts = (("used", share.used), ("held", share.reserved), ("other", share.committed))
    return Bar([(kind, share.part_of(amount)) for kind, amount in parts], share.describe())


def _reasons_table(result: CoverageResult) -> HtmlTable | None:
    reasons = Counter(str(one.reason) for one in result.uncovered)
    rows = []
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        share = count / len(result.uncovered)
        rows.append((reason, f"{count:,}", Bar([("bad-fill", share)], f"{format_percent(share)} of those without")))
    return HtmlTable("Reasons", ("Reason", "VMs", "Share"), rows, numbers=("VMs",)) if rows else None


def _missing_table(result: CoverageResult) -> HtmlTable | None:
    shown = result.uncovered[:UNCOVERED_SHOWN]
    rows = [(one.vm, one.host, f"{one.present} of {one.required}", one.message, one.remedy) for one in shown]
    note = f"The first {len(shown):,} of {len(result.uncovered):,}." if len(shown) < len(result.uncovered) else ""
    columns, prose = ("VM", "Host", "Slots", "Why", "What to do"), ("Why", "What to do")
    return HtmlTable("VMs without their slots", columns, rows, prose=prose, note=note) if rows else None


def _tolerance_table(found: ToleranceResult, unit: str) -> HtmlTable:
    rows = []
    for level, count in found.counts.items():
        share = count / len(found.vms)
        drawn = Bar([("good-fill" if int(level) else "bad-fill", share)], f"{format_percent(share)} of the VMs")
        rows.append((failures_text(int(level), unit), f"{count:,}", drawn))
    return HtmlTable(f"By {unit}", ("Survives", "VMs", "Share"), rows, numbers=("VMs",))


def _zones_table(tolerances: Mapping[str, ToleranceResult]) -> HtmlTable | None:
    zones = sorted({zone for one in tolerances.values() for zone in one.zones})
    rows = [
        (zone or "(none)", *(failures_text(one.zones[zone], unit) for unit, one in tolerances.items()))
        for zone in zones
    ]
    columns = ("Zone", *(f"Survives, by {unit}" for unit in tolerances))
    return HtmlTable("The weakest VM of each zone", columns, rows) if len(zones) > 1 else None


def _weakest_table(result: ToleranceResult, unit: str) -> HtmlTable | None:
    rows = [
        (one.vm, one.host, one.zone, failures_text(one.tolerance, unit), str(one.slots), ", ".join(one.case))
        for one in result.weakest
    ]
    columns = ("VM", "Host", "Zone", "Survives", "Slots", "Does not survive")
    note = "The last column names the fewest failures that leave the VM without a slot of its own."
    prose = ("Does not survive",)
    return HtmlTable("Weakest first", columns, rows, numbers=("Slots",), prose=prose, note=note) if rows else None


def _costs_table(result: CoverageResult) -> HtmlTable | None:
    if not result.bound.slots:
        return None
    rows = []
    for name, amount, least, form in (
        ("Slots", result.slots, result.bound.slots, str),
        ("Memory", result.reserved.memory_bytes, result.bound.memory_bytes, format_gib),
        ("CPU", result.reserved.cpu_milli, result.bound.cpu_milli, format_cores),
    ):
        part = min(1.0, least / amount) if amount else 1.0
        text = f"{format_percent(part)} needed by any plan, {format_percent(1 - part)} beyond"
        bar = Bar([("used", part), ("held", 1 - part)], text)
        rows.append((name, form(amount), form(least), format_times(amount, least), bar))
    note = "No plan needs less than the least; whether one gets along with it is not known. Hatched: beyond the least."
    columns = ("Held", "Now", "Least possible", "Ratio", "Of what is held")
    numbers = ("Now", "Least possible", "Ratio")
    return HtmlTable("Slots against the lower bound", columns, rows, numbers=numbers, note=note)

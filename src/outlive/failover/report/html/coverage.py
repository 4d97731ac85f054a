"""The report of ``failover coverage --html``: who is covered, how much is survived, what it costs, where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from outlive.failover.analysis.coverage import CoverageResult
from outlive.failover.analysis.questions import failures_text, tolerance_sentence, units_text, vms, whichever
from outlive.failover.analysis.tolerance import ToleranceInput, ToleranceResult, tolerance
from outlive.failover.report.html.figures import (
    FleetFigures,
    Share,
    cores,
    fleet_of,
    gib,
    of_cpu,
    of_memory,
    percent,
    times,
)
from outlive.failover.report.html.heatmap import heat_map, hosts_table
from outlive.failover.report.html.page import Bar, Card, Table, render
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
        one: tolerance(
            ToleranceInput(
                vms=gathered.counted,
                required=gathered.required,
                slots=gathered.observation.slots,
                units=TopologyChoice(unit=one).of(views).units,
            )
        )
        for one in dict.fromkeys((unit, HOST_UNIT, *domains))
    }
    fleet = fleet_of(gathered, {one.vm: one.host for one in result.uncovered}, source=source, when=when)
    return coverage_report(fleet, result, unit, judged)


def coverage_report(
    fleet: FleetFigures, result: CoverageResult, unit: str, tolerances: Mapping[str, ToleranceResult]
) -> bytes:
    """The document. ``unit``: what ``result.tolerance`` counts; ``tolerances``: by hosts and failure domains."""
    good, verdict, more = _verdict(result, unit)
    return render(
        "coverage.html",
        fleet,
        title="Coverage",
        good=good,
        verdict=verdict,
        more=more,
        cards=_cards(result, tolerances),
        reasons=_reasons(result),
        totals=[
            ("Memory", of_memory(fleet.memory), _bar(fleet.memory)),
            ("CPU", of_cpu(fleet.cpu), _bar(fleet.cpu)),
        ],
        map=heat_map(fleet),
        tolerance=[_tolerance(one, unit) for unit, one in tolerances.items()],
        zones=_zones(tolerances),
        weakest=_weakest(tolerances[unit], unit),
        costs=_costs(result),
        missing=_missing(result),
        hosts=hosts_table(fleet),
    )


def _verdict(result: CoverageResult, unit: str) -> tuple[bool, str, str]:
    missing = result.required - result.covered
    sentence = tolerance_sentence(result.tolerance, unit, required=result.required)
    sentence = f"{sentence[0].upper()}{sentence[1:]}."
    if not result.required:
        return True, "No VM needs slots.", f"{vms(result.vms)} are known."
    if not missing:
        return True, f"All {result.required:,} VMs that need slots have them.", sentence
    return False, f"{missing:,} of {result.required:,} VMs that need slots do not have them.", sentence


def _cards(result: CoverageResult, tolerances: Mapping[str, ToleranceResult]) -> list[Card]:
    share = result.covered / result.required if result.required else 1.0
    covered = f"{result.covered:,} of {vms(result.required)} that need slots"
    cards = [
        Card("Covered", percent(share), covered, _kind(share == 1)),
        Card("VMs", f"{result.vms:,}", f"{result.vms - result.required:,} need no slots"),
    ]
    for unit, one in tolerances.items():
        remark = whichever(one.fleet) if one.fleet else f"not every {unit} failure is survived"
        cards.append(Card(f"Survives, by {unit}", units_text(one.fleet, unit), remark, _kind(one.fleet > 0)))
    held, least = result.reserved.memory_bytes, result.bound.memory_bytes
    slots = _against(result.slots, result.bound.slots, f"{result.bound.slots:,}")
    return [*cards, Card("Slots", f"{result.slots:,}", slots), Card("Held memory", gib(held), _against(held, least))]


def _against(amount: int, least: int, text: str = "") -> str:
    known = amount and least
    return f"{times(amount, least)} the least possible" if known else f"any plan needs {text or gib(least)} or more"


def _kind(good: bool) -> str:
    return "good" if good else "bad"


def _bar(share: Share) -> Bar:
    parts = (("used", share.used), ("held", share.reserved), ("other", share.committed))
    return Bar([(kind, share.part(amount)) for kind, amount in parts], share.words())


def _reasons(result: CoverageResult) -> Table | None:
    reasons = Counter(str(one.reason) for one in result.uncovered)
    rows = []
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        share = count / len(result.uncovered)
        rows.append((reason, f"{count:,}", Bar([("bad-fill", share)], f"{percent(share)} of those without")))
    return Table("Reasons", ("Reason", "VMs", "Share"), rows, numbers=("VMs",)) if rows else None


def _missing(result: CoverageResult) -> Table | None:
    shown = result.uncovered[:UNCOVERED_SHOWN]
    rows = [(one.vm, one.host, f"{one.present} of {one.required}", one.message, one.remedy) for one in shown]
    note = f"The first {len(shown):,} of {len(result.uncovered):,}." if len(shown) < len(result.uncovered) else ""
    columns, prose = ("VM", "Host", "Slots", "Why", "What to do"), ("Why", "What to do")
    return Table("VMs without their slots", columns, rows, prose=prose, note=note) if rows else None


def _tolerance(found: ToleranceResult, unit: str) -> Table:
    rows = []
    for level, count in found.counts.items():
        share = count / len(found.vms)
        drawn = Bar([("good-fill" if int(level) else "bad-fill", share)], f"{percent(share)} of the VMs")
        rows.append((failures_text(int(level), unit), f"{count:,}", drawn))
    return Table(f"By {unit}", ("Survives", "VMs", "Share"), rows, numbers=("VMs",))


def _zones(tolerances: Mapping[str, ToleranceResult]) -> Table | None:
    zones = sorted({zone for one in tolerances.values() for zone in one.zones})
    rows = [
        (zone or "(none)", *(failures_text(one.zones[zone], unit) for unit, one in tolerances.items()))
        for zone in zones
    ]
    columns = ("Zone", *(f"Survives, by {unit}" for unit in tolerances))
    return Table("The weakest VM of each zone", columns, rows) if len(zones) > 1 else None


def _weakest(result: ToleranceResult, unit: str) -> Table | None:
    rows = [
        (one.vm, one.host, one.zone, failures_text(one.tolerance, unit), str(one.slots), ", ".join(one.case))
        for one in result.weakest
    ]
    columns = ("VM", "Host", "Zone", "Survives", "Slots", "Does not survive")
    note = "The last column names the fewest failures that leave the VM without a slot of its own."
    prose = ("Does not survive",)
    return Table("Weakest first", columns, rows, numbers=("Slots",), prose=prose, note=note) if rows else None


def _costs(result: CoverageResult) -> Table | None:
    if not result.bound.slots:
        return None
    rows = []
    for name, amount, least, form in (
        ("Slots", result.slots, result.bound.slots, str),
        ("Memory", result.reserved.memory_bytes, result.bound.memory_bytes, gib),
        ("CPU", result.reserved.cpu_milli, result.bound.cpu_milli, cores),
    ):
        part = min(1.0, least / amount) if amount else 1.0
        text = f"{percent(part)} needed by any plan, {percent(1 - part)} beyond"
        bar = Bar([("used", part), ("held", 1 - part)], text)
        rows.append((name, form(amount), form(least), times(amount, least), bar))
    note = "No plan needs less than the least; whether one gets along with it is not known. Hatched: beyond the least."
    columns = ("Held", "Now", "Least possible", "Ratio", "Of what is held")
    numbers = ("Now", "Least possible", "Ratio")
    return Table("Slots against the lower bound", columns, rows, numbers=numbers, note=note)

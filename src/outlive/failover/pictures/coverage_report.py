"""The report of ``failover coverage --html``: who is covered, how much is survived, what it costs, where it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from outlive.failover.assurance.coverage import CoverageResult
from outlive.failover.assurance.tolerance import ToleranceResult
from outlive.failover.assurance.wording import failures_text, tolerance_sentence, units_text, vms, whichever
from outlive.failover.pictures.amounts import cores, gib, percent, times
from outlive.failover.pictures.heatmap import heat_map, hosts_table, total_bar, total_text
from outlive.failover.pictures.markup import Child, Markup, bar, table, tag
from outlive.failover.pictures.model import Fleet
from outlive.failover.pictures.page import cards, document, section, verdict

UNCOVERED_SHOWN = 200
"""VMs without their slots that are listed; the count is of all."""


class CoveragePicture(msgspec.Struct, frozen=True, kw_only=True):
    """What the report is made from."""

    fleet: Fleet
    coverage: CoverageResult
    unit: str
    """What ``coverage.tolerance`` counts."""
    tolerances: Mapping[str, ToleranceResult]
    """Unit of failure → tolerance; hosts and failure domains."""


def coverage_report(given: CoveragePicture) -> bytes:
    """The document."""
    return document(
        "Coverage",
        given.fleet,
        [
            _verdict(given.coverage, given.unit),
            _cards(given),
            _reasons(given.coverage) if given.coverage.uncovered else None,
            section(
                "Hosts",
                _legend_totals(given.fleet),
                heat_map(given.fleet),
                about="What each host has, by zone and failure domain: used by its VMs, held for others, free.",
            ),
            _tolerance(given),
            _weakest(given.tolerances[given.unit], given.unit),
            _bound(given.coverage),
            _missing(given.coverage) if given.coverage.uncovered else None,
            hosts_table(given.fleet),
        ],
    )


def _verdict(result: CoverageResult, unit: str) -> Markup:
    missing = result.required - result.covered
    sentence = tolerance_sentence(result.tolerance, unit, required=result.required)
    if not result.required:
        return verdict(True, "No VM needs slots.", f"{vms(result.vms)} are known.")
    if not missing:
        return verdict(
            True, f"All {result.required:,} VMs that need slots have them.", f"{sentence[0].upper()}{sentence[1:]}."
        )
    says = f"{missing:,} of {result.required:,} VMs that need slots do not have them."
    return verdict(False, says, f"{sentence[0].upper()}{sentence[1:]}.")


def _cards(given: CoveragePicture) -> Markup:
    result = given.coverage
    share = result.covered / result.required if result.required else 1.0
    figures = [
        ("Covered", percent(share), f"{result.covered:,} of {vms(result.required)} that need slots", _kind(share == 1)),
        ("VMs", f"{result.vms:,}", f"{result.vms - result.required:,} need no slots", ""),
    ]
    for unit, one in given.tolerances.items():
        remark = whichever(one.fleet) if one.fleet else f"not every {unit} failure is survived"
        figures.append((f"Survives, by {unit}", units_text(one.fleet, unit), remark, _kind(one.fleet > 0)))
    held = result.reserved.memory_bytes
    figures += [
        ("Slots", f"{result.slots:,}", _against(result.slots, result.bound.slots, f"{result.bound.slots:,}"), ""),
        ("Held memory", gib(held), _against(held, result.bound.memory_bytes, gib(result.bound.memory_bytes)), ""),
    ]
    return cards(figures)


def _against(amount: int, least: int, text: str) -> str:
    return f"{times(amount, least)} the least possible" if amount and least else f"any plan needs {text} or more"


def _kind(good: bool) -> str:
    return "good" if good else "bad"


def _legend_totals(fleet: Fleet) -> Markup:
    memory, cpu = total_bar(fleet)
    rows = (("Memory", memory, total_text(fleet)), ("CPU", cpu, total_text(fleet, cpu=True)))
    return tag("div", *(tag("p", f"{name}: {text}", shown, class_="soft") for name, shown, text in rows), class_="two")


def _reasons(result: CoverageResult) -> Markup:
    reasons = Counter(one.reason for one in result.uncovered)
    rows: list[tuple[Child, ...]] = []
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        share = count / len(result.uncovered)
        rows.append((reason, f"{count:,}", bar([("bad-fill", share)], f"{percent(share)} of those without")))
    return section(
        "Why VMs are not covered",
        table("Reasons", ("Reason", "VMs", "Share"), rows, numbers=("VMs",)),
        tag("p", tag("a", "The VMs, and what to do about each", href="#missing")),
    )


def _missing(result: CoverageResult) -> Markup:
    shown = result.uncovered[:UNCOVERED_SHOWN]
    rows = [(one.vm, one.host, f"{one.present} of {one.required}", one.message, one.remedy) for one in shown]
    note = f"The first {len(shown):,} of {len(result.uncovered):,}." if len(shown) < len(result.uncovered) else ""
    columns = ("VM", "Host", "Slots", "Why", "What to do")
    listed = table("VMs without their slots", columns, rows, prose=("Why", "What to do"), note=note)
    return tag("div", section("Who is not covered", listed), id="missing")


def _tolerance(given: CoveragePicture) -> Markup:
    tables: list[Markup] = []
    for unit, one in given.tolerances.items():
        rows: list[tuple[Child, ...]] = [
            (failures_text(int(level), unit), f"{count:,}", _level_bar(int(level), count, len(one.vms)))
            for level, count in one.counts.items()
        ]
        tables.append(table(f"By {unit}", ("Survives", "VMs", "Share"), rows, numbers=("VMs",)))
    zones = sorted({zone for one in given.tolerances.values() for zone in one.zones})
    by_zone = [
        (zone or "(none)", *(failures_text(one.zones[zone], unit) for unit, one in given.tolerances.items()))
        for zone in zones
    ]
    columns = ("Zone", *(f"Survives, by {unit}" for unit in given.tolerances))
    return section(
        "Tolerance",
        tag("div", *tables, class_="two"),
        table("The weakest VM of each zone", columns, by_zone) if len(zones) > 1 else None,
        about="How many units may fail, whichever they are, so that a VM on them still has a slot of its own.",
    )


def _level_bar(level: int, count: int, of: int) -> Markup:
    return bar([("good-fill" if level else "bad-fill", count / of)], f"{percent(count / of)} of the VMs")


def _weakest(result: ToleranceResult, unit: str) -> Markup | None:
    if not result.weakest:
        return None
    rows = [
        (one.vm, one.host, one.zone, failures_text(one.tolerance, unit), str(one.slots), ", ".join(one.case))
        for one in result.weakest
    ]
    columns = ("VM", "Host", "Zone", "Survives", "Slots", "Does not survive")
    note = "The last column names the fewest failures that leave the VM without a slot of its own."
    return section(
        "The weakest VMs",
        table("Weakest first", columns, rows, numbers=("Slots",), prose=("Does not survive",), note=note),
    )


def _bound(result: CoverageResult) -> Markup | None:
    if not result.bound.slots:
        return None
    kinds = (
        ("Slots", result.slots, result.bound.slots, str),
        ("Memory", result.reserved.memory_bytes, result.bound.memory_bytes, gib),
        ("CPU", result.reserved.cpu_milli, result.bound.cpu_milli, cores),
    )
    rows: list[tuple[Child, ...]] = []
    for name, amount, least, form in kinds:
        part = min(1.0, least / amount) if amount else 1.0
        parts = [("used", part), ("held", 1 - part)]
        text = f"{percent(part)} needed by any plan, {percent(1 - part)} beyond"
        rows.append((name, form(amount), form(least), times(amount, least), bar(parts, text)))
    note = "No plan needs less than the least; whether one gets along with it is not known. Hatched: beyond the least."
    columns = ("Held", "Now", "Least possible", "Ratio", "Of what is held")
    return section(
        "What it costs",
        table("Slots against the lower bound", columns, rows, numbers=("Now", "Least possible", "Ratio"), note=note),
    )

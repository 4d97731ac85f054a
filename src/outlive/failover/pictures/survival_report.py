"""The report of ``survive --html``: the answer, the case drawn on the hosts, who is lost and where the others land."""

from __future__ import annotations

from collections import Counter

import msgspec

from outlive.failover.assurance.asking import Question
from outlive.failover.assurance.cases import CaseResult, LostReason
from outlive.failover.assurance.failures import FailuresResult, Method
from outlive.failover.assurance.wording import (
    any_units,
    lost_text,
    names,
    survive_sentences,
    units_text,
    vms,
    whichever,
)
from outlive.failover.pictures.heatmap import NOTHING, Happens, heat_map, hosts_table, total_text
from outlive.failover.pictures.markup import Child, Markup, bar, table, tag
from outlive.failover.pictures.model import Fleet
from outlive.failover.pictures.page import cards, document, section, verdict

LOST_SHOWN = 200
"""Lost VMs that are listed; the count is of all."""
LANDING_SHOWN = 500
"""Landings that are listed."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The case that is drawn."""

    case: tuple[str, ...]
    hosts: frozenset[str]
    """The hosts of its units."""
    result: CaseResult


class SurvivalPicture(msgspec.Struct, frozen=True, kw_only=True):
    """What the report is made from."""

    fleet: Fleet
    question: Question
    result: FailuresResult
    drawn: Drawn | None = None
    """The case in question, or the worst; nothing where nothing is lost in any."""


def survival_report(given: SurvivalPicture) -> bytes:
    """The document."""
    sentences = survive_sentences(given.result, given.question)
    happens = _happens(given.drawn)
    return document(
        _title(given.question, given.result),
        given.fleet,
        [
            verdict(given.result.holds, sentences[0], *sentences[1:]),
            _cards(given),
            section(_map_title(given), heat_map(given.fleet, happens), about=_map_about(given)),
            _worst(given.result),
            _lost(given.result),
            _landing(given.drawn) if given.drawn is not None else None,
            hosts_table(given.fleet, happens),
        ],
    )


def _title(question: Question, result: FailuresResult) -> str:
    what = names(question.cases[0]) if question.cases else any_units(result.failures, question.unit)
    verb = "fails" if (len(question.cases[0]) if question.cases else result.failures) == 1 else "fail"
    return f"What if {what} {verb}?"


def _happens(drawn: Drawn | None) -> Happens:
    if drawn is None:
        return NOTHING
    return Happens(failed=drawn.hosts, landing=Counter(one.host for one in drawn.result.landing))


def _map_title(given: SurvivalPicture) -> str:
    if given.drawn is None:
        return "Hosts"
    return "The case" if given.question.cases else f"The worst case: {names(given.drawn.case)}"


def _map_about(given: SurvivalPicture) -> str:
    words = [f"Memory of the fleet: {total_text(given.fleet)}."]
    if given.drawn is not None:
        contested = sum(one.contested for one in given.drawn.result.landing)
        own = len(given.drawn.result.landing) - contested
        lost = len(given.drawn.result.lost)
        words.append(f"{vms(own)} land in slots of their own{f'; {vms(lost)} have none' if lost else ''}.")
        if contested:
            words.append(f"{vms(contested)} of these may take a slot that others have a claim to as well.")
    return " ".join(words)


def _cards(given: SurvivalPicture) -> Markup:
    result = given.result
    named = bool(given.question.cases)
    kept = result.affected - result.lost_count
    figures = []
    if not named:
        fails = units_text(result.failures, given.question.unit)
        how = "every one was looked at" if result.method is Method.ENUMERATION else "known without looking at each"
        figures += [("Fail at once", fails, whichever(result.failures), ""), ("Cases", f"{result.cases:,}", how, "")]
    figures.append(("VMs go down", f"{result.affected:,}", "that need slots" if named else "in all cases together", ""))
    if result.method is not Method.TOLERANCE or result.holds:
        share = f"of {result.affected:,}" if result.affected else ""
        figures.append(("Land in a slot of their own", f"{kept:,}", share, "good" if result.holds else ""))
    figures.append(
        (
            "Without a slot of their own",
            f"{result.lost_vms:,}",
            "VMs" if named or result.holds else "VMs, in some case",
            "bad" if result.lost_vms else "good",
        )
    )
    if result.unprotected:
        figures.append(("Need no slots", f"{result.unprotected:,}", "not promised anything, not counted", ""))
    return cards(figures)


def _worst(result: FailuresResult) -> Markup | None:
    if not result.worst:
        return None
    rows: list[tuple[Child, ...]] = [
        (
            ", ".join(one.case),
            f"{one.affected:,}",
            f"{one.lost:,}",
            bar(
                [("good-fill", 1 - one.lost / one.affected), ("bad-fill", one.lost / one.affected)],
                f"{one.lost} of {one.affected} VMs without a slot",
            ),
        )
        for one in result.worst
    ]
    columns = ("These fail", "VMs go down", "Without a slot", "Share")
    return section(
        "Worst cases", table("The cases that lose most VMs", columns, rows, numbers=("VMs go down", "Without a slot"))
    )


def _lost(result: FailuresResult) -> Markup | None:
    if not result.lost:
        return None
    first = {one.vm: one for one in reversed(result.lost)}
    shown = [first[vm] for vm in sorted(first)][:LOST_SHOWN]
    rows: list[tuple[Child, ...]] = [
        (
            one.vm,
            one.host,
            names(one.case),
            tag("span", one.reason.value, class_="word warn" if one.reason is LostReason.CONTESTED else "word bad"),
            f"{one.required}",
            lost_text(one),
        )
        for one in shown
    ]
    note = f"{len(shown):,} of {vms(result.lost_vms)}, each with one case." if len(shown) < result.lost_count else ""
    columns = ("VM", "Host", "When these fail", "Reason", "Slots needed", "What is left")
    return section(
        "Who is left without a slot of its own",
        table(
            "VMs without a slot of their own",
            columns,
            rows,
            numbers=("Slots needed",),
            prose=("What is left",),
            note=note,
        ),
    )


def _landing(drawn: Drawn) -> Markup | None:
    listed = drawn.result.landing
    if not listed:
        return None
    rows = [
        (one.vm, one.source, one.host, one.slot, "contested" if one.contested else "its own")
        for one in listed[:LANDING_SHOWN]
    ]
    note = f"The first {LANDING_SHOWN:,} of {len(listed):,}." if len(listed) > LANDING_SHOWN else ""
    return section(
        "Where the VMs land", table("Landings", ("VM", "From", "To", "Slot", "The slot is"), rows, note=note)
    )


__all__ = ["Drawn", "SurvivalPicture", "survival_report"]

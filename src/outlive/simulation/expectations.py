"""What a story must come to: ``expect.yaml``, read and judged.

States at moments, events that must or must not have happened, limits in virtual seconds, who is held and why, and
whether anything may be violated (by default nothing). Judging answers with sentences, one for each thing that is not
as expected; an empty answer is a story that ended as told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from outlive.resources.documents import Problems
from outlive.simulation.history import HistoryEvent
from outlive.simulation.states import States, read_states, shown
from outlive.simulation.summary import Summary
from outlive.simulation.timeline import duration_of

KEYS: Final = (
    "at",
    "events",
    "recoveredWithin",
    "recovered",
    "lost",
    "held",
    "inPromisedSlot",
    "violations",
    "until",
)
"""What an expectation may say."""
AFTER_S: Final = 30.0
"""How long a story goes on after its last act, where it does not say until when."""


class Share(msgspec.Struct, frozen=True):
    """So many, or so many of a hundred."""

    count: int = 0
    percent: float | None = None

    def missed(self, found: int, total: int) -> str:
        """Why ``found`` of ``total`` does not reach it; empty if it does."""
        if self.percent is None:
            return "" if found >= self.count else f"{found}, fewer than {self.count}"
        if found * 100 >= self.percent * total:
            return ""
        return f"{found} of {total}, less than {self.percent:g} %"

    def __str__(self) -> str:
        """As it is written."""
        if self.percent is None:
            return str(self.count)
        return "all" if self.percent == 100 else f"{self.percent:g}%"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """States that must hold at one time."""

    at_s: float
    states: States


class EventWish(msgspec.Struct, frozen=True, kw_only=True):
    """An event that must, or must not, be in the history."""

    kind: str = ""
    subject: str = ""
    text: str = ""
    """That its text contains."""
    by_s: float | None = None
    """When it must have happened at the latest."""

    def fits(self, event: HistoryEvent) -> bool:
        """Whether the event is one of these."""
        return (
            (not self.kind or event.kind == self.kind)
            and (not self.subject or event.subject == self.subject)
            and self.text in event.text
            and (self.by_s is None or event.at_s <= self.by_s)
        )

    def __str__(self) -> str:
        """As a complaint names it."""
        parts = [self.kind or "anything", *([f"of {self.subject}"] if self.subject else [])]
        if self.text:
            parts.append(f"saying {self.text!r}")
        if self.by_s is not None:
            parts.append(f"by {self.by_s:g} s")
        return " ".join(parts)


class Expectations(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one ``expect.yaml`` says."""

    moments: tuple[Moment, ...] = ()
    must: tuple[EventWish, ...] = ()
    must_not: tuple[EventWish, ...] = ()
    recovered_within: tuple[tuple[float, Share], ...] = ()
    """Seconds after a VM was lost → how many of the lost ones run again by then."""
    recovered: int | None = None
    lost: int | None = None
    held: dict[str, str] | None = None
    """VM → words of the reason; exactly these are held at the end."""
    in_promised_slot: Share | None = None
    violations: tuple[str, ...] = ()
    """Invariants that are violated on purpose; none by default."""
    until_s: float | None = None


def read_expectations(value: Any, place: str, problems: Problems) -> Expectations:
    """The expectations of a story; what is wrong goes to ``problems``."""
    if not isinstance(value, dict) or not value:
        problems.add(place, f"holds {shown(value)}", f"write expectations: {', '.join(KEYS)}")
        return Expectations()
    for key in value:
        if key not in KEYS:
            problems.add(place, f"{key!r} is no expectation", f"there are {', '.join(KEYS)}")
    events = value.get("events", {})
    if not isinstance(events, dict) or set(events) - {"must", "mustNot"}:
        problems.add(f"{place}: events", f"is {shown(events)}", "write must: and mustNot: with lists")
        events = {}
    until = value.get("until")
    return Expectations(
        moments=_moments(value.get("at", []), f"{place}: at", problems),
        must=_wishes(events.get("must", []), f"{place}: events.must", problems),
        must_not=_wishes(events.get("mustNot", []), f"{place}: events.mustNot", problems),
        recovered_within=_limits(value.get("recoveredWithin", {}), f"{place}: recoveredWithin", problems),
        recovered=_number(value, "recovered", place, problems),
        lost=_number(value, "lost", place, problems),
        held=_held(value.get("held"), f"{place}: held", problems),
        in_promised_slot=(
            _share(value["inPromisedSlot"], f"{place}: inPromisedSlot", problems) if "inPromisedSlot" in value else None
        ),
        violations=_violations(value.get("violations", "none"), f"{place}: violations", problems),
        until_s=duration_of(until, f"{place}: until", problems) if until is not None else None,
    )


def _moments(value: Any, place: str, problems: Problems) -> tuple[Moment, ...]:
    found: list[Moment] = []
    for number, entry in enumerate(_list(value, place, problems), 1):
        here = f"{place}: entry {number}"
        if not isinstance(entry, dict) or "at" not in entry:
            problems.add(here, f"{shown(entry)} has no time", "write - at: 40s, and states below it")
            continue
        rest = {key: states for key, states in entry.items() if key != "at"}
        at_s = duration_of(entry["at"], f"{here}: at", problems)
        found.append(Moment(at_s=at_s, states=read_states(rest, here, problems)))
    return tuple(found)


def _wishes(value: Any, place: str, problems: Problems) -> tuple[EventWish, ...]:
    found: list[EventWish] = []
    for number, entry in enumerate(_list(value, place, problems), 1):
        here = f"{place}: entry {number}"
        if isinstance(entry, str):
            entry = {"kind": entry}
        if not isinstance(entry, dict) or not entry or set(entry) - {"kind", "subject", "text", "by"}:
            problems.add(here, f"is {shown(entry)}", "write {kind: WORD, subject: NAME, text: PART, by: 20s}")
            continue
        by_s = duration_of(entry["by"], f"{here}: by", problems) if "by" in entry else None
        words = {key: str(entry.get(key, "")) for key in ("kind", "subject", "text")}
        found.append(EventWish(**words, by_s=by_s))
    return tuple(found)


def _limits(value: Any, place: str, problems: Problems) -> tuple[tuple[float, Share], ...]:
    if not isinstance(value, dict):
        problems.add(place, f"is {shown(value)}", "write {12s: all}")
        return ()
    return tuple(
        (duration_of(limit, place, problems), _share(share, f"{place}: {limit}", problems))
        for limit, share in value.items()
    )


def _share(value: Any, place: str, problems: Problems) -> Share:
    if value == "all":
        return Share(0, 100.0)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Share(value)
    if isinstance(value, str) and value.endswith("%"):
        try:
            percent = float(value[:-1])
        except ValueError:
            percent = -1.0
        if 0 <= percent <= 100:
            return Share(0, percent)
    problems.add(place, f"is {shown(value)}", "write all, a number, or a share such as 80%")
    return Share()


def _held(value: Any, place: str, problems: Problems) -> dict[str, str] | None:
    if value is None:
        return None
    if value == "none":
        return {}
    if isinstance(value, dict) and all(isinstance(reason, str) for reason in value.values()):
        return {str(name): reason for name, reason in value.items()}
    problems.add(place, f"is {shown(value)}", "write none, or {VM: words of the reason}")
    return None


def _violations(value: Any, place: str, problems: Problems) -> tuple[str, ...]:
    if value == "none":
        return ()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    problems.add(place, f"is {shown(value)}", "write none, or a list of invariants such as [S1a]")
    return ()


def _number(value: dict[str, Any], key: str, place: str, problems: Problems) -> int | None:
    number = value.get(key)
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 0):
        return number
    problems.add(f"{place}: {key}", f"is {shown(number)}", "write a number of VMs")
    return None


def _list(value: Any, place: str, problems: Problems) -> list[Any]:
    if isinstance(value, list):
        return value
    problems.add(place, f"is {shown(value)}", "write a list")
    return []


def judge_events(expect: Expectations, history: Sequence[HistoryEvent]) -> list[str]:
    """What is missing in the history, or should not be in it."""
    found = [f"it never happened: {wish}" for wish in expect.must if not any(map(wish.fits, history))]
    for wish in expect.must_not:
        first = next((event for event in history if wish.fits(event)), None)
        if first is not None:
            found.append(f"it must not happen, and did at {first.at_s:.1f} s: {wish} ({first.text})")
    return found


def judge_summary(expect: Expectations, summary: Summary) -> list[str]:
    """What the end lacks."""
    found: list[str] = []
    for limit_s, share in expect.recovered_within:
        missed = share.missed(sum(took <= limit_s for took in summary.took_s), summary.lost)
        if missed:
            found.append(f"recovered within {limit_s:g} s: {missed}")
    if expect.recovered is not None and summary.recovered != expect.recovered:
        found.append(f"{summary.recovered} VMs were recovered, not {expect.recovered}")
    if expect.lost is not None and summary.lost != expect.lost:
        found.append(f"{summary.lost} VMs were lost, not {expect.lost}")
    if expect.in_promised_slot is not None:
        missed = expect.in_promised_slot.missed(summary.in_promised_slot, summary.recovered)
        if missed:
            found.append(f"recovered into a promised slot: {missed}")
    found += _judge_held(expect, summary)
    told = {violation.invariant for violation in summary.violations}
    found += [f"{name} was to be violated and was not" for name in expect.violations if name not in told]
    found += [
        f"violated: {one.invariant} at {one.at_s:.1f} s, {one.subject}: {one.text}"
        for one in summary.violations
        if one.invariant not in expect.violations
    ]
    return found


def _judge_held(expect: Expectations, summary: Summary) -> list[str]:
    if expect.held is None:
        return []
    held = {one.vm: one for one in summary.held_vms}
    found = [f"{vm} is not held" for vm in expect.held if vm not in held]
    for vm, one in held.items():
        if vm not in expect.held:
            found.append(f"{vm} is held: {one.reason}")
        elif expect.held[vm] not in one.reason:
            found.append(f"{vm} is held because {one.reason!r}, not {expect.held[vm]!r}")
        elif not one.remedy:
            found.append(f"{vm} is held without a remedy")
    return found

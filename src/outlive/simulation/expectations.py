"""What a story must come to: ``expect.yaml``, and how the end is held against it.

States at moments, events that must or must not have happened, limits in virtual seconds, who is held and why, and
whether anything may be violated (by default nothing). Judging answers with sentences, one for each thing that is not
as expected; an empty answer is a story that ended as told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from outlive.base import parse_duration
from outlive.resources import Problems
from outlive.runtime import Duration
from outlive.simulation.history import HistoryEvent
from outlive.simulation.judges.truth import InvariantViolation
from outlive.simulation.spec import FromFile, Number, read_as
from outlive.simulation.states import States, check_facts
from outlive.simulation.summary import RunSummary

REMEDY: Final = "see docs/reference/scenarios.md#expectyaml"
AFTER_S: Final = 30.0
"""How long a story goes on after its last act, where it does not say until when."""
Share = Number | Annotated[str, Meta(pattern=r"^(all|100%|\d{1,2}(\.\d+)?%)$")]
"""So many, ``all``, or so many of a hundred: ``80%``."""


class Moment(States, frozen=True, kw_only=True):
    """States that must hold at one time."""

    at: Duration


class WantedEvent(FromFile, frozen=True, kw_only=True):
    """An event that must, or must not, be in the history."""

    kind: str = ""
    subject: str = ""
    text: str = ""
    """That its text contains."""
    by: Duration | None = None
    """When it must have happened at the latest."""

    def fits(self, event: HistoryEvent, later_s: float = 0.0) -> bool:
        """Whether the event is one of these, or one that came so much later."""
        return (
            (not self.kind or event.kind == self.kind)
            and (not self.subject or event.subject == self.subject)
            and self.text in event.text
            and (self.by is None or event.at_s <= self.by + later_s)
        )

    def __str__(self) -> str:
        """As a complaint names it."""
        parts = [self.kind or "anything", *([f"of {self.subject}"] if self.subject else [])]
        if self.text:
            parts.append(f"saying {self.text!r}")
        if self.by is not None:
            parts.append(f"by {self.by:g} s")
        return " ".join(parts)


class WantedEvents(FromFile, frozen=True, kw_only=True):
    """What must have happened, and what must not."""

    must: tuple[WantedEvent, ...] = ()
    must_not: tuple[WantedEvent, ...] = ()

    def find_unmet(self, history: Sequence[HistoryEvent], later_s: float = 0.0) -> list[str]:
        """What is missing in the history or should not be in it."""
        must = [one for one in self.must if not any(one.fits(event, later_s) for event in history)]
        found = [f"it never happened: {one}" for one in must]
        for wanted in self.must_not:
            first = next((event for event in history if wanted.fits(event)), None)
            if first is not None:
                found.append(f"it must not happen, and did at {first.at_s:.1f} s: {wanted} ({first.text})")
        return found


class Expectations(FromFile, frozen=True, kw_only=True):
    """One ``expect.yaml``."""

    at: tuple[Moment, ...] = ()
    events: WantedEvents = WantedEvents()
    recovered_within: dict[str, Share] = {}
    """Duration after a VM was lost → how many of the lost ones run again by then."""
    recovered: Number | None = None
    lost: Number | None = None
    held: Literal["none"] | dict[str, str] | None = None
    """VM → words of the reason; exactly these are held at the end."""
    in_promised_slot: Share | None = None
    violations: Literal["none"] | tuple[str, ...] = ()
    """Invariants that are violated on purpose; none by default."""
    until: Duration | None = None

    def find_unmet(self, summary: RunSummary, history: Sequence[HistoryEvent], later_s: float = 0.0) -> list[str]:
        """What is missing in the history or should not be in it, and what the end lacks.

        ``later_s``: so much later than it says everything may come.
        """
        found = self.events.find_unmet(history, later_s)
        for limit, share in self.recovered_within.items():
            limit_s = parse_duration(limit) + later_s
            if missed := missing_share(share, sum(took <= limit_s for took in summary.took_s), summary.lost):
                found.append(f"recovered within {limit}: {missed}")
        if self.recovered is not None and summary.recovered != self.recovered:
            found.append(f"{summary.recovered} VMs were recovered, not {self.recovered}")
        if self.lost is not None and summary.lost != self.lost:
            found.append(f"{summary.lost} VMs were lost, not {self.lost}")
        if self.in_promised_slot is not None:
            missed = missing_share(self.in_promised_slot, summary.in_promised_slot, summary.recovered)
            found += [f"recovered into a promised slot: {missed}"] if missed else []
        if self.held is not None:
            wanted = {} if self.held == "none" else self.held
            held = {one.vm: one for one in summary.held_vms}
            found += [f"{vm} is not held" for vm in wanted if vm not in held]
            for vm, one in held.items():
                if vm not in wanted:
                    found.append(f"{vm} is held: {one.reason}")
                elif wanted[vm] not in one.reason:
                    found.append(f"{vm} is held because {one.reason!r}, not {wanted[vm]!r}")
                elif not one.remedy:
                    found.append(f"{vm} is held without a remedy")
        return found + judge_violations(self.violations, summary.violations)


def read_expectations(value: Any, place: str, problems: Problems) -> Expectations:
    """The expectations of a story; what is wrong goes to ``problems``."""
    expect = read_as(value, Expectations, place, problems, REMEDY) or Expectations()
    for number, moment in enumerate(expect.at):
        check_facts(moment, f"{place}: at[{number}]", problems)
    for limit in expect.recovered_within:
        read_as(limit, Duration, f"{place}: recoveredWithin", problems, REMEDY)
    return expect


def judge_violations(wanted: Literal["none"] | tuple[str, ...], violations: Sequence[InvariantViolation]) -> list[str]:
    """Invariants that were to be violated and were not, and violations that nobody wanted."""
    broken = () if wanted == "none" else wanted
    happened = {violation.invariant for violation in violations}
    found = [f"{name} was to be violated and was not" for name in broken if name not in happened]
    return found + [
        f"violated: {one.invariant} at {one.at_s:.1f} s, {one.subject}: {one.text}"
        for one in violations
        if one.invariant not in broken
    ]


def missing_share(share: int | str, found: int, total: int) -> str:
    """Why ``found`` of ``total`` does not reach the share, in words; empty if it does."""
    if isinstance(share, int):
        return "" if found >= share else f"{found}, fewer than {share}"
    percent = 100.0 if share == "all" else float(share.removesuffix("%"))
    return "" if found * 100 >= percent * total else f"{found} of {total}, less than {percent:g} %"

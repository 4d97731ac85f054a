"""What a user means by "these hosts", "this rack" and "any two racks": units of failure and cases.

Named hosts and named domains fail together: one case. A number, or a domain without a value, means every set of so many
units (docs/design/failover.md#surviving).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from outlive.base import NotFound, Usage, count_of, join_parts
from outlive.failover.analysis.survival import FailuresResult, Lost, LostReason, Method
from outlive.failover.model import HostView
from outlive.failover.topology import HOST_UNIT, TopologyChoice

KNOWN_SHOWN = 10
"""Names that are listed where somebody asked for one that there is not."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What fails."""

    unit: str
    """``host``, or the failure domain that is counted; empty where hosts and domains are named."""
    units: dict[str, str]
    """Host → unit of failure."""
    cases: tuple[tuple[str, ...], ...] = ()
    failures: int = 0


def parse_question(
    views: Sequence[HostView],
    *,
    hosts: Sequence[str] = (),
    domains: Sequence[str] = (),
    failures: int | None = None,
    default_unit: str = HOST_UNIT,
) -> Question:
    """``domains``: names, or names with values (``rack=r3``). ``Usage`` where they contradict, ``NotFound`` by name."""
    named = [domain for domain in domains if "=" in domain]
    counted = sorted({domain for domain in domains if "=" not in domain})
    if not hosts and not domains and failures is None:
        raise Usage("nothing fails", remedy="give --hosts, --domain or --failures")
    if (hosts or named) and (failures is not None or counted):
        raise Usage(
            "named hosts or domains and any of a number cannot both fail",
            remedy="give either --hosts and --domain NAME=VALUE, or --failures and --domain NAME",
        )
    if len(counted) > 1:
        raise Usage(f"units of {' and of '.join(counted)} are counted at once", remedy="give one --domain NAME")
    if not hosts and not named:
        unit = counted[0] if counted else default_unit
        return Question(unit=unit, units=units_by(views, unit), failures=failures or 1)
    # One case: all of these at once. A host of two named domains counts with the first.
    known = {view.name for view in views}
    for host in hosts:
        _check(host, known, "host", "there are none")
    units: dict[str, str] = {}
    for text in dict.fromkeys(named):
        name, _, value = text.partition("=")
        _check(name, {one for view in views for one in view.domains}, "failure domain", "no host is in any")
        _check(value, {view.domains[name] for view in views if name in view.domains}, name, "no host is in any")
        for view in views:
            if view.domains.get(name) == value:
                units.setdefault(view.name, f"{name}={value}")
    case = [*dict.fromkeys(units.values()), *(host for host in dict.fromkeys(hosts) if host not in units)]
    return Question(unit="", units=units, cases=(tuple(case),))


def units_by(views: Sequence[HostView], unit: str) -> dict[str, str]:
    """Host → unit of failure; ``NotFound`` for a domain that no host is in."""
    if unit != HOST_UNIT:
        _check(unit, {name for view in views for name in view.domains}, "failure domain", "no host is in any")
    return TopologyChoice(unit=unit).topology_of(views).units


def _check(name: str, known: Iterable[str], what: str, none: str) -> None:
    names = sorted(known)
    if name in names:
        return
    near = get_close_matches(name, names, n=KNOWN_SHOWN) or names[:KNOWN_SHOWN]
    more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
    remedy = f"known: {', '.join(near)}{more}" if names else none
    raise NotFound(f"there is no {what} {name!r}", remedy=remedy)


NAMES_SHOWN = 6
"""Names that a sentence lists."""


def units_text(count: int, unit: str) -> str:
    """``2 hosts``, ``1 rack``."""
    return count_of(count, unit or HOST_UNIT)


def render_whichever(count: int) -> str:
    """``whichever it is``, ``whichever they are``."""
    return "whichever it is" if count == 1 else "whichever they are"


def any_units(count: int, unit: str) -> str:
    """``any 2 hosts``, ``any rack``."""
    return f"any {units_text(count, unit)}" if count != 1 else f"any {unit or HOST_UNIT}"


def failures_text(level: int, unit: str) -> str:
    """A tolerance in a few words."""
    return any_units(level, unit) if level else f"not every {unit or HOST_UNIT}"


def tolerance_sentence(level: int, unit: str, *, required: int) -> str:
    """What the fleet survives."""
    if not required:
        return "no VM needs slots"
    if not level:
        return f"some VM that needs slots survives no {unit} failure"
    which = f"one {unit}, whichever it is" if level == 1 else f"{units_text(level, unit)}, whichever they are"
    return f"every VM that needs slots survives the failure of {which}"


def render_case(case: tuple[str, ...]) -> str:
    """A case as a list of names."""
    shown = list(case[:NAMES_SHOWN])
    if len(case) > len(shown):
        return f"{', '.join(shown)} and {len(case) - len(shown)} more"
    return join_parts(shown)


def survive_sentences(result: FailuresResult, question: Question) -> list[str]:
    """The answer, how it was found, and what it leaves out."""
    lines = [render_verdict(result, question)]
    if result.method is Method.TOLERANCE and result.holds:
        lines.append("Known from the tolerance of every VM, without looking at the sets (--enumerate looks at all).")
    if result.method is Method.TOLERANCE and not result.holds:
        lines.append("Each VM is shown once, with the fewest failures that lose it.")
    if result.method is Method.ENUMERATION:
        lines.append(f"Every set was examined: {count_of(result.affected, 'time')} a VM had to find its slot.")
    if question.failures and not result.cases:
        lines.append("There is nothing that could fail.")
    elif question.failures > result.failures:
        are, they = ("is", "it fails") if result.failures == 1 else ("are", "all of them fail")
        lines.append(f"There {are} only {units_text(result.failures, question.unit)}; {they}.")
    elif question.failures > 1:
        lines.append(f"Fewer failures than {question.failures} are parts of these sets and lose nobody else.")
    if result.unprotected:
        lines.append(
            f"{result.unprotected:,} VMs need no slots; nothing is promised to them, and they are in no figure."
        )
    return lines


def render_verdict(result: FailuresResult, question: Question) -> str:
    """Yes or no, with the figures."""
    if question.cases:
        fails = f"If {render_case(question.cases[0])} {'fails' if len(question.cases[0]) == 1 else 'fail'}"
        if not result.affected:
            return f"{fails}, no VM that needs slots is affected."
        one = result.affected == 1
        down = "1 VM that needs slots goes down" if one else f"{count_vms(result.affected)} that need slots go down"
        if result.holds:
            return f"{fails}, {down}, and {'it' if one else 'each'} has a slot of its own."
        kept = result.affected - result.lost_count
        return (
            f"{fails}, {down}: {kept:,} with a slot of {'its' if kept == 1 else 'their'} own, "
            f"{result.lost_count:,} without."
        )
    sets = count_of(result.cases, "case")
    what = any_units(result.failures, question.unit)
    if result.holds:
        return f"The failure of {what} is survived ({sets}): every VM that needs slots keeps one of its own."
    return (
        f"The failure of {what} is not always survived ({sets}): {count_vms(result.lost_vms)} can be left "
        "without a slot."
    )


def count_vms(count: int) -> str:
    """``1 VM``, ``2 VMs``."""
    return count_of(count, "VM")


def lost_text(lost: Lost) -> str:
    """What is left to a VM without a slot of its own."""
    if lost.reason is LostReason.NO_SLOT:
        return "no slot counts for it"
    if lost.reason is LostReason.SLOTS_FAILED:
        return "all its slots fail as well"
    rivals = f"{lost.rivals[0]} and others" if len(lost.rivals) > 1 else "".join(lost.rivals)
    if lost.takes:
        return f"may take {lost.takes}; {rivals} may claim it too"
    return f"nothing: {rivals} may claim its slots too, and come first"

"""What a user means by "these hosts", "this rack" and "any two racks": units of failure and cases.

Named hosts and named domains fail together: one case. A number, or a domain without a value, means every set of so many
units (docs/reference/failover.md#surviving).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from outlive.base.errors import NotFound, Usage
from outlive.failover.model import HostView
from outlive.failover.topology import HOST_UNIT, topology_of

KNOWN_SHOWN = 10
"""Names that are told where somebody asked for one that there is not."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What fails."""

    unit: str
    """``host``, or the failure domain that is counted; empty where hosts and domains are named."""
    units: dict[str, str]
    """Host → unit of failure."""
    cases: tuple[tuple[str, ...], ...] = ()
    failures: int = 0


def asked(
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
    if hosts or named:
        return _named(views, hosts, named)
    unit = counted[0] if counted else default_unit
    return Question(unit=unit, units=units_by(views, unit), failures=failures or 1)


def units_by(views: Sequence[HostView], unit: str) -> dict[str, str]:
    """Host → unit of failure; ``NotFound`` for a domain that no host is in."""
    if unit != HOST_UNIT:
        _check(unit, {name for view in views for name in view.domains}, "failure domain", "no host is in any")
    return topology_of(views, unit=unit).units


def _named(views: Sequence[HostView], hosts: Sequence[str], domains: Sequence[str]) -> Question:
    """One case: all of these at once. A host of two named domains counts with the first."""
    known = {view.name for view in views}
    for host in hosts:
        _check(host, known, "host", "there are none")
    units: dict[str, str] = {}
    for text in dict.fromkeys(domains):
        name, _, value = text.partition("=")
        _check(name, {one for view in views for one in view.domains}, "failure domain", "no host is in any")
        _check(value, {view.domains[name] for view in views if name in view.domains}, name, "no host is in any")
        for view in views:
            if view.domains.get(name) == value:
                units.setdefault(view.name, f"{name}={value}")
    case = [*dict.fromkeys(units.values()), *(host for host in dict.fromkeys(hosts) if host not in units)]
    return Question(unit="", units=units, cases=(tuple(case),))


def _check(name: str, known: Iterable[str], what: str, none: str) -> None:
    names = sorted(known)
    if name in names:
        return
    near = get_close_matches(name, names, n=KNOWN_SHOWN) or names[:KNOWN_SHOWN]
    more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
    remedy = f"known: {', '.join(near)}{more}" if names else none
    raise NotFound(f"there is no {what} {name!r}", remedy=remedy)

"""The order of the rules of a network's firewall, and what adding or removing one makes of it. Pure.

docs/reference/network-decisions.md#firewallorder
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from outlive.base.errors import InUse, Invalid, NotFound
from outlive.runtime.decisions import Decision

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,1000}", re.ASCII)


class RuleExists(InUse):
    """A rule has that name already."""

    code = "exists"


class RuleMissing(NotFound):
    """No rule has that name."""

    code = "missing"


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that is added or removed; exactly one of both."""

    add: str | None = None
    """Name of the new rule."""
    at: int | None = None
    """Where it goes, from 0 on; absent or behind the end: last."""
    remove: str | None = None
    """Name of the rule that goes."""


class RuleOrderInput(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one direction."""

    rules: dict[str, int | str]
    """Name → its number; the smallest is tried first."""
    op: RuleChange | None = None
    """What is changed; absent: nothing."""


class RuleOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the rules in the order in which they are tried; a rule's new number is its place, from 0 on."""

    order: tuple[str, ...]


def order_rules(given: RuleOrderInput) -> RuleOrder:
    """The names by their numbers, equal ones by name, after the change."""
    numbers = {name: _parse_order(name, order) for name, order in given.rules.items()}
    names = sorted(numbers, key=lambda name: (numbers[name], name))
    change = given.op
    if change is None:
        return RuleOrder(order=tuple(names))
    if (change.add is None) == (change.remove is None):
        raise Invalid("op has to name one rule, to add or to remove", remedy='write {"add": NAME} or {"remove": NAME}')
    if change.at is not None and change.at < 0:
        raise Invalid(f"{change.at} is no place of a rule", remedy="count from 0 on")
    if change.add is not None:
        if change.add in numbers:
            remedy = "remove it before, or choose another name"
            raise RuleExists(f"there is a rule {change.add!r} already", remedy=remedy)
        names.insert(len(names) if change.at is None else change.at, change.add)
    elif change.remove is not None:
        if change.remove not in numbers:
            known = ", ".join(names[:8]) or "there is none"
            raise RuleMissing(f"there is no rule {change.remove!r}", remedy=f"rules of this direction: {known}")
        names.remove(change.remove)
    return RuleOrder(order=tuple(names))


def _parse_order(name: str, order: int | str) -> int:
    if isinstance(order, str) and _INTEGER.fullmatch(order) is None:
        raise Invalid(f"order {order[:40]!r} of rule {name!r} is no integer", remedy="write a number from 0 on")
    return int(order)


RULE_ORDER: Final = Decision(
    "firewall.order",
    order_rules,
    RuleOrderInput,
    RuleOrder,
    "The order of a network's firewall rules",
    lambda _: False,
    nulls_are_absent=True,
)

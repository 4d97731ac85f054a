"""Whether a virtual machine may start now, or waits for those that it is to start after. Pure.

The order only ever delays a start: where a virtual machine goes, and the room that it has there, is settled before. And
it delays for a while only, because nobody wants forty machines to stay down for one database: who is missing or stopped
is not waited for, whoever waits for each other in a circle goes one by one, and after a limit everybody goes, with the
reason written down (docs/reference/node-decisions.md#vmstart_order). Not promised: that a guest is ready when the
machine that it runs in is seen running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from outlive.base.wording import listing
from outlive.node.numbers import Amount

LINK_S: Final = 30.0
"""Whoever stands above others that wait waits so much longer for each of them, so that a chain whose first link does
not come still starts one after the other."""
NAMED: Final = 3
"""Virtual machines that a sentence names."""


class NamedVm(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that another is to start after, as it was found now."""

    vm: str
    state: Literal["running", "coming", "stopped", "missing"]
    """``coming``: it is to run, and was not seen running; ``stopped``: nobody wants it to run."""
    why: str = ""
    """What is known of it, to follow "which"."""
    after: tuple[str, ...] = ()
    """Of one that is coming: those that it starts after itself."""


class StartOrderInput(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that could start now. Seconds."""

    vm: str
    after: tuple[str, ...] = ()
    known: tuple[NamedVm, ...] = ()
    """Those that it names, and those that these name; who is left out counts as coming."""
    waited: Amount = 0
    """Since it could have started."""
    limit: Amount = 180
    """How long it waits for one that names nobody itself; 0: it waits for nobody."""


class StartOrderResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it starts; exactly those in ``waits_for`` are what it waits for."""

    start: bool
    waits_for: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Those that it starts without having seen them running."""
    detail: str = ""
    limit: Amount = 0
    """The longest that it waits in all."""


def start_order(given: StartOrderInput) -> StartOrderResult:
    """Whether it may start now, for whom it waits, or without whom it goes."""
    known = {one.vm: one for one in given.known}
    edges = _edges(given, known)
    circle = _circle(given.vm, edges)
    first = len(circle) > 1 and given.vm == min(circle)
    limit = given.limit + LINK_S * (_height(given.vm, edges) - 1) if given.limit > 0 else 0
    coming: list[str] = []
    without: list[tuple[str, str]] = []
    for name in dict.fromkeys(given.after):
        one = known.get(name) or NamedVm(vm=name, state="coming")
        if name == given.vm or one.state == "running":
            continue
        if one.state != "coming":
            without.append((name, one.why))
        elif first and name in circle:
            around = listing(sorted(circle), most=NAMED)
            without.append((name, f"starts after it as well: {around} wait for each other, and the first by name goes"))
        elif given.limit <= 0:
            without.append((name, "is not waited for: the limit is 0"))
        elif given.waited >= limit:
            without.append((name, f"was not seen running within {limit:g} s{f' (it {one.why})' if one.why else ''}"))
        else:
            coming.append(name)
    left_out = tuple(name for name, _ in without)
    if not coming:
        return StartOrderResult(start=True, without=left_out, detail=_told("starts without", without), limit=limit)
    waits = [(name, known[name].why if name in known else "") for name in coming]
    detail = f"{_told('starts after', waits)}; it waits for at most {limit:g} s"
    return StartOrderResult(start=False, waits_for=tuple(coming), without=left_out, detail=detail, limit=limit)


def circles(after: Mapping[str, Iterable[str]], vm: str) -> tuple[str, ...]:
    """The virtual machines that wait for each other around ``vm``, by name; empty where nobody does."""
    found = _circle(vm, {name: tuple(names) for name, names in after.items()})
    alone = len(found) == 1 and vm not in after.get(vm, ())
    return () if alone else tuple(sorted(found))


def in_order(names: Sequence[str], after: Mapping[str, Iterable[str]]) -> list[str]:
    """These names as they are, but none before those that it is after, and those where it would have been.

    Of names that are after each other in a circle somebody comes first.
    """
    place = {name: number for number, name in enumerate(names)}
    found: dict[str, None] = {}
    begun: set[str] = set()
    for name in names:
        open_ = [name] if name not in begun else []
        while open_:
            begun.add(open_[-1])
            left = [one for one in after.get(open_[-1], ()) if one in place and one not in begun]
            if left:
                open_.append(min(left, key=place.__getitem__))
            else:
                found[open_.pop()] = None
    return list(found)


def _edges(given: StartOrderInput, known: Mapping[str, NamedVm]) -> dict[str, tuple[str, ...]]:
    """Who waits for whom, among those that do not run yet."""
    waiting = {one.vm: one.after for one in given.known if one.state == "coming"} | {given.vm: given.after}
    named = {name for names in waiting.values() for name in names}
    there = waiting.keys() | {name for name in named if name not in known}
    return {vm: tuple(one for one in names if one in there and one != vm) for vm, names in waiting.items()}


def _circle(vm: str, edges: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Itself, and all that it waits for and that wait for it."""
    back: dict[str, list[str]] = {}
    for one, names in edges.items():
        for name in names:
            back.setdefault(name, []).append(one)
    return _reached(vm, edges) & _reached(vm, back)


def _reached(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    found, left = {start}, [start]
    while left:
        new = [name for name in edges.get(left.pop(), ()) if name not in found]
        found.update(new)
        left += new
    return found


def _height(vm: str, edges: Mapping[str, tuple[str, ...]]) -> int:
    """How many follow one upon the other below it, at least 1; a circle counts as one after the other as well."""
    heights: dict[str, int] = {}
    stack: list[tuple[str, bool]] = [(vm, False)]
    open_: set[str] = set()
    while stack:
        one, done = stack.pop()
        if done:
            open_.discard(one)
            heights[one] = 1 + max((heights.get(name, 0) for name in edges.get(one, ())), default=0)
        elif one not in open_ and one not in heights:
            open_.add(one)
            stack.append((one, True))
            stack += [(name, False) for name in edges.get(one, ())]
    return max(1, heights[vm] - 1)


def _told(how: str, whom: list[tuple[str, str]]) -> str:
    if not whom:
        return ""
    named = [f"{name}, which {why}" if why else name for name, why in whom[:NAMED]]
    return f"{how} {'; '.join(named)}{', …' if len(whom) > NAMED else ''}"

"""Is a history of one object such as a single copy, used one call after the other, could have given?

The search of Wing and Gong with Lowe's memo: linearize calls one at a time, each only while no other call
had returned before it began; remember which (set of linearized calls, state) led nowhere. A call whose
answer was lost may take effect at any time after it began, also much later, or never.

The state of the object is the nonce of its last write, whether it has a finalizer and whether it is marked as
deleted, or ``None``. A compare-and-swap expects the state whose version it sent; every write brings a nonce of its
own, so that states stand for versions. What has a finalizer is only marked by a delete, and goes with the write that
takes the finalizer away: until then the name is not free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ABSENT = None
NEVER = float("inf")


class State(NamedTuple):
    """Of an object that is there."""

    nonce: str
    guarded: bool = False
    """Whether it has a finalizer."""
    marked: bool = False
    """Whether somebody deleted it while it had one."""


@dataclass(frozen=True)
class Call:
    """One call on the object, and its answer."""

    what: Literal["read", "create", "swap", "delete"]
    began: float
    returned: float
    """``NEVER`` if the answer was lost."""
    expects: State | None = None
    """Of ``swap`` and ``delete``: the state that it was sent against; of ``delete`` ``None`` is any."""
    writes: State | None = None
    """Of ``create`` and ``swap``: what it brings."""
    answer: Literal["ok", "refused", "unknown"] = "ok"
    """``refused``: exists already, conflict, or not found."""
    saw: State | None = None
    """Of a ``read``: what it read."""


_NO = object()


def _without_finalizer(state: State | None) -> State | None:
    """The state, or nothing where it was marked and its finalizer is gone."""
    return None if state is not None and state.marked and not state.guarded else state


def effect(call: Call, state: State | None) -> object:
    """The state after the call takes effect in ``state``, or ``_NO`` if its answer could not be given there."""
    match call.what:
        case "read":
            return state if call.saw == state else _NO
        case "create":
            applies, after = state is None, call.writes
        case "swap":
            applies, after = state is not None and state == call.expects, _without_finalizer(call.writes)
        case "delete":
            applies = state is not None and call.expects in (None, state)
            after = None if state is None else _without_finalizer(state._replace(marked=True))
    if call.answer == "unknown":
        return after if applies else _NO
    if call.answer == "ok":
        return after if applies else _NO
    return _NO if applies else state


def linearizable(history: Sequence[Call]) -> bool:
    """Whether one order explains all answers. Calls with lost answers need not appear in it."""
    calls = sorted(history, key=lambda call: (call.began, call.returned))
    needed = sum(1 << i for i, call in enumerate(calls) if call.answer != "unknown")
    failed: set[tuple[int, State | None]] = set()
    stack: list[tuple[int, State | None]] = [(0, ABSENT)]
    while stack:
        done, state = stack.pop()
        if done & needed == needed:
            return True
        if (done, state) in failed:
            continue
        failed.add((done, state))
        horizon = min((c.returned for i, c in enumerate(calls) if not done >> i & 1), default=NEVER)
        for i, call in enumerate(calls):
            if done >> i & 1:
                continue
            if call.began > horizon:
                break
            after = effect(call, state)
            if after is not _NO:
                stack.append((done | 1 << i, after))  # type: ignore[arg-type]
    return False

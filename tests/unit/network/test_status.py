"""The state of a migration, from its copies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.builders import copy, decide, error

DONE = {"completed": True}
READY = {"readyAt": "2030-01-01T00:00:09Z"}


def status(asked: str, *copies: dict[str, Any]) -> Any:
    return decide("status", {"asked": asked, "copies": list(copies)})


def found(state: str, source: str | None, target: str) -> dict[str, Any]:
    return {"status": {"state": state, "source": source, "target": target}}


NONE = {"status": None}
ROWS: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("1 no copy of a VM", [copy("a", vm=None, **READY)], NONE),
    ("2 one copy with a ready time", [copy("a", **READY)], found("TargetDomainReady", None, "a")),
    ("2 one completed copy with a ready time", [copy("a", **READY, **DONE)], found("TargetDomainReady", None, "a")),
    ("3 one copy", [copy("a")], NONE),
    ("4 no living copy", [copy("a", 0, **DONE), copy("b", 1, **DONE, **READY)], NONE),
    ("5 the target is completed", [copy("a", 0), copy("b", 1, **DONE)], found("Failed", "a", "b")),
    ("5 after it was ready", [copy("a", 0), copy("b", 1, **DONE, **READY)], found("Failed", "a", "b")),
    ("5 two sources", [copy("a", 0), copy("b", 1), copy("c", 2, **DONE)], found("Failed", "a", "c")),
    ("6 source ended", [copy("a", 0, **DONE), copy("b", 1, **READY)], found("TargetDomainReady", None, "b")),
    ("7 source ended before", [copy("a", 0, **DONE), copy("b", 1)], NONE),
    ("8 three living", [copy("a", 0), copy("b", 1), copy("c", 2, **READY)], error("ambiguous-migration")),
    ("9 target ready", [copy("a", 0), copy("b", 1, **READY)], found("TargetDomainReady", "a", "b")),
    ("9 second migration", [copy("a", 0, **READY), copy("b", 1, **READY)], found("TargetDomainReady", "a", "b")),
    ("10 two living", [copy("a", 0), copy("b", 1)], found("InProgress", "a", "b")),
    ("10 the source was a target", [copy("a", 0, **READY), copy("b", 1)], found("InProgress", "a", "b")),
    ("10 a completed one between", [copy("a", 0), copy("b", 1, **DONE), copy("c", 2)], found("InProgress", "a", "c")),
    ("10 an empty ready time", [copy("a", 0), copy("b", 1, readyAt="")], found("InProgress", "a", "b")),
    ("equal times go by id", [copy("b", 1), copy("a", 1)], found("InProgress", "a", "b")),
]


@pytest.mark.parametrize(("copies", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_status_is_that_of_the_first_row_that_holds(copies: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    others = [copy("x", 5, vm="other"), copy("y", 6, vm=None)]
    for asked in copies:
        assert status(asked["id"], *reversed(copies), *others) == expected


def test_the_status_of_one_that_is_not_there_is_refused() -> None:
    assert status("b", copy("a")) == error("bad-input")


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (None, None, False),
        (None, copy("a", **READY), False),
        (copy("a", **READY), None, False),
        (copy("a"), copy("a"), False),
        (copy("a"), copy("a", **READY), True),
        (copy("a", **READY), copy("a", **READY, **DONE), False),
        (copy("a", **READY), copy("a", readyAt="2030-01-01T00:00:10Z"), True),
        (copy("a"), copy("a", readyAt=""), False),
    ],
)
def test_an_event_says_something_of_a_migration_if_the_ready_time_changed(old: Any, new: Any, changed: bool) -> None:
    assert decide("status_changed", {"old": old, "new": new}) == {"changed": changed}


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=4), st.randoms())
def test_the_status_depends_neither_on_order_nor_on_who_asks(drawn: list[tuple[int, bool, bool]], random: Any) -> None:
    copies = [
        copy(str(i), second, completed=done, readyAt="t" if ready else None)
        for i, (second, done, ready) in enumerate(drawn)
    ]
    expected = status("0", *copies)
    random.shuffle(copies)
    assert all(status(one["id"], *copies) == expected for one in copies)
    living = [one for one in copies if not one["completed"]]
    if expected.get("status") and expected["status"]["source"] is not None:
        assert expected["status"]["source"] in [one["id"] for one in living]

"""``schema.step``: each row of its table, and that it comes to an end from wherever it begins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.resources import convert
from outlive.runtime import SchemaObservation, next_schema_step

NOW = 1_000_000.0


def host(latest: int = 2, active: int = 1, *, member: bool = True) -> dict[str, Any]:
    return {"latest": latest, "active": active, "isMember": member}


def seen(**members: Any) -> SchemaObservation:
    given_ = {"now": NOW, "version": 1, "recorded": 1, "latest": 2, "hosts": {"a": host(), "b": host()}}
    return convert(SchemaObservation, given_ | members)


HELD: dict[str, Any] = {"holdTo": 2, "holdSince": NOW - 10}
OLD: dict[str, Any] = {"holdTo": 2, "holdSince": NOW - 300}
BACK: dict[str, Any] = {"version": 2, "recorded": 2, "hosts": {"a": host(active=2), "b": host(active=2)}}
STEPS: dict[str, tuple[dict[str, Any], tuple[str, int, list[str]]]] = {
    "a change that is not finished comes first": ({"moving": True, "target": 2, "recorded": 0}, ("finish", 2, [])),
    "then the record of what is": ({"version": 2}, ("record", 2, [])),
    "all know the newer one: a hold": ({}, ("hold", 2, [])),
    "with a hold the store moves": (HELD, ("move", 2, [])),
    "a hold that is too old is none": (OLD, ("hold", 2, [])),
    "one of the future is none either": ({"holdTo": 2, "holdSince": NOW + 300}, ("hold", 2, [])),
    "a hold for another schema is none": ({**HELD, "holdTo": 3}, ("hold", 2, [])),
    "one host does not know it": ({"hosts": {"b10": host(1), "b2": host(1), "a": host()}}, ("wait", 2, ["b2", "b10"])),
    "a host that says nothing knows the first": ({"hosts": {"a": host(), "b": host(0, 0)}}, ("wait", 2, ["b"])),
    "one that is excluded and gone is not waited for": (
        {"hosts": {"a": host(), "b": host(1, member=False)}, "exclude": ["b"]},
        ("hold", 2, []),
    ),
    "one that is excluded and came back is": (
        {"hosts": {"a": host(), "b": host(1)}, "exclude": ["b"]},
        ("wait", 2, ["b"]),
    ),
    "this controller does not know it": ({"latest": 1}, ("wait", 2, ["controller"])),
    "hosts work by the old one still": ({"version": 2, "recorded": 2, **HELD}, ("rest", 0, [])),
    "all work by the new one": ({**BACK, **HELD}, ("release", 2, [])),
    "one that is no member does not count": (
        {"version": 2, "recorded": 2, "hosts": {"a": host(active=2), "b": host(member=False)}, **HELD},
        ("release", 2, []),
    ),
    "they never came, and the hold ends": ({"version": 2, "recorded": 2, **OLD}, ("release", 2, [])),
    "nothing newer is known": ({"hosts": {"a": host(1), "b": host(1)}, "latest": 1}, ("rest", 0, [])),
    "a cluster without hosts rests": ({"hosts": {}}, ("rest", 0, [])),
    "an operator wants it to stay": ({"wanted": 1}, ("rest", 0, [])),
    "an operator wants it to go back": ({**BACK, "wanted": 1}, ("hold", 1, [])),
    "back, with a hold": ({**BACK, "wanted": 1, "holdTo": 1, "holdSince": NOW}, ("move", 1, [])),
    "an operator wants what some do not know": (
        {"wanted": 2, "hosts": {"a": host(), "b": host(1)}},
        ("wait", 2, ["b"]),
    ),
}


@pytest.mark.parametrize(("members", "wanted"), STEPS.values(), ids=STEPS)
def test_the_next_step(members: dict[str, Any], wanted: tuple[str, int, list[str]]) -> None:
    found = next_schema_step(seen(**members))
    assert (found.action, found.to, list(found.waiting_for)) == wanted


hosts = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(host, st.integers(0, 3), st.integers(0, 3), member=st.booleans()),
    max_size=3,
)


@given(
    hosts,
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 3)),
    st.integers(0, 3),
    st.booleans(),
)
def test_it_comes_to_rest_wherever_it_begins_and_moves_only_under_a_hold(
    hosts: dict[str, Any], version: int, recorded: int, latest: int, wanted: int | None, hold: int, moving: bool
) -> None:
    state: dict[str, Any] = {
        "hosts": hosts, "version": version, "recorded": recorded, "latest": latest, "wanted": wanted,
        "holdTo": hold, "holdSince": NOW if hold else 0.0, "moving": moving, "target": 2 if moving else 0,
    }  # fmt: skip
    for _ in range(10):
        step = next_schema_step(seen(**state))
        match step.action:
            case "finish":
                state |= {"moving": False, "version": step.to}
            case "record":
                state["recorded"] = step.to
            case "hold":
                state |= {"holdTo": step.to, "holdSince": NOW}
            case "move":
                assert state["holdTo"] == step.to
                assert all((one["latest"] or 1) >= step.to for one in hosts.values())
                state["version"] = step.to
                for one in hosts.values():
                    one["active"] = step.to
            case "release":
                state["holdTo"] = 0
            case _:
                return
    raise AssertionError("it does not come to rest")

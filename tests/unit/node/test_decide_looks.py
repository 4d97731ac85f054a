"""How often a silent host is looked at again, where its VMs have a recovery time objective."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide

STEADY = {"silence_s": 30, "throws": 6, "throw_s": 5}
FAST = {"silence_s": 5, "throws": 2, "throw_s": 1}
PROVEN = {"guard_s": 30.4, "power_s": 12.0}


def looks(**given: Any) -> dict[str, Any]:
    return decide("fence.looks", **given)


def test_host_without_an_objective_is_looked_at_as_its_profile_says() -> None:
    assert looks(**STEADY) == {"throws": 6, "throw_s": 5, "reason": "no_objective", "why": ""}


def test_objective_that_can_be_met_with_all_looks_changes_nothing() -> None:
    found = looks(**STEADY, **PROVEN, objective_s=65)
    assert (found["throws"], found["reason"], found["why"]) == (6, "as_usual", "")
    assert looks(**FAST, **PROVEN, objective_s=12)["reason"] == "as_usual"


def test_shorter_objective_takes_looks_away_until_it_can_be_met() -> None:
    found = looks(**STEADY, **PROVEN, objective_s=50)
    assert (found["throws"], found["throw_s"], found["reason"]) == (3, 5, "shortened")
    assert found["why"] == (
        "checked 3 times every 5 s instead of 6 times every 5 s: a VM on it is to run again within 50 s; "
        "its guard was found good 30 s ago and its BMC 12 s ago"
    )


def test_one_look_is_always_left_and_lies_a_second_after_the_silence_limit() -> None:
    for objective_s in (1, 20, 35):
        found = looks(**STEADY, **PROVEN, objective_s=objective_s)
        assert (found["throws"], found["throw_s"]) == (1, 1.0)
    assert looks(**STEADY, **PROVEN, objective_s=38)["throw_s"] == 3
    assert looks(**FAST, **PROVEN, objective_s=6)["throws"] == 1


def test_nothing_is_shortened_unless_guard_and_power_were_both_found_good_within_a_minute() -> None:
    desired = STEADY | {"objective_s": 40}
    assert looks(**desired, power_s=1)["reason"] == "guard_not_proven"
    assert looks(**desired, guard_s=60.1, power_s=1)["reason"] == "guard_not_proven"
    assert looks(**desired, guard_s=31)["reason"] == "power_not_proven"
    found = looks(**desired, guard_s=31, power_s=75)
    assert (found["throws"], found["throw_s"], found["reason"]) == (6, 5, "power_not_proven")
    assert found["why"] == (
        "not checked less often: a VM on it is to run again within 40 s, but its BMC was last found good 75 s ago"
    )
    assert looks(**desired, guard_s=60, power_s=60)["reason"] == "shortened"


AGES = st.none() | st.floats(0, 120)


@given(st.integers(0, 9), st.floats(0, 10), st.floats(1, 60), st.none() | st.floats(0, 200), AGES, AGES)
def test_looks_only_ever_become_fewer_and_never_closer_than_a_second_or_the_profile_has_them(
    throws: int, throw_s: float, silence_s: float, objective_s: float | None, guard_s: float | None, power_s: Any
) -> None:
    found = looks(
        silence_s=silence_s,
        throws=throws,
        throw_s=throw_s,
        objective_s=objective_s,
        guard_s=guard_s,
        power_s=power_s,
    )
    assert min(throws, 1) <= found["throws"] <= throws
    assert min(throw_s, 1.0) <= found["throw_s"] <= throw_s
    if guard_s is None or power_s is None or objective_s is None:
        assert (found["throws"], found["throw_s"]) == (throws, throw_s)


def test_a_host_that_its_power_controller_calls_off_is_looked_at_once_and_as_late_as_at_any_first_look() -> None:
    found = looks(**STEADY, said_off=True)
    assert (found["throws"], found["throw_s"], found["reason"]) == (1, 5, "said_off")
    assert found["why"] == "checked once instead of 6 times: its BMC says that it is off"
    assert looks(**FAST, said_off=True)["throw_s"] == 1
    assert looks(**FAST, **PROVEN, objective_s=6, said_off=True)["reason"] == "shortened"

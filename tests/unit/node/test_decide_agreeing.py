"""Whether a second observer is needed before a silent host is condemned."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.node_decisions import decide

SUSPECT = {"uid": "u", "epoch": 1, "seq": 812, "silent_s": 7.2}
SAME = {"uid": "u", "epoch": 1, "seq": 812, "silent_s": 5.1}


def colleague(name: str, switch: str | None = "s2", **more: Any) -> dict[str, Any]:
    return {"name": name, "switch": switch, "lives": True, "fresh": True, "sees": SAME} | more


def agree(*colleagues: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {
        "observer": "a",
        "switch": "s1",
        "suspect": SUSPECT,
        "silence_s": 5,
        "coordinators": 3,
        "waited_s": 0,
        "wait_s": 2,
        "colleagues": colleagues,
    }
    return decide("fence.agree", **(given | more))


def test_two_observers_on_different_switches_who_saw_the_same_last_renewal_suffice() -> None:
    found = agree(colleague("b"))
    assert (found["go"], found["reason"], found["second"]) == (True, "two_observers", "b")
    assert found["why"] == "b on switch s2 saw nothing after renewal 812 either"


def test_second_observer_who_says_nothing_of_the_host_is_waited_for() -> None:
    found = agree(colleague("b", sees=None))
    assert (found["go"], found["reason"]) == (False, "waiting")


def test_second_observer_who_saw_another_renewal_another_membership_or_less_silence_does_not_agree() -> None:
    for other in ({"seq": 813}, {"seq": 811}, {"epoch": 2}, {"uid": "v"}, {"silent_s": 4.9}):
        assert agree(colleague("b", sees=SAME | other))["reason"] == "waiting", other


def test_what_was_published_long_ago_or_by_somebody_who_is_silent_does_not_count() -> None:
    assert agree(colleague("b", fresh=False))["reason"] == "waiting"
    assert agree(colleague("b", lives=False), colleague("c", sees=None))["reason"] == "waiting"


def test_observer_on_the_same_switch_does_not_count_while_one_on_another_lives() -> None:
    assert agree(colleague("b", "s1"), colleague("c", sees=None))["reason"] == "waiting"
    assert agree(colleague("b", "s1"), colleague("c"))["second"] == "c"


def test_waiting_ends_and_one_observer_goes_on_and_tells_for_whom_it_waited() -> None:
    silent = colleague("b", sees=None)
    assert agree(silent, waited_s=1.9)["go"] is False
    found = agree(silent, waited_s=2.0)
    assert (found["go"], found["reason"], found["second"]) == (True, "no_answer", None)
    assert found["why"] == "judged by one observer: b on switch s2 did not say within 2 s that it sees the silence"


def test_one_observer_suffices_where_nobody_else_can_say_anything() -> None:
    silent = colleague("b", sees=None)
    assert agree(silent, coordinators=2)["reason"] == "two_node_survival"
    assert agree()["reason"] == "nobody_else"
    assert agree(colleague("b", lives=False))["reason"] == "nobody_else"
    assert agree(silent, switch=None)["reason"] == "topology_unknown"
    assert agree(colleague("b", None, sees=None))["reason"] == "topology_unknown"
    assert agree(colleague("b", "s1", sees=None))["reason"] == "no_other_switch"


def test_where_no_switch_is_known_at_all_nothing_is_asked_and_nothing_told() -> None:
    found = agree(colleague("b", None, sees=None), switch=None)
    assert found == {"go": True, "reason": "not_configured", "second": None, "why": ""}


SWITCHES = st.sampled_from([None, "s1", "s2"])
SIGHTS = st.sampled_from([None, SAME, SAME | {"seq": 813}, SAME | {"silent_s": 1.0}])
COLLEAGUES = st.builds(
    lambda number, switch, lives, fresh, sees: colleague(f"c{number}", switch, lives=lives, fresh=fresh, sees=sees),
    st.integers(0, 9),
    SWITCHES,
    st.booleans(),
    st.booleans(),
    SIGHTS,
)


@given(st.lists(COLLEAGUES, max_size=5), SWITCHES, st.integers(1, 5), st.floats(0, 5), st.floats(0, 5))
def test_nobody_waits_longer_than_the_limit_and_every_fall_back_is_reported(
    colleagues: list[dict[str, Any]], switch: str | None, coordinators: int, waited_s: float, wait_s: float
) -> None:
    found = agree(*colleagues, switch=switch, coordinators=coordinators, waited_s=waited_s, wait_s=wait_s)
    assert found["go"] or waited_s < wait_s
    assert found["why"] or found["reason"] == "not_configured"
    assert (found["second"] is not None) == (found["reason"] == "two_observers")

"""Parts of stories as plain data: what is wanted of facts, sentences that are told together, figures at the end."""

from __future__ import annotations

import pytest

from outlive.resources.documents import Problems
from outlive.simulation.expectations import Share, judge_summary, read_expectations
from outlive.simulation.narration import Told, grouped
from outlive.simulation.states import matches
from outlive.simulation.summary import HeldVm, Summary, percentile
from outlive.simulation.timeline import VERBS, read_timeline
from outlive.simulation.verbs import VERBS as WORLD_VERBS


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (3, 3),
        (True, True),
        ("kvm-1", ("kvm-1",)),
        (["b", "a"], ("a", "b")),
        ([], ()),
        (None, ""),
        (None, None),
        ("~room", "no-room: nobody has room"),
        (">= 2", 2),
        ("<= 2", 2),
    ],
)
def test_a_fact_is_as_wanted(wanted: object, found: object) -> None:
    assert matches(wanted, found)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(1, True), (True, 1), ("kvm-1", ("kvm-1", "kvm-2")), (">= 2", 1), ("~room", "nothing"), (None, "x"), ([], None)],
)
def test_a_fact_is_not_as_wanted(wanted: object, found: object) -> None:
    assert not matches(wanted, found)


def told(subject: str, at_s: float, key: str = "runs") -> Told:
    text = f"{subject} runs on kvm-1"
    return Told(subject=subject, text=text, key=key, many="{n} VMs run on {where}", where="kvm-1", at_s=at_s)


def test_equal_sentences_close_together_are_one() -> None:
    lines = grouped([told("vm-a", 1.0), told("other", 1.1, key=""), told("vm-b", 1.2), told("vm-c", 9.0)])
    assert [one.text for one in lines] == [
        "2 VMs run on kvm-1: vm-a, vm-b",
        "other runs on kvm-1",
        "vm-c runs on kvm-1",
    ]


def test_many_names_are_a_number() -> None:
    (line,) = grouped([told(f"vm-{number}", 1.0) for number in range(15)])
    assert line.text == "15 VMs run on kvm-1"


def test_percentiles_are_values_that_were_seen() -> None:
    values = tuple(float(number) for number in range(1, 101))
    assert [percentile(values, share) for share in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile((7.0,), 1) == 7.0
    assert percentile((), 50) is None


def test_a_share_is_of_those_that_were_lost() -> None:
    assert Share(0, 100.0).missed(3, 3) == ""
    assert Share(0, 80.0).missed(3, 4)
    assert Share(2).missed(1, 9)


def test_vms_that_wait_are_expected_by_name_and_reason() -> None:
    problems = Problems()
    expect = read_expectations({"held": {"vm-a": "no-room"}}, "expect.yaml", problems)
    assert not problems.shown
    waits = Summary(seed=1, virtual_s=9, held_vms=(HeldVm(vm="vm-a", reason="no-room: full", remedy="add a host"),))
    assert judge_summary(expect, waits) == []
    without = Summary(seed=1, virtual_s=9, held_vms=(HeldVm(vm="vm-a", reason="no-room: full"),))
    assert judge_summary(expect, without) == ["vm-a is held without a remedy"]
    assert judge_summary(expect, Summary(seed=1, virtual_s=9)) == ["vm-a is not held"]


def test_timelines_know_the_verbs_of_the_world_and_no_others() -> None:
    assert set(VERBS) == set(WORLD_VERBS)


def test_an_act_waits_or_has_a_time_and_not_both() -> None:
    problems = Problems()
    entry = {"at": "1s", "when": {"fleet": {"running": 3}}, "release": {}}
    read_timeline([entry], "timeline.yaml", problems)
    assert [one.message for one in problems.shown] == ["has both at and when"]

"""In which order VMs are recovered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.node.vm import find_cycle
from outlive.recovery import (
    ActionKind,
    AffectedVm,
    HolderState,
    HostHealth,
    HostState,
    RecoveryAction,
    RecoveryView,
    SlotState,
    order_restarts,
    plan_recovery,
)

HOSTS = (HostState(name="h1"), HostState(name="h2"), HostState(name="dead", health=HostHealth.DEAD))


def vm(name: str, *after: str, priority: int = 0, memory: int = 4) -> AffectedVm:
    return AffectedVm(id=name, after=after, priority=priority, memory_bytes=memory)


def names(*vms: AffectedVm) -> list[str]:
    return [one.id for one in order_restarts(vms)]


def test_a_vm_that_others_start_after_comes_before_them() -> None:
    assert names(vm("a", "b"), vm("b", "c"), vm("c"), vm("d")) == ["c", "b", "a", "d"]


def test_a_vm_that_an_important_vm_starts_after_is_as_important() -> None:
    assert names(vm("page", "database", priority=9), vm("database"), vm("other", priority=5)) == [
        "database",
        "page",
        "other",
    ]


def test_without_such_requests_the_order_is_that_of_restart() -> None:
    assert names(vm("a"), vm("b", memory=8), vm("c", priority=1)) == ["c", "b", "a"]


def test_those_that_are_not_to_be_recovered_do_not_matter() -> None:
    assert names(vm("a", "elsewhere"), vm("b")) == ["a", "b"]


NAMES = tuple("abcdefgh")
START_AFTER = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
PRIORITIES = st.dictionaries(st.sampled_from(NAMES), st.integers(-3, 3))


@pytest.mark.slow
@given(after=START_AFTER, priorities=PRIORITIES)
@settings(max_examples=300, deadline=None)
def test_everybody_comes_once_and_after_those_that_it_starts_after_unless_they_form_a_circle(
    after: dict[str, list[str]], priorities: dict[str, int]
) -> None:
    found = names(*(vm(one, *after.get(one, ()), priority=priorities.get(one, 0)) for one in NAMES))
    assert sorted(found) == sorted(NAMES)
    for one in NAMES:
        for other in after.get(one, ()):
            in_order = found.index(other) <= found.index(one)
            assert in_order or other in find_cycle(after, one), (one, other, found)


# In the plan


def lost(name: str, *after: str, **how: object) -> AffectedVm:
    given = {"holders": (HolderState(host="dead", fenced=True),), "assigned": "dead", "fence": "f", "memory_bytes": 4}
    return AffectedVm(**{**given, "id": name, "after": after, **how})


def slot(name: str, host: str, *members: str) -> SlotState:
    return SlotState(name=name, host=host, members=members, cpu_milli=9, memory_bytes=9)


def planned(vms: list[AffectedVm], slots: list[SlotState]) -> dict[str, RecoveryAction]:
    plan = plan_recovery(RecoveryView(vms=tuple(vms), slots=tuple(slots), hosts=HOSTS))
    return {action.vm: action for action in plan.actions}


def test_vm_that_waits_for_others_has_its_slot_claimed_at_once() -> None:
    found = planned([lost("a", "b"), lost("b")], [slot("s1", "h1", "a"), slot("s2", "h2", "b")])
    assert [(one.kind, one.slot) for one in found.values()] == [(ActionKind.SLOT, "s2"), (ActionKind.SLOT, "s1")]


def test_of_two_vms_that_contend_for_a_slot_the_one_gets_it_that_the_other_starts_after() -> None:
    found = planned([lost("a", "b", priority=9), lost("b")], [slot("s1", "h1", "a", "b")])
    assert (found["b"].slot, found["a"].kind) == ("s1", ActionKind.SEARCH)


def test_vm_that_waits_where_it_was_sent_is_left_there_for_as_long_as_its_host_says() -> None:
    sent = {"holders": (), "assigned": "h1", "unfinished": True, "waits_for": "starts after b", "wait_limit_s": 180.0}
    for waited_s, kind in ((239.0, ActionKind.WAIT), (241.0, ActionKind.SEARCH)):
        found = planned([lost("a", "b", **sent, waited_s=waited_s)], [])["a"]
        assert found.kind is kind
    assert planned([lost("a", "b", **sent, waited_s=100.0)], [])["a"].message.text == "starts after b"


def test_vm_that_waits_leaves_a_host_that_dies_meanwhile() -> None:
    sent = {"holders": (), "assigned": "dead", "unfinished": True, "waits_for": "starts after b", "wait_limit_s": 180.0}
    assert planned([lost("a", "b", **sent)], [slot("s1", "h1", "a")])["a"].slot == "s1"

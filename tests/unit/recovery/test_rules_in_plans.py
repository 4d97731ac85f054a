"""Recovery obeys the rules of VMs, into slots and elsewhere, and uses what breaks none wherever there is any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.placement import Group
from outlive.recovery import (
    ActionKind,
    AffectedVm,
    Free,
    HolderState,
    HostHealth,
    HostState,
    RecoveryAction,
    RecoveryPlan,
    RecoveryView,
    SlotState,
    plan_recovery,
)
from outlive.resources import AffinityRule, FreeFunction, FunctionNeed
from outlive.resources.reasons import HoldReason, PlaceReason

Groups = dict[AffinityRule, dict[str, tuple[str, ...]]]
HOSTS = ("h1", "h2", "h3", "h4")
APART = AffinityRule(group="db", policy="anti-affinity")
TOGETHER = AffinityRule(group="web", policy="affinity")
SOFTLY_APART = AffinityRule(group="cache", policy="soft-anti-affinity")
RULES = (APART, AffinityRule(group="quorum", policy="anti-affinity"), TOGETHER, SOFTLY_APART)


def lost(name: str, *rules: AffinityRule, offers: tuple[str, ...] | None = HOSTS, **how: object) -> AffectedVm:
    holders = (HolderState(host="dead", fenced=True),)
    values = {
        "id": name,
        "fence": "f",
        "holders": holders,
        "assigned": "dead",
        "memory_bytes": 4,
        "cpu_milli": 1,
        **how,
    }
    return AffectedVm(rules=rules, offers=offers, **values)


def slot(name: str, host: str, *members: str) -> SlotState:
    return SlotState(name=name, host=host, members=members, cpu_milli=9, memory_bytes=9)


def plan(vms: list[AffectedVm], slots: list[SlotState], groups: Groups, room: int = 9) -> RecoveryPlan:
    hosts = (*(HostState(name=name) for name in HOSTS), HostState(name="dead", health=HostHealth.DEAD))
    return plan_recovery(
        RecoveryView(
            vms=tuple(vms),
            slots=tuple(slots),
            hosts=hosts,
            groups=tuple(Group(rule=rule, members=members) for rule, members in groups.items()),
            free=dict.fromkeys(HOSTS, Free(cpu_milli=9, memory_bytes=room)),
        )
    )


def where(found: RecoveryPlan) -> dict[str, str]:
    return {one.vm: one.host for one in found.actions if one.kind in (ActionKind.SLOT, ActionKind.PLACE)}


def only(found: RecoveryPlan) -> RecoveryAction:
    (action,) = found.actions
    return action


def test_a_vm_takes_the_slot_where_none_of_its_anti_affinity_group_is():
    action = only(plan([lost("a", APART)], [slot("s1", "h1", "a"), slot("s2", "h2", "a")], {APART: {"b": ("h1",)}}))
    assert (action.kind, action.slot) == (ActionKind.SLOT, "s2")


def test_two_that_are_kept_apart_do_not_land_together():
    slots = [slot("s1", "h1", "a"), slot("s2", "h1", "b"), slot("s3", "h3", "b")]
    assert where(plan([lost("a", APART), lost("b", APART)], slots, {})) == {"a": "h1", "b": "h3"}


def test_a_group_that_died_together_comes_back_together():
    slots = [slot("s1", "h1", "a"), slot("s2", "h4", "a"), slot("s3", "h4", "b")]
    assert where(plan([lost("a", TOGETHER), lost("b", TOGETHER)], slots, {})) == {"a": "h4", "b": "h4"}
    placed = where(plan([lost("a", TOGETHER), lost("b", TOGETHER)], [], {}))
    assert placed["a"] == placed["b"]


def test_a_group_starts_where_all_of_it_may_be_with_slots_and_without():
    beside = {APART: {"x": ("h1", "h2")}}
    group = [lost("a", TOGETHER), lost("b", TOGETHER, APART)]
    assert set(where(plan(group, [], beside)).values()) <= {"h3", "h4"}
    assert len(set(where(plan(group, [], beside)).values())) == 1
    slots = [slot("s1", "h1", "a"), slot("s2", "h1", "b"), slot("s3", "h3", "a"), slot("s4", "h3", "b")]
    assert where(plan(group, slots, beside)) == {"a": "h3", "b": "h3"}
    assert where(plan(group, slots[:3], beside)) == {"a": "h3", "b": "h3"}, "one in its slot, the other beside it"


def test_a_group_goes_where_there_is_room_for_all_and_is_asked_about_before_one_takes_a_slot():
    group = [lost("a", TOGETHER, offers=None), lost("b", TOGETHER, offers=None)]
    slots = [slot("s1", "h1", "a"), slot("s2", "h2", "b")]
    assert {one.kind for one in plan(group, slots, {}).actions} == {ActionKind.SEARCH}
    offered = [lost("a", TOGETHER), lost("b", TOGETHER)]
    found = where(plan(offered, slots, {}, room=4))
    assert found in ({"a": "h1", "b": "h1"}, {"a": "h2", "b": "h2"})
    unoffered = [lost("a", TOGETHER, offers=("h1",)), lost("b", TOGETHER, APART, offers=("h1",))]
    alone = where(plan(unoffered, [], {APART: {"x": ("h1",)}}))
    assert alone == {"a": "h1"}, "no host takes all of it: each is planned for by itself"


def test_a_vm_that_may_start_nowhere_else_waits_and_is_then_asked_for_where_it_was_sent_first():
    refused = {"assigned": "h1", "holders": (), "unfinished": True, "refusal": "no", "tried": ("h1",)}
    limited = {"max_relocations": 0, **refused}
    held = only(plan([lost("a", avoid=("h1",), **limited)], [], {}))
    assert (held.kind, held.reason.code) == (ActionKind.HOLD, HoldReason.NOT_ELSEWHERE)
    assert "nowhere else" in held.message.text
    again = only(plan([lost("a", **limited)], [], {}))
    assert (again.kind, again.host) == (ActionKind.PLACE, "h1")
    assert only(plan([lost("a", avoid=("h1",), **refused)], [], {})).host in {"h2", "h3", "h4"}
    first = only(plan([lost("a", max_relocations=0)], [], {}))
    assert first.kind is ActionKind.PLACE, "the first host is nowhere else"


def test_a_vm_that_fits_only_beside_another_one_is_held_with_the_rule():
    action = only(plan([lost("a", APART, offers=("h1",))], [slot("s1", "h1", "a")], {APART: {"b": ("h1",)}}))
    assert (action.kind, action.reason.code) == (ActionKind.HOLD, HoldReason.RULED_OUT)
    assert "anti-affinity group db" in action.message.text


def test_a_soft_rule_is_broken_only_where_nothing_else_is_left_and_is_told():
    groups = {SOFTLY_APART: {"b": ("h1", "h2")}}
    assert where(plan([lost("a", SOFTLY_APART, offers=("h1", "h3"))], [], groups)) == {"a": "h3"}
    action = only(plan([lost("a", SOFTLY_APART, offers=("h1", "h2"))], [], groups))
    assert action.host == "h1"
    assert [one.code for one in action.against] == [PlaceReason.SOFT_ANTI_AFFINITY]


def test_preferred_hosts_come_first_among_slots_and_hosts_that_are_alike():
    weights = {"h2": 1, "h3": 5}
    assert where(plan([lost("a", preferred=weights)], [], {})) == {"a": "h3"}
    slots = [slot(f"s{n}", f"h{n}", "a") for n in (1, 2, 3)]
    assert where(plan([lost("a", preferred=weights)], slots, {})) == {"a": "h3"}


@st.composite
def losses(draw: st.DrawFn) -> tuple[list[AffectedVm], list[SlotState], Groups]:
    hosts = st.sampled_from(HOSTS)
    names = [f"v{number}" for number in range(draw(st.integers(1, 6)))]
    vms = [
        lost(
            name,
            *draw(st.lists(st.sampled_from(RULES), unique=True, max_size=3)),
            offers=tuple(draw(st.lists(hosts, unique=True))),
            host_limit=tuple(draw(st.lists(hosts, unique=True, max_size=2))),
            priority=draw(st.integers(0, 2)),
        )
        for name in names
    ]
    slots = [
        slot(f"s{number}", draw(hosts), *draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
        for number in range(draw(st.integers(0, 6)))
    ]
    groups = {rule: draw(st.dictionaries(st.sampled_from(("x", "y")), hosts.map(lambda one: (one,)))) for rule in RULES}
    return vms, slots, groups


def broken(vm: AffectedVm, host: str, placed: dict[str, str], vms: list[AffectedVm], groups: Groups) -> bool:
    """Whether the VM, on the host, would break one of its hard rules, by where all others are in the end."""
    if vm.host_limit and host not in vm.host_limit:
        return True
    for rule in vm.rules:
        theirs = {one for hosts in groups[rule].values() for one in hosts}
        theirs |= {placed[one.id] for one in vms if one.id != vm.id and rule in one.rules and one.id in placed}
        if rule.policy == "anti-affinity" and host in theirs:
            return True
        if rule.policy == "affinity" and theirs and host not in theirs:
            return True
    return False


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(losses(), st.integers(4, 12))
def test_no_hard_rule_is_broken_and_nobody_is_held_where_a_place_breaks_none(
    given_: tuple[list[AffectedVm], list[SlotState], Groups], room: int
) -> None:
    vms, slots, groups = given_
    found = plan(vms, slots, groups, room)
    placed = where(found)
    taken = {one.slot for one in found.actions if one.kind is ActionKind.SLOT}
    booked = dict.fromkeys(HOSTS, 0)
    for one in found.actions:
        if one.kind is ActionKind.PLACE:
            booked[one.host] += 4
    for vm in vms:
        if vm.id in placed:
            assert not broken(vm, placed[vm.id], placed, vms, groups)
            continue
        own = [one.host for one in slots if vm.id in one.members and one.name not in taken]
        own += [host for host in vm.offers or () if booked[host] + 4 <= room]
        assert all(broken(vm, host, placed, vms, groups) for host in own), (vm.id, own)


NIC = FunctionNeed(name="eth0v0")


def with_functions(*vms: AffectedVm, slots: tuple[SlotState, ...] = (), **owners: str) -> RecoveryPlan:
    """``owners``: hosts that have the function, and who has it there."""
    functions = {host: (FreeFunction(name="eth0v0", pci="", owner=owner),) for host, owner in owners.items()}
    hosts = (*(HostState(name=name, functions=functions.get(name, ())) for name in HOSTS),)
    dead = HostState(name="dead", health=HostHealth.DEAD)
    free = dict.fromkeys(HOSTS, Free(cpu_milli=9, memory_bytes=9))
    return plan_recovery(RecoveryView(vms=vms, slots=slots, hosts=(*hosts, dead), free=free))


def test_vm_goes_where_its_virtual_function_is_free_and_nowhere_else():
    vm = lost("a", functions=(NIC,))
    assert where(with_functions(vm, h1="b", h3="")) == {"a": "h3"}
    assert where(with_functions(vm, h2="a")) == {"a": "h2"}
    held = only(with_functions(vm, h1="b"))
    assert held.kind is ActionKind.HOLD
    assert "virtual function eth0v0" in held.message.text


def test_slot_on_a_host_whose_function_is_taken_is_not_used():
    slots = (slot("s1", "h1", "a"), slot("s2", "h2", "a"))
    assert where(with_functions(lost("a", functions=(NIC,)), slots=slots, h1="b", h2="")) == {"a": "h2"}


@pytest.mark.parametrize("in_slots", [True, False])
def test_one_plan_sends_no_two_vms_to_the_same_function(in_slots: bool):
    vms = (lost("a", functions=(NIC,)), lost("b", functions=(NIC,)))
    slots = (slot("s1", "h1", "a"), slot("s2", "h1", "b")) if in_slots else ()
    found = where(with_functions(*vms, slots=slots, h1="", h4=""))
    assert sorted(found.values()) == ["h1", "h4"]


def test_vms_that_need_one_function_and_have_a_slot_each_for_every_failure_all_start():
    """They run on different hosts, so that as many hosts failed as there are VMs to be placed."""
    names = ("a", "b", "c")
    vms = tuple(lost(name, functions=(NIC,)) for name in names)
    slots = tuple(slot(f"{name}{host}", host, name) for name in names for host in ("h1", "h2", "h3"))
    found = where(with_functions(*vms, slots=slots, h1="", h2="", h3=""))
    assert sorted(found) == list(names)
    assert sorted(found.values()) == ["h1", "h2", "h3"]

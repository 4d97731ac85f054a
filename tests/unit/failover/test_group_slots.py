"""Slots of affinity groups are planned with the whole group in mind: its other rules, further groups, and room."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from outlive.failover import CheckInput, ConflictIndex, SlotView, Violation, ViolationKind, groups_of, resolve_size
from outlive.failover.check import check
from outlive.failover.planner import AssignInput, Fail, Need, Open, PlacementOffer, PlanInput, PlanResult
from outlive.failover.planner.assign import assign
from outlive.failover.planner.plan import plan
from outlive.failover.planner.replan import replan
from outlive.placement import VmView
from outlive.resources import AffinityRule

GIB = 2**30


def vm(name: str, on: str, *rules: str, gib: int = 1, only: tuple[str, ...] = ()) -> VmView:
    """``rules``: groups; one that begins with ``!`` is of anti-affinity."""
    return VmView(
        id=name,
        host=on,
        flavor="f",
        cpu_milli=1000,
        memory_bytes=gib * GIB,
        host_limit=only,
        affinity=tuple(
            AffinityRule(group=rule.removeprefix("!"), policy="anti-affinity" if rule[0] == "!" else "affinity")
            for rule in rules
        ),
    )


def slot(name: str, on: str, *members: VmView, gib: int = 1) -> SlotView:
    return SlotView(
        name=name, host=on, cpu_milli=1000, memory_bytes=gib * GIB, members={one.id: one.host for one in members}
    )


def plan_of(
    vms: list[VmView],
    hosts: list[str],
    required: dict[str, int] | None = None,
    *,
    free: dict[str, int] | None = None,
    slots: tuple[SlotView, ...] = (),
) -> PlanInput:
    """``hosts``: the best first. ``free``: host → GiB."""
    offer = {"": PlacementOffer(hosts=tuple(hosts), scores=tuple(float(-place) for place in range(len(hosts))))}
    room = dict.fromkeys(hosts, 64) if free is None else free
    return PlanInput(
        vms=tuple(vms),
        required=dict.fromkeys((one.id for one in vms), 1) if required is None else required,
        classes={one.id: "" for one in vms},
        reuse=offer,
        new=offer,
        hosts=tuple(hosts),
        free={host: (64_000, gib * GIB) for host, gib in room.items()},
        slots=slots,
    )


def planned(
    vms: list[VmView],
    hosts: list[str],
    required: dict[str, int] | None = None,
    *,
    free: dict[str, int] | None = None,
    slots: tuple[SlotView, ...] = (),
) -> PlanResult:
    return plan(plan_of(vms, hosts, required, free=free, slots=slots))


def hosts_of(result: PlanResult, vm: str) -> set[str]:
    return {slot.host for slot in result.slots if vm in slot.members}


def test_a_host_that_anti_affinity_closes_to_a_fellow_member_is_not_open_to_the_affinity_group() -> None:
    # b keeps away from x, which runs on h2, the best host; a would take it first.
    vms = [vm("a", "h1", "pair"), vm("b", "h1", "pair", "!far"), vm("x", "h2", "!far")]
    result = planned(vms, ["h2", "h3", "h4"], {"a": 1, "b": 1})
    assert (hosts_of(result, "a"), hosts_of(result, "b")) == ({"h3"}, {"h3"})
    assert result.failed == 0


def test_a_peer_of_a_member_does_not_take_a_host_where_the_members_group_has_slots_already() -> None:
    # Served in the order a, x, b, because of their sizes: x takes the host of a's slot, where b has to go as well.
    vms = [vm("a", "h1", "pair", gib=3), vm("b", "h1", "pair", "!far"), vm("x", "h2", "!far", gib=2)]
    result = planned(vms, ["h3", "h4"])
    assert (hosts_of(result, "a"), hosts_of(result, "b"), hosts_of(result, "x")) == ({"h3"}, {"h3"}, {"h4"})


def test_hosts_are_open_to_all_that_further_groups_bind() -> None:
    # a is with b, b is with c, and c may only run on h1 and h4.
    vms = [vm("a", "h1", "g", gib=3), vm("b", "h1", "g", "k", gib=2), vm("c", "h1", "k", only=("h1", "h4"))]
    result = planned(vms, ["h2", "h3", "h4"])
    assert {host for one in "abc" for host in hosts_of(result, one)} == {"h4"}
    assert result.failed == 0


def test_slots_of_groups_with_a_common_member_are_together_on_as_many_hosts_as_the_largest_need() -> None:
    vms = [vm("w", "h1", "k", gib=3), vm("v", "h1", "g", gib=2), vm("u", "h1", "g", "k")]
    result = planned(vms, ["h2", "h3", "h4", "h5"], {"w": 1, "v": 1, "u": 1})
    assert {host for one in "uvw" for host in hosts_of(result, one)} == {"h2"}
    closed = planned(
        vms, ["h4", "h5"], {"w": 1, "v": 1, "u": 1}, slots=(slot("s", "h9", vms[0], gib=9),)
    )  # h9 takes no new slots
    (first, *_) = [one for one in closed.actions if isinstance(one, Fail)]
    assert "has no slot of affinity groups g and k, whose VMs use 1 host already" in first.detail


def test_the_first_slot_is_opened_where_all_slots_of_the_group_have_room() -> None:
    vms = [vm("a", "h1", "g", gib=2), vm("b", "h1", "g", gib=2), vm("c", "h1", "g", "k"), vm("d", "h1", "k")]
    result = planned(vms, ["h2", "h3"], free={"h1": 0, "h2": 5, "h3": 6})
    assert {host for one in "abcd" for host in hosts_of(result, one)} == {"h3"}
    # Where no host has room for all, as many as possible get one.
    result = planned(vms, ["h2", "h3"], free={"h1": 0, "h2": 5, "h3": 4})
    assert {host for one in "abc" for host in hosts_of(result, one)} == {"h2"}


def test_the_first_slot_is_not_joined_where_the_others_have_no_room() -> None:
    other = vm("o", "h5")
    vms = [vm("a", "h1", "g"), vm("b", "h1", "g"), other]
    shared = slot("s", "h2", other)
    result = planned(vms, ["h2", "h3"], free={"h1": 0, "h2": 0, "h3": 2, "h5": 0}, slots=(shared,))
    assert (hosts_of(result, "a"), hosts_of(result, "b")) == ({"h3"}, {"h3"})
    roomy = planned(vms, ["h2", "h3"], free={"h1": 0, "h2": 1, "h3": 2, "h5": 0}, slots=(shared,))
    assert (hosts_of(roomy, "a"), hosts_of(roomy, "b")) == ({"h2"}, {"h2"})


def test_a_recorded_assignment_repeats_with_those_of_the_group_that_are_served_later() -> None:
    a, b = vm("a", "h1", "g"), vm("b", "h1", "g")
    need = Need(vm="a", needed=1, size=resolve_size(a), offer_class="c")
    given = AssignInput(
        slots=(),
        vms=(a,),
        needs=(need,),
        reuse={"c": PlacementOffer()},
        new={"c": PlacementOffer(hosts=("h2", "h3"), scores=(1.0, 0.0))},
        free={"h2": (64_000, GIB), "h3": (64_000, 2 * GIB)},
        groups=groups_of([a, b], {"a": 1, "b": 1}),
    )
    (alone,) = assign(given).actions
    assert isinstance(alone, Open)
    assert alone.host == "h2"
    with_b = msgspec.structs.replace(given, later=(msgspec.structs.replace(need, vm="b"),))
    (together,) = assign(with_b).actions
    assert isinstance(together, Open)
    assert together.host == "h3"


@pytest.mark.parametrize(
    ("name", "groups"),
    [("a", {"g", "k", "far", "mates"}), ("x", {"far", "g", "k"}), ("m", {"mates", "g", "k"}), ("alone", set())],
)
def test_a_decision_sees_every_group_that_bears_on_the_vm_and_no_other(name: str, groups: set[str]) -> None:
    vms = [
        vm("a", "h1", "g"),
        vm("b", "h1", "g", "k", "!far"),
        vm("c", "h1", "k", "!mates"),
        vm("x", "h2", "!far"),
        vm("m", "h3", "!mates"),
        vm("y", "h4", "stranger"),
        vm("z", "h4", "stranger"),
        vm("alone", "h5"),
    ]
    found = groups_of(vms, {}, among={name})
    assert {group.name for group in found} == groups
    index = ConflictIndex.build((), vms, dict.fromkeys((one.id for one in vms), 1))
    assert {group.name for group in index.separation.related_groups(name)} == groups


def checked(vms: list[VmView], slots: list[SlotView], required: dict[str, int] | None = None) -> list[Violation]:
    needs = dict.fromkeys((one.id for one in vms), 1) if required is None else required
    return list(check(CheckInput(vms=tuple(vms), slots=tuple(slots), required=needs)).violations)


def test_a_check_names_slots_of_a_group_on_hosts_that_another_of_it_may_not_run_on_and_what_helps() -> None:
    a, b = vm("a", "h1", "g"), vm("b", "h1", "g", "k")
    c = vm("c", "h1", "k", only=("h1", "h4"))
    slots = [slot("s", "h2", a), slot("t", "h4", b)]
    (found,) = [
        one for one in checked([a, b, c], slots, {"a": 1, "b": 2, "c": 0}) if one.fault is ViolationKind.SERVER_GROUP
    ]
    assert (found.vm, found.slots, found.host, found.others) == ("a", ("s",), "h2", ("c",))
    assert found.message == (
        "slot s of VM a is on h2, where c of affinity groups g and k may not run, so that recovery starts none of them"
    )
    assert found.remedy == "outlive failover plan --apply"
    nowhere = [msgspec.structs.replace(a, host_limit=("h2",)), b, c]
    (first, *_) = checked(nowhere, slots, {"a": 1, "b": 1, "c": 0})
    assert first.remedy == "give a and c a host in common in their host limits"


def test_what_helps_is_what_the_plan_does_and_the_others_keep_their_slots() -> None:
    a, b = vm("a", "h1", "g"), vm("b", "h1", "g", only=("h1", "h4"))
    others = [vm(f"o{number}", "h5") for number in range(3)]
    far = [slot(f"z{number}", "h6", one) for number, one in enumerate(others)]
    vms = [a, b, *others]
    for needs, slots in (
        ({"a": 1, "b": 0}, [slot("s", "h2", a)]),
        ({"a": 1, "b": 1}, [slot("s", "h2", a)]),
        ({"a": 1, "b": 1}, [slot("s", "h2", a), slot("t", "h4", b)]),
    ):
        required = {**needs, **dict.fromkeys((one.id for one in others), 1)}
        assert checked(vms, [*slots, *far], required)
        given = plan_of(vms, ["h2", "h3", "h4", "h6"], required, slots=(*slots, *far))
        result = replan(given)
        assert checked(vms, list(result.slots), required) == []
        assert {action.vm for action in result.actions} <= {"a", "b"}
        assert result.failed == 0
        assert not coverage_lost(given, result)


def test_the_plan_also_moves_a_slot_away_from_a_peer_that_came_to_its_host() -> None:
    a, b = vm("a", "h1", "!far"), vm("b", "h2", "!far")
    slots = [slot("s", "h2", a), slot("t", "h3", b)]
    (found,) = checked([a, b], slots)
    assert (found.vm, found.remedy) == ("a", "outlive failover plan --apply")
    assert checked([a, b], list(replan(plan_of([a, b], ["h2", "h3", "h4"], slots=tuple(slots))).slots)) == []


def coverage_lost(given: PlanInput, result: PlanResult) -> set[str]:
    """The VMs that have fewer slots than before."""
    before = Counter(one for slot in given.slots for one in slot.members)
    after = Counter(one for slot in result.slots for one in slot.members)
    return {one for one, count in before.items() if after[one] < count}

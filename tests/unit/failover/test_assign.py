"""The greedy assignment: what is reused, where new slots go, and why nothing could be given."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.fleets import slot, vm
from tests.support.plain_placement import tie_key

from outlive.base import BadInput, Random
from outlive.failover import (
    ResolvedSize,
    SlotView,
    find_eligible_reservations,
    is_vm_eligible_for_reservation,
    resolve_size,
)
from outlive.failover.planner import Action, AssignInput, AssignResult, Fail, Join, Need, Open, PlacementOffer
from outlive.failover.planner.assign import assign
from outlive.placement import VmView
from outlive.resources.reasons import CoverageReason

GIB = 2**30
HOSTS = tuple(f"h{number}" for number in range(1, 7))


def need(view: VmView, count: int = 1) -> Need:
    return Need(vm=view.id, needed=count, size=resolve_size(view), offer_class="c")


def given_(
    vms: list[VmView],
    slots: list[SlotView],
    *,
    count: int = 1,
    new: PlacementOffer | None = None,
    reuse: PlacementOffer | None = None,
    **more: object,
) -> AssignInput:
    everywhere = PlacementOffer(hosts=HOSTS)
    return AssignInput(
        vms=tuple(vms),
        slots=tuple(slots),
        needs=tuple(need(view, count) for view in vms),
        new={"c": new or everywhere},
        reuse={"c": reuse or everywhere},
        hosts=HOSTS,
        **more,  # type: ignore[arg-type]
    )


def one_fail(result: AssignResult) -> Fail:
    (fail,) = [action for action in result.actions if isinstance(action, Fail)]
    return fail


def test_the_fullest_slot_is_reused_and_ties_go_by_name() -> None:
    slots = [slot("s3", "h5", a="h2"), slot("s1", "h4"), slot("s2", "h6", b="h3")]
    result = assign(given_([vm("v", "h1")], slots))
    assert result.actions == (Join(slot="s2", vm="v", vm_host="h1", host="h6"),)
    assert {one.name: sorted(one.members) for one in result.slots} == {"s2": ["b", "v"]}


def test_a_slot_without_a_host_is_never_reused() -> None:
    assert isinstance(assign(given_([vm("v", "h1")], [slot("s", "")])).actions[0], Open)


def test_a_slot_that_is_too_small_or_not_ready_is_not_reused() -> None:
    slots = [slot("small", "h4"), slot("sick", "h5", 2, ready=False)]
    assert isinstance(assign(given_([vm("v", "h1", 2)], slots)).actions[0], Open)


def test_a_new_slot_goes_to_the_best_host_that_the_rules_allow() -> None:
    (action,) = assign(given_([vm("v", "h1")], [])).actions
    assert action == Open(
        slot_key="new-1", vm="v", vm_host="h1", host="h2", cpu_milli=1000, memory_bytes=GIB, group="f1", zone="z"
    )


def test_hosts_with_equal_scores_are_chosen_by_their_tie_key() -> None:
    offer = PlacementOffer(hosts=HOSTS, scores=(9.0, 5.0, 5.0, 5.0, 5.0, 1.0))
    (action,) = assign(given_([vm("v", "h1")], [], new=offer)).actions
    assert isinstance(action, Open)
    assert action.host == min(HOSTS[1:5], key=lambda host: tie_key("v", host))


def test_opened_slots_are_taken_off_the_free_amounts() -> None:
    free = dict.fromkeys(HOSTS, (0, 0)) | {"h5": (1000, 2 * GIB)}
    result = assign(given_([vm("v", "h1"), vm("w", "h1")], [], free=free))
    assert isinstance(result.actions[0], Open)
    fail = one_fail(result)
    assert (fail.reason, fail.missing) == (CoverageReason.NO_CAPACITY, 1)
    assert "5 without room for 1 cpu and 1Gi memory" in fail.detail
    assert "h5 with 0 cpu and 1Gi memory" in fail.detail
    assert "1 runs the VM itself" in fail.detail


def test_one_new_slot_a_host_and_cycle_if_asked_for() -> None:
    result = assign(
        given_([vm("v", "h1"), vm("w", "h1")], [], new=PlacementOffer(hosts=("h5",)), one_new_per_host=True)
    )
    assert one_fail(result).reason == CoverageReason.ONE_PER_HOST
    used = assign(
        given_([vm("v", "h1")], [], new=PlacementOffer(hosts=("h5",)), one_new_per_host=True, used_hosts=("h5",))
    )
    assert one_fail(used).reason == CoverageReason.ONE_PER_HOST
    free = assign(given_([vm("v", "h1"), vm("w", "h1")], [], new=PlacementOffer(hosts=("h5",))))
    assert (free.created, free.failed) == (2, 0)


def test_a_slot_whose_write_failed_is_not_joined_and_still_counts() -> None:
    """Joining s would make d the second VM from h2 that shares slots with a."""
    slots = [slot("r", "h5", a="h1", b="h2"), slot("s", "h6", a="h1")]
    reuse, new = PlacementOffer(hosts=("h6",)), PlacementOffer(hosts=("h4",))
    kept = assign(given_([vm("d", "h2")], slots, reuse=reuse, new=new, excluded_slots=("r",)))
    assert [type(one) for one in kept.actions] == [Open]


def test_the_rules_exclude_hosts_and_the_reason_says_which() -> None:
    slots = [slot("s1", "h2", v="h1", w="h3")]
    fail = one_fail(assign(given_([vm("v", "h1")], slots, new=PlacementOffer(hosts=("h1", "h2", "h3")))))
    assert fail.reason == CoverageReason.REFUSED
    every = [slot(f"s{number}", f"h{number}", 9, v="h1") for number in range(2, 7)]
    fail = one_fail(assign(given_([vm("v", "h1")], every)))
    assert fail.reason == CoverageReason.RULES
    assert "5 excluded by the rules (for example h2 has its slot s2)" in fail.detail
    assert fail.remedy.startswith("add a host")
    rival = [slot("s2", "h2", 9, v="h1", w="h3"), *every[2:]]
    detail = one_fail(assign(given_([vm("v", "h1")], rival, reuse=PlacementOffer()))).detail
    assert "for example h2" in detail


def test_steps_that_refused_hosts_are_told() -> None:
    offer = PlacementOffer(hosts=("h1",), rejected={"filter_capacity": 4, "filter_traits": 1})
    fail = one_fail(assign(given_([vm("v", "h1")], [], new=offer, free=dict.fromkeys(HOSTS, (500, GIB)))))
    assert fail.reason == CoverageReason.NO_CAPACITY
    assert "filter_capacity: 4, filter_traits: 1" in fail.detail
    assert "500m cpu" in fail.detail
    offer = PlacementOffer(hosts=("h1",), rejected={"filter_traits": 5})
    assert one_fail(assign(given_([vm("v", "h1")], [], new=offer))).reason == CoverageReason.REFUSED


def test_placement_that_does_not_answer_is_the_reason() -> None:
    fail = one_fail(assign(given_([vm("v", "h1")], [], count=2, new=PlacementOffer(error="connection refused"))))
    assert (fail.reason, fail.detail, fail.missing) == (CoverageReason.PLACEMENT_UNAVAILABLE, "connection refused", 2)


def test_reuse_without_an_answer_falls_through_to_a_new_slot() -> None:
    slots = [slot("s", "h4")]
    assert isinstance(assign(given_([vm("v", "h1")], slots, reuse=PlacementOffer(error="timeout"))).actions[0], Open)


def test_a_vm_without_size_is_refused() -> None:
    bare = VmView(id="v", host="h1", flavor="f")
    assert one_fail(assign(given_([bare], []))).reason == CoverageReason.ZERO_SIZE


def test_a_vm_whose_memberships_clash_gets_nothing_new() -> None:
    fail = one_fail(assign(given_([vm("v", "h2")], [slot("s", "h2", v="h1")], count=1)))
    assert fail.reason == CoverageReason.MEMBERSHIPS_CLASH
    assert "h2" in fail.detail


def test_failing_ends_the_turn_of_a_vm_and_counts_once() -> None:
    result = assign(given_([vm("v", "h1")], [], count=3, new=PlacementOffer(hosts=("h5",))))
    assert [type(action) for action in result.actions] == [Open, Fail]
    assert (result.created, result.failed, one_fail(result).missing) == (1, 1, 2)


def test_bad_input_is_named() -> None:
    view = vm("v", "h1")
    with pytest.raises(BadInput, match="ghost"):
        assign(AssignInput(vms=(view,), slots=(), needs=(need(vm("ghost", "h1")),)))
    with pytest.raises(BadInput, match="twice"):
        assign(given_([view], [slot("s", "h2"), slot("s", "h3")]))
    with pytest.raises(BadInput, match="scores"):
        assign(given_([view], [], new=PlacementOffer(hosts=HOSTS, scores=(1.0,))))


def literal_assignment(given: AssignInput) -> list[tuple[str, str, str]]:
    """The same greedy order, spelt out with nothing but the public questions."""
    slots = sorted(given.slots, key=lambda one: one.name)
    free, views, done = dict(given.free), {view.id: view for view in given.vms}, []
    for turn, wanted in enumerate(given.needs):
        view = views[wanted.vm]
        for _ in range(wanted.needed):
            fitting = [
                one
                for one in find_eligible_reservations(view, slots)
                if one.host in given.reuse["c"].hosts and one.ready is not False
            ]
            if fitting:
                best = max(fitting, key=lambda one: len(one.members))
                best.members[view.id] = view.host
                done.append(("join", view.id, best.name))
                continue
            host = next(
                (
                    name
                    for name in given.new["c"].hosts
                    if is_vm_eligible_for_reservation(view, SlotView(name="", host=name), slots)
                    and free[name][0] >= wanted.size.cpu_milli
                    and free[name][1] >= wanted.size.memory_bytes
                ),
                None,
            )
            if host is None:
                done.append(("fail", view.id, ""))
                break
            free[host] = (free[host][0] - wanted.size.cpu_milli, free[host][1] - wanted.size.memory_bytes)
            key = f"~{turn:03}-{1 + sum(kind == 'open' and who == view.id for kind, who, _ in done)}"
            slots.append(
                SlotView(
                    name=key,
                    host=host,
                    cpu_milli=wanted.size.cpu_milli,
                    memory_bytes=wanted.size.memory_bytes,
                    members={view.id: view.host},
                )
            )
            done.append(("open", view.id, host))
    return done


def one_by_one(given: AssignInput) -> list[Action]:
    """Each VM is served alone, so that nothing has to be shared out in rounds."""
    actions: list[Action] = []
    slots, free = {one.name: one for one in given.slots}, dict(given.free)
    for turn, wanted in enumerate(given.needs):
        prefix = f"~{turn:03}-"
        alone = msgspec.structs.replace(
            given, needs=(wanted,), slots=tuple(slots.values()), free=dict(free), key_prefix=prefix
        )
        result = assign(alone)
        actions += result.actions
        slots |= {one.name: one for one in result.slots}
        for action in result.actions:
            if isinstance(action, Open):
                cpu, memory = free[action.host]
                free[action.host] = (cpu - action.cpu_milli, memory - action.memory_bytes)
    return actions


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_without_rounds_the_assignment_is_the_literal_greedy_one(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(random.randint(3, 8))
    vms = fleets.vms(random, random.randint(1, 12), on, sizes=(1, 2, 4))
    old = fleets.filled(
        random, fleets.slots(random, random.randint(0, 4), on, sizes=(1, 2, 4)), vms, random.randint(0, 5)
    )
    free = {host: (random.randint(0, 9) * 1000, random.randint(0, 18) * GIB) for host in on}
    offered = tuple(random.sample(on, random.randint(1, len(on))))
    given_state = AssignInput(
        vms=tuple(vms),
        slots=tuple(old),
        needs=tuple(need(view, random.randint(1, 3)) for view in vms),
        new={"c": PlacementOffer(hosts=tuple(random.sample(on, len(on))))},
        reuse={"c": PlacementOffer(hosts=offered)},
        free=free,
        hosts=tuple(on),
    )
    found = [
        ("join", action.vm, action.slot)
        if isinstance(action, Join)
        else ("open", action.vm, action.host)
        if isinstance(action, Open)
        else ("fail", action.vm, "")
        for action in one_by_one(given_state)
    ]
    assert found == literal_assignment(given_state)


def test_group_sized_slots_carry_the_group() -> None:
    view = vm("v", "h1")
    size = ResolvedSize(flavor_name="f8", group_name="g", cpu_milli=8000, memory_bytes=8 * GIB)
    wanted = Need(vm="v", needed=1, size=size, offer_class="c")
    result = assign(AssignInput(vms=(view,), slots=(), needs=(wanted,), new={"c": PlacementOffer(hosts=("h2",))}))
    (action,) = result.actions
    assert isinstance(action, Open)
    assert (action.group, action.cpu_milli) == ("g", 8000)


def test_among_hosts_and_slots_that_are_equal_otherwise_the_preferred_one_is_taken() -> None:
    wishing = msgspec.structs.replace(vm("a", "h1"), preferred={"h4": 10, "h5": 20})
    equal = PlacementOffer(hosts=HOSTS, scores=(1.0,) * len(HOSTS))
    (opened,) = assign(given_([wishing], [], new=equal)).actions
    assert isinstance(opened, Open)
    assert opened.host == "h5"
    slots = [slot(f"s{number}", f"h{number}") for number in (2, 4, 5)]
    (joined,) = assign(given_([wishing], slots)).actions
    assert isinstance(joined, Join)
    assert joined.slot == "s5"
    fuller = [*slots, slot("s3", "h3", b="h6")]
    (shared,) = assign(given_([wishing], fuller)).actions
    assert isinstance(shared, Join)
    assert shared.slot == "s3"

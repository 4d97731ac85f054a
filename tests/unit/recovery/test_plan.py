"""The plan of recovery on plain data."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from outlive.resources import Consumer
from outlive.resources.reasons import HoldReason


def vm(name: str, *, host: str = "dead", fenced: bool = True, **how: object) -> AffectedVm:
    holders = how.pop("holders", (HolderState(host=host, fenced=fenced),))
    return AffectedVm(**{"id": name, "fence": "f", "holders": holders, "assigned": host, "memory_bytes": 4, **how})


def slot(name: str, host: str, *members: str, **how: object) -> SlotState:
    return SlotState(**{"name": name, "host": host, "members": members, "cpu_milli": 9, "memory_bytes": 9, **how})


def live(*names: str) -> tuple[HostState, ...]:
    return tuple(HostState(name=name) for name in names)


DEAD = HostState(name="dead", health=HostHealth.DEAD)


def plan(vms: list[AffectedVm], slots: list[SlotState], hosts: tuple[HostState, ...], **how: object) -> RecoveryPlan:
    return plan_recovery(RecoveryView(vms=tuple(vms), slots=tuple(slots), hosts=(*hosts, DEAD), **how))


def only(found: RecoveryPlan) -> RecoveryAction:
    (action,) = found.actions
    return action


def test_vm_goes_into_its_slot_on_a_living_host() -> None:
    action = only(plan([vm("a")], [slot("s1", "h1", "a")], live("h1")))
    assert (action.kind, action.slot, action.host) == (ActionKind.SLOT, "s1", "h1")


def test_slot_on_a_silent_dead_or_emptied_host_is_passed_over() -> None:
    hosts = (
        HostState(name="h1", health=HostHealth.SILENT),
        HostState(name="h2", health=HostHealth.DEAD),
        HostState(name="h3", refuses="h3 is being emptied"),
        HostState(name="h4"),
    )
    slots = [slot(f"s{n}", f"h{n}", "a") for n in range(1, 5)]
    assert only(plan([vm("a")], slots, hosts)).slot == "s4"


@pytest.mark.parametrize(
    "target", [HostState(name="h2"), HostState(name="h2", refuses="h2 is to be emptied", drained=True)]
)
def test_vm_whose_source_died_during_its_move_goes_on_to_its_target_and_takes_no_slot(target: HostState) -> None:
    hosts = (HostState(name="h1", health=HostHealth.DEAD), target, HostState(name="h3"))
    slots = [slot("s3", "h3", "a")]
    moved = only(plan([vm("a", host="h1", assigned="h2", arriving=True)], slots, hosts))
    assert (moved.kind, moved.host, moved.slot, moved.reason.code) == (ActionKind.PLACE, "h2", "", "moved-there")
    sent = only(plan([vm("a", host="h1", assigned="h2", holders=(), unfinished=True)], slots, hosts))
    assert (sent.kind, sent.host) == (ActionKind.WAIT, "h2"), "once it is assigned, it is that host's to start"
    late = only(plan([vm("a", host="h1", assigned="h2", holders=(), unfinished=True, waited_s=61)], slots, hosts))
    assert (late.kind, late.slot) == (ActionKind.SLOT, "s3")


@pytest.mark.parametrize(
    "target",
    [
        HostState(name="h2", refuses="h2 is in maintenance (planned)"),
        HostState(name="h2", health=HostHealth.SILENT),
        HostState(name="h2", health=HostHealth.DEAD),
    ],
)
def test_vm_whose_target_cannot_start_it_either_takes_its_slot(target: HostState) -> None:
    hosts = (HostState(name="h1", health=HostHealth.DEAD), target, HostState(name="h3"))
    moved = only(plan([vm("a", host="h1", assigned="h2", arriving=True)], [slot("s3", "h3", "a")], hosts))
    assert (moved.kind, moved.slot) == (ActionKind.SLOT, "s3")


def test_vm_of_a_host_that_is_back_and_to_be_emptied_takes_its_slot() -> None:
    back = HostState(name="h1", refuses="h1 is to be emptied", drained=True)
    found = only(plan([vm("a", host="h1")], [slot("s3", "h3", "a")], (back, HostState(name="h3"))))
    assert (found.kind, found.slot) == (ActionKind.SLOT, "s3")


def test_vm_with_a_late_entry_of_a_host_that_left_is_recovered_and_one_without_waits_for_it() -> None:
    left = HostState(name="left", health=HostHealth.RELEASED)
    slots = [slot("s1", "h1", "a", "b")]
    assert only(plan([vm("a", host="left")], slots, (left, *live("h1")))).kind is ActionKind.SLOT
    waits = only(plan([vm("b", host="left", holders=())], slots, (left, *live("h1"))))
    assert (waits.kind, waits.reason.code) == (ActionKind.HOLD, "host-stopped")
    again = vm("b", host="left", holders=(), unfinished=True, waits_for_host=True)
    assert only(plan([again], slots, (left, *live("h1")))).reason.code == "host-stopped"
    back = only(plan([vm("b", host="h2", holders=(), unfinished=True, waits_for_host=True)], slots, live("h1", "h2")))
    assert (back.kind, back.host) == (ActionKind.WAIT, "h2")


def test_slot_that_another_vm_needs_more_is_left_to_it() -> None:
    found = plan([vm("a", priority=10), vm("b")], [slot("s1", "h1", "a", "b"), slot("s2", "h2", "a")], live("h1", "h2"))
    assert {one.vm: one.slot for one in found.actions} == {"a": "s2", "b": "s1"}


def test_contested_slot_goes_to_the_more_important_vm_then_the_larger_then_by_id() -> None:
    shared = [slot("s1", "h1", "a", "b", "c")]
    assert plan([vm("a"), vm("b", priority=1), vm("c")], shared, live("h1")).actions[0].vm == "b"
    found = plan([vm("a"), vm("b"), vm("c", memory_bytes=8)], shared, live("h1"))
    assert [one.vm for one in found.actions if one.kind is ActionKind.SLOT] == ["c"]
    found = plan([vm("b"), vm("c"), vm("a")], shared, live("h1"))
    assert [one.vm for one in found.actions if one.kind is ActionKind.SLOT] == ["a"]


def test_slot_that_others_who_lost_their_host_may_claim_is_not_called_promised() -> None:
    slots = [slot("s1", "h1", "a", "b"), slot("s2", "h2", "a")]
    alone = only(plan([vm("a")], slots[:1], live("h1")))
    assert alone.reason.code == "promised"
    assert [(one.slot, one.reason.code) for one in plan([vm("a"), vm("b")], slots, live("h1", "h2")).actions] == [
        ("s2", "promised"),
        ("s1", "contested"),
    ]
    condemned = HostState(name="late", health=HostHealth.REVOKED)
    later = vm("b", host="late", fenced=False)
    first = plan([vm("a"), later], slots[:1], (*live("h1"), condemned)).actions[0]
    assert (first.slot, first.reason.code) == ("s1", "contested")
    moved = slot("s1", "h1", "a", recorded={"a": "former"})
    assert only(plan([vm("a")], [moved], live("h1"))).reason.code == "listed-elsewhere"


def test_claim_that_was_made_is_kept_to() -> None:
    mine = slot("s2", "h2", "a", "b", consumer=Consumer(vm="a", fence="f"))
    found = plan([vm("a")], [slot("s1", "h1", "a"), mine], live("h1", "h2"))
    assert only(found).slot == "s2"
    assert found.releases == ()


def test_slot_of_somebody_else_is_not_taken() -> None:
    taken = slot("s1", "h1", "a", "b", consumer=Consumer(vm="b", fence="g"))
    action = only(plan([vm("a")], [taken], live("h1"), gone=()))
    assert action.kind is ActionKind.SEARCH
    assert "taken by b" in action.message.text


def test_vm_is_not_touched_while_a_holder_is_not_fenced() -> None:
    holders = (HolderState(host="dead", fenced=True), HolderState(host="h1", fenced=False))
    action = only(plan([vm("a", holders=holders)], [slot("s1", "h2", "a")], live("h1", "h2")))
    assert action.kind is ActionKind.WAIT


def test_vm_of_an_unconfirmed_fence_is_held_and_the_remedy_names_the_host() -> None:
    hosts = (HostState(name="h1", health=HostHealth.REVOKED, unconfirmed=True), *live("h2"))
    action = only(plan([vm("a", host="h1", fenced=False)], [slot("s1", "h2", "a")], hosts))
    assert (action.kind, action.reason.code) == (ActionKind.HOLD, "fence-unconfirmed")
    assert "outlive fence h1 --confirm-off --reason" in action.message.remedy


def test_vm_of_a_host_that_no_coordinator_attends_to_is_held_although_it_was_last_seen_running() -> None:
    hosts = (HostState(name="h1", health=HostHealth.SILENT, unattended=True), *live("h2"))
    lost = vm("a", host="h1", fenced=False)
    for state in (lost, msgspec.structs.replace(lost, running=True)):
        action = only(plan([state], [slot("s1", "h2", "a")], hosts))
        assert (action.kind, action.reason.code) == (ActionKind.HOLD, "unattended")
        assert "start the daemon of a coordinator" in action.message.remedy


def test_move_whose_sides_are_all_fenced_is_recovered() -> None:
    holders = (HolderState(host="dead", fenced=True), HolderState(host="dead2", fenced=True))
    hosts = (HostState(name="dead2", health=HostHealth.DEAD), *live("h1"))
    action = only(plan([vm("a", holders=holders, assigned="dead2")], [slot("s1", "h1", "a")], hosts))
    assert action.kind is ActionKind.SLOT


def test_vm_that_nobody_wants_loses_its_fenced_holders_and_nothing_else() -> None:
    action = only(plan([vm("a", wanted=False)], [slot("s1", "h1", "a")], live("h1")))
    assert action.kind is ActionKind.DROP


def test_vm_without_a_holder_leaves_a_target_that_fell_silent() -> None:
    hosts = (HostState(name="h1", health=HostHealth.SILENT), *live("h2"))
    sent = vm("a", host="h1", holders=(), unfinished=True, slot="s1")
    slots = [slot("s1", "h1", "a", consumer=Consumer(vm="a", fence="f")), slot("s2", "h2", "a")]
    assert only(plan([sent], slots, hosts)).slot == "s2"


def test_vm_that_was_sent_is_waited_for_and_then_sent_elsewhere() -> None:
    slots = [slot("s1", "h1", "a", consumer=Consumer(vm="a", fence="f")), slot("s2", "h2", "a")]
    sent = {"host": "h1", "holders": (), "unfinished": True, "slot": "s1"}
    assert only(plan([vm("a", waited_s=59, **sent)], slots, live("h1", "h2"))).kind is ActionKind.WAIT
    late = vm("a", waited_s=61, avoid=("h1",), **sent)
    assert only(plan([late], slots, live("h1", "h2"))).slot == "s2"


def test_rejection_leads_to_the_next_slot_and_then_to_a_place_and_then_to_a_hold() -> None:
    slots = [slot("s1", "h1", "a", consumer=Consumer(vm="a", fence="f")), slot("s2", "h2", "a")]
    sent = {"host": "h1", "holders": (), "unfinished": True, "slot": "s1", "refusal": "no disk"}
    assert only(plan([vm("a", avoid=("h1",), **sent)], slots, live("h1", "h2"))).slot == "s2"
    nowhere = {**sent, "avoid": ("h1", "h2")}
    assert only(plan([vm("a", **nowhere)], slots, live("h1", "h2"))).kind is ActionKind.SEARCH
    hosts, free = live("h1", "h2", "h3"), {"h3": Free(cpu_milli=5, memory_bytes=5)}
    action = only(plan([vm("a", offers=("h1", "h3"), **nowhere)], slots, hosts, free=free))
    assert (action.kind, action.host, action.slot) == (ActionKind.PLACE, "h3", "")
    action = only(plan([vm("a", offers=("h1",), **nowhere)], slots, hosts, free=free))
    assert (action.kind, action.reason.code) == (ActionKind.HOLD, "refused")


def test_vm_that_no_host_may_start_stays_where_it_is_and_is_held_with_what_helps() -> None:
    slots = [slot("s2", "h2", "a")]
    sent = {"host": "h1", "holders": (), "unfinished": True, "slot": "s1", "blocked": "lock 7 of x", "waited_s": 900.0}
    action = only(plan([vm("a", **sent)], slots, live("h1", "h2")))
    assert (action.kind, action.reason.code, action.host) == (ActionKind.HOLD, "disk-locked", "h1")
    assert "lock 7 of x" in action.message.text
    assert "outlive fence" in action.message.remedy


def test_vm_whose_disk_was_locked_leaves_a_host_that_dies_meanwhile() -> None:
    sent = {"host": "h1", "holders": (), "unfinished": True, "slot": "s1", "blocked": "lock 7 of x"}
    silent = HostState(name="h1", health=HostHealth.SILENT)
    assert only(plan([vm("a", **sent)], [slot("s2", "h2", "a")], (*live("h2"), silent))).slot == "s2"


def test_room_that_one_vm_is_given_is_not_given_to_the_next() -> None:
    free = {"h1": Free(cpu_milli=9, memory_bytes=6)}
    found = plan([vm("a", offers=("h1",)), vm("b", offers=("h1",))], [], live("h1"), free=free)
    assert [one.kind for one in found.actions] == [ActionKind.PLACE, ActionKind.HOLD]
    assert found.actions[1].reason.code == "no-room"


def test_among_the_hosts_of_placement_the_limit_is_hard_and_the_selector_chooses() -> None:
    hosts = (HostState(name="h1", vms=9), HostState(name="h2", vms=1), HostState(name="h3", vms=5))
    free = {"h1": Free(cpu_milli=9, memory_bytes=90), "h2": Free(cpu_milli=9, memory_bytes=10)}
    free["h3"] = Free(cpu_milli=9, memory_bytes=20)
    offers = ("h3", "h2", "h1")
    assert only(plan([vm("a", offers=offers)], [], hosts, free=free)).host == "h1"
    assert only(plan([vm("a", offers=offers, selector="vms")], [], hosts, free=free)).host == "h2"
    assert only(plan([vm("a", offers=offers)], [], hosts, free=free, default_selector="vms")).host == "h2"
    assert only(plan([vm("a", offers=offers, host_limit=("h3",))], [], hosts, free=free)).host == "h3"
    assert only(plan([vm("a", offers=offers, host_limit=("h9",))], [], hosts, free=free)).kind is ActionKind.HOLD


def test_nothing_is_recovered_while_hosts_have_not_joined_since_a_restored_backup() -> None:
    found = plan([vm("a")], [slot("s1", "h1", "a")], live("h1"), paused=True, waits_for=("h7",), incarnation="new")
    assert (only(found).kind, only(found).reason.code) == (ActionKind.HOLD, "store-restored")
    assert "h7" in only(found).message.text
    assert "outlive restore --confirm" in only(found).message.remedy


def test_host_that_is_back_is_left_to_start_its_own_vms() -> None:
    assert only(plan([vm("a", host="h1")], [slot("s1", "h2", "a")], live("h1", "h2"))).kind is ActionKind.WAIT


def test_recovery_is_over_only_when_the_vm_is_seen_running() -> None:
    held = vm("a", host="h1", fenced=False, unfinished=True)
    assert only(plan([held], [], live("h1"))).kind is ActionKind.WAIT
    assert only(plan([vm("a", host="h1", fenced=False, unfinished=True, running=True)], [], live("h1"))).kind is (
        ActionKind.DONE
    )


def test_claim_is_withdrawn_only_when_the_vm_leads_elsewhere() -> None:
    claimed = slot("s1", "h1", "a", consumer=Consumer(vm="a", fence="f"))
    elsewhere = vm("a", host="h2", holders=(), unfinished=True, slot="s2", fence="f")
    other = slot("s2", "h2", "a", consumer=Consumer(vm="a", fence="f"))
    assert [one.slot for one in plan([elsewhere], [claimed, other], live("h1", "h2")).releases] == ["s1"]
    back = vm("a", host="h3", fenced=False)
    assert [one.slot for one in plan([back], [claimed], live("h1", "h3")).releases] == ["s1"]
    assert plan([vm("a")], [claimed], live("h1")).releases == ()
    assert [one.slot for one in plan([], [claimed], live("h1"), gone=("a",)).releases] == ["s1"]


# Properties


@st.composite
def views(draw: st.DrawFn) -> RecoveryView:
    hosts = [f"h{n}" for n in range(draw(st.integers(1, 6)))]
    names = [f"v{n}" for n in range(draw(st.integers(1, 8)))]
    standings = st.sampled_from(list(HostHealth))
    vms = []
    for name in names:
        holders = draw(st.lists(st.tuples(st.sampled_from(hosts), st.booleans()), max_size=2))
        vms.append(
            AffectedVm(
                id=name,
                fence=draw(st.sampled_from(["f", "g"])),
                priority=draw(st.integers(0, 2)),
                cpu_milli=draw(st.integers(0, 3)),
                memory_bytes=draw(st.integers(0, 3)),
                wanted=draw(st.booleans()),
                holders=tuple(HolderState(host=host, fenced=fenced) for host, fenced in holders),
                assigned=draw(st.sampled_from(["", *hosts])),
                slot=draw(st.sampled_from(["", "s0", "s1"])),
                unfinished=draw(st.booleans()),
                running=draw(st.booleans()) and not all(fenced for _, fenced in holders),
                refusal=draw(st.sampled_from(["", "no"])),
                blocked=draw(st.sampled_from(["", "lock"])),
                avoid=tuple(draw(st.lists(st.sampled_from(hosts), max_size=2))),
                waited_s=draw(st.sampled_from([0.0, 100.0])),
                offers=draw(st.sampled_from([None, (), tuple(hosts)])),
            )
        )
    slots = []
    for number in range(draw(st.integers(0, 6))):
        consumer = draw(st.sampled_from([None, *[Consumer(vm=name, fence="f") for name in names]]))
        slots.append(
            SlotState(
                name=f"s{number}",
                host=draw(st.sampled_from(hosts)),
                members=tuple(draw(st.lists(st.sampled_from(names), unique=True, max_size=3))),
                cpu_milli=draw(st.integers(0, 3)),
                memory_bytes=draw(st.integers(0, 3)),
                ready=draw(st.booleans()),
                consumer=consumer,
            )
        )
    return RecoveryView(
        vms=tuple(vms),
        slots=tuple(slots),
        hosts=tuple(
            HostState(name=host, health=draw(standings), refuses=draw(st.sampled_from(["", "full"]))) for host in hosts
        ),
        free={host: Free(cpu_milli=draw(st.integers(0, 4)), memory_bytes=draw(st.integers(0, 4))) for host in hosts},
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(views())
def test_every_vm_gets_exactly_one_action_and_no_slot_is_given_twice(view: RecoveryView) -> None:
    found = plan_recovery(view)
    assert sorted(one.vm for one in found.actions) == sorted(one.id for one in view.vms)
    given_slots = [one.slot for one in found.actions if one.slot]
    assert len(given_slots) == len(set(given_slots))
    slots, hosts = {one.name: one for one in view.slots}, {one.name: one for one in view.hosts}
    vms = {one.id: one for one in view.vms}
    room = dict(view.free)
    for one in found.actions:
        sends = one.kind in (ActionKind.SLOT, ActionKind.PLACE)
        assert bool(one.slot) == (one.kind is ActionKind.SLOT)
        if one.kind is ActionKind.HOLD:
            assert one.reason
            assert one.message.remedy
        if sends:
            assert hosts[one.host].schedulable
            assert all(holder.fenced for holder in vms[one.vm].holders)
            assert vms[one.vm].wanted
        if one.slot:
            slot = slots[one.slot]
            assert one.vm in slot.members
            assert slot.consumer in (None, Consumer(vm=one.vm, fence=vms[one.vm].fence))
        elif sends:
            left = room[one.host]
            vm = vms[one.vm]
            left = Free(cpu_milli=left.cpu_milli - vm.cpu_milli, memory_bytes=left.memory_bytes - vm.memory_bytes)
            assert left.cpu_milli >= 0
            assert left.memory_bytes >= 0
            room[one.host] = left
    released = {one.slot for one in found.releases}
    assert not released & set(given_slots)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_with_valid_slots_and_no_more_failures_than_slots_everybody_lands_in_a_slot(k: int, seed: int) -> None:
    vms, slots = valid_fleet(k, seed)
    hosts = sorted(set(vms.values()) | {one.host for one in slots})
    for failed in combinations(hosts, k):
        lost = [vm(name, host=host) for name, host in vms.items() if host in failed]
        states = tuple(
            HostState(name=host, health=HostHealth.DEAD if host in failed else HostHealth.LIVE) for host in hosts
        )
        mine = [one for one in slots if any(member.id in one.members for member in lost)]
        found = plan_recovery(RecoveryView(vms=tuple(lost), slots=tuple(mine), hosts=states))
        assert {one.kind for one in found.actions} <= {ActionKind.SLOT}
        assert len({one.slot for one in found.actions}) == len(lost)


def valid_fleet(k: int, seed: int) -> tuple[dict[str, str], list[SlotState]]:
    """VMs on hosts, each with k slots that satisfy the rules; greedy, by the blocked sets of the specification."""
    from outlive.base import Random

    random = Random(seed)
    hosts = [f"h{n}" for n in range(random.randint(k + 2, 9))]
    located = {f"v{n:02}": random.choice(hosts) for n in range(random.randint(1, 14))}
    slots: list[tuple[str, list[str]]] = []

    def blocked(name: str) -> list[str]:
        mine = [one for one in slots if name in one[1]]
        return [located[name], *(one[0] for one in mine)] + [
            located[other] for one in mine for other in one[1] if other != name
        ]

    def joins(name: str, at: tuple[str, list[str]]) -> bool:
        host, members = at
        if name in members or host in blocked(name):
            return False
        return all(located[w] not in blocked(name) and located[name] not in blocked(w) for w in members)

    served = {}
    for name in located:
        for _ in range(k):
            fit = [one for one in slots if joins(name, one)]
            if fit:
                random.choice(fit)[1].append(name)
                continue
            free = [host for host in hosts if host not in blocked(name)]
            if free:
                slots.append((random.choice(free), [name]))
        served[name] = sum(1 for one in slots if name in one[1])
    full = {name: host for name, host in located.items() if served[name] == k}
    return full, [slot(f"s{n:02}", host, *(m for m in members if m in full)) for n, (host, members) in enumerate(slots)]


def test_disarmed_cluster_holds_vms_that_lost_their_host_and_lets_living_hosts_start() -> None:
    found = plan([vm("a")], [slot("s", "h1", "a")], live("h1"), disarmed="freeze")
    assert only(found).kind is ActionKind.HOLD
    assert only(found).reason.code == HoldReason.CLUSTER_DISARMED
    starting = plan([vm("a", host="h1", assigned="h1", holders=())], [], live("h1"), disarmed="ignore")
    assert only(starting).kind is ActionKind.WAIT
    condemned = HostState(name="c", health=HostHealth.REVOKED, unconfirmed=True)
    waiting = plan([vm("a", host="c", fenced=False)], [], (condemned,), disarmed="ignore")
    assert only(waiting).reason.code == HoldReason.CLUSTER_DISARMED


def test_vm_of_a_host_that_is_awaited_by_policy_is_held_for_it_and_for_nothing_else() -> None:
    silent = HostState(name="c", health=HostHealth.SILENT, awaited=True)
    held = plan([vm("a", host="c", fenced=False)], [slot("s", "h1", "a")], (silent, *live("h1")))
    assert only(held).reason.code == HoldReason.HOST_AWAITED
    last_seen_running = plan([vm("a", host="c", fenced=False, running=True)], [], (silent,))
    assert only(last_seen_running).reason.code == HoldReason.HOST_AWAITED, "that was before it went down"
    left = HostState(name="c", health=HostHealth.RELEASED, awaited=True)
    released = plan([vm("a", holders=(), assigned="c")], [slot("s", "h1", "a")], (left, *live("h1")))
    assert only(released).reason.code == HoldReason.HOST_AWAITED
    on_its_way = vm("a", assigned="c", unfinished=True)
    assert only(plan([on_its_way], [slot("s", "h1", "a")], (left, *live("h1")))).kind is ActionKind.SLOT


# Policies of VMs


def test_vm_that_is_to_be_held_waits_for_a_user_and_then_takes_its_slot() -> None:
    slots = [slot("s1", "h1", "a")]
    action = only(plan([vm("a", mode="hold")], slots, live("h1")))
    assert (action.kind, action.reason.code, action.host) == (ActionKind.HOLD, "kept-down", "dead")
    assert action.message.remedy == "outlive vm start a"
    begun = {"mode": "hold", "unfinished": True}
    assert only(plan([vm("a", **begun)], slots, live("h1", "dead"))).reason.code == "kept-down"
    assert only(plan([vm("a", **begun, asked=True)], slots, live("h1"))).slot == "s1"


def test_vm_that_is_to_be_held_is_left_to_a_host_that_never_ran_it() -> None:
    found = only(plan([vm("a", host="h1", holders=(), mode="hold")], [], live("h1")))
    assert (found.kind, found.reason.code) == (ActionKind.WAIT, "starting")


def test_vm_out_of_protection_loses_its_fenced_holders_and_nothing_more() -> None:
    slots = [slot("s1", "h1", "a")]
    action = only(plan([vm("a", mode="ignore")], slots, live("h1")))
    assert (action.kind, action.reason.code) == (ActionKind.DROP, "ignored")
    assert only(plan([vm("a", mode="ignore", holders=())], slots, live("h1"))).kind is ActionKind.WAIT
    unsure = HostState(name="h9", health=HostHealth.REVOKED, unconfirmed=True)
    waits = only(plan([vm("a", host="h9", fenced=False, mode="ignore")], slots, (*live("h1"), unsure)))
    assert (waits.kind, waits.reason.code) == (ActionKind.WAIT, "fence-under-way")
    assert only(plan([vm("a", mode="ignore", asked=True)], slots, live("h1"))).slot == "s1"


@pytest.mark.parametrize("mode", ["", "ignore"])
def test_vm_of_a_membership_that_is_gone_says_so_whatever_its_policy(mode: str) -> None:
    """The host of that name is another machine now: it lives, and may not start what the old one may still run."""
    gone = (HolderState(host="h1", known=False, uid="old"),)
    action = only(plan([vm("a", host="h1", holders=gone, mode=mode)], [], live("h1")))
    assert (action.kind, action.reason.code) == (ActionKind.HOLD, "membership-missing")


def test_placement_tries_so_many_hosts_and_no_more_once_a_host_has_refused() -> None:
    free = {"h2": Free(cpu_milli=9, memory_bytes=9)}
    sent = {"host": "h1", "holders": (), "unfinished": True, "refusal": "full", "avoid": ("h1",), "offers": ("h2",)}
    hosts = live("h1", "h2")
    more = only(plan([vm("a", **sent, relocations=1, max_relocations=2)], [], hosts, free=free))
    assert (more.kind, more.host) == (ActionKind.PLACE, "h2")
    action = only(plan([vm("a", **sent, relocations=2, max_relocations=2)], [], hosts, free=free))
    assert (action.kind, action.reason.code) == (ActionKind.HOLD, "relocation-limit")
    assert "no more than 2 hosts" in action.message.text
    first = only(plan([vm("a", offers=("h2",), max_relocations=0)], [], hosts, free=free))
    assert (first.kind, first.host) == (ActionKind.PLACE, "h2"), "nobody has refused it yet"


def test_a_host_that_refused_long_ago_is_asked_again_where_no_other_one_has_room() -> None:
    sent = {"host": "h1", "holders": (), "unfinished": True, "refusal": "isolated", "offers": ()}
    again = only(plan([vm("a", **sent)], [], live("h1", "h2")))
    assert (again.kind, again.host, again.reason.code) == (ActionKind.PLACE, "h1", "asked-again")
    held = only(plan([vm("a", **sent, avoid=("h1",))], [], live("h1", "h2")))
    assert (held.kind, held.reason.code) == (ActionKind.HOLD, "refused"), "it has not waited long enough"
    closed = HostState(name="h1", refuses="h1 is being emptied")
    assert only(plan([vm("a", **sent)], [], (closed, *live("h2")))).reason.code == "no-room"
    free = {"h2": Free(cpu_milli=9, memory_bytes=9)}
    other = only(plan([vm("a", **{**sent, "offers": ("h2",)})], [], live("h1", "h2"), free=free))
    assert (other.host, other.reason.code) == ("h2", "placed")

"""``hostLimit``: what is promised to a VM is what its hosts, and recovery, will do for it."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.certified import certified, documents, fleet, planned, resources, state_file
from tests.support.cycles import cloud_of, slots_of

from outlive.base import Random
from outlive.failover import (
    Caller,
    CheckInput,
    ConflictIndex,
    LackReason,
    SlotView,
    ViolationKind,
    apply_closed_hosts,
    encode_certificate,
    find_eligible_reservations,
    placement_class,
    resolve_size,
    serves,
    slot_counts,
)
from outlive.failover.analysis import CoverageInput, allocation_fault, assess_state, compute_tolerances
from outlive.failover.check import check
from outlive.failover.planner import Cause, CleanInput, Fail, Join, Open, PlacementOffer, RepackInput, clean
from outlive.failover.planner.plan import plan
from outlive.failover.planner.repack import repack
from outlive.failover.verify import Code, VerifyOptions, verify
from outlive.node.membership import HOLD, HoldView, Me, MemberView
from outlive.node.vm import READY, RUN, NodeFigures, NodeMemory
from outlive.placement import VmView, may_run_on
from outlive.recovery import (
    ActionKind,
    AffectedVm,
    HolderState,
    HostHealth,
    HostState,
    LostVm,
    RecoverConfig,
    RecoverInput,
    RecoveryAction,
    RecoveryView,
    SlotState,
    plan_recovery,
    recover,
)
from outlive.resources import Holder, MemberRecord, VirtualMachine
from outlive.resources.reasons import AllocationFault, render

GIB = 2**30
_replace = msgspec.structs.replace


def limited(vm: VmView, *hosts: str) -> VmView:
    return _replace(vm, host_limit=tuple(sorted(hosts)))


def some_limits(random: Random, vms: list[VmView], on: list[str]) -> list[VmView]:
    """Half of the VMs, each with the host that it runs on and a few others."""
    return [
        limited(vm, *{vm.host, *random.sample(on, random.randint(1, len(on) - 1))}) if random.random() < 0.5 else vm
        for vm in vms
    ]


VM = limited(VmView(id="a", host="h1", cpu_milli=1000, memory_bytes=GIB), "h1", "h2")
HERE = SlotView(name="here", host="h2", cpu_milli=1000, memory_bytes=GIB, members={"a": "h1"})
THERE = _replace(HERE, name="there", host="h3")


def test_slot_outside_the_limit_counts_for_nobody_and_leaves_are_told_why() -> None:
    assert (serves(VM, HERE), serves(VM, THERE)) == (True, False)
    status = assess_state(CoverageInput(vms=(VM,), required={"a": 2}, slots=(HERE, THERE)))["a"]
    assert (status.slots, status.covered, status.reason) == (("here",), False, "host-not-allowed")
    assert "h3" in status.message
    assert compute_tolerances((VM,), (HERE, THERE), {"a": "h1"}, {}) == {"a": 1}
    (wrong,) = check(CheckInput(vms=(VM,), slots=(HERE, THERE))).violations
    assert (wrong.fault, wrong.slots) == (ViolationKind.NOT_ALLOWED, ("there",))
    (drop,) = clean(CleanInput(vms=(VM,), slots=(HERE, THERE))).dropped
    assert (drop.cause, drop.slot) == (Cause.NOT_ALLOWED, "there")


def test_vm_may_not_join_outside_its_limit() -> None:
    empty = [_replace(slot, members={}) for slot in (HERE, THERE)]
    assert find_eligible_reservations(VM, empty) == [empty[0]]
    counters = ConflictIndex.build([HERE, THERE], [VM], {"a": 2})
    assert counters.count_missing("a") == 1
    counters.add_vm(_replace(VM, host_limit=()), 2)
    assert counters.count_missing("a") == 0


def test_placement_is_asked_about_the_hosts_of_the_limit_only() -> None:
    size, caller = resolve_size(VM), Caller()
    calls = (
        caller.build_reuse_call(VM, size, ignore=()),
        caller.build_new_call(VM, size, ignore=()),
        caller.validate(VM, "h2"),
    )
    assert {call.request.force_hosts for call in calls} == {("h1", "h2")}
    free = _replace(VM, host_limit=())
    assert caller.build_new_call(free, size, ignore=()).request.force_hosts is None
    assert placement_class(VM, size, with_project=True) != placement_class(free, size, with_project=True)


@given(st.integers(0, 2**32))
@settings(max_examples=40)
def test_why_a_slot_is_worthless_is_told_exactly_where_it_does_not_count(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(4)
    vms = some_limits(random, fleets.vms(random, 6, on, sizes=(1, 2)), on)
    for slot in fleets.filled(random, fleets.slots(random, 4, on, sizes=(1, 2)), vms, 12):
        ready = _replace(slot, ready=random.choice((None, True, False)))
        for vm in vms:
            if vm.id in ready.members:
                moved = _replace(vm, host=random.choice(on)) if random.random() < 0.3 else vm
                assert (allocation_fault(moved, ready) is None) == slot_counts(moved, ready)


def of_fleet(random: Random) -> tuple[list[str], list[VmView], dict[str, int], tuple[SlotView, ...]]:
    """A planned fleet with limits, by placement that knows nothing of them."""
    on = fleets.hosts(random.randint(4, 7))
    vms = some_limits(random, fleets.vms(random, random.randint(3, 10), on, sizes=(1, 2)), on)
    needs = {vm.id: random.randint(0, 2) for vm in vms}
    effort_s = random.choice((0.0, 0.0, 0.01))
    result = plan(fleets.plan_input(vms, on, needs, packing=True, effort_s=effort_s))
    for action in result.actions:
        if isinstance(action, Join | Open):
            assert may_run_on(next(vm for vm in vms if vm.id == action.vm), action.host)
        else:
            assert isinstance(action, Fail)
    return on, vms, needs, result.slots


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_no_plan_and_no_repacking_gives_a_slot_where_the_vm_may_not_run(seed: int) -> None:
    random = Random(seed)
    on, vms, needs, slots = of_fleet(random)
    faults = check(CheckInput(vms=tuple(vms), slots=slots, required=needs)).violations
    assert not [fault for fault in faults if fault.fault is ViolationKind.NOT_ALLOWED]
    offer = {"": PlacementOffer(hosts=tuple(on))}
    classes = {vm.id: "" for vm in vms}
    moves = repack(
        RepackInput(slots=slots, vms=tuple(vms), required=needs, classes=classes, reuse=offer, limit=20, effort_s=0.05)
    ).actions
    views, where = {vm.id: vm for vm in vms}, {slot.name: slot.host for slot in slots}
    assert all(may_run_on(views[move.vm], where[move.joins]) for move in moves if move.joins)


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_what_coverage_promises_recovery_assigns_and_the_host_admits_whatever_fails(seed: int) -> None:
    """In every set of failures that a covered VM is to survive it gets a slot of its own, and its host takes it."""
    random = Random(seed)
    on, vms, needs, slots = of_fleet(random)
    # Users change sizes and limits at any time: what was planned is not what is promised now.
    vms = [
        random.choice((limited(vm, *random.sample(on, 2)), _replace(vm, cpu_milli=2000), _replace(vm, host_limit=())))
        if random.random() < 0.3
        else vm
        for vm in vms
    ]
    slots = tuple(_replace(slot, ready=random.random() > 0.1) for slot in slots)
    closed = frozenset(random.sample(on, random.randint(0, 1)))
    standing = tuple(apply_closed_hosts(slot, dict.fromkeys(closed, "is closed")) for slot in slots)
    reported = assess_state(CoverageInput(vms=tuple(vms), required=needs, slots=standing))
    for size in (1, 2):
        for failed in combinations(on, size):
            actions = recovered(vms, slots, on, failed, closed)
            for vm in vms:
                if vm.host in failed and reported[vm.id].covered and needs[vm.id] >= size:
                    action = actions[vm.id]
                    assert action.kind is ActionKind.SLOT, action
                    assert action.slot in reported[vm.id].slots
                    assert action.host not in {*failed, *closed}
                    slot = next(one for one in slots if one.name == action.slot)
                    assert admitted(vm, slot, {one.slot for one in actions.values() if one.vm != vm.id})


def recovered(
    vms: list[VmView],
    slots: tuple[SlotView, ...],
    on: list[str],
    failed: tuple[str, ...],
    closed: frozenset[str] = frozenset(),
) -> dict[str, RecoveryAction]:
    """What recovery does about the VMs of hosts that are proven dead, while others take nobody."""
    view = RecoveryView(
        vms=tuple(
            AffectedVm(
                id=vm.id,
                fence="f",
                cpu_milli=vm.cpu_milli,
                memory_bytes=vm.memory_bytes,
                holders=(HolderState(host=vm.host, fenced=True),),
                assigned=vm.host,
                host_limit=vm.host_limit,
            )
            for vm in vms
            if vm.host in failed
        ),
        slots=tuple(
            SlotState(
                name=slot.name,
                host=slot.host,
                members=tuple(sorted(slot.members)),
                cpu_milli=slot.cpu_milli,
                memory_bytes=slot.memory_bytes,
                ready=slot.ready is not False,
            )
            for slot in slots
        ),
        hosts=tuple(
            HostState(
                name=host,
                health=HostHealth.DEAD if host in failed else HostHealth.LIVE,
                refuses="it is to be emptied" if host in closed else "",
            )
            for host in on
        ),
    )
    return {action.vm: action for action in plan_recovery(view).actions}


def admitted(vm: VmView, slot: SlotView, taken: set[str]) -> bool:
    """Whether the slot's host takes the VM: by the choice of hosts, with no room but the slot, and by its own hold."""
    lost = LostVm(
        uuid=vm.id,
        state="start",
        node=vm.host,
        memory=vm.memory_bytes,
        vcpus=vm.cpu_milli / 1000,
        node_limit=vm.host_limit or None,
    )
    room = NodeFigures(name=slot.host, daemon_state=RUN, domain_state=READY, memory=NodeMemory(free=slot.memory_bytes))
    chosen = recover(
        RecoverInput(node=vm.host, fence_ok=True, vms=(lost,), nodes=(room,), config=RecoverConfig(require_fit=True))
    )
    record = MemberRecord(machine_id="m", boot_id="b", epoch=3, dead_through=3, state="Revoked")
    held = HOLD.attempt(
        HoldView(
            vm=vm.id,
            me=Me(host=slot.host, uid="u", epoch=1),
            assigned=slot.host,
            holders=(Holder(hypervisor=vm.host, member_uid="d", epoch=3, run_id="old"),),
            members=(MemberView(host=vm.host, uid="d", record=record),),
            run_id="new",
        )
    )
    fits = slot.cpu_milli >= vm.cpu_milli and slot.memory_bytes >= vm.memory_bytes
    return chosen.vms[vm.id].node == slot.host and held.refused is None and fits and slot.name not in taken


def test_recovery_passes_a_slot_over_where_the_vm_may_not_run() -> None:
    actions = recovered([_replace(VM, host="h1")], (THERE,), ["h1", "h2", "h3"], ("h1",))
    assert actions["a"].kind is ActionKind.SEARCH
    assert "hostLimit" in render(actions["a"].reason).text


async def test_cycle_gives_slots_inside_the_limit_and_takes_back_what_a_new_limit_forbids() -> None:
    cloud = await cloud_of()
    await cloud.vm("a", "h1", host_limit=("h1", "h3", "h5"))
    await cloud.cycle()
    slots = await cloud.slots()
    assert {slots[name].host for name in await slots_of(cloud, "a")} == {"h3", "h5"}
    found = await cloud.memory.get(VirtualMachine, "a")
    spec = _replace(found.spec, host_limit=("h1", "h2", "h3"))
    await cloud.memory.replace(_replace(found, spec=spec))
    await cloud.cycle()
    slots = await cloud.slots()
    assert {slots[name].host for name in await slots_of(cloud, "a")} == {"h2", "h3"}


def test_certificate_claims_no_slot_outside_the_limit_and_the_checker_refuses_one_that_does() -> None:
    objects = planned(fleet(Random(3), 8, 12))
    whole = certified(objects).certificate
    assert whole is not None
    line = next(line for line in whole.vms if line.need)
    taken = next(slot.host for slot in whole.slots if slot.name == line.slots[0])
    plain = documents(objects)
    for one in plain:
        if one["kind"] == "VirtualMachine" and one["metadata"]["name"] == line.id:
            allowed = sorted({slot.host for slot in whole.slots} - {taken})
            one["spec"]["hostLimit"] = [line.host, *allowed]
    now = resources(plain)
    (lack,) = certified(now).uncertified
    assert (lack.vm, lack.reason) == (line.id, LackReason.NOT_ALLOWED)
    partial = certified(now, partial=True).certificate
    assert partial is not None
    assert verify(state_file(now), encode_certificate(partial), VerifyOptions(allow_partial=True)).accepted
    forged = _replace(whole, state_digest=partial.state_digest)
    verdict = verify(state_file(now), encode_certificate(forged))
    assert not verdict.accepted
    assert verdict.violation is not None
    assert (verdict.violation.code, verdict.violation.vm) == (Code.NOT_ALLOWED, line.id)
    assert AllocationFault.NOT_ALLOWED.value == Code.NOT_ALLOWED.value

"""Packing: whatever the fleet, the plan holds, is the same twice, and reserves no more than the greedy one."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from tests.support import fleets
from tests.support.literal_rules import DependencyGraph

from outlive.base import Random
from outlive.failover import CheckInput, HostView, SlotView, Topology
from outlive.failover.analysis import BoundInput, compute_bound
from outlive.failover.check import check
from outlive.failover.planner import Fail, Join, Open, PlacementOffer, PlanInput, PlanResult
from outlive.failover.planner.packing import Annealer, Board
from outlive.failover.planner.plan import plan

GIB = 2**30
LITTLE = 0.05
"""Nominal seconds: enough for a few stages on a tiny fleet."""


def memory(result: PlanResult) -> int:
    return sum(slot.memory_bytes for slot in result.slots)


def random_fleet(seed: int) -> PlanInput:
    """Up to nine hosts with mixed sizes, some with little room, offers that leave hosts out, and perhaps racks."""
    random = Random(seed)
    on = fleets.hosts(random.randint(4, 9))
    vms = fleets.vms(random, random.randint(2, 22), on, sizes=random.choice([(1,), (1, 2), (1, 2, 4)]))
    k = random.choice([1, 2, 2, 2, 3])
    free = {host: (random.randint(0, 30) * 1000, random.randint(0, 60) * GIB) for host in on}
    classes = {vm.id: random.choice("ab") for vm in vms}
    some = [host for host in on if random.random() < 0.8]
    offers = {"a": PlacementOffer(hosts=tuple(on)), "b": PlacementOffer(hosts=tuple(some))}
    units = {host: f"u{number // 2}" for number, host in enumerate(on)} if random.random() < 0.2 else {}
    apart = {host: f"r{number % 4}" for number, host in enumerate(on)} if random.random() < 0.2 else {}
    return PlanInput(
        vms=tuple(vms),
        required={vm.id: random.randint(0, k) if random.random() < 0.2 else k for vm in vms},
        classes=classes,
        reuse=offers,
        new=offers,
        free=free if random.random() < 0.6 else {},
        hosts=tuple(on),
        topology=Topology(units=units, apart={"rack": apart} if apart else {}),
        effort_s=LITTLE,
        seed=seed,
    )


def assert_right(given: PlanInput, result: PlanResult) -> None:
    """Every beginning of the actions is a valid plan within the room that there is, and leads to the slots."""
    location = {vm.id: vm for vm in given.vms}
    slots = {slot.name: slot for slot in given.slots}
    taken = Counter[tuple[str, int]]()
    for action in result.actions:
        if isinstance(action, Fail):
            continue
        vm = location[action.vm]
        offers = given.new if isinstance(action, Open) else given.reuse
        assert action.host in offers[given.classes.get(vm.id, "")].hosts
        assert action.vm_host == vm.host
        if isinstance(action, Open):
            assert action.slot_key not in slots
            taken[action.host, 0] += action.cpu_milli
            taken[action.host, 1] += action.memory_bytes
            slot = SlotView(
                name=action.slot_key,
                host=action.host,
                cpu_milli=action.cpu_milli,
                memory_bytes=action.memory_bytes,
                members={},
            )
        else:
            assert isinstance(action, Join)
            slot = slots[action.slot]
        assert vm.id not in slot.members
        assert slot.cpu_milli >= vm.cpu_milli
        assert slot.memory_bytes >= vm.memory_bytes
        slots[slot.name] = msgspec.structs.replace(slot, members={**slot.members, vm.id: vm.host})
    if not given.topology.units:
        graph = DependencyGraph.build(list(slots.values()))
        assert all(graph.holds_for(vm) for vm in graph.vm_slots)
    assert check(CheckInput(vms=given.vms, slots=result.slots, required=given.required, topology=given.topology)).holds
    assert {name: slot.members for name, slot in slots.items()} == {one.name: one.members for one in result.slots}
    if given.free:
        assert all(amount <= given.free[host][resource] for (host, resource), amount in taken.items())
    got = Counter(member for slot in result.slots for member in slot.members)
    failed = {action.vm for action in result.actions if isinstance(action, Fail)}
    assert all(got[vm] >= count or vm in failed for vm, count in given.required.items())
    assert result.created == sum(isinstance(action, Open) for action in result.actions)
    assert result.reused == sum(isinstance(action, Join) for action in result.actions)
    assert result.failed == len(failed)


QUICKLY = 40
"""Seeds that are looked at in every run; the others are with the slow tests."""


@pytest.mark.parametrize(
    "seed", [*range(QUICKLY), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICKLY, 120))]
)
def test_a_packed_plan_holds_and_is_never_worse_than_one_without_search(seed: int) -> None:
    given = random_fleet(seed)
    packed = plan(given)
    assert_right(given, packed)
    least = compute_bound(
        BoundInput(
            vms=given.vms,
            required=given.required,
            hosts=tuple(HostView(name=host) for host in given.hosts),
            topology=given.topology,
        )
    )
    assert packed.failed or (least.slots <= len(packed.slots) and least.memory_bytes <= memory(packed))
    plain = plan(msgspec.structs.replace(given, effort_s=0.0))
    assert packed.failed <= plain.failed
    if packed.failed == plain.failed:
        assert memory(packed) <= memory(plain)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_topping_up_leaves_what_is_there_in_place(seed: int) -> None:
    later = random_fleet(seed)
    first = plan(msgspec.structs.replace(later, required={vm: min(1, count) for vm, count in later.required.items()}))
    free = dict(later.free)
    for action in first.actions:
        if isinstance(action, Open) and free:
            cpu, room = free[action.host]
            free[action.host] = (cpu - action.cpu_milli, room - action.memory_bytes)
    given = msgspec.structs.replace(later, slots=first.slots, free=free)
    result = plan(given)
    assert_right(given, result)
    after = {slot.name: slot for slot in result.slots}
    for slot in first.slots:
        now = after[slot.name]
        assert (now.host, now.cpu_milli, now.memory_bytes) == (slot.host, slot.cpu_milli, slot.memory_bytes)
        assert slot.members.items() <= now.members.items()


def equal(hosts: int, on_each: int, **more: object) -> PlanInput:
    on = fleets.hosts(hosts)
    vms = [fleets.vm(f"v{n:04}", on[n % hosts]) for n in range(hosts * on_each)]
    return fleets.plan_input(vms, on, 2, **more)


@pytest.mark.parametrize("seed", range(20))
def test_with_one_slot_each_nothing_less_can_be_reserved_where_some_hosts_are_empty(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(12)
    vms = fleets.vms(random, 60, on[:9], sizes=(1, 2, 4, 8))
    given = fleets.plan_input(vms, on, 1)
    result = plan(given)
    assert_right(given, result)
    hosts = tuple(HostView(name=host) for host in on)
    assert memory(result) == compute_bound(BoundInput(vms=vms, required=given.required, hosts=hosts)).memory_bytes


@pytest.mark.slow
def test_little_effort_needs_markedly_fewer_slots() -> None:
    result = plan(equal(20, 5, effort_s=1.0))
    assert check(CheckInput(vms=equal(20, 5).vms, slots=result.slots)).holds
    assert len(result.slots) <= 38


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    one, again = (plan(equal(12, 4, effort_s=0.3, seed=7)) for _ in range(2))
    assert one == again
    assert one.actions != plan(equal(12, 4, effort_s=0.3, seed=8)).actions


@pytest.mark.slow
def test_an_answer_says_that_the_deadline_of_its_caller_cut_the_search_short() -> None:
    asked = iter([True] * 5)
    cut = plan(equal(12, 4, effort_s=5.0), keep_going=lambda: next(asked, False))
    assert cut.cut_short
    assert cut.failed == 0
    assert not plan(equal(12, 4, effort_s=0.1)).cut_short


@pytest.mark.slow
def test_server_groups_are_left_as_they_were_planned() -> None:
    given = equal(12, 4, effort_s=0.3)
    vms = tuple(
        msgspec.structs.replace(vm, server_group="g", group_policy="anti-affinity") if number < 3 else vm
        for number, vm in enumerate(given.vms)
    )
    given = msgspec.structs.replace(given, vms=vms)
    result = plan(given)
    assert check(CheckInput(vms=vms, slots=result.slots, required=given.required)).holds
    assert len(result.slots) < len(plan(msgspec.structs.replace(given, effort_s=0.0)).slots)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_board_knows_what_every_change_costs(k: int) -> None:
    given = msgspec.structs.replace(equal(14, 3), required={vm.id: k for vm in equal(14, 3).vms})
    board = Board(given, (), plan(given).slots)
    annealer = Annealer(board, Random(1), 1e9, lambda: True)
    board.clashes += 1  # never reached, so that annealing goes on
    for _ in range(20):
        annealer.run(30)
        assert board.clashes - 1 == board.count_clashes()

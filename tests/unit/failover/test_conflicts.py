"""The counted state: its formula, its verdicts against the literal rules, and its equality to a rebuild."""

from __future__ import annotations

import copy
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.fleets import eligible_slots
from tests.support.literal_rules import DependencyGraph, with_hosts

from outlive.base import Random
from outlive.failover import (
    NEW_SLOT,
    Breach,
    ConflictIndex,
    SlotView,
    Topology,
    find_eligible_reservations,
    is_vm_eligible_for_reservation,
)
from outlive.placement import VmView

SEEDS = st.integers(0, 2**32)


def wild_state(seed: int, *, size: int = 6) -> tuple[list[VmView], list[SlotView]]:
    """A random state of a few hosts in which rules are often broken, sometimes with locations that disagree."""
    random = Random(seed)
    on = fleets.hosts(random.randint(2, 2 + size))
    vms = fleets.vms(random, random.randint(1, size), on)
    slots = fleets.slots(random, random.randint(1, size), on)
    return vms, fleets.filled(random, slots, vms, random.randint(0, 2 * size))


def five_rules_hold(vm: str, slots: list[SlotView], location: dict[str, str]) -> bool:
    """The five rules, word for word, over nothing but plain data."""
    mine = [slot for slot in slots if vm in slot.members]
    own = location[vm]
    if any(slot.host == own for slot in mine):
        return False
    if any(a is not b and a.host == b.host for a in mine for b in mine):
        return False
    if any(a != b and location[a] == location[b] for slot in mine for a in slot.members for b in slot.members):
        return False
    co_users = {other for slot in mine for other in slot.members if other != vm}
    if any(location[other] in {own, *(slot.host for slot in mine)} for other in co_users):
        return False
    if any(a != b and location[a] == location[b] for a in co_users for b in co_users):
        return False
    return all(sum(other in slot.members for slot in mine) <= 1 for other in co_users)


def formula(vm: str, slots: list[SlotView], location: dict[str, str]) -> Counter[str]:
    """The counter of each host for the VM, summed as it is defined."""
    count = Counter([location[vm]])
    for slot in slots:
        if vm in slot.members:
            count[slot.host] += 1
            count.update(location[other] for other in slot.members if other != vm)
    return count


@given(SEEDS)
def test_no_counter_above_one_means_that_the_five_rules_hold(seed: int) -> None:
    vms, slots = wild_state(seed)
    location = {vm.id: vm.host for vm in vms}
    counters, graph = ConflictIndex.build(slots, vms), DependencyGraph.build(slots, locations=location)
    for vm in vms:
        counted = formula(vm.id, slots, location)
        literal = five_rules_hold(vm.id, slots, location)
        assert (max(counted.values()) <= 1) == literal
        assert counters.holds_for(vm.id) == literal
        assert counters.blocked_unit_names(vm.id) == set(counted)
        for host in fleets.hosts(8):
            assert counters.count_unit(vm.id, host) == counted[host]
            if vm.id in graph.vm_host:
                assert graph.holds_for(vm.id) == literal
                assert graph.count(vm.id, host) == counted[host]


@given(SEEDS)
def test_faulty_are_exactly_the_vms_for_which_a_rule_is_broken(seed: int) -> None:
    vms, slots = wild_state(seed, size=9)
    location = {vm.id: vm.host for vm in vms}
    members = {vm for slot in slots for vm in slot.members}
    found = set(ConflictIndex.build(slots, locations=location).list_faulty())
    assert found == {vm for vm in members if not five_rules_hold(vm, slots, location)}


@pytest.mark.slow
@given(SEEDS)
def test_all_eligible_slots_are_those_of_the_single_question_in_any_state_and_order(seed: int) -> None:
    random = Random(seed)
    vms, slots = wild_state(seed)
    for vm in vms:
        if random.random() < 0.3:
            vm = VmView(id=vm.id, host=random.choice(fleets.hosts(8)))
        single = [slot.name for slot in slots if is_vm_eligible_for_reservation(vm, slot, slots)]
        assert [slot.name for slot in find_eligible_reservations(vm, slots)] == single
        mixed = random.sample(slots, len(slots))
        assert sorted(slot.name for slot in find_eligible_reservations(vm, mixed)) == sorted(single)
        counters = ConflictIndex.build(slots)
        counters.add_vm(vm)
        assert eligible_slots(counters, vm.id) == sorted(single)
        free = {
            host
            for host in fleets.hosts(8)
            if counters.holds_for(vm.id) and host not in counters.blocked_unit_names(vm.id)
        }
        new = {h for h in fleets.hosts(8) if is_vm_eligible_for_reservation(vm, SlotView(name="", host=h), slots)}
        assert free == new


class World:
    """The same state kept twice: as plain data and as counters."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.hosts = fleets.hosts(14)
        self.vms: dict[str, VmView] = {}
        self.required: dict[str, int] = {}
        self.slots: dict[str, SlotView] = {}
        self.counters = ConflictIndex()
        self.serial = 0

    def event(self) -> None:
        kind = self.random.choice(
            ["appear", "move", "move", "go", "open", "close", "join", "join", "join", "leave", "ready", "good", "good"]
        )
        getattr(self, kind)()

    def appear(self) -> None:
        if len(self.vms) < 40:
            self.serial += 1
            size = self.random.choice((1, 2, 4))
            vm = VmView(id=f"v{self.serial}", host=self.random.choice(self.hosts), cpu_milli=size, memory_bytes=size)
            self.vms[vm.id], self.required[vm.id] = vm, self.random.randint(0, 3)
            self.counters.add_vm(vm, self.required[vm.id])

    def some_vm(self) -> VmView | None:
        return self.random.choice(sorted(self.vms.values(), key=lambda vm: vm.id)) if self.vms else None

    def some_slot(self) -> SlotView | None:
        return self.random.choice(sorted(self.slots.values(), key=lambda slot: slot.name)) if self.slots else None

    def move(self) -> None:
        if (vm := self.some_vm()) is not None:
            to = self.random.choice(self.hosts)
            self.vms[vm.id] = VmView(id=vm.id, host=to, cpu_milli=vm.cpu_milli, memory_bytes=vm.memory_bytes)
            self.counters.move_vm(vm.id, to)

    def go(self) -> None:
        if len(self.vms) > 20 and (vm := self.some_vm()) is not None:
            del self.vms[vm.id], self.required[vm.id]
            for slot in self.slots.values():
                slot.members.pop(vm.id, None)
            self.counters.remove_vm(vm.id)

    def open(self) -> None:
        if len(self.slots) < 25:
            self.serial += 1
            size = self.random.choice((1, 2, 4))
            name = f"s{self.random.randint(0, 9)}-{self.serial}"
            slot = SlotView(name=name, host=self.random.choice(self.hosts), cpu_milli=size, memory_bytes=size)
            self.slots[name] = slot
            self.counters.add_slot(slot)

    def close(self) -> None:
        if len(self.slots) > 10 and (slot := self.some_slot()) is not None:
            del self.slots[slot.name]
            self.counters.remove_slot(slot.name)

    def join(self) -> None:
        vm, slot = self.some_vm(), self.some_slot()
        if vm is not None and slot is not None and self.random.random() < 0.3:
            slot.members[vm.id] = ""
            self.counters.join(vm.id, slot.name)

    def good(self) -> None:
        """A join that the rules allow."""
        if (vm := self.some_vm()) is not None and (names := eligible_slots(self.counters, vm.id)):
            name = self.random.choice(names)
            self.slots[name].members[vm.id] = ""
            self.counters.join(vm.id, name)

    def leave(self) -> None:
        if (slot := self.some_slot()) is not None and slot.members:
            vm = self.random.choice(sorted(slot.members))
            del slot.members[vm]
            self.counters.leave(vm, slot.name)

    def ready(self) -> None:
        if (slot := self.some_slot()) is not None:
            ready = self.random.random() < 0.7
            self.slots[slot.name] = SlotView(
                name=slot.name,
                host=slot.host,
                cpu_milli=slot.cpu_milli,
                memory_bytes=slot.memory_bytes,
                members=slot.members,
                ready=ready,
            )
            self.counters.set_ready(slot.name, ready)

    def views(self) -> list[SlotView]:
        return [
            SlotView(
                name=slot.name,
                host=slot.host,
                cpu_milli=slot.cpu_milli,
                memory_bytes=slot.memory_bytes,
                members={vm: self.vms[vm].host for vm in slot.members},
                ready=slot.ready,
            )
            for slot in sorted(self.slots.values(), key=lambda one: one.name)
        ]


def everything(counters: ConflictIndex, vms: list[str], slots: list[str]) -> dict[str, object]:
    """All that can be asked."""
    return {
        "blocked": {vm: counters.blocked_unit_names(vm) for vm in vms},
        "counts": {(vm, host): counters.count_unit(vm, host) for vm in vms for host in fleets.hosts(14)},
        "eligible": {vm: eligible_slots(counters, vm) for vm in vms},
        "fullest": {
            vm: counters.slot_names[best]
            if (best := counters.find_fullest(counters.admissible_slots(counters.vm_number(vm)))) is not None
            else ""
            for vm in vms
        },
        "members": {slot: counters.members_of(slot) for slot in slots},
        "slots": {vm: counters.slots_of(vm) for vm in vms},
        "open": sorted(name for name in slots if counters.open_slots >> counters._slot_number[name] & 1),
        "missing": counters.missing_slots(),
        "faulty": counters.list_faulty(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_state_after_ten_thousand_random_events_equals_a_rebuild(seed: int) -> None:
    world = World(seed)
    compared = 0
    for number in range(10_000):
        world.event()
        if number % 100 == 99:
            views, vms = world.views(), sorted(world.vms)
            rebuilt = ConflictIndex.build(views, world.vms.values(), world.required)
            assert everything(world.counters, vms, sorted(world.slots)) == everything(rebuilt, vms, sorted(world.slots))
            vm = world.some_vm()
            assert vm is not None
            single = [slot.name for slot in views if is_vm_eligible_for_reservation(vm, slot, views)]
            assert eligible_slots(world.counters, vm.id) == single
            compared += 1
    assert compared == 100


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_changed_in_a_trial_is_taken_back(seed: int) -> None:
    world = World(seed)
    for _ in range(250):
        world.event()
    vms, slots = sorted(world.vms), sorted(world.slots)
    before = everything(world.counters, vms, slots)
    outer = world.counters.set_savepoint()
    for _ in range(60):
        world.event()
    within, inside, there = everything_now(world), sorted(world.vms), sorted(world.slots)
    with world.counters.begin_trial():
        kept = copy.deepcopy((world.vms, world.required, world.slots))
        for _ in range(60):
            world.event()
        world.vms, world.required, world.slots = kept
    assert everything(world.counters, inside, there) == within
    world.counters.roll_back(outer)
    assert everything(world.counters, vms, slots) == before
    assert sorted(world.counters.names) == vms


def everything_now(world: World) -> dict[str, object]:
    return everything(world.counters, sorted(world.vms), sorted(world.slots))


@given(SEEDS)
def test_breaches_are_those_of_the_literal_rules(seed: int) -> None:
    random = Random(seed)
    vms, slots = wild_state(seed, size=9)
    units = {host: f"rack={number // 2}" for number, host in enumerate(fleets.hosts(15)) if random.random() < 0.6}
    topology = Topology(units=units if seed % 2 else {})
    location = {vm.id: vm.host for vm in vms}
    index = ConflictIndex.build(slots, topology=topology, locations=location)
    graph = DependencyGraph.build(slots, locations=location, topology=topology)
    literal = {vm: set(with_hosts(graph.breaches(vm), slots, location, topology)) for vm in graph.vm_slots}
    assert {vm: set(index.find_breaches(vm)) for vm in graph.vm_slots} == literal
    assert set(index.find_breaches()) <= set().union(*literal.values())
    assert {one.vm for one in index.find_meetings()} == {vm for vm, broken in literal.items() if broken}


def test_a_slot_that_is_not_ready_covers_nobody_but_counts_for_the_rules() -> None:
    slot = SlotView(name="s", host="h2", members={"v": "h1"}, ready=False)
    counters = ConflictIndex.build([slot], [VmView(id="v", host="h1")], {"v": 1})
    assert counters.missing_slots() == {"v": 1}
    assert counters.blocked_unit_names("v") == {"h1", "h2"}
    counters.set_ready("s", True)
    assert counters.missing_slots() == {}


@pytest.mark.slow
@given(SEEDS)
def test_objections_are_the_breaches_that_joining_would_bring(seed: int) -> None:
    vms, slots = wild_state(seed, size=9)
    units = {host: f"rack={number // 2}" for number, host in enumerate(fleets.hosts(15)) if number % 3}
    topology = Topology(units=units if seed % 2 else {})
    index = ConflictIndex.build(slots, vms, topology=topology)
    for vm, slot in itertools.product(vms, slots):
        if vm.id not in slot.members:
            reported = index.find_objections(vm.id, slot.name)
            brought = broken_by(index, vm.id, slot)
            assert not set(reported) - set(brought)
            assert reported[:1] == brought[:1]
            assert {one for one in brought if one.vm == vm.id} == {one for one in reported if one.vm == vm.id}
    for vm, host in itertools.product(vms, fleets.hosts(6)):
        with index.begin_trial():
            index.add_slot(SlotView(name=NEW_SLOT, host=host))
            brought = broken_by(index, vm.id, SlotView(name=NEW_SLOT, host=host))
        assert index.objections_to_opening(vm.id, host) == brought


def broken_by(index: ConflictIndex, vm: str, slot: SlotView) -> list[Breach]:
    """What is broken with the VM in the slot and involves both: first what it sees itself, then what members see."""
    with index.begin_trial():
        index.join(vm, slot.name)
        own = [
            one for one in index.find_breaches(vm) if slot.name in one.slots or slot.members.keys() & set(one.others)
        ]
        seen = [one for member in sorted(slot.members) for one in index.find_breaches(member)]
        unit = index.topology.unit_of_host(index.location_of(vm))
        return sorted([*own, *(one for one in seen if one.host == unit)], key=lambda one: one.rule)

"""Emptying hosts: the order of steps, carried out on a literal model, and what is said where there is none."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from tests.support.loops import run

from outlive.base import Random
from outlive.failover import FailoverSettings, SlotView, Topology, find_separation_violations
from outlive.failover.analysis.drain import (
    Close,
    DrainInput,
    DrainResult,
    DrainSearch,
    Layout,
    Move,
    Step,
    Stuck,
    order_drain,
)
from outlive.failover.analysis.whatif import Altered, Short, WhatIfAnswer, WholeRemedy, plain_host, require
from outlive.failover.planner import Join, Leave, Open, PlacementOffer, PlanInput
from outlive.failover.planner.plan import plan
from outlive.placement import VmView
from outlive.resources import Amounts, ObjectMeta

GIB = 2**30


class Model:
    """The fleet as literally as possible: every step is checked against it, and then all that has to hold."""

    def __init__(self, given: DrainInput) -> None:
        self.given = given
        self.at = {vm.id: vm.host for vm in given.vms}
        self.views = {vm.id: vm for vm in given.vms}
        self.slots = {slot.name: (slot, set(slot.members)) for slot in given.slots}
        self.free = {host: dict(amounts) for host, amounts in given.free.items()}
        self.hosts = sorted({*given.free, *self.at.values(), *(slot.host for slot in given.slots)})
        asked = given.required if given.keep is None else dict.fromkeys(given.required, given.keep)
        self.now = {vm: self.tolerance(vm) for vm in self.at}
        self.floor = {vm: min(self.now[vm], asked.get(vm, 0)) for vm in self.at if given.required.get(vm, 0)}

    def unit(self, host: str) -> str:
        return self.given.topology.units.get(host, host)

    def take(self, host: str, cpu: int, memory: int) -> None:
        if not self.free:
            return
        free = self.free[host]
        assert free["cpu"] >= cpu
        assert free["memory"] >= memory
        free["cpu"] -= cpu
        free["memory"] -= memory

    def give(self, host: str, cpu: int, memory: int) -> None:
        if self.free:
            self.free[host]["cpu"] += cpu
            self.free[host]["memory"] += memory

    def do(self, step: Step) -> None:
        match step:
            case Join():
                slot, members = self.slots[step.slot]
                assert slot.host not in self.given.drained
                assert slot.host in self.given.reuse[""].hosts
                assert step.vm not in members
                assert (step.vm_host, step.host) == (self.at[step.vm], slot.host)
                members.add(step.vm)
            case Open():
                assert step.host in self.given.new[""].hosts
                assert step.host not in self.given.drained
                assert step.slot_key not in self.slots
                self.take(step.host, step.cpu_milli, step.memory_bytes)
                slot = SlotView(
                    name=step.slot_key, host=step.host, cpu_milli=step.cpu_milli, memory_bytes=step.memory_bytes
                )
                self.slots[step.slot_key] = (slot, {step.vm})
            case Leave():
                self.slots[step.slot][1].remove(step.vm)
            case Close():
                slot, members = self.slots.pop(step.slot)
                assert not members
                self.give(slot.host, slot.cpu_milli, slot.memory_bytes)
            case Move():
                vm = self.views[step.vm]
                assert step.source == self.at[step.vm]
                assert step.host in self.given.destinations[step.vm]
                assert step.host not in self.given.drained
                self.take(step.host, vm.cpu_milli, vm.memory_bytes)
                self.at[step.vm] = step.host
                self.give(step.source, vm.cpu_milli, vm.memory_bytes)

    def count(self, vm: str, unit: str) -> int:
        total = int(self.unit(self.at[vm]) == unit)
        for slot, members in self.slots.values():
            if vm in members:
                total += self.unit(slot.host) == unit
                total += sum(self.unit(self.at[other]) == unit for other in members if other != vm)
        return total

    def rules_hold(self) -> bool:
        units = {self.unit(host) for host in self.hosts}
        return all(self.count(vm, unit) <= 1 for vm in self.at for unit in units)

    def tolerance(self, vm: str) -> int:
        """By trying every set of failures, smallest first."""
        view, own = self.views[vm], self.unit(self.at[vm])
        mine = [
            (self.unit(slot.host), {self.unit(self.at[other]) for other in members if other != vm})
            for slot, members in self.slots.values()
            if vm in members and slot.cpu_milli >= view.cpu_milli and slot.memory_bytes >= view.memory_bytes
        ]
        others = sorted({self.unit(host) for host in self.hosts} - {own})
        for size in range(len(others) + 1):
            for more in combinations(others, size):
                down = {own, *more}
                if not any(host not in down and not rivals & down for host, rivals in mine):
                    return size
        return len(others) + 1

    def holds(self) -> bool:
        return self.rules_hold() and all(self.tolerance(vm) >= floor for vm, floor in self.floor.items())


def carried_out(given: DrainInput, result: DrainResult) -> Model:
    """Every step, one after the other; after each of them everything holds, and the end is as forecast."""
    model = Model(given)
    assert model.rules_hold()
    for step in result.steps:
        model.do(step)
        assert model.holds(), step
    drained = set(given.drained)
    assert not drained & set(model.at.values())
    assert not any(slot.host in drained for slot, _ in model.slots.values())
    assert {vm.id: vm.host for vm in result.vms} == model.at
    reported = {slot.name: (slot.host, dict(slot.members)) for slot in result.slots}
    assert reported == {
        name: (slot.host, {vm: model.at[vm] for vm in members}) for name, (slot, members) in model.slots.items()
    }
    return model


def fleet(
    random: Random, hosts: int, vms: int, k: int, *, spare: int, racks: int = 0, apart: bool = False, groups: int = 0
) -> DrainInput:
    """A planned fleet in which every host has up to ``spare`` units free beyond its VMs, before slots; one or two go.

    ``racks`` are units of failure, or with ``apart`` domains in which no two of a VM's slots may be.
    """
    names = [f"h{number}" for number in range(hosts)]
    views = []
    for number in range(vms):
        size = random.choice((1, 1, 2))
        group = f"g{number % groups}" if groups else ""
        host = random.choice(sorted({*names} - {vm.host for vm in views if group and vm.server_group == group}))
        one = vm(f"v{number}", host, size=size)
        views.append(msgspec.structs.replace(one, server_group=group, group_policy="anti-affinity" if group else ""))
    free = {name: (1000 * (room := random.randint(0, spare)), room * GIB) for name in names}
    rack_of = {name: f"rack={at % racks}" for at, name in enumerate(names)} if racks else {}
    topology = Topology(apart={"rack": rack_of}) if apart else Topology(units=rack_of)
    offer = {"": PlacementOffer(hosts=tuple(names))}
    required = {vm.id: random.randint(0, k) for vm in views}
    planned = plan(
        PlanInput(
            vms=tuple(views),
            required=required,
            new=offer,
            reuse=offer,
            free=free,
            hosts=tuple(names),
            topology=topology,
        )
    )
    left = {name: {"cpu": cpu, "memory": memory} for name, (cpu, memory) in free.items()}
    for slot in planned.slots:
        left[slot.host]["cpu"] -= slot.cpu_milli
        left[slot.host]["memory"] -= slot.memory_bytes
    drained = tuple(random.sample(names, 1 if hosts < 5 else random.randint(1, 2)))
    return DrainInput(
        drained=drained,
        vms=tuple(views),
        required=required,
        slots=planned.slots,
        destinations={
            vm.id: tuple(name for name in names if random.random() < 0.9) for vm in views if vm.host in drained
        },
        reuse=offer,
        new=offer,
        free=left,
        keep=random.choice((None, None, 0, 1, 2)),
        topology=topology,
        search_limit=2_000,
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_every_prefix_of_the_order_holds_and_the_end_is_as_forecast(block: int) -> None:
    found = 0
    for seed in range(40):
        random = Random(1000 * block + seed)
        racks = random.choice((0, 0, 3, 5))
        given = fleet(random, random.randint(3, 10), random.randint(1, 14), 2, spare=random.randint(2, 14), racks=racks)
        result = order_drain(given)
        if result.possible:
            found += 1
            carried_out(given, result)
        else:
            assert result.obstacles
            assert result.proven or result.limit
    assert found >= 10


@pytest.mark.slow
@pytest.mark.parametrize(("apart", "groups"), [(True, 0), (False, 4), (True, 5)])
def test_what_is_kept_apart_stays_apart_all_the_way(apart: bool, groups: int) -> None:
    found = 0
    for seed in range(40):
        random = Random(seed)
        given = fleet(
            random, random.randint(6, 9), random.randint(2, 8), 2, spare=12, racks=6, apart=apart, groups=groups
        )
        result = order_drain(given)
        found += result.possible
        model = Model(given)
        for step in result.steps:
            model.do(step)
            vms = [msgspec.structs.replace(vm, host=model.at[vm.id]) for vm in given.vms]
            slots = [
                msgspec.structs.replace(slot, members={vm: model.at[vm] for vm in members})
                for slot, members in model.slots.values()
            ]
            assert not find_separation_violations(vms, slots, given.topology, given.required), step
            together = [(vm.server_group, vm.host) for vm in vms if vm.server_group]
            assert len(together) == len(set(together))
    assert found >= 25


def vm(name: str, host: str, *, size: int = 1) -> VmView:
    return VmView(id=name, host=host, cpu_milli=1000 * size, memory_bytes=size * GIB)


def slot(name: str, host: str, *members: VmView) -> SlotView:
    return SlotView(
        name=name, host=host, cpu_milli=1000, memory_bytes=GIB, members={one.id: one.host for one in members}
    )


def asked(vms: list[VmView], slots: list[SlotView], free: dict[str, int], *drained: str, k: int = 1) -> DrainInput:
    hosts = tuple(free)
    return DrainInput(
        drained=drained,
        vms=tuple(vms),
        required={one.id: k for one in vms},
        slots=tuple(slots),
        destinations={one.id: hosts for one in vms if one.host in drained},
        reuse={"": PlacementOffer(hosts=hosts)},
        new={"": PlacementOffer(hosts=hosts)},
        free={host: {"cpu": 1000 * amount, "memory": amount * GIB} for host, amount in free.items()},
    )


def test_a_slot_is_opened_before_the_old_one_is_left_and_closed() -> None:
    a = vm("a", "h1")
    result = order_drain(asked([a], [slot("s", "h2", a)], {"h1": 0, "h2": 0, "h3": 1}, "h2"))
    assert [type(step) for step in result.steps] == [Open, Leave, Close]


def test_a_vm_takes_another_slot_before_it_moves_next_to_the_old_one() -> None:
    a = vm("a", "h1")
    given = asked([a], [slot("s", "h2", a)], {"h1": 0, "h2": 1, "h3": 1}, "h1")
    given = msgspec.structs.replace(given, destinations={"a": ("h2",)})
    result = order_drain(given)
    assert [type(step) for step in result.steps] == [Open, Leave, Close, Move]
    carried_out(given, result)


def test_small_slots_give_way_to_a_vm_that_fits_nowhere_else() -> None:
    a, b, c = vm("a", "h1", size=2), vm("b", "h2"), vm("c", "h3")
    given = asked(
        [a, b, c], [slot("s", "h4", b), slot("t", "h5", c)], {"h1": 0, "h2": 0, "h3": 0, "h4": 1, "h5": 0}, "h1"
    )
    given = msgspec.structs.replace(given, required={"b": 1, "c": 1})
    result = order_drain(given)
    assert result.possible
    carried_out(given, result)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (msgspec.structs.replace(asked([vm("a", "h1")], [], {"h1": 0, "h2": 9}, "h1"), destinations={}), Stuck.NO_HOST),
        (asked([vm("a", "h1", size=3)], [], {"h1": 0, "h2": 2}, "h1"), Stuck.NO_ROOM),
        (asked([vm("a", "h1"), vm("b", "h1")], [], {"h1": 0, "h2": 1}, "h1"), Stuck.TOO_LITTLE),
        (asked([vm("a", "h1")], [slot("s", "h2", vm("a", "h1"))], {"h1": 0, "h2": 9}, "h2"), Stuck.TOO_FEW_HOSTS),
    ],
)
def test_what_cannot_be_is_proven_with_its_reason(given: DrainInput, reason: Stuck) -> None:
    result = order_drain(given)
    assert not result.possible
    assert result.proven
    assert {one.reason for one in result.obstacles} == {reason}


def test_memberships_that_count_for_nobody_are_left_and_weak_vms_are_named() -> None:
    a, b = vm("a", "h1"), vm("b", "h2")
    stale = msgspec.structs.replace(slot("s", "h3"), members={"a": "h9", "gone": "h8"})
    given = asked([a, b], [stale], {"h1": 0, "h2": 0, "h3": 1, "h4": 2}, "h3")
    result = order_drain(given)
    assert result.possible
    assert result.weaker == {"a": 0, "b": 0}
    assert result.slots == ()


@pytest.mark.slow
def test_an_order_is_the_same_twice() -> None:
    given = fleet(Random(7), 8, 12, 2, spare=12)
    assert order_drain(given) == order_drain(given)


# What is said to be impossible, against everything that can be reached.


Slots = tuple[tuple[str, int, tuple[str, ...]], ...]


class Tiny:
    """Every state of a tiny fleet with one size a core, by single steps, without any idea of what is worth doing."""

    LIMIT = 6_000

    def __init__(self, given: DrainInput) -> None:
        self.given = given
        self.size = {vm.id: vm.cpu_milli for vm in given.vms}
        self.movers = [vm.id for vm in given.vms if vm.host in given.drained]
        self.home = {vm.id: vm.host for vm in given.vms}
        self.hosts = [host for host in given.free if host not in given.drained]
        self.total = {host: amounts["cpu"] for host, amounts in given.free.items()}
        for slot in given.slots:
            self.total[slot.host] += slot.cpu_milli
        self.floor = Model(given).floor

    def reachable(self) -> bool | None:
        """Whether the hosts can be emptied at all; ``None`` where there are too many states."""
        slots = tuple(sorted((slot.host, slot.cpu_milli, tuple(sorted(slot.members))) for slot in self.given.slots))
        start = (tuple(self.home[vm] for vm in self.movers), slots)
        seen, waiting = {start}, [start]
        while waiting:
            state = waiting.pop()
            if not set(self.given.drained) & {*state[0], *(slot[0] for slot in state[1])}:
                return True
            for following in self.after(*state):
                if following not in seen:
                    if len(seen) >= self.LIMIT:
                        return None
                    seen.add(following)
                    waiting.append(following)
        return False

    def after(self, places: tuple[str, ...], slots: Slots) -> list[tuple[tuple[str, ...], Slots]]:
        found = []
        for number, vm in enumerate(self.movers):
            for host in self.given.destinations[vm]:
                if host in self.hosts and self.free(places, slots, host) >= self.size[vm]:
                    found.append(((*places[:number], host, *places[number + 1 :]), slots))
        for number, (host, cpu, members) in enumerate(slots):
            rest = (*slots[:number], *slots[number + 1 :])
            for vm in self.home:
                if vm in members:
                    fewer = tuple(one for one in members if one != vm)
                    found.append((places, (*rest, (host, cpu, fewer))))
                elif host in self.hosts and cpu >= self.size[vm]:
                    found.append((places, (*rest, (host, cpu, (*members, vm)))))
            if not members:
                found.append((places, rest))
        for vm in self.home:
            for host in self.hosts:
                for cpu in {size for size in self.size.values() if size >= self.size[vm]}:
                    if self.free(places, slots, host) >= cpu:
                        found.append((places, (*slots, (host, cpu, (vm,)))))
        sorted_ones = [(at, tuple(sorted((h, c, tuple(sorted(m))) for h, c, m in held))) for at, held in found]
        return [state for state in sorted_ones if self.allowed(*state)]

    def free(self, places: tuple[str, ...], slots: Slots, host: str) -> int:
        used = sum(cpu for at, cpu, _ in slots if at == host)
        return (
            self.total[host] - used - sum(self.size[v] for v, at in zip(self.movers, places, strict=True) if at == host)
        )

    def allowed(self, places: tuple[str, ...], slots: Slots) -> bool:
        at = {**self.home, **dict(zip(self.movers, places, strict=True))}
        for vm in at:
            touched = [at[vm]]
            counting = 0
            for host, cpu, members in slots:
                if vm in members:
                    counting += cpu >= self.size[vm]
                    touched += [host, *(at[other] for other in members if other != vm)]
            if len(touched) != len(set(touched)) or counting < self.floor.get(vm, 0):
                return False
        return True


@pytest.mark.slow
def test_an_order_is_found_exactly_if_there_is_one_and_what_is_proven_to_be_impossible_is_so() -> None:
    compared, said = 0, {True: 0, False: 0}
    for seed in range(160):
        random = Random(seed)
        given = fleet(random, random.randint(3, 4), random.randint(1, 5), 1, spare=random.randint(1, 3))
        truth = Tiny(given).reachable()
        compared += truth is not None
        layout = Layout(given)
        answer = DrainSearch(layout, given, Model(given).floor).run()
        if truth is not None and answer is not None:
            assert answer is truth
            said[answer] += 1
        if answer:
            ends = DrainResult(
                possible=True, steps=tuple(layout.steps), vms=layout.final_vms(), slots=layout.final_slots()
            )
            carried_out(given, ends)
        result = order_drain(msgspec.structs.replace(given, search_limit=30_000))
        if result.possible:
            carried_out(given, result)
            assert truth is not False
        elif truth is not None:
            assert result.proven
            assert truth is False, (seed, result.obstacles)
    assert compared >= 100
    assert min(said.values()) >= 20


def test_a_vm_of_which_nobody_knows_where_it_is_proves_nothing() -> None:
    """Its slot has no room, that of the other has, all hosts added up: no plan was found, and none is ruled out."""

    async def answer(*listed: VmView) -> WhatIfAnswer:
        hosts = {
            name: msgspec.structs.replace(
                plain_host(Amounts(cpu=16_000, memory=size * GIB)), metadata=ObjectMeta(name=name)
            )
            for name, size in (("h1", 16), ("h2", 4))
        }
        cluster = Altered(hosts=hosts, reservations={}, vms={}, besides=(), settings=FailoverSettings())
        cluster = cluster.with_vms([VmView(id="a", host="h1", flavor="f", cpu_milli=1_000, memory_bytes=8 * GIB)])
        cluster = msgspec.structs.replace(cluster, vms={**cluster.vms, **{vm.id: vm for vm in listed}})
        return await require(cluster, "*", 1)

    alone = run(answer())
    assert (alone.possible, alone.proven) == (False, False)
    beside = run(answer(VmView(id="nowhere", host="h1", flavor="f", cpu_milli=1_000, memory_bytes=16 * GIB)))
    assert (beside.possible, beside.proven) == (False, False)


def test_the_remedy_for_everybody_names_each_zone_once() -> None:
    by = (Short(zone="a", hosts=1, like="h1"), Short(zone="b", hosts=2, like="h9"))
    text = WholeRemedy(hosts=3, by=by).text
    assert text == "with 1 more host like h1 in zone a and 2 more hosts like h9 in zone b a plan covers everybody"

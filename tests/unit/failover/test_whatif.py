"""Emptying hosts: the order of steps, carried out on a literal model, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec
import pytest

from outlive.base.random import Random
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.actions import Join, Offer, Open
from outlive.failover.planning.plan import PlanInput, plan
from outlive.failover.topology import Topology
from outlive.failover.whatif import ordering
from outlive.failover.whatif.ordering import order_drain
from outlive.failover.whatif.steps import Close, DrainInput, DrainResult, Leave, Move, Step, Stuck

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
        asked = given.required if given.keep is None else {vm: given.keep for vm in given.required}
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
    told = {slot.name: (slot.host, dict(slot.members)) for slot in result.slots}
    assert told == {
        name: (slot.host, {vm: model.at[vm] for vm in members}) for name, (slot, members) in model.slots.items()
    }
    return model


def fleet(random: Random, hosts: int, vms: int, k: int, *, spare: int, racks: int = 0) -> DrainInput:
    """A planned fleet in which every host has ``spare`` units free beyond its VMs, before slots; one or two go."""
    names = [f"h{number}" for number in range(hosts)]
    views = []
    for number in range(vms):
        size = random.choice((1, 1, 2))
        views.append(
            VmView(id=f"v{number}", host=random.choice(names), cpu_milli=1000 * size, memory_bytes=size * GIB)
        )
    free = {name: (1000 * (room := random.randint(0, spare)), room * GIB) for name in names}
    topology = Topology(units={name: f"rack={at % racks}" for at, name in enumerate(names)} if racks else {})
    offer = {"": Offer(hosts=tuple(names))}
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
    )


@pytest.mark.parametrize("block", range(10))
def test_every_prefix_of_the_order_holds_and_the_end_is_as_forecast(block: int) -> None:
    found = 0
    for seed in range(40):
        random = Random(1000 * block + seed)
        given = fleet(random, random.randint(3, 10), random.randint(1, 14), 2, spare=random.randint(2, 14))
        result = order_drain(given)
        if result.possible:
            found += 1
            carried_out(given, result)
        else:
            assert result.obstacles
            assert result.proven or result.limit
    assert found >= 10

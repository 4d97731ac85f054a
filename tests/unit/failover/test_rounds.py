"""Where there is not enough for everybody: who gets slots, in which order, and for whom that is better than before."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base import Random
from outlive.failover import CheckInput, SlotView, resolve_size
from outlive.failover.check import check
from outlive.failover.planner import (
    Action,
    AssignInput,
    AssignResult,
    Fail,
    Missing,
    Need,
    Open,
    PlacementOffer,
    PlanInput,
    SelectInput,
    select,
)
from outlive.failover.planner.assign import assign
from outlive.failover.planner.plan import plan
from outlive.placement import VmView

GIB = 2**30


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """VMs that miss slots, and less room than they need."""

    hosts: tuple[str, ...]
    vms: tuple[VmView, ...]
    required: dict[str, int]
    priorities: dict[str, int]
    slots: tuple[SlotView, ...] = ()
    free: dict[str, tuple[int, int]]

    def missing(self) -> tuple[Missing, ...]:
        """In the order of service."""
        given = SelectInput(vms=self.vms, slots=self.slots, required=self.required, priorities=self.priorities)
        return select(given).selected

    def served(self) -> AssignResult:
        """One cycle without limits."""
        views = {vm.id: vm for vm in self.vms}
        return assign(
            AssignInput(
                slots=self.slots,
                vms=self.vms,
                needs=tuple(
                    Need(vm=one.vm, needed=one.needed, size=resolve_size(views[one.vm]), offer_class="c")
                    for one in self.missing()
                ),
                priorities=self.priorities,
                new={"c": PlacementOffer(hosts=self.hosts)},
                reuse={"c": PlacementOffer(hosts=self.hosts)},
                free=self.free,
                hosts=self.hosts,
            )
        )

    def served_by_memory(self) -> AssignResult:
        """The largest memory first, whatever slots a VM has; each VM gets all its slots at its turn."""
        sizes = {vm.id: vm.memory_bytes for vm in self.vms}
        fleet, actions = self, list[Action]()
        for one in sorted(self.missing(), key=lambda one: (-sizes[one.vm], one.vm)):
            alone = msgspec.structs.replace(fleet, required={one.vm: self.required[one.vm]})
            result = alone.served()
            actions += result.actions
            free = dict(fleet.free)
            for action in result.actions:
                if isinstance(action, Open):
                    cpu, memory = free[action.host]
                    free[action.host] = (cpu - action.cpu_milli, memory - action.memory_bytes)
            slots = {slot.name: slot for slot in (*fleet.slots, *result.slots)}
            fleet = msgspec.structs.replace(fleet, slots=tuple(slots.values()), free=free)
        return AssignResult(actions=tuple(actions))


def scarce(seed: int, priorities: tuple[int, ...] = (0,)) -> Fleet:
    """A random fleet; half of them lost a part of the memberships that they had."""
    random = Random(seed)
    hosts = tuple(fleets.hosts(random.randint(4, 9)))
    vms = tuple(fleets.vms(random, random.randint(4, 20), list(hosts), sizes=(1, 2, 4)))
    fleet = Fleet(
        hosts=hosts,
        vms=vms,
        required={vm.id: random.randint(1, 3) for vm in vms},
        priorities={vm.id: random.choice(priorities) for vm in vms},
        free={host: (random.randint(0, 10) * 1000, random.randint(0, 20) * GIB) for host in hosts},
    )
    if random.random() < 0.5:
        return fleet
    left = tuple(
        msgspec.structs.replace(
            slot, name=f"s{number}", members={vm: host for vm, host in slot.members.items() if random.random() < 0.6}
        )
        for number, slot in enumerate(fleet.served().slots)
    )
    free = {host: (random.randint(0, 6) * 1000, random.randint(0, 12) * GIB) for host in hosts}
    return msgspec.structs.replace(fleet, slots=left, free=free)


def exposure(fleet: Fleet, actions: tuple[Action, ...], priority: int) -> int:
    """VMs of this priority without any slot, summed over as many steps as memberships were missing; the step of
    each membership that was given is its place in the order of service."""
    missing = {one.vm: one.present for one in fleet.missing() if fleet.priorities[one.vm] == priority}
    steps = [action.vm for action in actions if not isinstance(action, Fail)]
    horizon = sum(one.needed for one in fleet.missing())
    total = 0
    for step in range(horizon + 1):
        if 0 < step <= len(steps) and steps[step - 1] in missing:
            missing[steps[step - 1]] += 1
        total += sum(present == 0 for present in missing.values())
    return total


def somebody_fails(*results: AssignResult) -> bool:
    return any(isinstance(action, Fail) for result in results for action in result.actions)


SEEDS = range(150)


@pytest.mark.slow
def test_fewer_are_without_any_slot_for_less_long_than_with_the_largest_first() -> None:
    scarce_ones = better = 0
    for seed in SEEDS:
        fleet = scarce(seed)
        now, before = fleet.served(), fleet.served_by_memory()
        if not somebody_fails(now, before):
            continue
        scarce_ones += 1
        exposed, was = exposure(fleet, now.actions, 0), exposure(fleet, before.actions, 0)
        assert exposed <= was, f"seed {seed}"
        better += exposed < was
    assert scarce_ones > len(SEEDS) / 2
    assert better > scarce_ones / 4


@pytest.mark.slow
def test_the_highest_priority_is_never_exposed_for_longer_than_with_the_largest_first() -> None:
    for seed in SEEDS:
        fleet = scarce(seed, (0, 5))
        now, before = fleet.served(), fleet.served_by_memory()
        if somebody_fails(now, before):
            assert exposure(fleet, now.actions, 5) <= exposure(fleet, before.actions, 5), f"seed {seed}"


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_what_lower_priorities_want_takes_nothing_from_the_highest(seed: int) -> None:
    fleet = scarce(seed, (0, 1, 2))
    highest = {vm for vm, priority in fleet.priorities.items() if priority == 2}
    alone = msgspec.structs.replace(fleet, required={vm: fleet.required[vm] for vm in highest})

    def got(result: AssignResult) -> int:
        return sum(action.vm in highest for action in result.actions if not isinstance(action, Fail))

    assert got(fleet.served()) >= got(alone.served())


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from([(0,), (0, 1, 2)]))
def test_nobody_loses_what_he_has_and_every_rule_holds(seed: int, priorities: tuple[int, ...]) -> None:
    fleet = scarce(seed, priorities)
    result = fleet.served()
    after = {slot.name: slot for slot in (*fleet.slots, *result.slots)}
    assert all(slot.members.items() <= after[slot.name].members.items() for slot in fleet.slots)
    assert check(CheckInput(vms=fleet.vms, slots=tuple(after.values()))).holds


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from([(0,), (0, 1, 2)]))
def test_each_vm_ends_with_what_it_misses_or_with_one_failure_that_says_what_is_left(
    seed: int, priorities: tuple[int, ...]
) -> None:
    fleet = scarce(seed, priorities)
    actions = fleet.served().actions
    for one in fleet.missing():
        mine = [action for action in actions if action.vm == one.vm]
        failures = [action for action in mine if isinstance(action, Fail)]
        assert len(failures) <= 1
        assert len(mine) - len(failures) + sum(failure.missing for failure in failures) == one.needed


def two_of_each(priority: dict[str, int]) -> Fleet:
    """Room for two slots, and two VMs that need two each."""
    vms = tuple(VmView(id=name, host="h1", cpu_milli=1000, memory_bytes=GIB) for name in ("a", "b"))
    return Fleet(
        hosts=("h1", "h2", "h3"),
        vms=vms,
        required={"a": 2, "b": 2},
        priorities={"a": 0, "b": 0, **priority},
        free={"h1": (0, 0), "h2": (1000, GIB), "h3": (1000, GIB)},
    )


@pytest.mark.parametrize(("priority", "got"), [({}, {"a": 1, "b": 1}), ({"b": 1}, {"a": 0, "b": 2})])
def test_everybodys_first_slot_comes_before_anybodys_second(priority: dict[str, int], got: dict[str, int]) -> None:
    fleet = two_of_each(priority)
    actions = fleet.served().actions
    assert {vm: sum(a.vm == vm and not isinstance(a, Fail) for a in actions) for vm in got} == got
    planned = plan(
        PlanInput(
            vms=fleet.vms,
            required=fleet.required,
            priorities=fleet.priorities,
            new={"": PlacementOffer(hosts=fleet.hosts)},
            reuse={"": PlacementOffer(hosts=fleet.hosts)},
            free=fleet.free,
            hosts=fleet.hosts,
        )
    ).actions
    assert {vm: sum(a.vm == vm and not isinstance(a, Fail) for a in planned) for vm in got} == got


def test_every_failure_says_why_whichever_way_of_serving_was_kept() -> None:
    failed = 0
    for seed in range(20):
        fleet = scarce(seed, (0, 1, 2))
        for action in fleet.served().actions:
            if isinstance(action, Fail):
                failed += 1
                assert action.detail, f"seed {seed}: {action.vm}"
                assert action.remedy, f"seed {seed}: {action.vm}"
    assert failed

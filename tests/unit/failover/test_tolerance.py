"""How many failures are survived: exact, by brute force over all sets of hosts or racks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import msgspec
import pytest
from tests.support import fleets

from outlive.base import Random
from outlive.failover import HostView, SlotView, TopologyChoice, is_large_enough
from outlive.failover.analysis import ToleranceInput, ToleranceResult, compute_tolerance, find_fewest_masks
from outlive.failover.planner.plan import plan
from outlive.placement import VmView

FLEETS = 1_000
BATCHES = 5


def broken_fleet(random: Random) -> tuple[list[HostView], list[VmView], list[SlotView]]:
    """At most 12 hosts in racks, with memberships that heed no rule; some slots are not ready, small or out of date."""
    names = fleets.hosts(random.randint(2, 12))
    racks = random.randint(1, 5)
    hosts = [
        HostView(name=name, domains={"rack": f"r{random.randrange(racks)}"} if random.random() < 0.9 else {})
        for name in names
    ]
    vms = fleets.vms(random, random.randint(1, 8), names, sizes=(1, 2))
    slots = fleets.slots(random, random.randint(1, 14), names, sizes=(2, 2, 2, 1))
    slots = fleets.filled(random, slots, vms, random.randint(1, 30))
    return hosts, vms, [spoilt(random, slot, names) for slot in slots]


def spoilt(random: Random, slot: SlotView, names: Sequence[str]) -> SlotView:
    members = {vm: random.choice(names) if random.random() < 0.1 else host for vm, host in slot.members.items()}
    if random.random() < 0.1:
        members["gone"] = random.choice(names)
    return msgspec.structs.replace(slot, members=members, ready=random.choice((True, True, None, None, False)))


def brute_force(vm: VmView, slots: Sequence[SlotView], units: Mapping[str, str], location: Mapping[str, str]) -> int:
    """The largest j such that the VM survives every set of j units that has its own."""

    def unit(host: str) -> str:
        return units.get(host, host)

    mine = [s for s in slots if s.members.get(vm.id) == vm.host and s.ready is not False and is_large_enough(vm, s)]
    claims = [{unit(s.host), *(unit(location[w]) for w in s.members if w != vm.id)} for s in mine]
    others = sorted(set().union(*claims) - {unit(vm.host)})
    for further in range(len(others) + 1):
        for more in combinations(others, further):
            down = {unit(vm.host), *more}
            if not any(claim.isdisjoint(down) for claim in claims):
                return further
    raise AssertionError("a VM survives the end of the world")


def located(vms: Sequence[VmView], slots: Sequence[SlotView]) -> dict[str, str]:
    recorded = {vm: host for slot in slots for vm, host in slot.members.items()}
    return {**recorded, **{vm.id: vm.host for vm in vms}}


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_tolerance_equals_brute_force_on_random_states_by_hosts_and_by_racks(batch: int) -> None:
    for seed in range(batch * FLEETS // BATCHES, (batch + 1) * FLEETS // BATCHES):
        hosts, vms, slots = broken_fleet(Random(seed))
        location = located(vms, slots)
        for by in ("host", "rack"):
            units = TopologyChoice(unit=by).topology_of(hosts).units
            result = judged(vms, slots, units)
            expected = {vm.id: brute_force(vm, slots, units, location) for vm in vms}
            assert result.vms == expected, (seed, by)
            assert (result.fleet, result.understated) == (min(expected.values()), ())
            assert list(result.vms) == sorted(expected, key=lambda vm: (expected[vm], vm))
            assert sum(result.counts.values()) == len(vms)


def judged(vms: Sequence[VmView], slots: Sequence[SlotView], units: Mapping[str, str]) -> ToleranceResult:
    required = {vm.id: 1 for vm in vms}
    return compute_tolerance(
        ToleranceInput(vms=tuple(vms), required=required, slots=tuple(slots), units=dict(units), weakest=100)
    )


def test_the_failures_named_for_a_weak_vm_are_too_many_and_as_few_as_can_be() -> None:
    for seed in range(200):
        hosts, vms, slots = broken_fleet(Random(seed))
        units = TopologyChoice(unit="rack").topology_of(hosts).units
        location = located(vms, slots)
        for weak in judged(vms, slots, units).weakest:
            assert len(set(weak.case)) == weak.tolerance + 1
            assert weak.case[0] == units.get(weak.host, weak.host)
            for slot in slots:
                others = {units.get(location[w], location[w]) for w in slot.members if w != weak.vm}
                vm = next(one for one in vms if one.id == weak.vm)
                counts = slot.ready is not False and slot.members.get(vm.id) == vm.host and is_large_enough(vm, slot)
                assert not counts or not ({units.get(slot.host, slot.host)} | others).isdisjoint(weak.case)


def test_a_vm_with_all_its_slots_survives_as_many_hosts_as_it_has_slots() -> None:
    names = fleets.hosts(12)
    vms = fleets.vms(Random(7), 40, names)
    result = plan(fleets.plan_input(vms, names, 2, free=dict.fromkeys(names, (10**9, 10**15))))
    assert judged(vms, result.slots, {}).counts == {"2": 40}
    two_racks = {name: f"rack={number % 2}" for number, name in enumerate(names)}
    assert judged(vms, result.slots, two_racks).fleet == 0


def test_many_slots_that_share_units_are_judged_exactly() -> None:
    vm = VmView(id="v", host="own")
    others = [VmView(id=f"w{number}", host=f"shared{number // 3}") for number in range(18)]
    slots = [
        SlotView(name=f"s{number:02}", host=f"h{number:02}", members={"v": "own", f"w{number}": f"shared{number // 3}"})
        for number in range(18)
    ]
    result = judged([vm, *others], slots, {})
    assert result.vms["v"] == 6


def test_a_search_that_ends_early_understates_and_says_so() -> None:
    random = Random(1)
    masks = [sum(1 << random.randrange(24) for _ in range(1)) | 1 << random.randrange(24) for _ in range(60)]
    masks += [1 << bit for bit in range(24)]
    full = (1 << 24) - 1
    exact, early = find_fewest_masks(full, masks), find_fewest_masks(full, masks, steps=5)
    assert exact.exact
    assert not early.exact
    assert 0 < early.size <= exact.size == len(exact.masks)


def test_only_vms_that_need_slots_count_and_each_zone_has_its_weakest() -> None:
    vms = (
        VmView(id="a", host="h1", zone="x"),
        VmView(id="b", host="h2", zone="y"),
        VmView(id="c", host="h3", zone="y"),
    )
    slots = (SlotView(name="s", host="h9", members={"a": "h1", "b": "h2"}),)
    result = compute_tolerance(ToleranceInput(vms=vms, required={"a": 1, "b": 1}, slots=slots))
    assert (result.fleet, result.zones, result.vms) == (1, {"x": 1, "y": 1}, {"a": 1, "b": 1})
    assert [one.case for one in result.weakest] == [("h1", "h2"), ("h2", "h1")]
    nobody = compute_tolerance(ToleranceInput(vms=vms, required={}, slots=slots))
    assert (nobody.fleet, nobody.zones, nobody.vms, nobody.weakest) == (0, {}, {}, ())

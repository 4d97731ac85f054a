"""Planning anew: nobody has less on the way, room is never overdrawn, and more are covered than by topping up."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.cycles import check_rules
from tests.support.failover import Cloud

from outlive.base import Random
from outlive.failover import CheckInput, SlotView
from outlive.failover.analysis import compute_tolerances
from outlive.failover.check import check
from outlive.failover.planner import Action, Fail, Join, Leave, Open, PlacementOffer, PlanInput, shortfalls_of
from outlive.failover.planner.plan import plan
from outlive.failover.planner.replan import replan
from outlive.placement import VmView
from outlive.resources import Amounts, Reservation

GIB = 2**30
CORES = [2, 2, 4, 4, 4, 6] * 13 + [1, 1]


def asked(vms: list[VmView], k: int, free: dict[str, tuple[int, int]], slots: tuple[SlotView, ...] = ()) -> PlanInput:
    """Everybody needs so many; ``free`` is without the slots."""
    left = {host: list(amounts) for host, amounts in free.items()}
    for slot in slots:
        left[slot.host][0] -= slot.cpu_milli
        left[slot.host][1] -= slot.memory_bytes
    zones = {vm.zone for vm in vms}
    offers = {zone: PlacementOffer(hosts=tuple(host for host in free if zone_of(host) in (zone, ""))) for zone in zones}
    return PlanInput(
        vms=tuple(vms),
        required={vm.id: k for vm in vms},
        slots=slots,
        classes={vm.id: vm.zone for vm in vms},
        reuse=offers,
        new=offers,
        free={host: (cpu, memory) for host, (cpu, memory) in left.items()},
        hosts=tuple(free),
    )


def zone_of(host: str) -> str:
    """Of the twelve hosts six are in each zone; other hosts are in none."""
    return f"z{int(host[1:]) // 6}" if len(host) == len("h00") else ""


def twelve_hosts() -> tuple[list[VmView], dict[str, tuple[int, int]]]:
    """12 hosts of 64 cores and 256 GiB, with 80 VMs of 288 cores."""
    hosts = [f"h{number:02}" for number in range(12)]
    vms = [
        VmView(
            id=f"v{n:02}",
            host=hosts[n % 12],
            zone=zone_of(hosts[n % 12]),
            cpu_milli=1000 * cores,
            memory_bytes=4 * cores * GIB,
        )
        for n, cores in enumerate(CORES)
    ]
    used = Counter[str]()
    for vm in vms:
        used[vm.host] += vm.cpu_milli // 1000
    return vms, {host: ((64 - used[host]) * 1000, (256 - 4 * used[host]) * GIB) for host in hosts}


def named(slots: tuple[SlotView, ...]) -> tuple[SlotView, ...]:
    """As the cluster names them."""
    return tuple(msgspec.structs.replace(slot, name=f"slot-{number:03}") for number, slot in enumerate(slots))


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_one_slot_more_for_everybody_is_found_as_from_nothing(k: int) -> None:
    vms, free = twelve_hosts()
    anew = plan(asked(vms, k + 1, free))
    before = named(plan(asked(vms, k, free)).slots)
    given_ = asked(vms, k + 1, free, before)
    raised = replan(given_)
    assert shortfalls_of(given_, raised.slots) <= shortfalls_of(given_, anew.slots)
    assert len(raised.slots) <= 1.05 * len(anew.slots)
    assert replan(asked(vms, k + 1, free, raised.slots)).actions == () or anew.failed


def steps(given_: PlanInput, actions: tuple[Action, ...]) -> list[tuple[SlotView, ...]]:
    """The slots after each action."""
    slots = {slot.name: slot for slot in given_.slots}
    found: list[tuple[SlotView, ...]] = []
    for action in actions:
        match action:
            case Fail():
                continue
            case Open():
                slots[action.slot_key] = SlotView(
                    name=action.slot_key,
                    host=action.host,
                    cpu_milli=action.cpu_milli,
                    memory_bytes=action.memory_bytes,
                    members={action.vm: action.vm_host},
                )
            case Join():
                was = slots[action.slot]
                slots[was.name] = msgspec.structs.replace(was, members={**was.members, action.vm: action.vm_host})
            case Leave():
                was = slots.pop(action.slot)
                members = {vm: host for vm, host in was.members.items() if vm != action.vm}
                assert action.vm in was.members
                if members:
                    slots[was.name] = msgspec.structs.replace(was, members=members)
        found.append(tuple(slots.values()))
    return found


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_at_no_step_anybody_tolerates_less_or_a_host_holds_more_than_it_has(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(random.randint(4, 9))
    vms = fleets.vms(random, random.randint(2, 20), on, sizes=(1, 2, 4))
    free = {host: (random.randint(2, 24) * 1000, random.randint(4, 48) * GIB) for host in on}
    k = random.randint(1, 3)
    before = named(plan(asked(vms, k, free)).slots)
    if random.random() < 0.3 and before:
        before = (msgspec.structs.replace(before[0], ready=False), *before[1:])
    given_ = asked(vms, k + random.randint(0, 1), free, before)
    result = replan(given_)
    locations = {vm.id: vm.host for vm in vms}
    had = compute_tolerances(vms, given_.slots, locations, {})
    added = plan(given_)
    assert shortfalls_of(given_, result.slots) <= shortfalls_of(given_, added.slots)
    assert check(CheckInput(vms=tuple(vms), slots=result.slots)).holds
    now = given_.slots
    for now in steps(given_, result.actions):
        held = Counter[tuple[str, int]]()
        for slot in now:
            held[slot.host, 0] += slot.cpu_milli
            held[slot.host, 1] += slot.memory_bytes
        assert all(amount <= free[host][which] for (host, which), amount in held.items())
        levels = compute_tolerances(vms, now, locations, {})
        assert all(levels[vm] >= min(had[vm], given_.required[vm]) for vm in had)
    members = {slot.name: slot.members for slot in result.slots}
    assert {slot.name: dict(slot.members) for slot in now} == members


def test_slots_that_are_used_or_not_ready_stay() -> None:
    vms, free = twelve_hosts()
    first, second, *rest = named(plan(asked(vms, 1, free)).slots)
    first = msgspec.structs.replace(first, ready=False)
    second = msgspec.structs.replace(second, consumer="v00", ready=False, members={})
    result = replan(asked(vms, 2, free, (first, second, *rest)))
    after = {slot.name: slot for slot in result.slots}
    assert after[first.name].members == first.members
    assert after[second.name] == second
    assert any(isinstance(action, Leave) for action in result.actions)


async def raised(k: int, settings: dict[str, object] | None = None) -> tuple[Cloud, list[int]]:
    """A cloud that was planned for one slot a VM less; how many slots the worst off VM has after each change."""
    cloud = Cloud({"flavorFailoverRequirements": {"*": k}, **(settings or {})})
    vms, free = twelve_hosts()
    for host in free:
        await cloud.host(host, zone=zone_of(host))
    for vm in vms:
        await cloud.vm(vm.id, vm.host, cpu=vm.cpu_milli, memory=vm.memory_bytes, zone=vm.zone)
    for host, (cpu, memory) in free.items():
        used = Amounts(cpu=64_000 - cpu, memory=256 * GIB - memory)
        await cloud.set_host(await cloud.get_host(host), allocation=used)
    for slot in named(plan(asked(vms, k - 1, free)).slots):
        await cloud.slot(
            slot.name, slot.host, slot.members, cpu=slot.cpu_milli, memory=slot.memory_bytes, zone=slot.zone
        )
    least: list[int] = []
    members = {name: frozenset(who) for name, who in (await cloud.members()).items()}

    def seen(old: Reservation | None, new: Reservation | None) -> None:
        slot = new or old
        assert slot is not None
        failover = slot.status.failover_reservation
        members[slot.name] = frozenset(failover.allocations if new is not None and failover else ())
        counts = Counter(vm for who in members.values() for vm in who)
        least.append(min(counts[vm.id] for vm in vms))

    cloud.informers.reservations.subscribe(seen)
    return cloud, least


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"limitOneNewReservationPerHypervisor": True, "maxVMsToProcess": 30}])
async def test_the_server_plans_anew_when_more_is_asked_for_and_nobody_has_less_on_the_way(
    limits: dict[str, object],
) -> None:
    cloud, least = await raised(2, limits)
    for _ in range(5):
        await cloud.cycle()
    covered = await cloud.covered()
    assert sum(covered.values()) == len(covered) == 80
    assert min(least) >= 1
    await check_rules(cloud)
    assert len(await cloud.slots()) <= 90

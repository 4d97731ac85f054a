"""How many more VMs fit with every promise kept: shown by putting them there, and by nobody finding room for more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.placement import commitment, host, slot
from tests.support.small_clouds import small_cloud

from outlive.base import NotFound, Random
from outlive.failover import CheckInput, Documents, FailoverSettings, SlotView, Snapshot, plan_input, snapshot_of
from outlive.failover.analysis.whatif import Altered, FlavorFit, Limit, count_further_vms, most_vms
from outlive.failover.check import check
from outlive.failover.planner import Fail
from outlive.failover.planner.plan import plan
from outlive.placement import VmList, VmView
from outlive.resources import RESERVATION_TYPE_LABEL, Amounts, Hypervisor, Reservation

GIB = 2**30
LIKE = VmView(id="new", host="", flavor="f", cpu_milli=1000, memory_bytes=4 * GIB)


def a_host(name: str, gib: int, vms: tuple[VmView, ...] = (), *, cpu: int = 999, zone: str | None = "z1") -> Hypervisor:
    made = host(
        name,
        zone=zone,
        capacity={"cpu": str(cpu), "memory": f"{gib}Gi"},
        effectiveCapacity=None,
        instances=[{"id": vm.id, "active": True} for vm in vms],
    )
    used = Amounts(cpu=sum(vm.cpu_milli for vm in vms), memory=sum(vm.memory_bytes for vm in vms))
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, allocation=used))


def a_vm(name: str, on: str, gib: int = 4, zone: str = "z1") -> VmView:
    return VmView(id=name, host=on, zone=zone, flavor="f", cpu_milli=1000, memory_bytes=gib * GIB)


def seen(
    hosts: list[Hypervisor], reservations: Sequence[Reservation] = (), vms: Sequence[VmView] = (), *, k: int = 1
) -> Snapshot:
    documents = Documents(hypervisors=tuple(hosts), reservations=tuple(reservations))
    return snapshot_of(documents, FailoverSettings(), listing=VmList(vms=tuple(vms)), k=k)


def asked(gathered: Snapshot, like: VmView = LIKE, zone: str = "") -> FlavorFit:
    return asyncio.run(count_further_vms(gathered, like, limit_zone=zone))


def test_forty_hosts_of_384_gib_take_exactly_3744_vms_of_4_gib_with_a_slot_each() -> None:
    names = [f"h{number:02d}" for number in range(40)]
    found = asked(seen([a_host(name, 384) for name in names]))
    assert (found.vms, found.at_most, found.exact, found.slots_each) == (3744, 3744, True, 1)
    (zone,) = found.zones
    assert (zone.new_slots, zone.without_slots, zone.limit) == (96, 3840, Limit.MEMORY)
    _show(names, zone.new_slots)


def _show(names: list[str], slots: int) -> None:
    """The VMs and slots of this answer, put there: every host is full, and everybody is covered."""
    made = [SlotView(name=f"s{number}", host=names[number % 40], cpu_milli=1000, memory_bytes=4 * GIB)
            for number in range(slots)]  # fmt: skip
    members: dict[str, dict[str, str]] = {one.name: {} for one in made}
    vms: list[VmView] = []
    for name in names:
        elsewhere = [one for one in made if one.host != name]
        here = 96 - (slots - len(elsewhere))
        for number in range(here):
            vms.append(a_vm(f"{name}-{number}", name))
            members[elsewhere[number].name][vms[-1].id] = name
    assert len(vms) == 3744
    checked = check(
        CheckInput(
            vms=tuple(vms),
            slots=tuple(msgspec.structs.replace(one, members=members[one.name]) for one in made),
            required={vm.id: 1 for vm in vms},
        )
    )
    assert checked.holds
    assert all(members[one.name] for one in made)


def test_commitments_and_slots_that_are_there_are_not_free_for_others() -> None:
    hosts = [a_host(f"h{number}", 40) for number in range(3)]
    held = [commitment("c", "h0", memory="40Gi", cpu="10", project="p", group="g"), slot("f", "h1", memory="8Gi")]
    (zone,) = asked(seen(hosts, held, k=0)).zones
    assert (zone.vms, zone.held_by_commitments, zone.held_by_failover) == (8 + 10, 10, 2)
    own = msgspec.structs.replace(
        LIKE, project="p", extra_specs={"quota:hw_version": "g", "capabilities:hypervisor_type": "QEMU"}
    )
    (zone,) = asked(seen(hosts, held, k=0), own).zones
    assert zone.vms == 10 + 8 + 10


def test_slots_that_are_there_take_new_vms_of_hosts_that_they_do_not_touch() -> None:
    """One slot of 4 GiB on h0 with a VM of h1: a new VM may be on h2, and on no other host without a new slot."""
    old = a_vm("old", "h1")
    hosts = [a_host("h0", 4), a_host("h1", 4, (old,)), a_host("h2", 4)]
    there = slot("s", "h0", cpu="1", memory="4Gi", members=())
    status = there.status
    assert status.failover_reservation is not None
    listed = msgspec.structs.replace(status.failover_reservation, allocations={"old": "h1"})
    there = msgspec.structs.replace(
        there,
        metadata=msgspec.structs.replace(there.metadata, labels={RESERVATION_TYPE_LABEL: "failover"}),
        status=msgspec.structs.replace(status, failover_reservation=listed),
    )
    found = asked(seen(hosts, [there], [old]))
    assert (found.vms, found.exact) == (1, True)
    assert found.zones[0].new_slots == 0


def test_vms_that_have_too_few_slots_get_them_first() -> None:
    old = a_vm("old", "h0")
    found = asked(seen([a_host("h0", 8, (old,)), a_host("h1", 8), a_host("h2", 8)], vms=[old]))
    assert found.topped_up == 1
    alone = asked(seen([a_host("h0", 8, (old,))], vms=[old]))
    assert (alone.vms, alone.zones[0].limit) == (0, Limit.UNCOVERED)


def test_what_limits_is_named() -> None:
    hosts = [a_host("h0", 400, cpu=2), a_host("h1", 400, cpu=2)]
    assert asked(seen(hosts)).zones[0].limit is Limit.CPU
    assert asked(seen(hosts, k=2)).zones[0].limit is Limit.UNITS
    picky = msgspec.structs.replace(LIKE, extra_specs={"trait:CUSTOM_X": "required"})
    (zone,) = asked(seen(hosts), picky).zones
    assert (zone.limit, zone.detail) == (Limit.PLACEMENT, "no host: 2 refused by filter_has_requested_traits")


def test_each_zone_counts_by_itself() -> None:
    hosts = [a_host(f"h{number}", 40, zone=f"z{number // 2}") for number in range(4)]
    found = asked(seen(hosts))
    assert [(one.zone, one.vms) for one in found.zones] == [("z0", 10), ("z1", 10)]
    assert asked(seen(hosts), zone="z1").vms == 10
    with pytest.raises(NotFound, match="zone 'moon'"):
        asked(seen(hosts), zone="moon")


def test_where_vms_need_two_slots_there_are_two_bounds() -> None:
    found = asked(seen([a_host(f"h{number}", 40) for number in range(9)], k=2))
    assert 0 < found.vms < found.at_most
    assert not found.exact


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Hypervisor], list[Reservation], list[VmView]]:
    names = [f"h{number}" for number in range(draw(st.integers(2, 4)))]
    vms = [
        a_vm(f"v{number}", draw(st.sampled_from(names)), draw(st.sampled_from([2, 4])))
        for number in range(draw(st.integers(0, 3)))
    ]
    mine = {name: tuple(vm for vm in vms if vm.host == name) for name in names}
    hosts = [
        a_host(name, sum(vm.memory_bytes for vm in mine[name]) // GIB + draw(st.integers(0, 16)), mine[name])
        for name in names
    ]
    sold = [
        commitment(f"c{number}", draw(st.sampled_from(names)), cpu="1", memory=f"{draw(st.integers(1, 4))}Gi")
        for number in range(draw(st.integers(0, 2)))
    ]
    return hosts, sold, vms


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets())
def test_so_many_vms_can_be_put_there_and_one_more_cannot(
    drawn: tuple[list[Hypervisor], list[Reservation], list[VmView]],
) -> None:
    hosts, sold, vms = drawn
    gathered = seen(hosts, sold, vms)
    if any(gathered.fleet.overbooked_amounts(one.name) for one in hosts):
        return
    result = plan(msgspec.structs.replace(asyncio.run(plan_input(gathered)), packing=False))
    found = asked(gathered)
    if any(isinstance(one, Fail) for one in result.actions):
        return
    assert found.exact
    free = {
        name: (left[1] - sum(one.memory_bytes for one in result.slots if one.host == name)) // (4 * GIB)
        for name, left in zip(gathered.fleet.names, gathered.fleet.free_amounts().tolist(), strict=True)
    }
    best = _best(gathered, result.slots, free)
    assert found.vms == best[0]
    _cover(gathered, result.slots, best[1], best[2])


def _best(
    gathered: Snapshot, slots: tuple[SlotView, ...], free: dict[str, int]
) -> tuple[int, dict[str, int], dict[str, int]]:
    """The best of all ways to place new slots: VMs in all, new slots by host, new VMs by host."""
    names = sorted(free)
    open_to = {name: len(_open(slots, name)) for name in names}
    best = (-1, dict[str, int](), dict[str, int]())
    for placed in product(*(range(free[name] + 1) for name in names)):
        new = dict(zip(names, placed, strict=True))
        homes = {name: min(free[name] - new[name], sum(placed) - new[name] + open_to[name]) for name in names}
        if sum(homes.values()) > best[0]:
            best = (sum(homes.values()), new, homes)
    return best


def _open(slots: tuple[SlotView, ...], name: str) -> list[SlotView]:
    """Slots that a VM of this host may join."""
    return [
        one for one in slots if one.host != name and name not in one.members.values() and one.memory_bytes >= 4 * GIB
    ]


def _cover(gathered: Snapshot, slots: tuple[SlotView, ...], new: dict[str, int], homes: dict[str, int]) -> None:
    """Put the VMs and slots there: all are covered, by failover's own judgment."""
    made = [
        SlotView(name=f"n-{name}-{number}", host=name, cpu_milli=1000, memory_bytes=4 * GIB)
        for name, count in new.items()
        for number in range(count)
    ]
    everything = {one.name: one for one in (*slots, *made)}
    vms = list(gathered.vms)
    for name, count in homes.items():
        usable = [*_open(slots, name), *(one for one in made if one.host != name)]
        for number in range(count):
            vm = a_vm(f"w-{name}-{number}", name)
            vms.append(vm)
            chosen = everything[usable[number].name]
            everything[chosen.name] = msgspec.structs.replace(chosen, members={**chosen.members, vm.id: name})
    checked = check(CheckInput(vms=tuple(vms), slots=tuple(everything.values()), required={vm.id: 1 for vm in vms}))
    assert checked.holds


@pytest.mark.slow
def test_the_planner_never_finds_room_for_more_on_odd_clouds() -> None:
    with asyncio.Runner() as runner:
        for seed in range(25):
            cloud = small_cloud(Random(seed), runner)
            gathered = cloud.gathered()
            zones = sorted({one.zone for one in gathered.observation.hosts})
            like = msgspec.structs.replace(LIKE, zone=zones[0], memory_bytes=2 * GIB)
            now = Altered(
                hosts={one.name: one for one in gathered.observation.hypervisors},
                reservations={one.name: one for one in gathered.fleet.list_reservations()},
                vms={vm.id: vm for vm in gathered.observation.listing.vms},
                besides=(),
                settings=gathered.settings,
                k=cloud.k,
            )
            planned = runner.run(most_vms(now, like)).most
            found = runner.run(count_further_vms(gathered, like, limit_zone=zones[0]))
            assert found.vms <= found.at_most
            if planned is not None:
                assert planned <= found.at_most, seed

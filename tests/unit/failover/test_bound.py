"""Lower bounds: never above any valid plan, however it was found."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement

import msgspec
import pytest
from tests.support.literal_rules import DependencyGraph

from outlive.base import Random
from outlive.failover import HostView, SlotView, Topology
from outlive.failover.analysis import BoundInput, BoundResult, compute_bound
from outlive.placement import VmView

GIB = 2**30


def least(
    vms: list[VmView], hosts: list[str], k: int | dict[str, int], *, zones: dict[str, str] | None = None
) -> BoundResult:
    needs = k if isinstance(k, dict) else {vm.id: k for vm in vms}
    views = tuple(HostView(name=host, zone=(zones or {}).get(host, "")) for host in hosts)
    return compute_bound(BoundInput(vms=tuple(vms), required=needs, hosts=views))


def vm(name: str, host: str, memory: int = 1, zone: str = "") -> VmView:
    return VmView(id=name, host=host, zone=zone, cpu_milli=1000, memory_bytes=memory * GIB)


def fewest_slots(vms: list[VmView], hosts: list[str], k: int, limit: int) -> int | None:
    """The least number of slots of any valid plan, by trying all of them."""
    for count in range(1, limit + 1):
        if _some_plan(vms, hosts, k, count):
            return count
    return None


def _some_plan(vms: list[VmView], hosts: list[str], k: int, count: int) -> bool:
    return any(
        _fill(vms, [SlotView(name=f"s{n}", host=host, members={}) for n, host in enumerate(on)], k)
        for on in combinations_with_replacement(hosts, count)
    )


def _fill(vms: list[VmView], slots: list[SlotView], k: int) -> bool:
    if not vms:
        return True
    first, *rest = vms
    for chosen in combinations(slots, k):
        if any(slot.memory_bytes and slot.memory_bytes < first.memory_bytes for slot in chosen):
            continue
        for slot in chosen:
            slot.members[first.id] = first.host
        graph = DependencyGraph.build(slots)
        good = all(graph.holds_for(one) for one in graph.vm_slots) and _fill(rest, slots, k)
        for slot in chosen:
            del slot.members[first.id]
        if good:
            return True
    return False


@pytest.mark.slow
def test_the_bound_never_exceeds_the_best_plan_there_is() -> None:
    met = 0
    for hosts, layout, k in [
        (3, "012", 1),
        (3, "001122", 1),
        (4, "0011", 1),
        (4, "0123", 1),
        (4, "0123", 2),
        (5, "0012", 2),
        (5, "01234", 2),
        (4, "000", 1),
        (6, "01", 3),
    ]:
        names = [f"h{number}" for number in range(hosts)]
        vms = [vm(f"v{number}", names[int(place)]) for number, place in enumerate(layout)]
        best = fewest_slots(vms, names, k, 6)
        found = least(vms, names, k).slots
        assert best is None or found <= best, (hosts, layout, k)
        met += best == found
    assert met >= 4


def test_members_of_one_host_never_meet_so_it_alone_needs_that_many_slots() -> None:
    assert least([vm(f"v{n}", "h0") for n in range(7)], ["h0", "h1", "h2"], 2).slots == 14


def test_a_slot_holds_at_most_one_vm_of_each_other_host() -> None:
    hosts = [f"h{n}" for n in range(11)]
    assert least([vm(f"v{n}", hosts[n % 11]) for n in range(110)], hosts, 1).slots == 11


def test_pairs_of_slots_are_used_once() -> None:
    hosts = [f"h{n}" for n in range(1000)]
    assert least([vm(f"v{n}", hosts[n]) for n in range(45)], hosts, 2).slots == 10


def test_slots_of_two_zones_add_up_where_hosts_have_zones() -> None:
    vms = [vm("a", "h0", zone="x"), vm("b", "h2", zone="y")]
    hosts = ["h0", "h1", "h2", "h3"]
    zones = {"h0": "x", "h1": "x", "h2": "y", "h3": "y"}
    assert least(vms, hosts, 1, zones=zones).slots == 2
    assert least(vms, hosts, 1).slots == 1


def test_reserved_memory_counts_the_largest_of_every_host() -> None:
    vms = [vm("a", "h0", 8), vm("b", "h0", 2), vm("c", "h1", 4), vm("d", "h1", 4)]
    assert least(vms, ["h0", "h1", "h2"], 1).memory_bytes == (8 + 4) * GIB


def least_memory(vms: list[VmView], hosts: list[str], k: int, most: int) -> int | None:
    """The least GiB that the slots of any valid plan of at most so many slots hold, by trying all of them."""
    sizes = sorted({one.memory_bytes // GIB for one in vms})
    best: int | None = None
    for count in range(1, most + 1):
        for chosen in combinations_with_replacement([(host, size) for host in hosts for size in sizes], count):
            total = sum(size for _, size in chosen)
            slots = [
                SlotView(name=f"s{n}", host=host, cpu_milli=1000, memory_bytes=size * GIB, members={})
                for n, (host, size) in enumerate(chosen)
            ]
            if (best is None or total < best) and _fill(vms, slots, k):
                best = total
    return best


def test_the_memory_bound_never_exceeds_the_best_plan_there_is() -> None:
    met = 0
    for hosts, layout, k in [
        (3, "0a1b", 1),
        (3, "0b0a1b", 1),
        (4, "0a0b1a1b", 1),
        (4, "0b1b2a", 1),
        (4, "0a1b", 2),
        (5, "0b1a", 2),
        (3, "0a0a0b", 1),
    ]:
        names = [f"h{number}" for number in range(hosts)]
        pairs = [layout[n : n + 2] for n in range(0, len(layout), 2)]
        vms = [vm(f"v{n}", names[int(at)], 1 if size == "a" else 3) for n, (at, size) in enumerate(pairs)]
        best = least_memory(vms, names, k, 4)
        found = least(vms, names, k).memory_bytes // GIB
        assert best is not None, (hosts, layout, k)
        assert found <= best, (hosts, layout, k)
        met += found == best
    assert met >= 5


def test_many_distinct_sizes_are_bounded_rank_by_rank() -> None:
    vms = [vm(f"v{n}-{m}", f"h{n}", 1 + n + 40 * m) for n in range(40) for m in range(5)]
    hosts = [f"h{n}" for n in range(41)]
    assert least(vms, hosts, 1).memory_bytes >= sum(40 + 40 * m for m in range(5)) * GIB
    assert least(vms, hosts, 2).memory_bytes >= 2 * sum(40 + 40 * m for m in range(5)) * GIB


def test_hosts_that_fail_together_are_one() -> None:
    vms = [vm(f"v{n}", f"h{n % 8}") for n in range(16)]
    hosts = tuple(HostView(name=f"h{n}") for n in range(8))
    given = BoundInput(vms=tuple(vms), required={one.id: 1 for one in vms}, hosts=hosts)
    racks = Topology(units={f"h{n}": f"r{n // 2}" for n in range(8)})
    assert compute_bound(given).slots == 3
    assert compute_bound(msgspec.structs.replace(given, topology=racks)).slots == 6


def test_vms_that_need_nothing_bound_nothing() -> None:
    assert least([vm("a", "h0")], ["h0", "h1"], {}) == BoundResult(slots=0, cpu_milli=0, memory_bytes=0)
    mixed = least([vm("a", "h0"), vm("b", "h0")], ["h0", "h1", "h2"], {"a": 2})
    assert mixed.slots == 2


@pytest.mark.slow
def test_ranks_are_counted_as_if_each_vm_were_there_as_often_as_it_needs_slots() -> None:
    random = Random(11)
    for _ in range(200):
        vms = [
            vm(f"v{number}", random.choice("abc"), random.choice((0, 1, 1, 3, 8, 20)))
            for number in range(random.randint(1, 8))
        ]
        needs = {one.id: random.randint(1, 4) for one in vms}
        at = {host: [one for one in vms if one.host == host] for host in "abc"}
        sizes = [sorted((one.memory_bytes for one in at[h] for _ in range(needs[one.id])), reverse=True) for h in at]
        ranks = sum(max((one[j] for one in sizes if j < len(one)), default=0) for j in range(40))
        hosts = tuple(HostView(name=name) for name in "abcdefgh")
        assert compute_bound(BoundInput(vms=tuple(vms), required=needs, hosts=hosts)).memory_bytes >= ranks


def test_absurd_needs_are_bounded_at_once() -> None:
    vms = tuple(vm(f"v{number}", "a", 2**61) for number in range(3))
    hosts = (HostView(name="a"), HostView(name="b"))
    for need in (10**9, 10**30):
        found = compute_bound(BoundInput(vms=vms, required={one.id: need for one in vms}, hosts=hosts))
        assert found.slots >= 300_000

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fleets import eligible_slots
from tests.support.small_clouds import make_host, make_slot

from outlive.base import Random, SystemClock
from outlive.failover import Demands, TopologyChoice
from outlive.failover.reconciler import COMPARED, CacheComparison, FleetCache, Informers
from outlive.placement import VmView
from outlive.resources import AffinityRule, Hypervisor, ObjectMeta, Reservation

T = TypeVar("T")

HOSTS = [f"h{n}" for n in range(7)]
VMS = [f"v{n}" for n in range(12)]
SLOTS = [f"s{n}" for n in range(8)]


def host(name: str, *active: str, rack: str = "") -> Hypervisor:
    return make_host(name, *active, domains={"rack": rack, "row": "1"} if rack else {})


def vm(name: str, on: str, *, flavor: str = "f2", cpu: int = 1000, group: str = "") -> VmView:
    policy = "affinity" if group == "g1" else "anti-affinity"
    return VmView(
        id=name,
        host=on,
        flavor=flavor,
        cpu_milli=cpu,
        memory_bytes=cpu,
        server_group=group,
        group_policy=policy if group else "",
        affinity=(AffinityRule(group="g3", policy="anti-affinity"),) if group == "g2" or cpu > 1000 else (),
    )


def slot(name: str, on: str, members: dict[str, str], *, ready: bool = True, cpu: int = 1000) -> Reservation:
    return make_slot(name, on, members, cpu=cpu, memory=cpu, ready=ready)


class Shown:
    """As an informer shows it."""

    def __init__(self, objects: dict) -> None:
        self._objects = objects
        self.get = objects.get
        self.synced = True

    def items(self) -> list:
        return list(self._objects.values())


class Still(SystemClock):
    """Nobody else waits for a turn."""

    async def sleep(self, seconds: float) -> None:
        assert seconds == 0


def whole(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nobody."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class Follower:
    """Changes a small world, reports every change to a cache, and can build another one from scratch."""

    def __init__(self, *, trust: bool, choice: TopologyChoice = TopologyChoice()) -> None:
        self.trust = trust
        self.choice = choice
        self.hosts: dict[str, Hypervisor] = {}
        self.vms: dict[str, VmView] = {}
        self.slots: dict[str, Reservation] = {}
        self.cache = self.empty()
        self.comparison = CacheComparison(self.cache, Still())

    def empty(self) -> FleetCache:
        shown: Any = [Shown(self.hosts), Shown(self.slots), Shown({}), Shown({})]
        return FleetCache(
            Informers(*shown),
            Demands({"f1": 1, "f2": 2}),
            clock=Still(),
            trust_hosts=self.trust,
            choice=self.choice,
            follow_vms=False,
        )

    def rebuilt(self) -> FleetCache:
        fresh = self.empty()
        fresh.known = dict(self.vms)
        whole(fresh.rebuild())
        return fresh

    def step(self, random: Random) -> None:
        match random.randrange(8):
            case 0 | 1:
                name = random.choice(HOSTS)
                active = random.sample(VMS, random.randrange(6))
                rack = random.choice(["", "r1", "r2", "r3"]) if self.choice.domains else ""
                self.hosts[name] = host(name, *active, rack=rack)
                self.cache.put_host(name, self.hosts[name])
            case 2:
                name = random.choice(HOSTS)
                self.hosts.pop(name, None)
                self.cache.put_host(name, None)
            case 3 | 4:
                name = random.choice(VMS)
                flavor, cpu = random.choice(["f0", "f1", "f2"]), random.choice([500, 1000, 2000])
                group = random.choice(["", "g1", "g2"])
                self.vms[name] = vm(name, random.choice(HOSTS), flavor=flavor, cpu=cpu, group=group)
                self.cache.put_vm(name, self.vms[name])
            case 5:
                name = random.choice(VMS)
                self.vms.pop(name, None)
                self.cache.put_vm(name, None)
            case 6:
                name = random.choice(SLOTS)
                self.slots.pop(name, None)
                self.cache.put_slot(name, None)
            case _:
                name = random.choice(SLOTS)
                members = {one: self.recorded(one, random) for one in random.sample(VMS, random.randrange(4))}
                self.slots[name] = slot(
                    name, random.choice(HOSTS), members, ready=random.random() < 0.8, cpu=random.choice([1000, 2000])
                )
                self.cache.put_slot(name, self.slots[name])

    def settle(self) -> None:
        """Every slot loses the members that are nowhere."""
        for name, old in sorted(self.slots.items()):
            failover = old.status.failover_reservation
            members = {vm: on for vm, on in failover.allocations.items() if vm in self.cache.vms} if failover else {}
            ready = old.status.conditions[0].status == "True"
            self.slots[name] = slot(name, old.status.host, members, ready=ready, cpu=old.spec.resources.cpu_milli)
            self.cache.put_slot(name, self.slots[name])

    def recorded(self, name: str, random: Random) -> str:
        located = self.cache.vms.get(name)
        return located.host if located is not None and random.random() < 0.8 else random.choice(HOSTS)

    def audit(self) -> list[str]:
        return whole(self.comparison.find_differences())


def check_equal(world: Follower) -> None:
    cache, fresh = world.cache, world.rebuilt()
    assert cache.vms == fresh.vms
    assert cache.slots == fresh.slots
    located = sorted(cache.vms)
    assert {v: cache.index.count_missing(v) for v in located} == {v: fresh.index.count_missing(v) for v in located}
    assert {v: cache.split_by_counting(cache.vms[v]) for v in located} == {
        v: fresh.split_by_counting(fresh.vms[v]) for v in located
    }
    assert {v: cache.index.location_of(v) for v in located} == {v: fresh.index.location_of(v) for v in located}
    assert world.audit() == []
    check_rules(world)


def check_rules(world: Follower) -> None:
    """Counters and separation, once nobody is in a slot of whom only the slot knows: those have no one location."""
    world.settle()
    cache, fresh = world.cache, world.rebuilt()
    names = sorted(cache.index.names)
    assert names == sorted(fresh.index.names)
    for state in (cache, fresh):
        state.index.host_numbers(HOSTS)
    for name in names:
        assert cache.index.blocked_unit_names(name) == fresh.index.blocked_unit_names(name)
        assert cache.index.crowded_unit_names(name) == fresh.index.crowded_unit_names(name)
        assert eligible_slots(cache.index, name) == eligible_slots(fresh.index, name)
        assert cache.index.separation.shared_groups(name) == fresh.index.separation.shared_groups(name)
        assert {h: cache.index.separation.allows(name, h) for h in HOSTS} == {
            h: fresh.index.separation.allows(name, h) for h in HOSTS
        }
        assert joinable(cache, name) == joinable(fresh, name)
    assert cache.index.list_faulty() == fresh.index.list_faulty()
    assert cache.build_topology() == fresh.build_topology()
    assert world.audit() == []


def joinable(state: FleetCache, name: str) -> set[str]:
    """The slots that separation alone lets the VM join."""
    counters = state.index
    found = state.index.separation.allowed_slots(
        name, sum(counters.slot_bit(counters.slot_number(one)) for one in state.slots)
    )
    return {one for one in state.slots if found & counters.slot_bit(counters.slot_number(one))}


CHOICES = [
    TopologyChoice(server_groups=False),
    TopologyChoice(),
    TopologyChoice(unit="rack"),
    TopologyChoice(apart=("rack",)),
    TopologyChoice(unit="rack", apart=("rack", "row")),
]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(CHOICES))
def test_following_changes_gives_what_a_rebuild_gives(seed: int, trust: bool, choice: TopologyChoice):
    world, random = Follower(trust=trust, choice=choice), Random(seed)
    for _ in range(40):
        world.step(random)
    check_equal(world)


@pytest.mark.slow
@pytest.mark.parametrize("choice", [CHOICES[0], CHOICES[4]])
def test_ten_thousand_changes_later_it_still_does(choice: TopologyChoice):
    world, random = Follower(trust=True, choice=choice), Random(7)
    for number in range(10_000):
        world.step(random)
        if number % 200 == 0:
            check_equal(world)
    check_equal(world)


def small() -> Follower:
    world = Follower(trust=True)
    for name, active in (("h1", ["v1"]), ("h2", ["v2"]), ("h3", [])):
        world.hosts[name] = host(name, *active)
        world.cache.put_host(name, world.hosts[name])
    for name, on in (("v1", "h1"), ("v2", "h2")):
        world.vms[name] = vm(name, on)
        world.cache.put_vm(name, world.vms[name])
    world.slots["s1"] = slot("s1", "h3", {"v1": "h1", "v2": "h2"})
    world.cache.put_slot("s1", world.slots["s1"])
    world.cache.take_dirty()
    return world


def test_an_audit_names_what_is_wrong():
    world = small()
    assert world.audit() == []
    world.cache.index.leave("v1", "s1")
    assert world.audit() == ["slot s1"]
    whole(world.cache.rebuild())
    assert world.audit() == []
    world.slots["s2"] = slot("s2", "h3", {})
    assert world.audit() == ["slot s2"]
    del world.slots["s2"]
    world.hosts["h1"] = host("h1")
    assert world.audit() == ["VMs on host h1"]
    del world.hosts["h1"]
    assert world.audit() == ["host h1"]
    world.hosts["h1"] = host("h1", "v1")
    world.cache.vms["v1"] = vm("v1", "h9")
    assert world.audit() == ["VM v1"]


def test_an_audit_names_whose_rules_are_judged_otherwise_than_their_units_say():
    world = small()
    world.cache.index.relabel("h1", "rack=1", {})
    world.cache.index.relabel("h2", "rack=1", {})
    assert world.cache.is_faulty("v1")
    assert world.audit() == ["VM v1", "VM v2"]
    whole(world.cache.rebuild())
    assert not world.cache.is_faulty("v1")
    assert world.audit() == []


def test_an_audit_of_many_goes_round():
    world = Follower(trust=True)
    world.hosts["h1"] = host("h1")
    world.cache.put_host("h1", world.hosts["h1"])
    for number in range(3 * COMPARED):
        world.slots[f"s{number}"] = slot(f"s{number}", "h1", {f"w{number}": "h2"})
        world.cache.put_slot(f"s{number}", world.slots[f"s{number}"])
    world.cache.index.leave("w0", "s0")
    assert [difference for _ in range(3) for difference in world.audit()] == ["slot s0"]


def test_a_stopped_vm_is_misplaced_and_one_that_a_host_reports_is_not():
    world = small()
    world.cache.put_host("h1", host("h1"))
    assert world.cache.take_dirty() == ["v1"]
    assert world.cache.is_misplaced("v1")
    world.cache.put_host("h1", host("h1", "v1"))
    assert not world.cache.is_misplaced("v1")
    world.cache.put_vm("v1", None)
    assert not world.cache.is_misplaced("v1"), "the source lost it, but a host still runs it"
    world.cache.put_host("h1", None)
    assert world.cache.is_misplaced("v1")


def test_a_moved_vm_is_misplaced():
    world = small()
    world.cache.put_host("h1", host("h1"))
    world.cache.put_host("h4", host("h4", "v1"))
    assert world.cache.is_misplaced("v1")


def test_a_vm_that_a_host_reports_and_the_source_does_not_know_is_a_stranger():
    world = small()
    world.cache.put_host("h3", host("h3", "x"))
    assert world.cache.strangers == {"x"}
    world.cache.put_vm("x", vm("x", "h3"))
    assert world.cache.strangers == set()
    assert world.cache.index.count_missing("x") == 2


def test_a_listing_of_the_source_is_taken_over_and_calls_for_no_reaction():
    """The cycle that asked for it looks at everybody itself, within its own limits."""
    world = small()
    whole(world.cache.put_listing(world.vms.values()))
    changed = msgspec.structs.replace(world.vms["v2"], flavor="f0")
    whole(world.cache.put_listing([changed], but={"v1"}))
    assert set(world.cache.vms) == {"v1", "v2"}
    whole(world.cache.put_listing([changed]))
    assert set(world.cache.vms) == {"v2"}
    assert world.cache.index.count_missing("v2") == 0
    assert world.cache.take_dirty() == []


def test_a_slot_that_is_not_ready_or_too_small_counts_for_nobody():
    world = small()
    assert world.cache.split_by_counting(world.cache.vms["v1"])[0] == ["s1"]
    world.cache.put_slot("s1", slot("s1", "h3", {"v1": "h1", "v2": "h2"}, ready=False))
    assert world.cache.split_by_counting(world.cache.vms["v1"])[0] == []
    assert world.cache.index.count_missing("v1") == 2
    world.cache.put_slot("s1", slot("s1", "h3", {"v1": "h1", "v2": "h2"}, cpu=500))
    assert world.cache.index.count_missing("v1") == 2


def test_reservations_of_other_types_are_overlooked():
    world = small()
    unlabelled = slot("s2", "h3", {"v1": "h1"})
    unlabelled = msgspec.structs.replace(unlabelled, metadata=ObjectMeta(name="s2"))
    world.cache.put_slot("s2", unlabelled)
    assert "s2" not in world.cache.slots

"""Following a fleet event by event."""

from __future__ import annotations

from tests.support import fleets

from outlive.base.random import Random
from outlive.failover.eligibility.check import CheckInput, check
from outlive.failover.eligibility.counters import Counters
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.actions import Need, Offer, Open
from outlive.failover.planning.assign import result_of
from outlive.failover.planning.cleanup import Cause
from outlive.failover.planning.planner import Planner
from outlive.failover.sizing import resolve_size

HOSTS = tuple(fleets.hosts(12))
EVERYWHERE = {"": Offer(hosts=HOSTS, scores=(1.0,) * len(HOSTS))}


def planner(vms: list[VmView], slots: list[SlotView], k: int) -> Planner:
    free = dict.fromkeys(HOSTS, (64000, 2**40))
    return Planner(vms, slots, {vm.id: k for vm in vms}, reuse=EVERYWHERE, new=EVERYWHERE, free=free, hosts=HOSTS)


class Follower:
    """Carries out what a planner says, on plain views."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.vms: dict[str, VmView] = {}
        self.slots: dict[str, SlotView] = {}
        self.planner = planner([], [], k)
        self.serial = 0

    def appear(self, vm: VmView) -> None:
        self.vms[vm.id] = vm
        self.leave(self.planner.appear(vm, self.k))
        missing = self.planner.counters.misses(vm.id)
        if missing:
            need = Need(vm=vm.id, needed=missing, size=resolve_size(vm), offer_class="")
            self.carry_out(vm, need)

    def carry_out(self, vm: VmView, need: Need) -> None:
        actions = self.planner.cover(vm, need)
        opened = {}
        for action in actions:
            if isinstance(action, Open):
                opened[action.slot_key] = SlotView(
                    name=action.slot_key, host=action.host, cpu_milli=action.cpu_milli, memory_bytes=action.memory_bytes
                )
        after = {slot.name: slot for slot in result_of(list(self.slots.values()), actions, opened).slots}
        for action in actions:
            if isinstance(action, Open):
                self.serial += 1
                name = f"failover-{self.serial:05}"
                self.planner.slot_created(action, name)
                slot = after.pop(action.slot_key)
                after[name] = SlotView(
                    name=name,
                    host=slot.host,
                    cpu_milli=slot.cpu_milli,
                    memory_bytes=slot.memory_bytes,
                    members=slot.members,
                )
        self.slots = after

    def disappear(self, vm: str) -> None:
        del self.vms[vm]
        self.leave(self.planner.disappear(vm))

    def leave(self, left: object) -> None:
        for drop in left.dropped:  # type: ignore[attr-defined]
            del self.slots[drop.slot].members[drop.vm]
        for deletion in left.deleted:  # type: ignore[attr-defined]
            assert not self.slots.pop(deletion.slot).members


def test_events_keep_everybody_covered_and_the_state_equal_to_a_rebuild() -> None:
    random, world = Random(7), Follower(2)
    for number in range(400):
        kind = random.random()
        if kind < 0.4 or len(world.vms) < 5:
            size = random.choice((1, 2, 4))
            host = random.choice(HOSTS)
            world.appear(VmView(id=f"v{number}", host=host, cpu_milli=size * 1000, memory_bytes=size * 2**30))
        elif kind < 0.8:
            old = random.choice(sorted(world.vms.values(), key=lambda vm: vm.id))
            world.appear(
                VmView(id=old.id, host=random.choice(HOSTS), cpu_milli=old.cpu_milli, memory_bytes=old.memory_bytes)
            )
        else:
            world.disappear(random.choice(sorted(world.vms)))
        for slot in world.slots.values():
            for vm in slot.members:
                slot.members[vm] = world.vms[vm].host
        if number % 20 == 0:
            slots = sorted(world.slots.values(), key=lambda slot: slot.name)
            assert check(CheckInput(vms=tuple(world.vms.values()), slots=tuple(slots))).holds
            rebuilt = Counters.build(slots, world.vms.values(), dict.fromkeys(world.vms, 2))
            for vm in world.vms:
                assert world.planner.counters.eligible_slots(vm) == rebuilt.eligible_slots(vm)
                assert world.planner.counters.blocked(vm) == rebuilt.blocked(vm)
            assert world.planner.counters.missing() == rebuilt.missing()


def vm(name: str, host: str) -> VmView:
    return VmView(id=name, host=host, cpu_milli=1000, memory_bytes=1)


def test_a_vm_that_moved_leaves_all_its_slots_and_empty_ones_go() -> None:
    slots = [
        SlotView(name="s1", host=HOSTS[5], cpu_milli=1000, memory_bytes=1, members={"a": HOSTS[0]}),
        SlotView(name="s2", host=HOSTS[6], cpu_milli=1000, memory_bytes=1, members={"a": HOSTS[0], "b": HOSTS[1]}),
    ]
    here = planner([vm("a", HOSTS[0]), vm("b", HOSTS[1])], slots, 2)
    left = here.appear(vm("a", HOSTS[3]), 2)
    assert [(drop.slot, drop.cause) for drop in left.dropped] == [("s1", Cause.MOVED), ("s2", Cause.MOVED)]
    assert [deletion.slot for deletion in left.deleted] == ["s1"]
    assert here.counters.missing() == {"a": 2, "b": 1}


def test_a_vm_that_stays_keeps_its_slots() -> None:
    slots = [SlotView(name="s1", host=HOSTS[5], cpu_milli=1000, memory_bytes=1, members={"a": HOSTS[0]})]
    here = planner([vm("a", HOSTS[0])], slots, 1)
    assert here.appear(vm("a", HOSTS[0]), 1).dropped == ()
    assert here.counters.missing() == {}


def test_slots_that_others_changed_are_taken_over() -> None:
    here = planner([vm("a", HOSTS[0]), vm("b", HOSTS[1])], [], 1)
    slot = SlotView(name="s", host=HOSTS[5], cpu_milli=1000, memory_bytes=1, members={"a": HOSTS[0]})
    here.slot_seen(slot)
    here.slot_seen(slot)
    assert here.counters.missing() == {"b": 1}
    here.slot_seen(SlotView(name="s", host=HOSTS[5], cpu_milli=1000, memory_bytes=1, members={"b": HOSTS[1]}))
    assert here.counters.missing() == {"a": 1}
    here.slot_gone("s")
    here.slot_gone("s")
    assert here.counters.missing() == {"a": 1, "b": 1}


def test_a_slot_that_goes_gives_its_room_back() -> None:
    tight = {host: (1000, 1) if host == HOSTS[5] else (0, 0) for host in HOSTS}
    view = vm("a", HOSTS[0])
    here = Planner([view], [], {"a": 1}, reuse=EVERYWHERE, new=EVERYWHERE, free=tight, hosts=HOSTS)
    need = Need(vm="a", needed=1, size=resolve_size(view), offer_class="")
    (action,) = here.cover(view, need)
    assert isinstance(action, Open)
    here.slot_created(action, "real")
    assert here.disappear("a").deleted[0].slot == "real"
    here.appear(view, 1)
    assert isinstance(here.cover(view, need)[0], Open)

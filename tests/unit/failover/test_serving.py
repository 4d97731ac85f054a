"""Serving a fleet event by event on the living index."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support import fleets
from tests.support.fleets import eligible_slots
from tests.support.remembering_log import RememberingLog
from tests.support.separation import barred
from tests.support.small_clouds import make_host, make_slot

from outlive.base import Random, SystemClock
from outlive.failover import (
    CheckInput,
    ConflictIndex,
    Demands,
    FreeAmounts,
    Inline,
    Offers,
    TopologyChoice,
    claim_of,
    groups_of,
    resolve_size,
)
from outlive.failover.check import check
from outlive.failover.planner import (
    Action,
    AssignInput,
    Cause,
    Claim,
    CleanInput,
    CleanResult,
    Fail,
    Join,
    LeaveInput,
    Open,
    PlacementOffer,
    clean,
    leave,
)
from outlive.failover.planner.assign import assign
from outlive.failover.reconciler import Assigner, Decider, FleetCache, Informers, Terms
from outlive.placement import VmView
from outlive.resources import Hypervisor, Reservation, decode_as

HOSTS = tuple(fleets.hosts(12))
EVERYWHERE = PlacementOffer(hosts=HOSTS, scores=(1.0,) * len(HOSTS))
ROOMY = FreeAmounts.from_table(dict.fromkeys(HOSTS, (64_000, 2**40)))


def host(name: str, *active: str) -> Hypervisor:
    number = HOSTS.index(name) if name in HOSTS else 0
    return make_host(name, *active, domains={"rack": f"r{number // 2}", "power": "ab"[number % 2]})


def vm(name: str, on: str, *, cpu: int = 1000, group: str = "") -> VmView:
    policy = {"": "", "g1": "affinity"}.get(group, "anti-affinity")
    return VmView(
        id=name, host=on, flavor="f", cpu_milli=cpu, memory_bytes=cpu, server_group=group, group_policy=policy
    )


def slot(name: str, on: str, size: int, members: dict[str, str]) -> Reservation:
    return make_slot(name, on, members, cpu=size, memory=size, ready=None)


class World:
    """A cache, changes to it, and decisions that are carried out on plain objects."""

    def __init__(self, choice: TopologyChoice = TopologyChoice()) -> None:
        self.log = RememberingLog(SystemClock())
        nobody: Any = SimpleNamespace(items=list, get=lambda name: None)
        self.state = FleetCache(
            Informers(nobody, nobody, nobody, nobody),
            Demands({"*": 2}),
            clock=SystemClock(),
            trust_hosts=True,
            choice=choice,
            follow_vms=False,
        )
        self.assigner = Assigner(self.state, Decider(self.log, Inline(), clock=SystemClock()))
        self.slots: dict[str, Reservation] = {}
        self.active: dict[str, list[str]] = {name: [] for name in HOSTS}
        self.vms: dict[str, VmView] = {}
        self.serial = 0
        for name in HOSTS:
            self.state.put_host(name, host(name))

    def place(self, name: str, on: str, size: int = 1, *, group: str = "") -> None:
        """The VM starts, moves or is resized."""
        before = self.vms.get(name)
        self.vms[name] = vm(name, on, cpu=size * 1000, group=before.server_group if before else group)
        self.state.put_vm(name, self.vms[name])
        for changed, there in ((before.host if before else on, False), (on, True)):
            self.active[changed] = [one for one in self.active[changed] if one != name] + [name] * there
            self.state.put_host(changed, host(changed, *self.active[changed]))

    def remove(self, name: str) -> None:
        on = self.vms.pop(name).host
        self.active[on].remove(name)
        self.state.put_vm(name, None)
        self.state.put_host(on, host(on, *self.active[on]))

    def react(self) -> list[Action]:
        touched = self.state.take_dirty()
        left = self.leaving(touched)
        gone = {drop.slot: set[str]() for drop in left.dropped}
        for drop in left.dropped:
            gone[drop.slot].add(drop.vm)
        for name, who in gone.items():
            self.write(name, {one: at for one, at in self.members(name).items() if one not in who})
        actions = self.serve(touched)
        names: dict[str, str] = {}
        for action in actions:
            if not isinstance(action, Fail):
                assert self.barred(action) == ""
            if isinstance(action, Join):
                name = names.get(action.slot, action.slot)
                self.write(name, {**self.members(name), action.vm: action.vm_host})
            elif isinstance(action, Open):
                self.serial += 1
                name = names[action.slot_key] = f"failover-{self.serial:05}"
                self.slots[name] = slot(name, action.host, action.cpu_milli, {})
                self.write(name, {action.vm: action.vm_host})
        return actions

    def leaving(self, names: list[str]) -> CleanResult:
        departing = [name for name in names if self.state.departs(name)]
        return leave(
            LeaveInput(
                vms=tuple(self.state.vms[name] for name in departing if name in self.state.vms),
                gone=tuple(name for name in departing if name not in self.state.vms),
                slots=tuple(self.state.slots_of(departing)),
                now=1.0,
            )
        )

    def barred(self, action: Join | Open) -> str:
        """What separation has against it, literally."""
        views, slots = self.state.vms, list(self.state.slots.values())
        groups = groups_of(views.values(), dict.fromkeys(views, 2))
        return barred(views[action.vm], action.host, slots, self.state.build_topology(), groups)

    def claims(self, names: list[str]) -> list[Claim]:
        state = self.state
        return [
            claim_of(view, missing, resolve_size(view), with_project=False)
            for name in names
            if (view := state.vms.get(name)) is not None and (missing := state.index.count_missing(name))
        ]

    def serve(self, names: list[str], free: FreeAmounts = ROOMY, offer: PlacementOffer = EVERYWHERE) -> list[Action]:
        classes = {one.need.offer_class for one in self.claims(names)}
        offers = Offers(reuse=dict.fromkeys(classes, offer), new=dict.fromkeys(classes, offer))
        return self.assigner.assign(self.claims(names), Terms(offers, free))

    def members(self, name: str) -> dict[str, str]:
        failover = self.slots[name].status.failover_reservation
        return dict(failover.allocations) if failover else {}

    def write(self, name: str, members: dict[str, str]) -> None:
        old = self.slots.pop(name)
        if members:
            self.slots[name] = slot(name, old.status.host, old.spec.resources.cpu_milli, members)
        with self.state.without_marking():
            self.state.put_slot(name, self.slots.get(name))

    def replays(self) -> int:
        """Every assignment that was recorded gives the same answer again; how many there were."""
        uses = [use for use in self.log.uses("failover.assign") if use.changed or not use.empty]
        for use in uses:
            again = assign(decode_as(AssignInput, use.input or b""))
            assert [msgspec.to_builtins(one) for one in again.actions] == decode_as(dict, use.output or b"")["actions"]
        return len(uses)


@pytest.mark.slow
def test_events_keep_everybody_covered_and_the_state_equal_to_a_rebuild() -> None:
    random, world = Random(7), World()
    for number in range(300):
        kind = random.random()
        if kind < 0.4 or len(world.vms) < 5:
            world.place(f"v{number}", random.choice(HOSTS), random.choice((1, 2, 4)))
        elif kind < 0.6:
            old = world.vms[random.choice(sorted(world.vms))]
            world.place(old.id, random.choice(HOSTS), old.cpu_milli // 1000)
        elif kind < 0.8:
            old = world.vms[random.choice(sorted(world.vms))]
            world.place(old.id, old.host, random.choice((1, 2, 4)))
        else:
            world.remove(random.choice(sorted(world.vms)))
        if random.random() < 0.7:
            world.react()
        if number % 20 == 0:
            world.react()
            state = world.state
            views = sorted(state.slots.values(), key=lambda one: one.name)
            assert check(CheckInput(vms=tuple(world.vms.values()), slots=tuple(views))).holds
            located = state.vms.values()
            assert not clean(CleanInput(vms=tuple(located), slots=tuple(views))).dropped
            rebuilt = ConflictIndex.build(views, located, dict.fromkeys(world.vms, 2))
            for name in world.vms:
                assert eligible_slots(state.index, name) == eligible_slots(rebuilt, name)
                assert state.index.blocked_unit_names(name) == rebuilt.blocked_unit_names(name)
            assert state.index.missing_slots() == rebuilt.missing_slots() == {}
    assert world.replays() > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [TopologyChoice(), TopologyChoice(unit="rack"), TopologyChoice(unit="rack", apart=("rack", "power"))]
)
def test_with_racks_and_groups_no_reaction_brings_together_what_is_kept_apart(choice: TopologyChoice) -> None:
    random, world = Random(11), World(choice)
    served = 0
    for number in range(400):
        kind = random.random()
        if kind < 0.5 or len(world.vms) < 5:
            if len(world.vms) < 12:
                world.place(f"v{number}", random.choice(HOSTS), 1, group=random.choice(["", "g1", "g2", "g3"]))
        elif kind < 0.8:
            old = world.vms[random.choice(sorted(world.vms))]
            world.place(old.id, random.choice(HOSTS), 1)
        else:
            world.remove(random.choice(sorted(world.vms)))
        served += sum(not isinstance(action, Fail) for action in world.react())
        if number % 20 == 0:
            state = world.state
            views = sorted(state.slots.values(), key=lambda one: one.name)
            topology, located = state.build_topology(), tuple(state.vms.values())
            given = CheckInput(vms=located, slots=tuple(views), topology=topology)
            rules = [one for one in check(given).violations if one.fault.startswith("rule")]
            assert {vm for one in rules for vm in (one.vm, *one.others)} >= set(state.index.list_faulty())
            assert bool(rules) == bool(state.index.list_faulty())
            rebuilt = ConflictIndex.build(views, located, dict.fromkeys(world.vms, 2), topology)
            for name in world.vms:
                assert eligible_slots(state.index, name) == eligible_slots(rebuilt, name)
                assert state.index.blocked_unit_names(name) == rebuilt.blocked_unit_names(name)
    assert served > 150
    assert world.replays() > 100


def test_deciding_leaves_the_state_as_it_is() -> None:
    world = World()
    for number in range(6):
        world.place(f"v{number}", HOSTS[number])
    names = sorted(world.vms)
    before = world.state.index.missing_slots()
    first = world.serve(names)
    assert world.state.index.missing_slots() == before == dict.fromkeys(names, 2)
    assert world.serve(names) == first
    assert not world.state.index.has_slot("+new-0-1")


def test_vms_of_one_pass_share_the_slots_that_it_opens() -> None:
    world = World()
    for number in range(3):
        world.place(f"v{number}", HOSTS[number])
    actions = world.react()
    assert any(isinstance(action, Join) for action in actions)
    assert world.state.index.missing_slots() == {}
    assert world.replays() == 3


def test_who_got_nothing_is_recorded_once_a_class_with_everything_that_the_reason_rests_on() -> None:
    world = World()
    for number in range(3):
        world.place(f"v{number}", HOSTS[number])
    full = FreeAmounts.from_table(dict.fromkeys(HOSTS, (0, 0)))
    actions = world.serve(world.state.take_dirty(), full)
    assert [type(action) for action in actions] == [Fail] * 3
    assert world.replays() == 1


def test_a_pass_without_offers_says_so() -> None:
    world = World()
    world.place("a", HOSTS[0])
    (fail,) = world.serve(["a"], offer=PlacementOffer(error="away"))
    assert isinstance(fail, Fail)
    assert (fail.reason, fail.detail, fail.missing) == ("placement-unavailable", "away", 2)


def test_only_vms_that_give_reason_are_looked_at() -> None:
    world = World()
    for number in range(3):
        world.place(f"v{number}", HOSTS[number])
    world.react()
    assert world.leaving(sorted(world.vms)).dropped == ()
    world.place("v1", HOSTS[1], 4)
    left = world.leaving(sorted(world.vms))
    assert {(drop.vm, drop.cause) for drop in left.dropped} == {("v1", Cause.OUTGROWN)}
    assert not world.state.split_by_counting(world.state.vms["v0"])[1]
    assert len(world.state.split_by_counting(world.state.vms["v1"])[1]) == 2

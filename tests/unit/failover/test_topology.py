"""Units of failure and separation: racks that fail as one, slots that keep apart, server groups."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from tests.support import fleets
from tests.support.fleets import eligible_slots
from tests.support.literal_rules import DependencyGraph
from tests.support.separation import barred

from outlive.base import Random
from outlive.failover import (
    CheckInput,
    ConflictIndex,
    HostView,
    SlotView,
    Topology,
    TopologyChoice,
    ViolationKind,
    find_culprits,
    find_eligible_reservations,
    find_separation_violations,
    groups_of,
    is_vm_eligible_for_reservation,
    resolve_size,
)
from outlive.failover.check import check
from outlive.failover.planner import AssignInput, CleanInput, Fail, Join, Need, Open, PlacementOffer, PlanResult, clean
from outlive.failover.planner.assign import assign
from outlive.failover.planner.plan import plan
from outlive.placement import VmView
from outlive.resources import AffinityRule

GIB = 2**30
BIG = 64


def racked(random: Random, on: list[str], racks: int, *, missing: float = 0.15) -> Topology:
    """Hosts in random racks; some are in none."""
    return Topology(units={host: f"rack=r{random.randrange(racks)}" for host in on if random.random() > missing})


def mapped(slots: list[SlotView], topology: Topology) -> list[SlotView]:
    """The slots as if each unit were one host."""
    unit = topology.unit_of_host
    return [
        msgspec.structs.replace(
            slot, host=unit(slot.host), members={vm: unit(host) for vm, host in slot.members.items()}
        )
        for slot in slots
    ]


def wild(seed: int) -> tuple[list[VmView], list[SlotView], Topology]:
    """A random state in which rules are often broken."""
    random = Random(seed)
    on = fleets.hosts(random.randint(3, 12))
    vms = fleets.vms(random, random.randint(1, 9), on)
    slots = fleets.slots(random, random.randint(1, 8), on)
    slots = fleets.filled(random, slots, vms, random.randint(0, 12))
    return vms, slots, racked(random, on, random.randint(1, 8))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(250))
def test_with_units_every_verdict_is_that_of_the_literal_rules_on_hosts_that_are_mapped(seed: int) -> None:
    vms, slots, topology = wild(seed)
    unit = topology.unit_of_host
    on = {vm.id: vm.host for vm in vms}
    counters = ConflictIndex.build(slots, vms, topology=topology)
    literal = DependencyGraph.build(mapped(slots, topology), locations={vm: unit(host) for vm, host in on.items()})
    graph = DependencyGraph.build(slots, locations=on, topology=topology)
    assert graph == literal
    faulty = set(ConflictIndex.build(slots, topology=topology, locations=on).list_faulty())
    members = {vm for slot in slots for vm in slot.members}
    assert faulty == {vm for vm in members if not literal.holds_for(vm)}
    assert set(counters.list_faulty()) == faulty
    for vm in vms:
        counted = counters.count_unit(vm.id, vm.host)
        if vm.id in literal.vm_host:
            assert counted == literal.count(vm.id, unit(vm.host))
            assert counters.holds_for(vm.id) == literal.holds_for(vm.id)
        there = msgspec.structs.replace(vm, host=unit(vm.host))
        single = [
            slot.name
            for slot in mapped(slots, topology)
            if is_vm_eligible_for_reservation(there, slot, mapped(slots, topology))
        ]
        assert [slot.name for slot in find_eligible_reservations(vm, slots, topology=topology)] == single
        fresh = ConflictIndex.build(slots, topology=topology)
        fresh.add_vm(vm)
        assert eligible_slots(fresh, vm.id) == sorted(single)


@pytest.mark.parametrize("seed", range(60))
def test_a_check_names_the_hosts_and_the_unit_and_clean_up_takes_out_who_is_at_fault(seed: int) -> None:
    vms, slots, topology = wild(seed)
    found = check(CheckInput(vms=tuple(vms), slots=tuple(slots), topology=topology))
    named = [one for one in found.violations if one.host.startswith("rack=")]
    for one in named:
        assert one.host in one.message or "share more than one slot" in one.message
        if one.fault in (ViolationKind.RULE_1, ViolationKind.RULE_2):
            assert "(on h" in one.message
    cleaned = clean(
        CleanInput(vms=tuple(vms), slots=tuple(slots), topology=topology, brake_share=1.0, brake_number=1000)
    )
    assert check(CheckInput(vms=tuple(vms), slots=cleaned.slots, topology=topology)).holds
    dropped = {(drop.slot, drop.vm) for drop in cleaned.dropped}
    culprits = find_culprits(slots, {vm.id: vm.host for vm in vms}, topology)
    assert dropped == {(one.slot, one.vm) for one in culprits}


def fleet(seed: int, *, grouped: bool = True) -> tuple[Random, list[VmView], tuple[HostView, ...], dict[str, int]]:
    """A random fleet in racks with two power feeds; some VMs are in server groups."""
    random = Random(seed)
    racks = random.randint(2, 6)
    hosts = tuple(
        HostView(
            name=name,
            domains={"rack": f"r{random.randrange(racks)}", "power": random.choice("ab")}
            if random.random() > 0.1
            else {},
        )
        for name in fleets.hosts(random.randint(4, 14))
    )
    vms = fleets.vms(random, random.randint(2, 16), [host.name for host in hosts], sizes=(1, 2))
    policies = ["anti-affinity", "affinity", "soft-anti-affinity", "anti-affinity"]
    if grouped:
        vms = [
            msgspec.structs.replace(vm, server_group=f"g{group}", group_policy=policies[group])
            if random.random() < 0.7
            else vm
            for vm in vms
            for group in (random.randrange(4),)
        ]
        further = [AffinityRule(group=f"g{number}", policy=policies[number % 4]) for number in range(1, 6)]
        vms = [
            msgspec.structs.replace(vm, affinity=tuple(random.sample(further, random.choice((0, 0, 1, 2)))))
            for vm in vms
        ]
        names = [host.name for host in hosts]
        limited = Random(f"limits {seed}")
        vms = [
            msgspec.structs.replace(vm, host_limit=tuple(limited.sample(names, len(names) - 2)))
            if limited.random() < 0.15
            else vm
            for vm in vms
        ]
    return random, vms, hosts, {vm.id: random.randint(0, 3) for vm in vms}


def planned(
    vms: list[VmView], hosts: tuple[HostView, ...], required: dict[str, int], topology: Topology, **more: object
) -> PlanResult:
    return plan(fleets.plan_input(vms, [host.name for host in hosts], required, topology=topology, **more))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_plan_with_racks_as_units_survives_every_set_of_so_many_racks(seed: int) -> None:
    _, vms, hosts, _ = fleet(seed, grouped=False)
    topology = TopologyChoice(unit="rack").topology_of(hosts)
    unit = topology.unit_of_host
    k = 1 + seed % 3
    result = planned(vms, hosts, dict.fromkeys((vm.id for vm in vms), k), topology)
    on = {vm.id: vm.host for vm in vms}
    failed = {action.vm for action in result.actions if isinstance(action, Fail)}
    units = sorted({unit(host.name) for host in hosts})
    for vm in vms:
        if vm.id in failed:
            continue
        mine = [slot for slot in result.slots if vm.id in slot.members]
        for more in combinations([one for one in units if one != unit(vm.host)], k - 1):
            down = {unit(vm.host), *more}
            assert any(
                unit(slot.host) not in down and not any(unit(on[v]) in down for v in slot.members if v != vm.id)
                for slot in mine
            )


def forbidden(
    vms: list[VmView], slots: tuple[SlotView, ...], topology: Topology, required: dict[str, int]
) -> list[str]:
    """What must not be, word for word over nothing but plain data."""
    found = []
    hosts_of = {vm.id: [slot.host for slot in slots if vm.id in slot.members] for vm in vms}
    for vm in vms:
        for domain, values in topology.apart.items():
            there = [values[host] for host in (vm.host, *hosts_of[vm.id]) if host in values]
            slots_there = [values[host] for host in hosts_of[vm.id] if host in values]
            if len(there) != len(set(there)) and slots_there:
                found.append(f"{vm.id} {domain}")
    groups: dict[tuple[str, str], list[VmView]] = {}
    for vm in vms:
        named = {(rule.group, rule.policy) for rule in vm.affinity} | {(vm.server_group, vm.group_policy)} - {("", "")}
        for key in named if topology.server_groups else ():
            groups.setdefault(key, []).append(vm)
    for (name, policy), members in groups.items():
        if policy == "anti-affinity":
            for vm in members:
                others = [one for one in members if one is not vm]
                taken = {one.host for one in others} | {host for one in others for host in hosts_of[one.id]}
                found += [f"{name} {vm.id} {host}" for host in hosts_of[vm.id] if host in taken]
        if policy == "affinity" and len(members) > 1:
            used = {host for vm in members for host in hosts_of[vm.id]}
            limits = [set(vm.host_limit) for vm in members if vm.host_limit]
            found += [f"{name} has a slot on {host}" for host in used for limit in limits if host not in limit]
            if len(used) > max(required.get(vm.id, 0) for vm in members):
                found.append(f"{name} uses {sorted(used)}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_no_forbidden_combination_appears_in_a_thousand_plans(block: int) -> None:
    bound_somebody = 0
    for seed in range(block * 100, block * 100 + 100):
        random, vms, hosts, required = fleet(seed)
        unit = random.choice(["host", "host", "rack"])
        apart = random.choice([(), ("rack",), ("power", "rack")])
        topology = TopologyChoice(unit=unit, apart=apart).topology_of(hosts)
        result = planned(vms, hosts, required, topology, packing=seed % 20 == 0)
        assert forbidden(vms, result.slots, topology, required) == []
        assert find_separation_violations(vms, result.slots, topology, required) == []
        verdict = check(CheckInput(vms=tuple(vms), slots=result.slots, required=required, topology=topology))
        assert verdict.violations == ()
        if seed % 4 == 0:
            free = planned(vms, hosts, required, Topology(server_groups=False), packing=False)
            bound_somebody += forbidden(vms, free.slots, topology, required) != []
    assert bound_somebody > 8


def assigned(seed: int) -> tuple[list[VmView], tuple[SlotView, ...], AssignInput]:
    """A cycle over a state that was planned without regard to separation."""
    random, vms, hosts, required = fleet(seed)
    topology = TopologyChoice(
        unit=random.choice(["host", "rack"]), apart=random.choice([(), ("rack",), ("power",)])
    ).topology_of(hosts)
    names = tuple(host.name for host in hosts)
    slots = planned(vms, hosts, {vm: need // 2 for vm, need in required.items()}, Topology(server_groups=False)).slots
    needs = tuple(
        Need(vm=vm.id, needed=required[vm.id], size=resolve_size(vm), offer_class="c")
        for vm in random.sample(vms, random.randint(1, len(vms)))
        if required[vm.id]
    )
    given = AssignInput(
        slots=slots,
        vms=tuple(vms),
        needs=needs,
        reuse={"c": PlacementOffer(hosts=names)},
        new={"c": PlacementOffer(hosts=names)},
        hosts=names,
        groups=groups_of(vms, required, {need.vm for need in needs}),
        topology=topology,
    )
    return vms, slots, given


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_each_new_membership_of_a_cycle_is_as_the_literal_question_allows(block: int) -> None:
    steps = refused = 0
    for seed in range(block * 60, block * 60 + 60):
        vms, slots, given = assigned(seed)
        views, now = {vm.id: vm for vm in vms}, {slot.name: slot for slot in slots}
        for action in assign(given).actions:
            if isinstance(action, Fail):
                assert action.detail
                continue
            vm = views[action.vm]
            slot = now.get(action.slot if isinstance(action, Join) else action.slot_key)
            assert barred(vm, action.host, list(now.values()), given.topology, given.groups) == ""
            slot = slot or SlotView(
                name=action.slot_key if isinstance(action, Open) else "",
                host=action.host,
                cpu_milli=BIG * 1000,
                memory_bytes=BIG * GIB,
            )
            assert is_vm_eligible_for_reservation(vm, slot, list(now.values()), topology=given.topology)
            now[slot.name] = msgspec.structs.replace(slot, members={**slot.members, vm.id: vm.host})
            steps += 1
        groups = groups_of(vms, {vm.id: 2 for vm in vms})
        counters = ConflictIndex.build(sorted(now.values(), key=lambda one: one.name), vms, topology=given.topology)
        separating = counters.separation
        separating.take(groups)
        numbers = dict(zip(given.hosts, counters.host_numbers(given.hosts), strict=True))
        for vm in vms:
            closed = separating.closed_hosts(vm.id)
            for host in given.hosts:
                literal = barred(vm, host, list(now.values()), given.topology, groups) != ""
                assert (closed is not None and bool(closed[numbers[host]])) == literal
                assert separating.allows(vm.id, host) == (not literal)
                assert bool(separating.explain_closed(vm.id, host)) == literal
                refused += literal
            allowed = separating.allowed_slots(vm.id, counters.slots_on(set(range(len(counters.host_names)))))
            for slot in now.values():
                literal = barred(vm, slot.host, list(now.values()), given.topology, groups) == ""
                assert bool(allowed & counters.slot_bit(counters.slot_number(slot.name))) == literal
    assert steps > 100
    assert refused > 100


def member(name: str, on: str, *, group: str = "", policy: str = "anti-affinity") -> VmView:
    return VmView(
        id=name,
        host=on,
        flavor="f",
        cpu_milli=1000,
        memory_bytes=GIB,
        server_group=group,
        group_policy=policy if group else "",
    )


def slot(name: str, on: str, *members: VmView, ready: bool | None = None) -> SlotView:
    return SlotView(
        name=name, host=on, cpu_milli=1000, memory_bytes=GIB, members={vm.id: vm.host for vm in members}, ready=ready
    )


RACKS = Topology(units={"h1": "rack=r1", "h2": "rack=r1", "h3": "rack=r2", "h4": "rack=r2"})


def test_two_hosts_of_one_rack_are_one_unit_to_all_five_rules() -> None:
    a, b, c = member("a", "h1"), member("b", "h2"), member("c", "h5")
    for wrong, rule, words in (
        ([slot("s", "h2", a)], 1, "slot s of VM a is in rack=r1 (on h1 and h2), where the VM runs"),
        ([slot("s", "h3", a), slot("t", "h4", a)], 2, "slots s and t of VM a are both in rack=r2 (on h3 and h4)"),
        ([slot("s", "h5", a, b)], 3, "VMs a and b both run in rack=r1 (on h1 and h2) and are members of slot s"),
        (
            [slot("s", "h6", a, c), slot("t", "h2", c)],
            4,
            "VM a runs in rack=r1 (on h1 and h2), where its fellow member c has slot t",
        ),
        (
            [slot("s", "h6", a, c), slot("t", "h7", b, c)],
            5,
            "VMs a and b both run in rack=r1 (on h1 and h2) and share slots s and t with VM c",
        ),
    ):
        found = check(CheckInput(vms=(a, b, c), slots=tuple(wrong), topology=RACKS)).violations
        assert [(one.fault, one.host, one.message) for one in found if one.fault == f"rule-{rule}"] == [
            (f"rule-{rule}", "rack=r1" if rule != 2 else "rack=r2", words)
        ]
        assert check(CheckInput(vms=(a, b, c), slots=tuple(wrong))).holds


def test_a_vm_that_moves_within_its_rack_has_still_moved() -> None:
    a = member("a", "h1")
    given = CleanInput(vms=(member("a", "h2"),), slots=(slot("s", "h5", a),), topology=RACKS)
    assert [drop.cause for drop in clean(given).dropped] == ["vm-moved"]


def test_switching_the_unit_on_a_live_fleet_is_held_back_by_the_brake() -> None:
    vms = tuple(member(f"v{number}", "h1") for number in range(60))
    slots = tuple(slot(f"s{number:02}", "h2", vm) for number, vm in enumerate(vms))
    assert clean(CleanInput(vms=vms, slots=slots)).dropped == ()
    braked = clean(CleanInput(vms=vms, slots=slots, topology=RACKS))
    assert braked.dropped == ()
    assert braked.brake is not None
    assert braked.brake.causes == {"slot-on-own-host": 60}
    released = clean(CleanInput(vms=vms, slots=slots, topology=RACKS, brake_share=1.0))
    assert len(released.dropped) == 60
    assert released.dropped[0].detail == "slot s00 of VM v0 is in rack=r1 (on h1 and h2), where the VM runs"


def needed(vm: VmView, count: int = 1) -> Need:
    return Need(vm=vm.id, needed=count, size=resolve_size(vm), offer_class="c")


def test_a_refusal_says_which_rack_is_excluded_and_why() -> None:
    a = member("a", "h1")
    given = AssignInput(
        slots=(slot("s", "h3", a),),
        vms=(a,),
        needs=(needed(a),),
        reuse={"c": PlacementOffer(hosts=("h2", "h4"))},
        new={"c": PlacementOffer(hosts=("h2", "h4"))},
        hosts=("h1", "h2", "h3", "h4"),
        topology=RACKS,
    )
    (fail,) = assign(given).actions
    assert isinstance(fail, Fail)
    assert "h2 is in rack=r1, which runs the VM" in fail.detail


def test_a_check_tells_when_a_peer_moves_onto_the_host_of_a_slot_and_clean_up_leaves_that_alone() -> None:
    a, b = member("a", "h1", group="g"), member("b", "h2", group="g")
    slots = (slot("s", "h3", a), slot("t", "h4", b))
    assert check(CheckInput(vms=(a, b), slots=slots)).holds
    moved = member("b", "h3", group="g")
    found = check(CheckInput(vms=(a, moved), slots=(slot("s", "h3", a), slot("t", "h4", moved))))
    assert [(one.fault, one.vm, one.slots, one.host, one.others) for one in found.violations] == [
        (ViolationKind.SERVER_GROUP, "a", ("s",), "h3", ("b",))
    ]
    assert found.remove == {}
    given = CleanInput(vms=(a, moved), slots=(slot("s", "h3", a), slot("t", "h4", moved)))
    assert clean(given).dropped == ()


def test_a_check_tells_of_slots_in_one_domain_and_of_groups_that_would_not_land_together() -> None:
    apart = Topology(apart={"power": {"h1": "a", "h2": "a", "h3": "b", "h4": "b"}})
    a = member("a", "h1")
    found = check(
        CheckInput(vms=(a,), slots=(slot("s", "h2", a), slot("t", "h3", a), slot("u", "h4", a)), topology=apart)
    )
    assert [(one.fault, one.slots, one.message) for one in found.violations] == [
        (ViolationKind.DOMAIN, ("s",), "slot s of VM a on h2 is in power a, where the VM runs on h1"),
        (ViolationKind.DOMAIN, ("u",), "slot u of VM a on h4 is in power b, like its slot t on h3"),
    ]
    b, c = (member(name, "h1", group="g", policy="affinity") for name in "bc")
    apart_slots = (slot("s", "h3", b), slot("t", "h4", c))
    assert check(CheckInput(vms=(b, c), slots=apart_slots)).holds
    (one,) = check(CheckInput(vms=(b, c), slots=apart_slots, required={"b": 1, "c": 1})).violations
    assert (one.fault, one.vm, one.slots) == (ViolationKind.SERVER_GROUP, "c", ("t",))


def test_slots_of_an_affinity_group_are_where_all_of_it_may_run_or_the_reason_is_given() -> None:
    hosts = tuple(HostView(name=f"h{number}") for number in range(1, 6))
    a, b = (member(name, "h1", group="n", policy="affinity") for name in "ab")
    fixed = msgspec.structs.replace(b, host_limit=("h1", "h4"))
    result = planned([a, fixed], hosts, dict.fromkeys("ab", 1), Topology())
    assert (result.failed, {slot.host for slot in result.slots}) == (0, {"h4"})
    alone = msgspec.structs.replace(b, host_limit=("h1",))
    fails = planned([a, alone], hosts, dict.fromkeys("ab", 1), Topology()).actions
    assert all(isinstance(one, Fail) for one in fails)
    assert any("is not for b of affinity group n, whose VMs start together" in one.detail for one in fails)
    other = msgspec.structs.replace(a, host_limit=("h2",))
    fails = planned([other, alone], hosts, dict.fromkeys("ab", 1), Topology()).actions
    assert any("no host in common that their host limits name" in one.detail for one in fails)


def test_peers_with_affinity_land_together_and_peers_with_anti_affinity_never_meet() -> None:
    hosts = tuple(HostView(name=f"h{number}") for number in range(1, 9))
    near = [member(name, "h1", group="n", policy="affinity") for name in "abc"]
    result = planned(near, hosts, {"a": 1, "b": 2, "c": 2}, Topology())
    assert result.failed == 0
    assert len({slot.host for slot in result.slots}) == 2
    far = [member(name, f"h{number}", group="f") for number, name in enumerate("abc", 1)]
    result = planned(far, hosts, dict.fromkeys("abc", 1), Topology())
    assert result.failed == 0
    assert len({slot.host for slot in result.slots} - {"h1", "h2", "h3"}) == 3
    crowded = planned(far, hosts[:5], dict.fromkeys("abc", 1), Topology())
    (fail,) = [action for action in crowded.actions if isinstance(action, Fail)]
    assert "anti-affinity group f" in fail.detail
    assert planned(far, hosts[:5], dict.fromkeys("abc", 1), Topology(server_groups=False)).failed == 0

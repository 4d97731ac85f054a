"""What groups have to sell: counted from the fleet, kept current, never more than there is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.commitments import make_spec
from tests.support.placement import commitment, fleet_of, host, slot

from outlive.commitments import (
    CapacityTable,
    EngineProbe,
    RunningVms,
    SplitGroup,
    SplitHost,
    SplitInput,
    committed_slots,
)
from outlive.commitments.capacity_status import capacity_status
from outlive.commitments.split import split
from outlive.placement import Engine, Fleet, PipelineTable, VmView
from outlive.resources import CommittedResource, FlavorGroupSpec, GroupFlavor

GENERAL = "kvm-general-purpose-load-balancing"


def group(name: str, *sizes: tuple[int, int], trait: str = "") -> FlavorGroupSpec:
    """Sizes: GiB and cores, the largest first."""
    specs = {"capabilities:hypervisor_type": "QEMU", "quota:hw_version": name}
    if trait:
        specs[f"trait:{trait}"] = "required"
    flavors = tuple(
        GroupFlavor(name=f"{name}_{gib}", vcpus=cores, memory_mb=gib * 1024, extra_specs=specs) for gib, cores in sizes
    )
    return FlavorGroupSpec(
        group_name=name, flavors=flavors, largest_flavor=flavors[0], smallest_flavor=flavors[-1], ram_core_ratio=4096
    )


def table(fleet: Fleet, pipeline: str = GENERAL) -> CapacityTable:
    engine = Engine(fleet, PipelineTable.with_shipped())
    return CapacityTable(fleet, EngineProbe(engine, total=pipeline, placeable=pipeline))


def test_total_free_and_exclusive_capacity_of_two_groups_on_the_same_hosts() -> None:
    fleet = fleet_of(
        host("h1", allocation={"cpu": "2", "memory": "8Gi"}),
        host("h2", zone="z2"),
        slot("f", "h1", cpu="4", memory="16Gi"),
        commitment("c", "h1", cpu="2", memory="8Gi"),
    )
    found = table(fleet).refresh([group("a", (16, 4), (8, 2)), group("b", (32, 4))])
    a, b = found["a", "z1"], found["b", "z1"]
    assert a.total.to_wire() == {"memory": "64Gi", "cores": "16"}
    assert a.free.to_wire() == {"memory": "32Gi", "cores": "8"}
    assert b.free.to_wire() == {"memory": "32Gi", "cores": "4"}
    assert (a.exclusive_slots, b.exclusive_slots) == (0, 1)
    assert [(one.flavor_name, one.placeable_vms, one.total_capacity_vm_slots) for one in a.flavors] == [
        ("a_16", 2, 4),
        ("a_8", 4, 8),
    ]
    assert found["a", "z2"].exclusive_slots + 4 * found["b", "z2"].exclusive_slots == 8


def test_only_hosts_that_placement_allows_count_and_a_failed_probe_says_so() -> None:
    fleet = fleet_of(host("h1", traits=["CUSTOM_A"]), host("h2"), host("h3", zone=None))
    found = table(fleet).refresh([group("a", (8, 2), trait="CUSTOM_A")])
    assert [(place, one.exclusive_slots) for place, one in found.items()] == [(("a", "z1"), 8)]
    failed = table(fleet, "no-such-pipeline").refresh([group("a", (8, 2))])
    assert "no-such-pipeline" in failed["a", "z1"].failed


def test_a_group_whose_smallest_flavor_has_no_memory_is_left_out() -> None:
    assert table(fleet_of(host("h1"))).refresh([group("a", (8, 2), (0, 1))]) == {}


sizes = st.sampled_from([(2, 1), (4, 1), (6, 2), (8, 2), (16, 4), (24, 1)])
groups = st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=4).map(
    lambda given: tuple(
        group(f"g{number}", size, trait="CUSTOM_A" if picky else "") for number, (size, picky) in enumerate(given)
    )
)
hosts = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 30), st.integers(0, 120), st.booleans(), st.sampled_from(["z1", "z2"])),
    max_size=10,
)


def _host(given: tuple[int, int, int, bool, str]) -> Any:
    number, cores, gib, trait, zone = given
    return host(
        f"h{number}",
        zone=zone,
        capacity={"cpu": "30", "memory": "120Gi"},
        effectiveCapacity=None,
        allocation={"cpu": str(cores), "memory": f"{gib}Gi"},
        traits=["CUSTOM_A"] if trait else [],
    )


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(groups, hosts, hosts)
def test_a_table_that_is_kept_current_says_what_one_made_anew_says_and_the_split_is_the_decisions(
    wanted: tuple[FlavorGroupSpec, ...], first: list[Any], later: list[Any]
) -> None:
    fleet = Fleet()
    for one in first:
        fleet.upsert_host(_host(one))
    kept = table(fleet)
    kept.refresh(wanted)
    for number, one in enumerate(later):
        fleet.upsert_host(_host(one))
        fleet.upsert_reservation(commitment(f"s{number % 3}", f"h{one[0]}", cpu="1", memory="3Gi"))
        if number % 2:
            kept.refresh(wanted)
    found = kept.refresh(wanted)
    assert found == table(fleet).refresh(wanted)
    _check_split(fleet, wanted, found)


def _check_split(fleet: Fleet, wanted: tuple[FlavorGroupSpec, ...], found: Any) -> None:
    free = dict(zip(fleet.names, fleet.free_amounts().tolist(), strict=True))
    for zone in sorted({place[1] for place in found}):
        names = [name for name in fleet.names if (facts := fleet.find_facts(name)) and facts.zone == zone]
        decided = split(
            SplitInput(
                groups=tuple(
                    SplitGroup(
                        name=one.group_name,
                        memory_bytes=one.smallest_flavor.memory_mb * 2**20,
                        cpu_milli=one.smallest_flavor.vcpus * 1000,
                        candidates=tuple(name for name in names if _allowed(fleet, name, one)),
                    )
                    for one in wanted
                ),
                hosts=tuple(
                    SplitHost(name=name, cpu_milli=free[name][0], memory_bytes=free[name][1]) for name in names
                ),
            )
        )
        for share in decided.shares:
            assert found[share.name, zone].exclusive_slots == share.slots
        exclusive = sum(found[one.group_name, zone].exclusive["memory"] for one in wanted)
        assert exclusive <= sum(max(0, free[name][1]) for name in names)


def _allowed(fleet: Fleet, name: str, one: FlavorGroupSpec) -> bool:
    facts = fleet.find_facts(name)
    assert facts is not None
    return "trait:CUSTOM_A" not in one.smallest_flavor.extra_specs or "CUSTOM_A" in facts.traits


def test_committed_memory_counts_in_whole_vms_of_the_smallest_flavor_each_commitment_by_itself() -> None:
    def one(uuid: str, amount: str, kind: Any = "memory", state: Any = "confirmed") -> CommittedResource:
        spec = make_spec(uuid, amount, flavor_group_name="a", resource_type=kind, state=state)
        return CommittedResource(spec=spec)

    given = [one("x", "15Gi"), one("y", "9Gi"), one("z", "99", "cores"), one("p", "64Gi", state="pending")]
    assert committed_slots(given, [group("a", (16, 4), (8, 2))], now=0) == {("a", "z1"): 2}


def test_a_refresh_in_parts_asks_a_few_flavors_at_a_time_and_counts_the_fleet_as_it_was_when_it_began() -> None:
    fleet = fleet_of(host("h1"))
    kept, wanted = table(fleet), [group("a", (16, 4), (8, 2)), group("b", (32, 8))]
    begun = kept.begin(wanted)
    assert [begun.ask(2), begun.ask(2), begun.ask(2)] == [True, False, False]
    fleet.upsert_host(host("h2"))
    assert kept.finish(begun)["a", "z1"].exclusive_slots == 4
    assert kept.refresh(wanted) == table(fleet).refresh(wanted)


def test_without_a_list_of_vms_what_ran_before_stays_and_an_empty_list_writes_zeros() -> None:
    wanted = group("a", (8, 2))
    found = table(fleet_of(host("h1"))).refresh([wanted])["a", "z1"]
    vms = RunningVms([VmView(id="v", host="h1", zone="z1", flavor="a_8")])
    before = capacity_status(found, wanted, committed_slots=0, running=vms)
    assert capacity_status(found, wanted, committed_slots=0, running=None, before=before).running_instances == 1
    assert capacity_status(found, wanted, committed_slots=0, running=RunningVms(), before=before).running_instances == 0


def test_running_vms_follow_every_change() -> None:
    running = RunningVms()
    vm = VmView(id="v", host="h1", zone="", flavor="a")
    assert running.put(vm, host_zone="z1")
    assert not running.put(vm, host_zone="z1")
    assert running.count("z1", "a") == 1
    assert running.put(replace(vm, zone="z2"))
    assert (running.count("z1", "a"), running.count("z2", "a")) == (0, 1)
    assert running.drop("v")
    assert not running.drop("v")
    assert len(running) == 0

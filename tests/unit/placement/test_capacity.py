"""The capacity filter: what blocks, what gives way, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.placement import GIB, commitment, fleet_of, host, in_flight, instances, request, slot
from tests.support.plain_placement import host_free_capacity

from outlive.placement import Engine, Fleet, Intent, PipelineTable, PlacementOptions, PlacementSettings, unused_amounts
from outlive.resources import FAILOVER, Amounts, ObjectMeta, Parameter, Pipeline, PipelineSpec, Reservation, StepSpec


def fits(fleet: Fleet, *, lock: bool = False, intent: Intent = Intent.UNKNOWN, **fields: Any) -> bool:
    """Whether one host takes a VM, by the capacity filter alone."""
    return reason(fleet, lock=lock, intent=intent, **fields) is None


def reason(
    fleet: Fleet, *, lock: bool = False, intent: Intent = Intent.UNKNOWN, **fields: Any
) -> tuple[str, str] | None:
    table = PipelineTable()
    step = StepSpec(name="filter_has_enough_capacity", params=(Parameter(key="lockReserved", bool_value=lock),))
    table.put(Pipeline(metadata=ObjectMeta(name="one"), spec=PipelineSpec(filters=(step,))))
    options = fields.pop("options", {})
    asked = request(pipeline="one", intent=intent.value, **fields)
    ranking = Engine(fleet, table).rank(replace(asked, options=PlacementOptions(**options)), why=True)
    if ranking.hosts:
        return None
    (found,) = ranking.rejected.values()
    return found.code, found.message


def need(cpu: int, memory_gib: int, **fields: Any) -> dict[str, Any]:
    return {"need": {"cpu": str(cpu), "memory": f"{memory_gib}Gi"}, **fields}


def example() -> Fleet:
    """16 cores and 64 GiB, of which 6 and 20 run; a commitment slot half used, and a failover slot of VM v."""
    return fleet_of(
        host(allocation={"cpu": "6", "memory": "20Gi"}, instances=instances("c")),
        commitment("s1", project="P", group="g", meant={"c": ("2", "8Gi")}, seen=("c",)),
        slot("f1", members=("v",)),
    )


SOLD = {"extraSpecs": {"quota:hw_version": "g"}, "project": "P"}


@pytest.mark.parametrize(
    ("left", "fields"),
    [
        ((4, 20), {"project": "Q"}),
        ((6, 28), SOLD),
        ((8, 36), {"project": "Q", "resourceId": "v", "intent": Intent.EVACUATE}),
        ((10, 44), {**SOLD, "resourceId": "v", "intent": Intent.EVACUATE}),
        ((8, 36), {**SOLD, "resourceId": "v", "intent": Intent.EVACUATE, "options": {"lock_reservations": True}}),
        ((4, 20), {**SOLD, "intent": Intent.RESERVE_FOR_FAILOVER, "lock": True}),
        ((8, 36), {"project": "Q", "intent": Intent.REUSE_FAILOVER_RESERVATION}),
        ((10, 44), {**SOLD, "intent": Intent.REUSE_FAILOVER_RESERVATION}),
        ((4, 20), {**SOLD, "intent": Intent.RESERVE_FOR_COMMITTED_RESOURCE}),
    ],
)
def test_a_request_gets_exactly_what_is_left_to_it(left: tuple[int, int], fields: dict[str, Any]) -> None:
    cpu, memory = left
    assert fits(example(), **need(cpu, memory, **fields))
    assert not fits(example(), **need(cpu + 1, memory, **fields))
    assert not fits(example(), **need(cpu, memory + 1, **fields))


def test_a_refusal_states_its_sum() -> None:
    fleet = fleet_of(
        host(
            capacity={"cpu": "16", "memory": "40Gi"}, effectiveCapacity=None, allocation={"cpu": "1", "memory": "20Gi"}
        ),
        slot("a", cpu="1", memory="3Gi"),
        slot("b", cpu="1", memory="3Gi"),
        slot("c", cpu="1", memory="2560Mi"),
    )
    assert reason(fleet, **need(1, 16)) == (
        "not-enough-memory",
        "needs 16 GiB, 11.5 GiB free: 40 capacity - 20 running - 8.5 reserved by 3 slots",
    )


def test_all_instances_must_fit_on_one_host_and_none_counts_as_one() -> None:
    fleet = fleet_of(host())
    assert fits(fleet, numInstances=4)
    assert not fits(fleet, numInstances=5)
    assert not fits(fleet, **need(17, 1, numInstances=0))


def test_a_vm_of_no_size_is_refused_and_says_so() -> None:
    assert reason(fleet_of(host()), need={"cpu": "0", "memory": "1Gi"})[0] == "zero-size"  # type: ignore[index]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("overbooked", {"allocation": {"cpu": "17", "memory": "0"}}),
        ("capacity-unknown", {"capacity": None, "effectiveCapacity": None}),
        ("capacity-unknown", {"capacity": {"cpu": "16"}, "effectiveCapacity": None}),
        ("allocation-unknown", {"allocation": None}),
    ],
)
def test_a_host_whose_figure_is_missing_or_negative_is_dropped(code: str, fields: dict[str, Any]) -> None:
    found = reason(fleet_of(host(**fields)))
    assert found is not None
    assert found[0] == code


def test_memory_is_compared_in_bytes_and_a_megabyte_is_a_setting() -> None:
    tight = host(effectiveCapacity={"cpu": "16", "memory": str(16 * 1024 * 10**6)})
    assert not fits(fleet_of(tight))
    assert fits(fleet_of(tight, settings=PlacementSettings(flavor_memory_unit="mb")))


def test_other_resources_count_too() -> None:
    gpus = {"cpu": "16", "memory": "64Gi", "gpu": "2"}
    fleet = fleet_of(host(effectiveCapacity=gpus, allocation={"gpu": "1"}))
    wanted = {"cpu": "1", "memory": "1Gi"}
    assert fits(fleet, need={**wanted, "gpu": "1"})
    found = reason(fleet, need={**wanted, "gpu": "2"})
    assert found == ("not-enough-gpu", "needs 2 gpu, 1 gpu free: 2 capacity - 1 running")
    assert reason(fleet, need={**wanted, "tpu": "1"}) == ("capacity-unknown", "the host's tpu is not known")


def test_an_unconfirmed_slot_blocks_wherever_it_may_be_and_is_never_unlocked() -> None:
    big = {"cpu": "16", "memory": "64Gi"}
    for where in ({"on": "h1", "target": ""}, {"on": "", "target": "h1"}):
        fleet = fleet_of(host(), slot("f", ready="False", members=("vm-1",), **where, **big))
        assert not fits(fleet, intent=Intent.EVACUATE)
        assert not fits(fleet, intent=Intent.REUSE_FAILOVER_RESERVATION)
    assert fits(fleet_of(host(), slot("f", on="", target="", ready="False", **big)))


def test_a_failover_slot_without_condition_counts_as_ready() -> None:
    fleet = fleet_of(host(), slot("f", ready=None, cpu="16", members=("vm-1",)))
    assert fits(fleet, intent=Intent.EVACUATE)


def test_a_slot_on_its_way_blocks_both_hosts() -> None:
    fleet = fleet_of(host("h1"), host("h2"), slot("f", on="h1", target="h2", cpu="14"))
    assert (fleet.free_amounts()[:, 0] == 2000).all()


def test_an_ignored_type_beats_every_other_rule() -> None:
    fleet = fleet_of(host(), slot("f", ready="False", cpu="16"))
    assert fits(fleet, options={"ignored_reservation_types": (FAILOVER,)})


def test_a_vms_own_room_in_flight_does_not_block_it() -> None:
    fleet = fleet_of(host(), in_flight("i", vm="vm-1", cpu="16"))
    assert fits(fleet)
    assert not fits(fleet, resourceId="vm-2")


def test_commitments_without_group_block_nothing() -> None:
    assert fits(fleet_of(host(), commitment("c", group="", cpu="16")))


@pytest.mark.parametrize(
    ("reservation", "left"),
    [
        (slot("f"), (4, 16)),
        (commitment("c"), (4, 16)),
        (commitment("c", meant={"a": ("1", "4Gi")}, seen=("a",)), (3, 12)),
        (commitment("c", meant={"a": ("8", "32Gi")}, seen=("a",)), (0, 0)),
        (commitment("c", meant={"a": ("1", "4Gi"), "b": ("8", "2Gi")}, seen=("a",)), (8, 12)),
        (commitment("c", on="h1", target="h2", meant={"a": ("1", "4Gi")}, seen=("a",)), (4, 16)),
        (commitment("c", seen=("a",)), (4, 16)),
    ],
)
def test_a_reservation_blocks_what_is_not_yet_inside_the_allocation(
    reservation: Reservation, left: tuple[int, int]
) -> None:
    assert unused_amounts(reservation) == Amounts(cpu=left[0] * 1000, memory=left[1] * GIB)
    full = dict(unused_amounts(reservation, ignore_allocations=True))
    assert full == {"cpu": 4000, "memory": 16 * GIB}


def ends(fleet: Fleet, memory: str, *left: str) -> None:
    """The host says that VMs have ended: these are left, which use so much."""
    fleet.upsert_host(host(allocation={"cpu": "2", "memory": memory}, instances=instances(*left)))


def test_room_of_a_vm_that_ends_is_its_slots_again_before_the_slot_says_so() -> None:
    """Between the report of the host and the slot's new status the room was anybody's, and it was sold twice."""
    sold = commitment("s", memory="32Gi", meant={"a": ("1", "24Gi"), "b": ("1", "8Gi")}, seen=("a", "b"))
    fleet = fleet_of(host(allocation={"cpu": "2", "memory": "32Gi"}, instances=instances("a", "b")), sold)
    assert fleet.free_amounts()[0, 1] == 32 * GIB
    ends(fleet, "8Gi", "b")
    assert fleet.free_amounts()[0, 1] == 32 * GIB
    ends(fleet, "0")
    assert fleet.free_amounts()[0, 1] == 32 * GIB
    fleet.remove_host("h1")
    ends(fleet, "32Gi", "a", "b")
    assert fleet.free_amounts()[0, 1] == 32 * GIB


def test_a_vm_that_goes_to_another_host_leaves_its_room_to_its_slot() -> None:
    sold = commitment("s", meant={"a": ("4", "16Gi")}, seen=("a",))
    used = {"cpu": "4", "memory": "16Gi"}
    fleet = fleet_of(host(allocation=used, instances=instances("a")), host("h2"), sold)
    fleet.upsert_host(host("h2", allocation=used, instances=instances("a")))
    assert fleet.free_amounts()[:, 1].tolist() == [48 * GIB, 48 * GIB]
    fleet.upsert_host(host("h1"))
    assert fleet.free_amounts()[:, 1].tolist() == [48 * GIB, 48 * GIB]
    fleet.upsert_reservation(commitment("s", "h2", meant={"a": ("4", "16Gi")}, seen=("a",)))
    assert fleet.free_amounts()[:, 1].tolist() == [64 * GIB, 48 * GIB]


def test_a_confirmed_vm_that_is_in_flight_to_its_own_host_counts_once() -> None:
    sold = commitment("s", meant={"a": ("4", "16Gi")}, seen=("a",))
    fleet = fleet_of(host(), sold, in_flight("i", vm="a"))
    assert fleet.free_amounts()[0, 1] == 48 * GIB
    fleet.upsert_host(host(allocation={"cpu": "4", "memory": "16Gi"}, instances=instances("a")))
    assert fleet.free_amounts()[0, 1] == 48 * GIB
    fleet.remove_reservation("i")
    assert fleet.free_amounts()[0, 1] == 48 * GIB


def test_free_capacity_for_controllers_may_be_negative() -> None:
    crowded = [slot(f"s{number}", memory="48Gi") for number in range(2)]
    assert host_free_capacity([*crowded, slot("evicted", target="", memory="64Gi")], host()) == Amounts(
        cpu=8000, memory=-32 * GIB
    )
    assert host_free_capacity([], host(capacity=None, effectiveCapacity=None)) is None


def test_free_is_minus_one_where_nobody_knows() -> None:
    fleet = fleet_of(host("a"), host("b", allocation=None), host("c", allocation={"cpu": "0", "memory": "65Gi"}))
    assert fleet.free_amounts().tolist() == [[16000, 64 * GIB], [-1, -1], [16000, -1]]


def test_absurd_amounts_do_not_overflow() -> None:
    endless = {"cpu": "9223372036854775807", "memory": "9223372036854775807"}
    fleet = fleet_of(host(effectiveCapacity=endless), *[slot(f"s{n}", **endless) for n in range(20)])
    assert not fits(fleet)
    assert not fits(fleet_of(host()), need=endless, numInstances=2**62)


def test_an_inventory_with_endless_resources_keeps_the_first_few() -> None:
    many = {"cpu": "16", "memory": "64Gi", **{f"r{number:03}": "1" for number in range(200)}}
    fleet = fleet_of(host(effectiveCapacity=many, allocation=many | {"cpu": "0", "memory": "0", "r000": "0"}))
    assert len(fleet.resources) == 64
    wanted = {"cpu": "1", "memory": "1Gi"}
    assert fits(fleet, need={**wanted, "r000": "1"})
    assert not fits(fleet, need={**wanted, "r199": "1"})

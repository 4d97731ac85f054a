from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.small_clouds import make_slot

from outlive.base import BadInput
from outlive.failover import Demands, ProtectionSettings, TopologyChoice
from outlive.failover.report import VIEWS, ViewOptions, ViewSnapshot, ViewTable, inventory_of, make_views
from outlive.placement import VmView
from outlive.resources import (
    Amounts,
    Assigned,
    CommittedSpec,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)

GIB = 2**30


def host(name: str, *vms: str, traits: tuple[str, ...] = (), stopped: tuple[str, ...] = ()) -> Hypervisor:
    instances = [Instance(id=vm, name=f"name of {vm}") for vm in vms]
    instances += [Instance(id=vm, active=False) for vm in stopped]
    return Hypervisor(
        metadata=ObjectMeta(name=name),
        spec=HypervisorSpec(custom_traits=traits),
        status=HypervisorStatus(
            capacity=Amounts(cpu=16_000, memory=64 * GIB),
            allocation=Amounts(cpu=4_000, memory=8 * GIB),
            instances=tuple(instances),
            num_instances=len(instances),
            traits=("COMPUTE_NODE", "HW_CPU_X86_VMX"),
        ),
    )


def vm(name: str, on: str, flavor: str = "std") -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(
            display_name=f"name of {name}",
            flavor=flavor,
            resources=Amounts(cpu=2_500, memory=4 * GIB),
            extra_specs={"trait:CUSTOM_FAST": "required", "trait:CUSTOM_OLD": "forbidden"},
        ),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor=on) if on else None),
    )


def slot(name: str, on: str, members: dict[str, str], *, ready: bool = True, found: bool = True) -> Reservation:
    made = make_slot(name, on, members, cpu=2_500, memory=4 * GIB, ready=ready)
    return made if found else msgspec.structs.replace(made, status=ReservationStatus())


COMMITTED = Reservation(
    metadata=ObjectMeta(name="c1"),
    spec=ReservationSpec(
        type="CommittedResourceReservation",
        target_host="n1-bb002",
        resources=Amounts(cpu=1_000, memory=2 * GIB),
        committed_resource_reservation=CommittedSpec(),
    ),
)
INVENTORY = inventory_of(
    [
        host("n1-bb010", "c"),
        host("n1-bb002", "a", "b", traits=("CUSTOM_FAST",)),
        host("n2-bb002", "x", stopped=("s",)),
        host("other"),
    ],
    [
        slot("s1", "n1-bb010", {"a": "n1-bb002"}),
        slot("s2", "n2-bb002", {"a": "n1-bb002", "ghost": "n9"}),
        slot("s3", "n1-bb002", {"b": "n1-bb002"}, ready=False),
        slot("s4", "n2-bb002", {}, found=False),
        COMMITTED,
    ],
    [vm("a", "n1-bb002"), vm("b", "n1-bb010"), vm("c", "n1-bb010", "big"), vm("s", "n2-bb002"), vm("homeless", "")],
)


def view_of(name: str, inventory: ViewSnapshot) -> ViewTable:
    (table,) = make_views(inventory, ViewOptions(views=(name,)))
    return table


def records(view: str, inventory: ViewSnapshot = INVENTORY, **options: Any) -> list[dict[str, Any]]:
    return make_views(inventory, ViewOptions(views=(view,), **options))[0].to_records()


def column(view: str, name: str, **options: Any) -> list[Any]:
    return [row[name] for row in records(view, **options)]


def test_there_are_fourteen_views_and_each_is_plain_data():
    assert len(VIEWS) == 14
    for table in make_views(INVENTORY):
        assert msgspec.json.decode(msgspec.json.encode(table))["view"] == table.view
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_an_empty_cloud_has_empty_views_not_errors():
    for table in make_views(ViewSnapshot()):
        assert table.rows == () or table.view == "summary"


def test_views_are_chosen_and_hidden_by_name():
    assert [t.view for t in make_views(INVENTORY, ViewOptions(views=("vms", "summary"), hide=("vms",)))] == ["summary"]
    with pytest.raises(BadInput, match="no view 'vmz'"):
        make_views(INVENTORY, ViewOptions(hide=("vmz",)))
    with pytest.raises(BadInput, match="no view 'vmz'"):
        make_views(INVENTORY, ViewOptions(views=("vmz",)))


def test_hosts_come_by_building_block_and_the_sums_add_up():
    table = view_of("hypervisor-summary", INVENTORY)
    rows = table.to_records()
    assert [row["host"] for row in rows] == ["n1-bb002", "n2-bb002", "n1-bb010", "other"]
    first = rows[0]
    assert (first["cpuCapacity"], first["cpuUsed"], first["cpuFailover"], first["cpuCommitted"]) == (16, 4, 2.5, 1)
    assert first["cpuFree"] == 8.5, "reserved cpu is counted, unlike in the reference"
    assert (first["memoryCapacityGiB"], first["memoryFailoverGiB"], first["memoryFreeGiB"]) == (64, 4, 50)
    assert first["traits"] == ["CUSTOM_FAST"], "standard traits are hidden"
    assert table.totals is not None
    assert dict(zip(table.columns, table.totals, strict=True))["cpuFailover"] == 10


def test_flavors_come_most_used_first_with_their_traits():
    rows = records("flavor-summary")
    assert [(r["flavor"], r["vms"], r["cpu"]) for r in rows] == [("std", 3, 2.5), ("big", 1, 2.5)]
    assert (rows[0]["requiredTraits"], rows[0]["forbiddenTraits"]) == (["CUSTOM_FAST"], ["CUSTOM_OLD"])


def test_hosts_are_listed_with_their_vms():
    rows = records("hypervisors")
    assert [(r["host"], r["vm"]) for r in rows] == [
        ("n1-bb002", "a"),
        ("n1-bb002", "b"),
        ("n2-bb002", "s"),
        ("n2-bb002", "x"),
        ("n1-bb010", "c"),
        ("other", None),
    ]
    assert rows[3]["flavor"] is None, "x is unknown to the source"


def test_hosts_are_listed_with_the_slots_that_they_hold():
    held = [r for r in records("hypervisors-vms-res") if r["kind"] == "slot"]
    assert [(r["host"], r["name"], r["ready"], r["members"]) for r in held] == [
        ("n1-bb002", "s3", "False", 1),
        ("n2-bb002", "s2", "True", 2),
        ("n2-bb002", "s4", "-", 0),
        ("n1-bb010", "s1", "True", 1),
    ]
    assert held[1]["sourceHosts"] == ["n1-bb002", "n9"]


def test_vms_are_listed_with_their_slots():
    rows = {r["vm"]: r for r in records("vms")}
    assert rows["a"]["slots"] == ["s1@n1-bb010", "s2@n2-bb002"]
    assert (rows["x"]["inDatabase"], rows["a"]["inDatabase"]) == (False, True)
    assert rows["x"]["name"] == "name of x"


def test_vms_are_sorted_as_asked():
    assert column("vms", "vm") == ["a", "b", "c", "s", "x"]
    assert column("vms", "vm", sort="vm-host") == ["a", "b", "c", "s", "x"]
    assert column("vms", "vm", sort="res-host") == ["b", "a", "c", "s", "x"]


def test_unknown_and_bare_vms_have_views_of_their_own():
    assert column("not-in-db", "vm") == ["x"]
    assert column("without-res", "vm") == ["c", "s", "x"]


def test_stale_members_are_those_that_no_host_lists():
    assert [(r["slot"], r["member"], r["recordedHost"]) for r in records("stale")] == [("s2", "ghost", "n9")]


def test_slots_are_listed_with_their_members():
    rows = records("reservations")
    assert [(r["slot"], r["member"]) for r in rows] == [
        ("s1", "a"),
        ("s2", "a"),
        ("s2", "ghost"),
        ("s3", "b"),
        ("s4", None),
    ]
    assert rows[-1]["host"] == "n2-bb002", "a slot without a status is shown where it is wanted"


def test_validation_knows_all_five_rules():
    hosts = [host("h1", "a", "b"), host("h2", "c"), host("h3"), host("h4"), host("h5", "e", "f"), host("h6", "d")]
    slots = [
        slot("r1", "h1", {"a": "h1"}),
        slot("r2a", "h3", {"c": "h2"}),
        slot("r2b", "h3", {"c": "h2"}),
        slot("r35", "h4", {"e": "h5", "f": "h5"}),
        slot("r4a", "h2", {"d": "h6"}),
        slot("r4b", "h4", {"d": "h6", "c": "h2"}),
        slot("moved", "h4", {"b": "h2"}),
    ]
    rows = records("validation", inventory_of(hosts, slots, []))
    found = {(r["vm"], r["rule"]) for r in rows}
    assert {("a", 1), ("c", 2), ("e", 3), ("d", 4), ("b", None)} <= found
    assert all(r["problem"] for r in rows)
    shared = [slot("q1", "h3", {"a": "h1", "c": "h2"}), slot("q2", "h4", {"a": "h1", "c": "h2"})]
    assert {(r["vm"], r["rule"]) for r in records("validation", inventory_of(hosts, shared, []))} == {
        ("a", 5),
        ("c", 5),
    }


def test_validation_and_levels_count_units_of_failure_as_a_check_does():
    racks = {"h1": "r1", "h2": "r1", "h3": "r2"}
    hosts = [in_rack(host("h1", "a"), racks), in_rack(host("h2"), racks), in_rack(host("h3"), racks)]
    inventory = inventory_of(
        hosts, [slot("s1", "h2", {"a": "h1"})], [vm("a", "h1")], Demands({"*": 1}), TopologyChoice(unit="rack")
    )
    (row,) = records("validation", inventory)
    assert (row["rule"], row["host"]) == (1, "rack=r1")
    assert row["problem"] == "slot s1 of VM a is in rack=r1 (on h1 and h2), where the VM runs"
    assert [r["covered"] for r in records("levels", inventory)] == [0]
    by_hosts = msgspec.structs.replace(inventory, choice=TopologyChoice())
    assert records("validation", by_hosts) == []
    assert [r["covered"] for r in records("levels", by_hosts)] == [1]


def in_rack(one: Hypervisor, racks: dict[str, str]) -> Hypervisor:
    labels = {"outlive.dev/domain-rack": racks[one.name]}
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, labels=labels))


def test_slots_by_host_come_most_first():
    assert [(r["host"], r["slots"], r["cpu"]) for r in records("by-host")] == [
        ("n2-bb002", 2, 5),
        ("n1-bb002", 1, 2.5),
        ("n1-bb010", 1, 2.5),
    ]


def test_the_summary_counts_cores_that_slots_hold():
    figures = {r["figure"]: r["value"] for r in records("summary")}
    assert (figures["slots"], figures["slotsNotReady"], figures["slotsWithoutStatus"]) == (4, 1, 1)
    assert (figures["memberships"], figures["membersPerSlot"]) == (4, 1.0)
    assert (figures["cpuReserved"], figures["cpuReservedToUsed"]) == (10, 0.625)


def test_servers_of_both_sides_are_compared_problems_first():
    rows = records("all-servers")
    assert [(r["vm"], r["status"]) for r in rows] == [
        ("b", "WRONG_HOST"),
        ("x", "NOT_IN_PG"),
        ("homeless", "PG_NO_HOST"),
        ("a", "OK"),
        ("c", "OK"),
        ("s", "OK"),
    ]


def test_filters_choose_hosts_and_what_is_on_them():
    assert column("hypervisor-summary", "host", filter_name="BB002") == ["n1-bb002", "n2-bb002"]
    assert column("hypervisor-summary", "host", filter_trait="custom_fast") == ["n1-bb002"]
    assert column("vms", "vm", filter_trait="custom_fast") == ["a", "b"]
    assert column("reservations", "slot", filter_name="bb010") == ["s1"]
    assert column("by-host", "host", filter_name="bb010") == ["n1-bb010"]
    assert column("all-servers", "vm", filter_name="bb010") == ["c"]


def test_a_source_that_cannot_be_read_disables_only_its_columns():
    blind = msgspec.structs.replace(INVENTORY, servers=None)
    table = view_of("vms", blind)
    assert "could not be read" in table.note
    assert {row["inDatabase"] for row in table.to_records()} == {None}
    assert view_of("not-in-db", blind).rows == ()
    assert len(view_of("reservations", blind).rows) == 5


def test_a_vm_of_unknown_size_or_without_a_host_is_known_all_the_same():
    servers = (
        VmView(id="nohost", host="", flavor="std", cpu_milli=1000, memory_bytes=GIB),
        VmView(id="noflavor", host="h1", flavor="gone", cpu_milli=0, memory_bytes=0),
    )
    inventory = ViewSnapshot(hypervisors=(host("h1", "nohost", "noflavor"),), servers=servers)
    status = {row["vm"]: row["status"] for row in view_of("all-servers", inventory).to_records()}
    assert status == {"nohost": "PG_NO_HOST", "noflavor": "OK"}
    assert view_of("not-in-db", inventory).to_records() == []
    size = {row["vm"]: (row["cpu"], row["memoryBytes"]) for row in view_of("vms", inventory).to_records()}
    assert size == {"nohost": (1.0, GIB), "noflavor": (None, None)}
    flavors = {row["flavor"]: row["cpu"] for row in view_of("flavor-summary", inventory).to_records()}
    assert flavors == {"std": 1.0, "gone": None}


def test_levels_are_shown_with_who_has_them_and_what_they_take():
    levels = {"critical": {"priority": 9}, "spare": {"slots": 0}}
    protection = msgspec.convert({"levels": levels, "flavors": {"big": "critical"}}, ProtectionSettings)
    inventory = msgspec.structs.replace(INVENTORY, demands=Demands({"*": 1}, protection))
    shown = records("levels", inventory)
    assert [(row["level"], row["priority"]) for row in shown] == [("critical", 9), ("", 0), ("spare", 0)]
    assert sum(row["vms"] for row in shown) == len([vm for vm in records("vms", inventory) if vm["inDatabase"]])
    assert shown[2]["vms"] == 0

"""What OVN has, compared with what a plan would make of it."""

from __future__ import annotations

import msgspec
import pytest

from outlive.network import (
    PORTS,
    ROUTES,
    SWITCHES,
    Binding,
    NetworkFinding,
    OwnNetwork,
    OwnPort,
    OwnVmInput,
    Rows,
    compare_rows,
    describe_row,
    find_named,
    find_row_conflicts,
    judge_binding,
    judge_learned,
    plan_own_vm,
)

MAC = "02:00:00:00:00:01"
PORT = OwnPort(
    interface="if-1",
    network=OwnNetwork(name="green", type="layer2", dhcp=True),
    mode="shared",
    mac=MAC,
    addresses=("10.1.0.7/24",),
)
GIVEN = OwnVmInput(vm="web", host="h1", ports=(PORT,), chassis={"h1": "c1"})
RIGHT = plan_own_vm(GIVEN).rows


def findings(rows: Rows, given: OwnVmInput = GIVEN) -> list[NetworkFinding]:
    return list(compare_rows("VirtualMachine/web", plan_own_vm(msgspec.structs.replace(given, rows=rows)).ops, rows))


def changed(**columns: object) -> Rows:
    """The right rows, with other columns of the port."""
    (port,) = RIGHT[PORTS]
    return {**RIGHT, PORTS: [{**port, **columns}]}


def test_rows_as_they_should_be_have_no_findings() -> None:
    assert findings(RIGHT) == []


def test_each_row_that_is_missing_is_told_once() -> None:
    found = findings({})
    assert [(one.code, one.table) for one in found] == [("row-missing", PORTS), ("row-missing", "DHCP_Options")]
    assert found[0].text == "OVN lacks logical port if-1 on switch green_ovn_layer2_switch"
    assert found[0].remedy


def test_a_row_that_is_wrong_is_told_with_what_it_has_and_should_have() -> None:
    (found,) = findings(changed(enabled=False, options={"requested-chassis": "c9"}))
    assert found.code == "row-wrong"
    assert [(one.column, one.found, one.wanted) for one in found.columns] == [
        ("enabled", False, None),
        ("options:requested-chassis", "c9", "c1"),
    ]


def test_rows_of_a_vm_that_has_no_ports_any_more_are_surplus() -> None:
    found = findings(RIGHT, msgspec.structs.replace(GIVEN, ports=()))
    assert {(one.code, one.table) for one in found} == {("row-surplus", PORTS), ("row-surplus", "DHCP_Options")}


def test_vms_and_networks_that_only_rows_name_are_found() -> None:
    switch = {
        "name": "x",
        "external_ids": {"k8s.ovn.org/owner-controller": "outlive-network-controller", "k8s.ovn.org/network": "red"},
    }
    foreign = {"name": "y", "external_ids": {"k8s.ovn.org/owner-controller": "other", "k8s.ovn.org/network": "blue"}}
    assert find_named({**RIGHT, SWITCHES: [switch, foreign]}) == ({"web"}, {"red"})


def test_two_ports_of_one_mac_are_told_with_the_vm() -> None:
    (port,) = RIGHT[PORTS]
    twice = {PORTS: [port, {"name": "evil", "switch": port["switch"], "addresses": [MAC]}]}
    (found,) = find_row_conflicts(twice)
    assert (found.code, found.about) == ("mac-conflict", "VirtualMachine/web")
    assert "logical port evil" in found.text
    assert list(find_row_conflicts(twice, {"VirtualMachine/other"})) == []


@pytest.mark.parametrize(
    ("binding", "code"),
    [
        (None, "not-bound"),
        (Binding(port="p"), "not-bound"),
        (Binding(port="p", chassis="c2", up=True), "bound-elsewhere"),
        (Binding(port="p", chassis="c1"), "port-down"),
        (Binding(port="p", chassis="c1", up=True), None),
    ],
)
def test_a_port_is_bound_by_the_chassis_of_its_host_and_up(binding: Binding | None, code: str | None) -> None:
    found = judge_binding("VirtualMachinePort/web.0", "p", "h1", "c1", binding)
    assert (found.code if found is not None else None) == code


def test_a_router_that_learned_another_mac_is_told() -> None:
    assert judge_learned("x", "10.1.0.7", MAC, [MAC.upper()]) is None
    found = judge_learned("x", "10.1.0.7", MAC, ["02:00:00:00:00:09", MAC])
    assert found is not None
    assert (found.code, "02:00:00:00:00:09" in found.text) == ("mac-learned", True)


@pytest.mark.parametrize(
    ("table", "row", "words"),
    [
        (PORTS, {"name": "p"}, "logical port p"),
        ("Logical_Router_Port", {"name": "rtos-h1"}, "router port rtos-h1"),
        ("Logical_Switch", {"name": "s"}, "logical switch s"),
        ("Logical_Router", {"name": "r"}, "logical router r"),
        (ROUTES, {"ip_prefix": "10.1.0.7"}, "the route to 10.1.0.7 on ovn_cluster_router"),
        ("Logical_Router_Policy", {"match": "m", "router": "r"}, "the policy 'm' on r"),
        ("DHCP_Options", {"cidr": "10.1.0.0/24"}, "the DHCP row for 10.1.0.0/24 (without an id)"),
        ("ACL", {}, "a row of ACL"),
    ],
)
def test_a_row_is_told_by_what_it_is_found_by(table: str, row: dict[str, str], words: str) -> None:
    assert describe_row(table, row) == words

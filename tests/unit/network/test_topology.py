"""Switches and routers of a network of our own hosts, beside those of others."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.network import (
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWNER_KEY,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    SWITCHES,
    VM_KEY,
    Rows,
    TopologyInput,
    TopologyResult,
    apply,
    own_switch,
    plan_topology,
)

GREEN = TopologyInput(network="green", type="layer2")
WIRE = TopologyInput(network="wire", type="localnet", physical_network="physnet")
BLUE = TopologyInput(
    network="blue", type="routed", host_subnets={"kvm-1": ("10.44.0.0/24",), "kvm-2": ("10.44.1.0/24",)}
)
FOREIGN = {OWNER_KEY: "green-network-controller"}
OF_RED = {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: "red"}


def plan(network: TopologyInput, rows: Rows) -> TopologyResult:
    return plan_topology(msgspec.structs.replace(network, rows=rows))


@pytest.mark.parametrize(
    ("network", "table", "row"),
    [
        (GREEN, SWITCHES, {"name": "green_ovn_layer2_switch"}),
        (GREEN, SWITCHES, {"name": "green_ovn_layer2_switch", "external_ids": FOREIGN}),
        (GREEN, SWITCHES, {"name": "green_ovn_layer2_switch", "external_ids": OF_RED}),
        (WIRE, PORTS, {"name": "wire_ovn_localnet_switch_localnet", "switch": "theirs"}),
        (BLUE, SWITCHES, {"name": "blue_kvm-1", "external_ids": FOREIGN}),
        (BLUE, ROUTER_PORTS, {"name": "rtos-blue_kvm-1", "networks": ["10.9.0.1/24"]}),
        (BLUE, PORTS, {"name": "stor-blue_kvm-1", "switch": "theirs", "external_ids": OF_RED}),
    ],
)
def test_a_row_of_somebody_else_stays_as_it_is_and_is_told(network: TopologyInput, table: str, row: Any) -> None:
    result = plan(network, {table: [row]})
    assert result.rows[table][0] == row
    (told,) = result.foreign
    assert row["name"] in told.row
    assert plan(network, result.rows).ops == ()
    assert result.rows[table][0] in plan(msgspec.structs.replace(network, type=None), result.rows).rows[table]


@pytest.mark.parametrize(
    ("network", "now", "switches"),
    [
        (GREEN, msgspec.structs.replace(GREEN, type=None), ["green_ovn_layer2_switch"]),
        (WIRE, msgspec.structs.replace(WIRE, type=None), ["wire_ovn_localnet_switch"]),
        (BLUE, msgspec.structs.replace(BLUE, type=None), ["blue_kvm-1"]),
        (BLUE, msgspec.structs.replace(BLUE, host_subnets={}), ["blue_kvm-1"]),
    ],
)
def test_a_switch_with_ports_of_vms_stays_with_all_that_makes_it_reachable(
    network: TopologyInput, now: TopologyInput, switches: list[str]
) -> None:
    rows = plan(network, {}).rows
    vm = {"name": "web", "switch": switches[0], "external_ids": {NETWORK_KEY: network.network, VM_KEY: "web"}}
    result = plan(now, {**rows, PORTS: [*rows.get(PORTS, []), vm]})
    stay = {one: row for one, row in by_name(rows).items() if switches[0] in str(row)}
    assert {one: row for one, row in by_name(result.rows).items() if one[0] != ROUTERS} == {**stay, (PORTS, "web"): vm}
    assert [row["name"] for row in result.rows[SWITCHES]] == list(result.occupied) == switches
    without = plan(now, {**result.rows, PORTS: [row for row in result.rows[PORTS] if row["name"] != "web"]})
    assert without.rows[SWITCHES] == without.rows[PORTS] == []
    assert without.occupied == ()


def test_other_hosts_of_the_network_are_served() -> None:
    result = plan(BLUE, {SWITCHES: [{"name": "blue_kvm-1", "external_ids": FOREIGN}]})
    assert [row["name"] for row in result.rows[SWITCHES]] == ["blue_kvm-1", "blue_kvm-2"]
    assert [row["name"] for row in result.rows[ROUTER_PORTS]] == ["rtos-blue_kvm-2"]


def test_the_cluster_router_of_others_is_used_and_left_as_it_is() -> None:
    router = {"name": "ovn_cluster_router", "external_ids": {"k8s-cluster-router": "yes"}}
    result = plan(BLUE, {ROUTERS: [router]})
    assert result.foreign == ()
    assert result.rows[ROUTERS] == [router]


NAMES = st.sampled_from(("default", "a-b", "a.b", "a", "a.b-c", "a-b.c", "kvm-1", "b", "ovn"))


@given(st.lists(st.tuples(NAMES, st.sampled_from(("routed", "layer2", "localnet")), NAMES), max_size=8))
def test_no_two_networks_have_a_switch_of_one_name(networks: list[tuple[str, str, str]]) -> None:
    for one, other in itertools.combinations(networks, 2):
        if own_switch(*one) == own_switch(*other):
            assert one[:2] == other[:2], "a network may meet itself only"


@pytest.mark.parametrize(("one", "other"), [("a-b", "a.b"), ("default", "blue")])
def test_networks_whose_names_are_alike_do_not_touch_each_other(one: str, other: str) -> None:
    first, second = (msgspec.structs.replace(BLUE, network=name) for name in (one, other))
    rows = plan(second, plan(first, {SWITCHES: [{"name": "kvm-1"}]}).rows).rows
    assert plan(first, rows).ops == ()
    assert plan(second, rows).foreign == ()
    assert {"name": "kvm-1"} in rows[SWITCHES]


SUBNETS = tuple(f"10.44.{number}.0/24" for number in range(6))
HOSTS = st.dictionaries(
    st.sampled_from(("kvm-1", "kvm-2", "kvm-3", "kvm-4")), st.sampled_from(SUBNETS).map(lambda one: (one,)), max_size=4
).filter(lambda hosts: len(set(hosts.values())) == len(hosts))


def by_name(rows: Rows) -> dict[tuple[str, str], Any]:
    return {(table, row["name"]): row for table, found in rows.items() for row in found}


@given(HOSTS, HOSTS, st.data())
def test_any_first_part_of_the_operations_may_be_committed_by_itself(
    before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]], data: st.DataObject
) -> None:
    rows = plan(msgspec.structs.replace(BLUE, host_subnets=before), {}).rows
    wanted = msgspec.structs.replace(BLUE, host_subnets=after)
    whole = plan(wanted, rows)
    assert by_name(apply(rows, whole.ops)) == by_name(whole.rows)
    first = whole.ops[: data.draw(st.integers(0, len(whole.ops)))]
    between = apply(rows, first)
    stay = [name for name, row in by_name(rows).items() if by_name(whole.rows).get(name) == row]
    assert all(by_name(between)[name] == by_name(rows)[name] for name in stay), "what is right stays reachable"
    assert by_name(plan(wanted, between).rows) == by_name(whole.rows)


def test_a_subnet_that_another_host_gets_is_taken_from_the_first_one_before() -> None:
    rows = plan(BLUE, {}).rows
    moved = plan(msgspec.structs.replace(BLUE, host_subnets={"kvm-3": ("10.44.0.0/24",)}), rows)
    for count in range(len(moved.ops) + 1):
        networks = [row["networks"] for row in apply(rows, moved.ops[:count]).get(ROUTER_PORTS, [])]
        assert networks.count(["10.44.0.1/24"]) <= 1

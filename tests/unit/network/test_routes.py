"""Routes of a VM: the zone where it runs, every other zone, the way out, and deletion."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.builders import decide
from tests.unit.network.rows import (
    LOCAL,
    POLICIES,
    PORTS,
    REMOTE,
    ROUTES,
    Row,
    Rows,
    as_sets,
    catch_alls,
    cluster_subnets,
    copy,
    local_routes,
    policies,
    question,
    remote_routes,
)

from outlive.network import Columns, find, has, needed_ops, upsert

JOIN_B = ["100.64.0.9", "fd98::9"]
FAMILIES = pytest.mark.parametrize("families", ["IPv4", "IPv6", "dual"])


def follow(zone: str, hypervisor: str, rows: Rows, families: str = "dual", **changes: Any) -> Any:
    """The routes and policies after the VM runs there; its port, which is elsewhere tested, is left out."""
    answer = decide(
        "follow",
        question(zone, [copy(1, hypervisor, families=families, runsOn=hypervisor)], rows, families=families, **changes),
    )
    return {table: answer["rows"].get(table, []) for table in (ROUTES, POLICIES)} if "rows" in answer else answer


def other_routes() -> list[Row]:
    """Rows of the cluster router that belong to others."""
    return [
        {"ip_prefix": "10.44.7.0/24", "nexthop": "100.88.0.7", "policy": "dst-ip"},
        {"ip_prefix": "10.44.9.0/24", "nexthop": "100.64.0.9", "policy": "src-ip"},
        {"ip_prefix": "10.44.7.23", "nexthop": "100.64.0.3", "policy": "src-ip", "external_ids": {"x": "y"}},
        {"ip_prefix": "10.44.7.23", "nexthop": "100.64.0.3"},
        {
            "ip_prefix": "10.44.7.23",
            "nexthop": "192.0.2.1",
            "policy": "dst-ip",
            "router": "another",
            "external_ids": LOCAL,
        },
        {
            "ip_prefix": "10.44.7.48",
            "nexthop": "10.44.7.48",
            "policy": "dst-ip",
            "external_ids": {**LOCAL, "k8s.ovn.org/vm": "till"},
        },
        {"ip_prefix": "192.0.2.0/24", "nexthop": "1.2.3.4", "external_ids": {"k8s.ovn.org/name": "shop/cart"}},
    ]


@FAMILIES
@pytest.mark.parametrize("zone", ["hv-a", "hv-b", "global"])
def test_at_home_all_rows_of_the_vm_go_whatever_their_zone(families: str, zone: str) -> None:
    rows = {
        ROUTES: local_routes("hv-b", families) + remote_routes("hv-c", families) + other_routes(),
        POLICIES: policies("hv-b", families),
    }
    assert as_sets(follow(zone, "hv-a", rows, families)) == as_sets({ROUTES: other_routes()})


def test_a_route_is_replaced_whatever_its_next_hop_so_that_no_group_arises() -> None:
    old = local_routes("hv-c", "IPv4")[0]
    twice = {**old, "nexthop": "100.88.0.11", "output_port": "rtos-hv-a", "external_ids": {**REMOTE, "x": "y"}}
    rows = follow("hv-b", "hv-b", {ROUTES: [old, twice]}, "IPv4")
    assert follow("hv-b", "hv-b", {ROUTES: [twice, old]}, "IPv4") == rows
    assert as_sets(rows) == as_sets({ROUTES: local_routes("hv-b", "IPv4") + catch_alls("hv-b", "IPv4")})


def test_another_zone_deletes_what_was_local_of_the_vm_and_nothing_that_was_not() -> None:
    old_local = {**local_routes("hv-c", "IPv4")[0], "ip_prefix": "10.44.7.99"}
    old_remote = {**remote_routes("hv-c", "IPv4")[0], "ip_prefix": "10.44.7.98"}
    after = follow("hv-c", "hv-b", {ROUTES: [old_local, old_remote], POLICIES: policies("hv-c", "IPv4")}, "IPv4")
    assert as_sets(after) == as_sets({ROUTES: [*remote_routes("hv-b", "IPv4"), old_remote]})


def test_a_remote_route_loses_the_output_port_of_a_row_that_is_marked_remote() -> None:
    row = {**remote_routes("hv-b", "IPv4")[0], "output_port": "rtos-hv-c"}
    assert as_sets(follow("hv-c", "hv-b", {ROUTES: [row]}, "IPv4")) == as_sets({ROUTES: remote_routes("hv-b", "IPv4")})


def test_a_row_that_is_replaced_keeps_no_external_id_of_its_former_owner() -> None:
    old = {
        "ip_prefix": "10.44.7.23",
        "nexthop": "9.9.9.9",
        "policy": "dst-ip",
        "external_ids": {"k8s.ovn.org/name": "a/b", "k8s.ovn.org/zone": "remote"},
    }
    rows = follow("hv-c", "hv-b", {ROUTES: [old]}, "IPv4")
    assert as_sets(rows) == as_sets({ROUTES: remote_routes("hv-b", "IPv4")})


def test_a_policy_is_found_by_priority_match_and_action() -> None:
    wrong = {**policies("hv-c", "IPv4")[0], "external_ids": REMOTE}
    others = [
        {**wrong, "priority": 1004, "external_ids": {}},
        {**wrong, "action": "allow", "external_ids": {}},
        {**wrong, "match": "ip4.src == 10.44.7.24", "external_ids": {}},
    ]
    rows = follow("global", "hv-b", {POLICIES: [wrong, *others, wrong]}, "IPv4")
    kept = [{name: value for name, value in one.items() if value} for one in others]
    assert as_sets(rows)[POLICIES] == as_sets({POLICIES: [*policies("hv-b", "IPv4"), *kept]})[POLICIES]


@pytest.mark.parametrize(
    ("zone", "hypervisors"),
    [
        ("global", {"hv-b": {"gatewayRouter": ["100.64.0.9"]}}),
        ("hv-b", {"hv-b": {"gatewayRouter": ["fd98::9"]}}),
        ("hv-b", {}),
        ("hv-c", {"hv-b": {"transit": ["100.88.0.9/16"]}}),
    ],
)
def test_a_hypervisor_without_an_address_of_a_family_is_an_error(zone: str, hypervisors: Row) -> None:
    assert follow(zone, "hv-b", {}, hypervisors=hypervisors) == {"error": "join-address-missing"}


CATCH_ALL_16 = {"ip_prefix": "10.44.0.0/16", "nexthop": "100.64.0.9", "policy": "src-ip"}


@pytest.mark.parametrize(
    ("row", "replaced"),
    [
        ({"nexthop": "100.64.0.7"}, True),
        ({"ip_prefix": "10.44.0.0/20"}, True),
        ({"ip_prefix": "10.44.0.0/23"}, True),
        ({"output_port": "rtos-hv-b"}, True),
        ({"external_ids": LOCAL}, True),
        ({"ip_prefix": "10.44.0.0/24"}, False),
        ({"ip_prefix": "10.44.0.0/25"}, False),
        ({"ip_prefix": "10.44.0.0/15"}, False),
        ({"ip_prefix": "10.44.16.0/20"}, False),
        ({"ip_prefix": "10.44.0.0"}, False),
        ({"policy": "dst-ip"}, False),
        ({"policy": None}, False),
        ({"nexthop": "fd98::7"}, False),
        ({"nexthop": "discard"}, False),
        ({"router": "another"}, False),
    ],
)
def test_the_way_out_replaces_a_row_for_the_same_cluster_and_no_other(row: Row, replaced: bool) -> None:
    before = {name: value for name, value in (CATCH_ALL_16 | row).items() if value is not None}
    given = {"hypervisor": "hv-b", "clusterSubnets": cluster_subnets("IPv4"), "gatewayRouter": JOIN_B}
    answer = decide("catch_all", {**given, "rows": {ROUTES: [before]}})
    assert as_sets(answer["rows"]) == as_sets({ROUTES: [CATCH_ALL_16] if replaced else [before, CATCH_ALL_16]})
    again = decide("catch_all", {**given, "rows": answer["rows"]})
    assert again == {"ops": [], "rows": answer["rows"]}


def test_of_several_ways_out_one_remains() -> None:
    rows = {ROUTES: [CATCH_ALL_16 | {"ip_prefix": f"10.44.0.0/{length}"} for length in (16, 18, 20)]}
    given = {"hypervisor": "hv-b", "clusterSubnets": cluster_subnets("dual"), "gatewayRouter": JOIN_B, "rows": rows}
    assert as_sets(decide("catch_all", given)["rows"]) == as_sets({ROUTES: catch_alls("hv-b", "dual")})


@pytest.mark.parametrize("join", [[], ["100.64.0.9"], ["fd98::9/64"]])
def test_without_a_gateway_address_of_a_family_no_way_out_is_written(join: list[str]) -> None:
    given = {"hypervisor": "hv-b", "clusterSubnets": cluster_subnets("dual"), "gatewayRouter": join, "rows": {}}
    assert decide("catch_all", given) == {"error": "join-address-missing"}


@pytest.mark.parametrize(
    ("ids", "deleted"),
    [
        (LOCAL, True),
        (REMOTE, True),
        ({"k8s.ovn.org/zone": "", **{key: LOCAL[key] for key in list(LOCAL)[1:]}}, True),
        ({"k8s.ovn.org/zone": "local", "k8s.ovn.org/name": "shop/cart"}, True),
        ({"k8s.ovn.org/name": "shop/cart"}, False),
        ({key: LOCAL[key] for key in list(LOCAL)[1:]}, False),
        ({**LOCAL, "k8s.ovn.org/name": "shop/till"}, False),
        ({**LOCAL, "k8s.ovn.org/name": "a/b/c"}, True),
        ({**LOCAL, "k8s.ovn.org/namespace": ""}, False),
        ({**LOCAL, "k8s.ovn.org/vm": "till"}, False),
    ],
)
def test_only_rows_with_a_zone_that_name_the_vm_are_deleted_with_it(ids: Row, deleted: bool) -> None:
    rows: Rows = {
        ROUTES: [{"ip_prefix": "10.44.7.23", "nexthop": "10.44.7.23", "external_ids": ids}],
        POLICIES: [{"priority": 10, "match": "ip4", "action": "reroute", "external_ids": ids}],
    }
    after = decide("follow", question("hv-b", [], rows))["rows"]
    assert as_sets(after) == ({} if deleted else as_sets(rows))


COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.sampled_from([None, "", "x", "y"]),
        "b": st.sampled_from([None, [], ["x"], ["x", "y"], ["y", "x"]]),
        "m": st.dictionaries(st.sampled_from("kl"), st.sampled_from(["1", "2", None])),
    },
)


@given(st.lists(COLUMNS, max_size=6), st.lists(COLUMNS, max_size=4))
def test_many_conditions_find_what_each_of_them_finds(rows: list[Columns], where: list[Columns]) -> None:
    def meets(row: Columns, columns: Columns) -> bool:
        for name, value in columns.items():
            if isinstance(value, dict):
                if any((row.get(name) or {}).get(key) != one for key, one in value.items()):
                    return False
            elif sorted(row.get(name) or []) != sorted(value or []):
                return False
        return True

    expected = [row for row in rows if any(meets(row, one) for one in where)]
    assert [id(row) for row in find(rows, where)] == [id(row) for row in expected]
    assert [row for row in rows if any(has(row, one) for one in where)] == expected


def test_what_is_the_same_is_not_written() -> None:
    rows = {PORTS: [{"name": "p", "addresses": ["a", "b"], "type": "", "enabled": False}]}
    same = upsert(PORTS, {"name": "p"}, {"addresses": ["b", "a"], "type": None, "options": {"x": None}})
    assert needed_ops(rows, [same]) == []
    for patch in ({"enabled": None}, {"enabled": True}, {"addresses": ["a"]}, {"options": {"x": "y"}}):
        assert len(needed_ops(rows, [upsert(PORTS, {"name": "p"}, patch)])) == 1, patch

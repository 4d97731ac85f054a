"""Rows that contradict each other."""

from __future__ import annotations

import pytest
from tests.unit.network.builders import MAC
from tests.unit.network.rows import LOCAL, PORTS, ROUTES, Row, catch_alls, local_routes, port, remote_routes

from outlive.network import CONFLICTS_LIMIT, ConflictRule, find_conflicts


def test_the_rows_of_a_move_have_no_conflict() -> None:
    ports = [
        port(1, "hv-a", enabled=False),
        port(2, "hv-b"),
        {"name": "stor", "switch": "hv-a", "addresses": ["router"]},
    ]
    assert find_conflicts({ROUTES: local_routes("hv-b", "dual") + catch_alls("hv-b", "dual"), PORTS: ports}) == []


def test_two_ports_of_a_mac_on_one_switch_are_told_with_both_rows() -> None:
    one, two = port(1, "green"), port(2, "green") | {"enabled": False}
    (found,) = find_conflicts({PORTS: [one, two, port(3, "blue")]})
    assert (found.rule, found.place, found.subject, found.vms) == (ConflictRule.MAC, "green", MAC, ("shop/cart",))
    assert found.rows == (one, two)
    assert found.rows[1] == {**port(2, "green"), "enabled": False}


def test_a_mac_is_one_mac_however_it_is_written() -> None:
    one, two = ({"name": name, "switch": "green", "addresses": [mac]} for name, mac in (("a", MAC), ("b", MAC.upper())))
    assert [one.rule for one in find_conflicts({PORTS: [one, two]})] == [ConflictRule.MAC]


@pytest.mark.parametrize(
    ("change", "conflict"),
    [
        ({}, True),
        ({"nexthop": "1.2.3.4", "output_port": "x", "external_ids": {}}, True),
        ({"policy": ""}, True),
        ({"policy": "src-ip"}, False),
        ({"ip_prefix": "10.44.7.24"}, False),
        ({"router": "another"}, False),
        ({"route_table": "blue"}, False),
    ],
)
def test_two_routes_of_one_prefix_and_policy_are_a_conflict(change: Row, conflict: bool) -> None:
    rows = [local_routes("hv-b", "IPv4")[0], remote_routes("hv-c", "IPv4")[0] | change]
    assert [one.rule for one in find_conflicts({ROUTES: rows})] == [ConflictRule.ROUTE] * conflict


@pytest.mark.parametrize(
    ("vm", "network", "conflict"), [("till", None, True), ("cart", None, False), ("till", "green", False)]
)
def test_one_address_of_two_vms_on_one_network_is_a_conflict(vm: str, network: str | None, conflict: bool) -> None:
    ids = {**LOCAL, "k8s.ovn.org/vm": vm} | ({"k8s.ovn.org/network": network} if network else {})
    other = {"name": "x", "switch": "hv-b", "addresses": ["0a:58:00:00:00:01 fd44:0:0:7::17"], "external_ids": ids}
    found = find_conflicts({PORTS: [port(1, "hv-a"), other]})
    assert [(one.rule, one.subject) for one in found] == [(ConflictRule.ADDRESS, "fd44:0:0:7::17")] * conflict


def test_a_database_full_of_conflicts_is_told_up_to_a_limit() -> None:
    assert (
        len(find_conflicts({ROUTES: [{"ip_prefix": "a", "nexthop": str(one)} for one in range(5000)]}))
        == CONFLICTS_LIMIT
    )

from __future__ import annotations

import pytest

from outlive.network import (
    DHCP,
    NAME_KEY,
    NAMESPACE_KEY,
    POLICIES,
    PORTS,
    ROUTES,
    SWITCHES,
    VM_KEY,
    Columns,
    Scope,
    VmKey,
    is_in_scope,
    match_addresses,
)

IDS = {NAMESPACE_KEY: "shop", VM_KEY: "cart"}
CART = Scope(vms=(VmKey("shop", "cart"),))


@pytest.mark.parametrize(
    ("table", "row", "scope", "expected"),
    [
        (ROUTES, {"external_ids": IDS}, CART, True),
        (POLICIES, {"external_ids": {NAMESPACE_KEY: "shop"}}, CART, False),
        (DHCP, {"external_ids": {NAME_KEY: "shop/cart"}}, CART, True),
        (DHCP, {"external_ids": IDS}, CART, False),
        (PORTS, {"name": "a"}, Scope(ports=("a",)), True),
        (SWITCHES, {"name": "a"}, Scope(ports=("a",)), False),
        (SWITCHES, {"name": "a"}, Scope(names=("a",)), True),
        (ROUTES, {"ip_prefix": "10.0.0.1/32"}, Scope(addresses=("10.0.0.1",)), True),
        (ROUTES, {"ip_prefix": "10.0.0.1"}, Scope(addresses=("10.0.0.0/24",)), True),
        (ROUTES, {"ip_prefix": "10.0.0.0/16"}, Scope(addresses=("10.0.0.0/24",)), False),
        (ROUTES, {"ip_prefix": "fd00::1"}, Scope(addresses=("fd00::/64",)), True),
        (ROUTES, {"ip_prefix": "no prefix"}, Scope(addresses=("10.0.0.0/24",)), False),
        (POLICIES, {"match": "ip4.src == 10.0.0.1 && ip4.dst != 10.0.0.0/8"}, Scope(addresses=("10.0.0.1",)), True),
        (POLICIES, {"match": "ip4.src == 10.0.0.11"}, Scope(addresses=("10.0.0.1",)), False),
        (POLICIES, {"match": "ip6.src == fd00::1"}, Scope(addresses=("fd00::1",)), True),
    ],
)
def test_a_scope_has_the_rows_that_name_it(table: str, row: Columns, scope: Scope, expected: bool) -> None:
    assert is_in_scope(table, row, scope) is expected


def test_addresses_of_a_match_are_found_and_names_of_fields_are_not() -> None:
    assert match_addresses('inport == "rtos-hv" && ip4.dst == {10.0.0.0/8, 1.2.3.4/32} || ip6.src == fd00::7') == {
        "10.0.0.0/8",
        "1.2.3.4",
        "fd00::7",
    }

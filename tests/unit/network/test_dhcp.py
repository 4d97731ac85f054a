"""DHCP rows of VMs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.network.builders import CONTROLLER, IPV4, IPV6, decide, error

PORT = "shop_virt-launcher-cart-2"
ID4 = "default-network-controller:VirtualMachine:shop/cart:10.44.7.0/24"
ID6 = "default-network-controller:VirtualMachine:shop/cart:fd44.0.0.7../64"
EXTERNAL4 = {
    "k8s.ovn.org/owner-controller": CONTROLLER,
    "k8s.ovn.org/owner-type": "VirtualMachine",
    "k8s.ovn.org/name": "shop/cart",
    "k8s.ovn.org/cidr": "10.44.7.0/24",
    "k8s.ovn.org/id": ID4,
    "k8s.ovn.org/zone": "local",
}
EXTERNAL6 = EXTERNAL4 | {"k8s.ovn.org/cidr": "fd44.0.0.7../64", "k8s.ovn.org/id": ID6}
OPTIONS4 = {
    "server_id": "169.254.1.1",
    "server_mac": "0a:58:a9:fe:01:01",
    "lease_time": "3500",
    "hostname": '"cart"',
}
OPTIONS6 = {"server_id": "0a:58:6d:6d:c1:50", "fqdn": '"cart"'}
ROW4 = {"cidr": "10.44.7.0/24", "options": OPTIONS4, "external_ids": EXTERNAL4}
ROW6 = {"cidr": "fd44:0:0:7::/64", "options": OPTIONS6, "external_ids": EXTERNAL6}
VM = {"controller": CONTROLLER, "namespace": "shop", "vm": "cart"}


def compose(*cidrs: str, **more: Any) -> Any:
    return decide("dhcp_compose", VM | {"addresses": cidrs} | more)


def ensure(rows: Any = None, **more: Any) -> Any:
    rows = {"Logical_Switch_Port": [{"name": PORT}]} if rows is None else rows
    return decide(
        "dhcp_ensure", VM | {"topology": "routed", "port": PORT, "addresses": [IPV4, IPV6], "rows": rows} | more
    )


def tables(answer: Any) -> Any:
    """Those that are not empty."""
    return {name: rows for name, rows in answer["rows"].items() if rows}


def with_options(row: Any, **options: str) -> Any:
    return row | {"options": row["options"] | options}


def test_each_family_has_a_row_with_all_its_columns() -> None:
    assert compose(IPV4, IPV6) == {"v4": ROW4, "v6": ROW6}
    assert compose(IPV4) == {"v4": ROW4, "v6": None}
    assert compose("FD44:0:0:7:0::17/64") == {"v4": None, "v6": ROW6}


def test_the_last_address_of_a_family_wins_and_a_mapped_one_is_ipv4() -> None:
    found = compose("10.44.9.1/24", IPV6, "::ffff:10.44.7.23/120")
    assert found == {"v4": ROW4, "v6": ROW6}


def test_options_that_are_given_are_in_the_row_of_their_family() -> None:
    found = compose(IPV4, IPV6, ipv4Router="169.254.1.1", ipv4Mtu=1342, ipv4Dns="10.45.0.10", ipv6Dns="FD45::A")
    assert found["v4"] == with_options(ROW4, router="169.254.1.1", mtu="1342", dns_server="10.45.0.10")
    assert found["v6"] == with_options(ROW6, dns_server="fd45::a")


@pytest.mark.parametrize("nothing", [{"ipv4Router": "", "ipv4Mtu": 0, "ipv4Dns": "", "ipv6Dns": ""}, {"ipv4Mtu": -1}])
def test_an_option_without_a_value_is_left_out(nothing: dict[str, Any]) -> None:
    assert compose(IPV4, IPV6, **nothing) == {"v4": ROW4, "v6": ROW6}
    assert compose(IPV4, IPV6, **dict.fromkeys(nothing)) == {"v4": ROW4, "v6": ROW6}


def test_an_ovn_that_does_not_know_fqdn_is_not_given_it() -> None:
    found = compose(IPV4, IPV6, fqdn=False)
    assert found["v6"] == ROW6 | {"options": {"server_id": "0a:58:6d:6d:c1:50"}}
    assert found["v4"] == ROW4


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"addresses": []}, "addresses-missing"),
        ({"addresses": None}, "addresses-missing"),
        ({"vm": ""}, "vm-name-missing"),
        ({"vm": None}, "vm-name-missing"),
        ({"addresses": ["10.44.7.23"]}, "invalid"),
        ({"ipv4Dns": "x"}, "invalid"),
        ({"controller": None}, "invalid"),
    ],
)
def test_a_row_is_not_composed_of_half_an_input(changes: dict[str, Any], code: str) -> None:
    assert compose(IPV4, **changes) == error(code)


def test_a_port_refers_to_new_rows_in_one_transaction() -> None:
    other = {"name": "other", "enabled": True}
    route = {"ip_prefix": "10.44.7.23"}
    rows = {"Logical_Switch_Port": [{"name": PORT, "type": "router"}, other], "Logical_Router_Static_Route": [route]}
    found = ensure(rows, mtu=1342, dnsServiceIPs=["10.45.0.9", "10.45.0.10", "fd45::a"], gateways=["10.44.7.1"])
    row4 = with_options(ROW4, router="169.254.1.1", mtu="1342", dns_server="10.45.0.10")
    row6 = with_options(ROW6, dns_server="fd45::a")
    references = {"dhcpv4_options": ID4, "dhcpv6_options": ID6}
    assert (found["v4"], found["v6"], found["port"]) == (row4, row6, references)
    assert [(op["op"], op["table"]) for op in found["ops"]] == [
        ("UpsertDhcp", "DHCP_Options"),
        ("UpsertDhcp", "DHCP_Options"),
        ("SetPort", "Logical_Switch_Port"),
    ]
    assert tables(found) == {
        "Logical_Switch_Port": [{"name": PORT, "type": "router", **references}, other],
        "Logical_Router_Static_Route": [route],
        "DHCP_Options": [row4, row6],
    }


def test_what_is_right_is_not_written_again() -> None:
    first = ensure()
    again = ensure(first["rows"])
    assert again == first | {"ops": []}
    target = ensure({**first["rows"], "Logical_Switch_Port": [*first["rows"]["Logical_Switch_Port"], {"name": "t"}]})
    assert target["ops"] == []
    moved = ensure(target["rows"], port="t")
    assert [op["table"] for op in moved["ops"]] == ["Logical_Switch_Port"]
    assert len(moved["rows"]["DHCP_Options"]) == 2


def test_a_row_is_found_by_its_id_and_made_right() -> None:
    old = with_options(ROW4, router="10.44.7.1", mtu="1400", server_id="x") | {
        "external_ids": {**EXTERNAL4, "k8s.ovn.org/zone": "remote", "mine": "kept"}
    }
    twin, other = ROW4 | {"options": {}}, ROW4 | {"external_ids": EXTERNAL4 | {"k8s.ovn.org/id": "other"}}
    found = ensure({"DHCP_Options": [other, old, twin], "Logical_Switch_Port": [{"name": PORT}]}, addresses=[IPV4])
    right = with_options(ROW4, router="169.254.1.1") | {"external_ids": EXTERNAL4 | {"mine": "kept"}}
    assert found["rows"]["DHCP_Options"] == [other, right]


def test_a_port_no_longer_refers_to_a_family_that_the_vm_lost() -> None:
    found = ensure(ensure()["rows"], addresses=[IPV6])
    assert found["rows"]["Logical_Switch_Port"] == [{"name": PORT, "dhcpv6_options": ID6}]
    assert found["port"] == {"dhcpv4_options": None, "dhcpv6_options": ID6}


@pytest.mark.parametrize(
    ("topology", "router", "gateways", "expected"),
    [
        ("routed", None, ["10.44.7.1"], "169.254.1.1"),
        ("routed", "link-local", [], "169.254.1.1"),
        ("routed", "subnet", ["fd44::1", "10.44.7.1"], "10.44.7.1"),
        ("routed", "subnet", ["fd44::1"], None),
        ("layer2", "link-local", ["192.168.40.1", "fd44::1"], "192.168.40.1"),
        ("layer2", "subnet", ["192.168.40.1"], "192.168.40.1"),
        ("layer2", None, [], None),
        ("other", None, [], None),
    ],
)
def test_the_router_is_the_proxy_on_routed_networks_and_else_the_gateway(
    topology: str, router: str | None, gateways: list[str], expected: str | None
) -> None:
    found = ensure(topology=topology, dhcpRouter=router, gateways=gateways)
    assert found["v4"]["options"].get("router") == expected
    assert "router" not in found["v6"]["options"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"port": "other"}, "port-missing"),
        ({"port": None}, "port-missing"),
        ({"rows": {}}, "port-missing"),
        ({"addresses": []}, "addresses-missing"),
        ({"vm": None}, "vm-name-missing"),
        ({"dhcpRouter": "proxy"}, "invalid"),
    ],
)
def test_a_port_that_cannot_be_served_is_refused(changes: dict[str, Any], code: str) -> None:
    assert ensure(**changes) == error(code)


def test_rows_of_two_vms_of_one_subnet_are_not_shared() -> None:
    first = ensure(addresses=[IPV4])
    rows = {**first["rows"], "Logical_Switch_Port": [*first["rows"]["Logical_Switch_Port"], {"name": "q"}]}
    both = ensure(rows, vm="till", port="q", addresses=["10.44.7.24/24"])
    assert [row["options"]["hostname"] for row in both["rows"]["DHCP_Options"]] == ['"cart"', '"till"']


def test_all_rows_of_a_vm_go_with_it_and_nothing_refers_to_them() -> None:
    other = ROW4 | {"external_ids": EXTERNAL4 | {"k8s.ovn.org/name": "shop/cart-2", "k8s.ovn.org/id": "other"}}
    rows = ensure()["rows"]
    rows = {
        "DHCP_Options": [*rows["DHCP_Options"], other],
        "Logical_Switch_Port": [*rows["Logical_Switch_Port"], {"name": "q", "dhcpv4_options": "other"}],
    }
    found = decide("dhcp_delete", {"vm": {"namespace": "shop", "name": "cart"}, "rows": rows})
    assert [(op["op"], op["table"]) for op in found["ops"]] == [("DeleteWhere", "DHCP_Options")]
    assert tables(found) == {
        "DHCP_Options": [other],
        "Logical_Switch_Port": [{"name": PORT}, {"name": "q", "dhcpv4_options": "other"}],
    }
    again = decide("dhcp_delete", {"vm": {"namespace": "shop", "name": "cart"}, "rows": found["rows"]})
    assert again == {"ops": [], "rows": found["rows"]}


@pytest.mark.parametrize(
    ("ips", "expected"),
    [
        (["10.45.0.9", "fd45::9", "10.45.0.10", "FD45::A"], {"ipv4": "10.45.0.10", "ipv6": "fd45::a"}),
        (["fd45::a"], {"ipv4": "", "ipv6": "fd45::a"}),
        (["10.45.0.10"], {"ipv4": "10.45.0.10", "ipv6": ""}),
        (["None"], {"ipv4": "", "ipv6": ""}),
        ([], {"ipv4": "", "ipv6": ""}),
        (None, error("service-missing")),
        (["x"], error("invalid")),
    ],
)
def test_guests_ask_the_last_address_of_each_family_for_names(ips: Any, expected: Any) -> None:
    assert decide("dns_service", {"clusterIPs": ips}) == expected


@pytest.mark.parametrize(
    ("topology", "role", "vm", "migratable", "expected"),
    [
        ("routed", "primary", True, True, True),
        ("routed", None, True, True, True),
        ("routed", "primary", True, False, False),
        ("routed", "primary", False, True, False),
        ("routed", "secondary", True, True, False),
        ("layer2", "primary", True, False, True),
        ("layer2", "primary", True, True, True),
        ("layer2", "primary", False, True, False),
        ("layer2", "secondary", True, True, False),
        ("layer2", None, True, True, False),
        ("localnet", "primary", True, True, False),
        ("localnet", "secondary", True, True, False),
        ("other", "primary", True, True, False),
    ],
)
def test_dhcp_is_for_vms_that_travel_and_for_primary_layer2(
    topology: str, role: str | None, vm: bool, migratable: bool, expected: bool
) -> None:
    given = {"topology": topology, "role": role, "vm": vm, "migratable": migratable}
    assert decide("needs_dhcp", given) == {"dhcp": expected}


def test_a_guest_of_whom_nothing_is_known_needs_no_dhcp() -> None:
    assert decide("needs_dhcp", {"topology": "routed", "migratable": True}) == {"dhcp": False}
    assert decide("needs_dhcp", {"topology": "routed", "vm": True}) == {"dhcp": False}

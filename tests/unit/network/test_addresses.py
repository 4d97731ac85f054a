"""Whose an address is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.builders import IPV4, IPV6, MAC, addresses, copy, decide, error

DONE = {"completed": True}
ENTRY = {
    "ip_addresses": [IPV4],
    "mac_address": MAC,
    "gateway_ips": ["10.44.7.1"],
    "ip_address": IPV4,
    "gateway_ip": "10.44.7.1",
}
BARE: dict[str, Any] = {"networks": {}}
HOME = {"hv-a": ["10.44.7.0/24", "fd44:0:0:7::/64"]}
AWAY = {"hv-b": ["10.44.8.0/24"]}


def with_addresses(*cidrs: str) -> dict[str, Any]:
    return {"networks": {"default": addresses(addresses=list(cidrs))}}


def target_entry(asked: str, *copies: dict[str, Any], network: str = "default") -> Any:
    return decide("copy_addresses", {"asked": asked, "copies": list(copies), "network": network})


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([copy("b", 1, migratable=False, **BARE), copy("a")], {"entry": None, "patched": False}),
        ([copy("b", 1), copy("a", **BARE)], {"entry": ENTRY, "patched": False}),
        ([copy("b", 1, **BARE), copy("x", vm="other")], {"entry": None, "patched": False}),
        ([copy("b", 1, **BARE), copy("a")], {"entry": ENTRY, "patched": True}),
        ([copy("b", 1, **BARE), copy("c", 2), copy("a", **BARE)], {"entry": ENTRY, "patched": True}),
        ([copy("b", 1, **BARE), copy("a", **DONE)], {"entry": ENTRY, "patched": True}),
        ([copy("b", 1, **BARE), copy("a", **BARE)], error("source-address-missing")),
    ],
    ids=["stays", "has its own", "first start", "of the source", "first readable", "of a completed one", "none"],
)
def test_a_target_takes_over_the_entry_of_the_first_sibling_that_has_one(copies: Any, expected: Any) -> None:
    assert target_entry("b", *copies) == expected


def test_the_whole_entry_is_taken_over_and_the_oldest_sibling_comes_first() -> None:
    port = addresses(routes=[{"dest": "10.45.0.0/16"}], role="primary", tunnelId=4, ipv6LlaGateway="fe80::1")
    copies = [copy("c", 2, **BARE), copy("b", 1), copy("a", 0, networks={"default": port})]
    assert target_entry("c", *copies)["entry"] == ENTRY | {
        "routes": [{"dest": "10.45.0.0/16", "nextHop": ""}],
        "role": "primary",
        "tunnel_id": 4,
        "ipv6_lla_gateway_ip": "fe80::1",
    }
    green = copy("a", networks={"till/green": addresses()})
    assert target_entry("b", copy("b", 1, **BARE), green) == error("source-address-missing")
    assert target_entry("b", copy("b", 1, **BARE), green, network="till/green")["patched"] is True


@pytest.mark.parametrize(
    ("tracked", "given_addresses", "expected"),
    [
        (HOME | AWAY, [IPV4], ("hv-a", True, True)),
        (AWAY | HOME, ["10.44.9.1/24", "fd44:0:0:7::17/64"], ("hv-a", True, True)),
        (HOME, ["10.44.7.23"], ("hv-a", True, True)),
        (HOME | {"later": ["10.44.0.0/16"]}, [IPV4], ("hv-a", True, True)),
        ({"wide": ["10.44.0.0/16"]} | HOME, [IPV4], ("wide", True, True)),
        ({"wide": "10.44.0.0/16"}, ["::ffff:10.44.7.23"], ("wide", True, True)),
        ({"all": "::ffff:0.0.0.0/96"}, [IPV4], ("all", True, True)),
        (AWAY, [IPV4], (None, False, False)),
        (AWAY, ["10.44.9.1/24"], (None, False, True)),
        (AWAY, ["10.44.9.1/24", IPV4], (None, False, True)),
        (AWAY, [IPV4, "10.44.9.1/24"], (None, False, False)),
        (AWAY, [], (None, False, False)),
    ],
)
def test_addresses_are_at_home_in_the_first_switch_that_contains_one(
    tracked: Any, given_addresses: list[str], expected: tuple[Any, bool, bool]
) -> None:
    subnets = [cidr for cidrs in (HOME | AWAY).values() for cidr in cidrs]
    for hosts in (subnets, HOME | AWAY):
        found = decide("zone_contains", {"tracked": tracked, "hostSubnets": hosts, "addresses": given_addresses})
        assert (found["switch"], found["zoneContains"], found["zoneContainsOrUntracked"]) == expected


def test_an_address_or_subnet_that_is_none_is_invalid() -> None:
    assert decide("zone_contains", {"tracked": {"a": ["x"]}}) == error("invalid")
    assert decide("zone_contains", {"hostSubnets": ["10.44.7.0"]}) == error("invalid")
    assert decide("zone_contains", {"addresses": ["x"]}) == error("invalid")


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(29, 32)), max_size=6), st.integers(0, 7))
def test_the_index_finds_what_a_search_one_by_one_finds(drawn: list[tuple[int, int]], last: int) -> None:
    from ipaddress import ip_address, ip_interface

    tracked = {f"s{i}": [f"10.0.0.{host}/{mask}"] for i, (host, mask) in enumerate(drawn)}
    address = ip_address(f"10.0.0.{last}")
    expected = next((name for name, (cidr,) in tracked.items() if address in ip_interface(cidr).network), None)
    assert decide("zone_contains", {"tracked": tracked, "addresses": [str(address)]})["switch"] == expected


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([copy("a")], {"10.44.7.23/32"}),
        ([copy("a", **with_addresses(IPV6, IPV4))], {"10.44.7.23/32", "fd44:0:0:7::17/128"}),
        ([copy("a"), copy("b", 0)], {"10.44.7.23/32"}),
        ([copy("a"), copy("b", 1, **DONE)], {"10.44.7.23/32"}),
        ([copy("a", migratable=False)], set()),
        ([copy("a", vm=None)], set()),
        ([copy("a", **DONE)], set()),
        ([copy("a"), copy("b", 1, **with_addresses("10.44.7.9/24"))], {"10.44.7.9/32"}),
        ([copy("a", **BARE)], set()),
        ([copy("a", **with_addresses("10.44.8.23/24"))], set()),
        ([copy("a", networks={"till/green": addresses()})], set()),
    ],
)
def test_addresses_of_travelling_vms_are_reserved_in_new_subnets(copies: Any, expected: set[str]) -> None:
    found = decide("reserve", {"subnets": HOME["hv-a"], "copies": copies, "network": "default"})
    assert set(found["reserve"]) == expected
    assert len(found["reserve"]) == len(expected)


def test_who_only_asks_for_addresses_needs_no_mac() -> None:
    bare = copy("a", networks={"default": {"addresses": [IPV4]}})
    assert decide("reserve", {"subnets": HOME["hv-a"], "copies": [bare]}) == {"reserve": ["10.44.7.23/32"]}
    assert target_entry("b", copy("b", 1, **BARE), bare) == error("invalid")


def sync(*copies: dict[str, Any], local: tuple[str, ...] = ("hv-a",), tracked: Any = HOME, **more: Any) -> Any:
    return decide(
        "sync_addresses",
        {"network": "default", "localHypervisors": local, "tracked": tracked, "copies": copies} | more,
    )


TAKEN = [{"switch": "hv-a", "addresses": [IPV4]}]


@pytest.mark.parametrize(
    ("copies", "vms", "ports", "reserve"),
    [
        ([copy("a", **DONE)], {}, set(), []),
        ([copy("a", **BARE)], {}, set(), []),
        ([copy("a", migratable=False)], {}, set(), []),
        ([copy("a")], {"shop/cart": True}, {"shop_virt-launcher-a"}, TAKEN),
        ([copy("b")], {"shop/cart": False}, set(), TAKEN),
        ([copy("a", **with_addresses("10.44.9.1/24"))], {"shop/cart": True}, {"shop_virt-launcher-a"}, []),
        ([copy("b", **with_addresses("10.44.9.1/24"))], {"shop/cart": False}, set(), []),
        ([copy("a"), copy("b", 1)], {"shop/cart": False}, {"shop_virt-launcher-a"}, TAKEN),
        ([copy("a"), copy("b", 1, **BARE)], {"shop/cart": True}, {"shop_virt-launcher-a"}, TAKEN),
        ([copy("a"), copy("b", 1, **DONE)], {"shop/cart": True}, {"shop_virt-launcher-a"}, TAKEN),
        ([copy("b"), copy("a", 1)], {"shop/cart": True}, {"shop_virt-launcher-a"}, TAKEN),
    ],
    ids=[
        "completed", "unreadable", "stays", "at home", "away", "foreign here", "foreign away", "migrates away",
        "target without addresses", "failed", "migrates here",
    ],
)  # fmt: skip
def test_a_controller_that_starts_finds_what_is_in_use(copies: Any, vms: Any, ports: set[str], reserve: Any) -> None:
    found = sync(*copies)
    assert (found["vms"], set(found["ports"]), found["reserve"]) == (vms, ports, reserve)


def test_ports_of_both_copies_stay_where_one_database_has_both_hypervisors() -> None:
    found = sync(copy("a"), copy("b", 1), local=("hv-a", "hv-b"))
    assert set(found["ports"]) == {"shop_virt-launcher-a", "shop_virt-launcher-b"}
    assert found["vms"] == {"shop/cart": True}


def test_ports_of_other_networks_are_named_after_them() -> None:
    found = sync(copy("a", networks={"till/green": addresses()}), network="till/green")
    assert found["ports"] == ["till.green_shop_virt-launcher-a"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.booleans()), max_size=7))
def test_every_living_vm_with_addresses_is_found_at_start(drawn: list[tuple[int, int, bool, bool]]) -> None:
    copies = [
        copy(str(i), second, vm=f"vm-{vm}", completed=done, **({} if readable else BARE))
        for i, (vm, second, done, readable) in enumerate(drawn)
    ]
    living = [one for one in copies if not one["completed"] and one["networks"]]
    assert set(sync(*copies)["vms"]) == {f"shop/{one['vm']['name']}" for one in living}


def release(asked: str, *copies: dict[str, Any], tracked: Any = HOME, **more: Any) -> Any:
    found = decide("release", {"asked": asked, "copies": copies, "tracked": tracked} | more)
    return (found["release"], found["switch"])


FREE, KEPT = (True, "hv-a"), (False, None)
PLAIN = {"vm": None, "migratable": False}


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([copy("a", **DONE)], FREE),
        ([copy("a")], KEPT),
        ([copy("a", **DONE), copy("b", 1)], KEPT),
        ([copy("a", **DONE), copy("b", 1, **DONE)], FREE),
        ([copy("a", **DONE, **BARE)], KEPT),
        ([copy("a", **DONE), copy("x", vm="other")], KEPT),
        ([copy("a", **DONE), copy("x", **PLAIN | {"hypervisor": "hv-z"})], KEPT),
        ([copy("a", **DONE), copy("x", vm="other", **DONE)], FREE),
        ([copy("a", **DONE), copy("x", vm="other", hypervisor=None)], FREE),
        ([copy("a", **DONE), copy("x", vm="other", hostNetwork=True)], FREE),
        ([copy("a", **DONE), copy("x", vm="other", **with_addresses("10.44.7.24/24"))], FREE),
        ([copy("a", **DONE), copy("x", vm="other", networks={"till/green": addresses()})], FREE),
    ],
)
def test_addresses_are_free_once_the_vm_is_gone_and_nobody_has_them(copies: Any, expected: Any) -> None:
    assert release("a", *copies) == expected


def test_addresses_that_were_released_before_are_not_released_again() -> None:
    assert release("a", copy("a", **DONE), released=True) == KEPT


def test_addresses_are_released_in_the_switch_that_contains_them_or_nowhere() -> None:
    assert release("b", copy("b", **DONE), tracked=AWAY | HOME) == FREE
    assert release("b", copy("b", **DONE), tracked=AWAY) == KEPT


def test_for_a_pod_that_stays_pods_of_its_hypervisor_count() -> None:
    asked = copy("a", **PLAIN | DONE)
    assert release("a", asked, copy("x", **PLAIN | {"hypervisor": "hv-a"})) == KEPT
    assert release("a", asked, copy("x", **PLAIN | {"hypervisor": "hv-z"})) == FREE
    green = {"networks": {"till/green": addresses()}}
    shared = {"hypervisor": "hv-z"} | green
    assert release("a", asked | green, copy("x", **PLAIN | shared), network="till/green") == KEPT

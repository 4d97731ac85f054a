"""What is told of a bridged or managed network that cannot be as its user wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.base import BadInput, Invalid
from outlive.network import check_beside, check_network, completed_network, ordered_rules
from outlive.resources import VirtualNetwork, check_lists, convert

V4 = {"cidr": "10.70.0.0/24", "gateway": "10.70.0.1"}
V6 = {"cidr": "fd70::/64", "gateway": "fd70::1"}
MAC, OTHER_MAC = "52:54:00:00:00:01", "52:54:00:00:00:02"


def network(name: str = "blue", **spec: Any) -> VirtualNetwork:
    return convert(VirtualNetwork, {"metadata": {"name": name}, "spec": {"type": "managed", "vni": 70, **spec}})


def reserve(address: str, mac: str = MAC, **more: str) -> dict[str, str]:
    return {"mac": mac, "address": address, **more}


def rule(name: str, direction: str = "in", order: int = 0, text: str = "accept") -> dict[str, Any]:
    return {"name": name, "direction": direction, "order": order, "rule": text}


def dhcp(start: str = "", end: str = "", base: dict[str, str] = V4) -> dict[str, Any]:
    return {**base, "dhcp": {"start": start, "end": end}}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"vni": 0}, "a managed network needs a VNI"),
        ({"type": "bridged", "vni": 4095}, "4095 is no VLAN"),
        ({"type": "layer2"}, "a layer2 network has none"),
        ({"type": "bridged", "rules": [rule("a")]}, "a bridged network has none"),
        ({"type": "bridged", "subnets": [dhcp("10.70.0.9", "10.70.0.10")]}, "no DHCP server of its own"),
        ({"mtu": 575}, "575 is no MTU"),
        ({"subnets": [V4, {"cidr": "10.71.0.0/24"}]}, "10.70.0.0/24 and 10.71.0.0/24 are both IPv4"),
        ({"subnets": [{"cidr": "10.70.0.0/24", "gateway": "10.71.0.1"}]}, "gateway 10.71.0.1 is not in 10.70.0.0/24"),
        ({"subnets": [{"cidr": "10.70.0.1/24"}]}, "10.70.0.1/24 has host bits set"),
        ({"subnets": [dhcp("10.70.0.9", "10.70.0.10", {"cidr": "10.70.0.0/24"})]}, "has no gateway to answer from"),
        ({"subnets": [dhcp("10.70.0.9")]}, "DHCP of 10.70.0.0/24 has no end"),
        ({"subnets": [dhcp("10.71.0.9", "10.70.0.10")]}, "the start of DHCP, 10.71.0.9, is not in 10.70.0.0/24"),
        ({"subnets": [dhcp("10.70.0.10", "10.70.0.9")]}, "begins behind its end"),
        ({"subnets": [dhcp("10.70.0.10", "10.70.0.255")]}, "is that of 10.70.0.0/24 itself, or of all in it"),
        ({"subnets": [dhcp("10.70.0.10", "ten")]}, "the end of DHCP, 'ten', is no address"),
        ({"subnets": [dhcp("fd70::2", "fd70::9", V6)]}, "has a range, and serves the whole subnet"),
        ({"subnets": [dhcp(base={"cidr": "fd70::/56", "gateway": "fd70::1"})]}, "cannot serve a /56"),
        ({"domain": "-x"}, "domain '-x' is no name in DNS"),
        ({"nameServers": ["a..b"]}, "name server 'a..b' is no name in DNS"),
        ({"subnets": [V4], "reservations": [reserve("10.71.0.9")]}, "10.71.0.9, is not in 10.70.0.0/24"),
        ({"subnets": [V4], "reservations": [reserve("fd70::9")]}, "lies in no subnet of the network"),
        ({"subnets": [V4], "reservations": [reserve("10.70.0.1")]}, "10.70.0.1 for 52:54:00:00:00:01 is the gateway"),
        ({"subnets": [V4], "reservations": [reserve("10.70.0.9"), reserve("10.70.0.8")]}, f"{MAC} is reserved twice"),
        (
            {"subnets": [V4], "reservations": [reserve("10.70.0.9"), reserve("10.70.0.9", OTHER_MAC)]},
            "10.70.0.9 is reserved twice",
        ),
        ({"subnets": [V4], "reservations": [reserve("10.70.0.9", "01:00:5e:00:00:01")]}, "is the MAC of a group"),
        ({"subnets": [V4], "reservations": [reserve("10.70.0.9", "52:54")]}, "'52:54' is no MAC"),
        ({"subnets": [V4], "reservations": [reserve("10.70.0.9", hostname="a b")]}, "hostname 'a b' is no name"),
        ({"rules": [rule("a"), rule("a", "out")]}, "there are two rules 'a'"),
        ({"rules": [rule("a", text="accept\nflush ruleset")]}, "rule 'a' is not one line"),
        ({"rules": [rule("a", text="accept; drop")]}, "rule 'a' is not one line"),
    ],
)
def test_a_network_that_cannot_be_is_told_by_what_is_wrong(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as told:
        check_network(network(**spec).spec)
    assert text in told.value.message
    assert told.value.remedy
    assert (told.value.place or "").startswith("spec.")


def test_what_can_be_is_accepted() -> None:
    reservations = [reserve("10.70.0.9"), reserve("fd70::9"), reserve("10.70.0.8", OTHER_MAC, hostname="web")]
    rules = [rule("a", text="tcp dport { 22, 80 } accept"), rule("b", "out")]
    whole = network(
        subnets=[dhcp("10.70.0.2", "10.70.0.254"), dhcp(base=V6)],
        mtu=1400,
        domain="blue.example.",
        nameServers=["ns1.example"],
        reservations=reservations,
        rules=rules,
    )
    check_network(whole.spec)
    check_network(network(type="bridged", vni=0, mtu=0).spec)


def test_an_ipv6_subnet_without_gateway_gets_its_first_address_and_dhcp() -> None:
    made = completed_network(network(subnets=[{"cidr": "fd70::/64"}, {"cidr": "10.70.0.0/24"}]))
    assert [one.gateway for one in made.spec.subnets] == ["fd70::1", ""]
    assert [one.dhcp is not None for one in made.spec.subnets] == [True, False]
    assert completed_network(made) is made
    kept = network(subnets=[{"cidr": "fd70::/64", "gateway": "fd70::5"}])
    assert completed_network(kept) is kept
    layer2 = network(type="layer2", vni=0, subnets=[{"cidr": "fd70::/64"}])
    assert completed_network(layer2) is layer2


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"vni": 70}, "network red has VNI 70 as well"),
        ({"type": "bridged", "vni": 70}, "network red has VNI 70 as well"),
        ({"vni": 71, "subnets": [{"cidr": "10.70.0.128/25"}]}, "10.70.0.0/24 overlaps 10.70.0.128/25 of network red"),
        ({"vni": 71, "domain": "BLUE.local."}, "network red has domain blue.local as well"),
    ],
)
def test_networks_that_cannot_be_beside_each_other_are_told(other: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as told:
        check_beside(network(subnets=[V4]), network("red", **other))
    assert text in told.value.message


def test_networks_of_other_types_may_have_the_same_addresses() -> None:
    for other in ({"type": "bridged", "vni": 71, "subnets": [V4]}, {"type": "layer2", "vni": 0, "subnets": [V4]}):
        check_beside(network(subnets=[V4]), network("red", **other))
    check_beside(network(type="bridged", vni=0), network("red", type="bridged", vni=0))


def test_full_limits_are_told() -> None:
    many = [reserve(f"10.70.{number // 200}.{number % 200 + 2}") for number in range(4097)]
    with pytest.raises(Invalid, match="4096"):
        check_lists(None, network(reservations=many))


def test_rules_of_one_number_go_by_name() -> None:
    spec = network(rules=[rule("b", order=1), rule("c", order=0), rule("a", order=1), rule("x", "out")]).spec
    assert [one.name for one in ordered_rules(spec, "in")] == ["c", "a", "b"]

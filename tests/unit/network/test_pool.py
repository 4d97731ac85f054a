"""Addresses of networks: what is wrong with them, which overlap, and which are free."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from outlive.base import BadInput, LimitExceeded
from outlive.network import (
    add_masks,
    address_problem,
    check_network,
    check_port,
    find_overlaps,
    free_address,
    share_subnets,
)
from outlive.resources import (
    NetworkDhcp,
    ObjectMeta,
    Subnet,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualNetwork,
    VirtualNetworkSpec,
    VirtualNetworkStatus,
)


def network(name: str, *cidrs: str, hour: int = 0, type: str = "routed") -> VirtualNetwork:
    created = datetime(2026, 1, 1, hour, tzinfo=UTC)
    spec = VirtualNetworkSpec(type=type, subnets=tuple(Subnet(cidr=one) for one in cidrs))  # type: ignore[arg-type]
    return VirtualNetwork(metadata=ObjectMeta(name=name, creation_timestamp=created), spec=spec)


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        ([network("a", "10.1.0.0/16"), network("b", "10.2.0.0/16")], {}),
        ([network("a", "10.1.0.0/16"), network("b", "10.1.2.0/24")], {"b": "a"}),
        ([network("a", "10.1.0.0/16", hour=2), network("b", "10.1.2.0/24", hour=1)], {"a": "b"}),
        ([network("a", "fd44::/32"), network("b", "10.0.0.0/8", "fd44:0:1::/48")], {"b": "a"}),
        ([network("a", "10.1.0.0/16"), network("b", "10.1.0.0/16", type="layer2")], {}),
        ([network("a", "house"), network("b", "10.1.0.0/16"), network("c", "10.1.0.0/24")], {"c": "b"}),
        ([network("a", "10.1.0.1/16"), network("b", "10.1.0.0/16")], {}),
        ([network("a"), network("b", "10.1.0.0/16")], {}),
    ],
)
def test_the_older_of_two_networks_that_overlap_keeps_the_router_and_a_malformed_one_is_in_nobodys_way(
    networks: list[VirtualNetwork], expected: dict[str, str]
) -> None:
    assert find_overlaps(networks) == find_overlaps(reversed(networks)) == expected


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (VirtualNetworkSpec(type="layer2", subnets=(Subnet(cidr="10.1.0.1/24"),)), "spec.subnets"),
        (VirtualNetworkSpec(type="layer2", subnets=(Subnet(cidr="10.1.0.0/24", excluded=("x",)),)), "spec.subnets"),
        (VirtualNetworkSpec(type="layer2", subnets=(Subnet(cidr="10.1.0.0/24", gateway="10.2.0.1"),)), "spec.subnets"),
        (VirtualNetworkSpec(type="routed", subnets=(Subnet(cidr="10.1.0.0/24", host_prefix=16),)), "spec.subnets"),
        (VirtualNetworkSpec(type="layer2", dhcp=NetworkDhcp(dns_servers=("dns.example",))), "spec.dhcp.dnsServers"),
        (VirtualNetworkSpec(type="localnet"), "spec.physicalNetwork"),
    ],
)
def test_a_malformed_network_is_told_with_the_field(spec: VirtualNetworkSpec, place: str) -> None:
    with pytest.raises(BadInput) as error:
        check_network(spec)
    assert (error.value.place, bool(error.value.remedy)) == (place, True)


@pytest.mark.parametrize(
    ("mac", "addresses", "place"),
    [
        ("52:54:00:00:00:01", ("10.1.0.7", "fd44::7/64"), ""),
        ("52-54-00-00-00-0A", (), ""),
        ("52:54:00", (), "spec.mac"),
        ("house", (), "spec.mac"),
        ("01:54:00:00:00:09", (), "spec.mac"),
        ("52:54:00:00:00:01", ("10.1.0",), "spec.addresses"),
        ("52:54:00:00:00:01", ("fe80::1%eth0",), "spec.addresses"),
    ],
)
def test_a_port_has_a_mac_of_an_interface_and_addresses(mac: str, addresses: tuple[str, ...], place: str) -> None:
    spec = VirtualMachinePortSpec(vm="web", network="green", mac=mac, addresses=addresses)
    port = VirtualMachinePort(metadata=ObjectMeta(name="web.0"), spec=spec)
    if not place:
        check_port(port)
        return
    with pytest.raises(BadInput) as error:
        check_port(port)
    assert error.value.place == place


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("web.0", True), ("web.12", True), ("web", False), ("web.x", False), ("web.01", False), ("db.0", False)],
)
def test_a_port_is_named_by_its_vm_and_the_number_of_the_interface(name: str, is_one: bool) -> None:
    spec = VirtualMachinePortSpec(vm="web", network="green", mac="52:54:00:00:00:01")
    port = VirtualMachinePort(metadata=ObjectMeta(name=name), spec=spec)
    if is_one:
        check_port(port)
        return
    with pytest.raises(BadInput) as error:
        check_port(port)
    assert (error.value.place, "web.0" in str(error.value.remedy)) == ("spec.vm", True)


def test_a_free_address_is_nobodys() -> None:
    assert free_address("10.1.0.0/29", {"10.1.0.2"}, ["10.1.0.3/32", "10.1.0.4/31"], "10.1.0.1") == "10.1.0.6/29"
    with pytest.raises(LimitExceeded):
        free_address("10.1.0.0/30", {"10.1.0.2"}, (), "10.1.0.1")


@pytest.mark.parametrize(
    ("taken", "after", "expected"),
    [
        ((), "", "10.1.0.1/29"),
        ((), "10.1.0.1", "10.1.0.2/29"),
        (("10.1.0.5", "10.1.0.6"), "10.1.0.4", "10.1.0.1/29"),
        ((), "10.1.0.6", "10.1.0.1/29"),
        (("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.5", "10.1.0.6"), "10.1.0.4", "10.1.0.4/29"),
        (("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.5", "10.1.0.6"), "", "10.1.0.4/29"),
    ],
)
def test_all_of_a_subnet_is_looked_through_from_the_address_given_last(
    taken: tuple[str, ...], after: str, expected: str
) -> None:
    assert free_address("10.1.0.0/29", taken, after=after) == expected
    with pytest.raises(LimitExceeded):
        free_address("10.1.0.0/29", (*taken, *(f"10.1.0.{number}" for number in range(1, 7))), after=after)


def test_each_host_of_a_routed_network_has_parts_of_its_own() -> None:
    spec = VirtualNetworkSpec(type="routed", subnets=(Subnet(cidr="10.44.0.0/22", excluded=("10.44.0.0/24",)),))
    taken = ("10.44.1.0/24",)
    assert share_subnets(spec, {"a": taken}, ["a", "b"], {}, ()).parts == {"a": taken, "b": ("10.44.2.0/24",)}


TWO = VirtualNetworkSpec(type="routed", subnets=(Subnet(cidr="10.44.0.0/23"), Subnet(cidr="fd44::/48")))
ONE = ("10.44.1.0/24",)
BOTH = ("10.44.1.0/24", "fd44:0:0:7::/64")


@pytest.mark.parametrize(
    ("known", "in_ovn", "used", "parts", "lacking"),
    [
        ({"a": BOTH}, {}, (), {"a": BOTH}, ()),
        ({"a": ONE}, {}, (), {"a": (*ONE, "fd44::/64")}, ()),
        ({"a": BOTH[1:]}, {}, (), {"a": ("10.44.0.0/24", BOTH[1])}, ()),
        ({}, {"a": BOTH}, (), {"a": BOTH}, ()),
        ({"a": ONE}, {"a": BOTH}, (), {"a": BOTH}, ()),
        ({"a": ONE}, {"a": ("10.44.0.0/24", "fd45::/64")}, (), {"a": (*ONE, "fd44::/64")}, ()),
        ({"b": BOTH}, {"a": BOTH}, (), {"a": ("10.44.0.0/24", "fd44::/64"), "b": BOTH}, ()),
        ({"b": ONE, "c": ("10.44.0.0/24",)}, {}, (), {"a": ("fd44::/64",), "b": ONE, "c": ("10.44.0.0/24",)}, ("a",)),
        ({"a": ("10.9.1.0/24", *BOTH)}, {}, (), {"a": BOTH}, ()),
        ({"a": ("10.9.1.0/24", *BOTH)}, {}, ("10.9.1.7/24",), {"a": (*BOTH, "10.9.1.0/24")}, ()),
        ({"a": ("10.44.1.0/25", BOTH[1])}, {}, (), {"a": ("10.44.1.0/25", BOTH[1])}, ()),
    ],
    ids=[
        "what it has",
        "a family more",
        "the other family more",
        "what its switch has",
        "the rest of what its switch has",
        "not what lies elsewhere",
        "not what another host has",
        "what there is",
        "no longer what is of no subnet",
        "unless a port has an address there",
        "of another size",
    ],
)
def test_a_host_keeps_its_parts_and_gets_those_that_it_lacks(
    known: dict[str, tuple[str, ...]],
    in_ovn: dict[str, tuple[str, ...]],
    used: tuple[str, ...],
    parts: dict[str, tuple[str, ...]],
    lacking: tuple[str, ...],
) -> None:
    shared = share_subnets(TWO, known, ["a"], in_ovn, used)
    assert shared.parts == parts
    assert tuple(shared.lacking) == lacking


GREEN = replace(
    network("green", type="layer2"),
    spec=VirtualNetworkSpec(
        type="layer2",
        subnets=(Subnet(cidr="10.1.0.0/24", gateway="10.1.0.1", excluded=("10.1.0.64/26",)), Subnet(cidr="fd44::/64")),
    ),
)
BLUE = replace(
    network("blue", "10.44.0.0/16", "fd44::/32"), status=VirtualNetworkStatus(host_subnets={"h1": ("10.44.7.0/24",)})
)
OPEN = replace(GREEN, spec=replace(GREEN.spec, addressing="none"))


@pytest.mark.parametrize(
    ("network", "address", "words"),
    [
        (GREEN, "10.1.0.7", ""),
        (GREEN, "FD44:0::7/64", ""),
        (GREEN, "::ffff:10.1.0.7", ""),
        (GREEN, "10.1.0.1/24", "gateway"),
        (GREEN, "10.1.0.64", "excluded"),
        (GREEN, "10.1.0.0", "no address of an interface"),
        (GREEN, "10.1.0.255", "no address of an interface"),
        (GREEN, "10.2.0.7", "no subnet"),
        (BLUE, "10.44.7.7", ""),
        (BLUE, "10.44.9.7", ""),
        (BLUE, "10.44.9.1", "gateway of 10.44.9.0/24"),
        (BLUE, "10.44.7.1", "gateway of 10.44.7.0/24"),
        (BLUE, "10.44.7.255", "no address of an interface"),
        (BLUE, "10.45.0.7", "no subnet"),
        (OPEN, "10.2.0.7/24", ""),
        (OPEN, "10.1.0.1", "gateway"),
    ],
)
def test_which_addresses_a_port_may_have(network: VirtualNetwork, address: str, words: str) -> None:
    found = address_problem(address, network)
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("network", "address", "expected"),
    [
        (GREEN, "10.1.0.7", "10.1.0.7/24"),
        (GREEN, "FD44:0::7", "fd44::7/64"),
        (OPEN, "10.2.0.7", "10.2.0.7/32"),
        (OPEN, "10.2.0.7/20", "10.2.0.7/20"),
        (BLUE, "10.44.7.7", "10.44.7.7/24"),
        (BLUE, "10.44.9.7/16", "10.44.9.7/24"),
        (BLUE, "fd44:0:7::9", "fd44:0:7::9/64"),
    ],
)
def test_an_address_has_the_mask_of_its_subnet(network: VirtualNetwork, address: str, expected: str) -> None:
    assert add_masks((address, expected), network) == (expected,)

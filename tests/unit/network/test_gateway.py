"""The gateway of a guest that moves."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.network.builders import MAC, decide, error

PROXY = "0a:58:a9:fe:01:01"
READY = "TargetDomainReady"
BROADCAST = "ff:ff:ff:ff:ff:ff"
CLUSTER = ["10.44.0.0/16", "fd44::/48"]
JOINS = {"hv-a": ["100.65.0.4/16", "fd99::4/64"], "hv-b": ["100.65.0.9/16", "fd99::9/64"], "hv-c": ["fd99::c"]}
JOIN_MAC = {"hv-a": "0a:58:64:41:00:04", "hv-b": "0a:58:64:41:00:09"}


@pytest.mark.parametrize(
    ("given", "mac", "link_local"),
    [
        ({"address": "10.44.7.23"}, MAC, "fe80::858:aff:fe2c:717"),
        ({"address": "::ffff:10.44.7.23"}, MAC, "fe80::858:aff:fe2c:717"),
        ({"address": "100.65.0.9"}, "0a:58:64:41:00:09", "fe80::858:64ff:fe41:9"),
        ({"address": "169.254.1.1"}, PROXY, "fe80::858:a9ff:fefe:101"),
        ({"address": "fe80::1"}, "0a:58:6d:6d:c1:50", "fe80::858:6dff:fe6d:c150"),
        ({"address": "FE80:0:0::0001"}, "0a:58:6d:6d:c1:50", "fe80::858:6dff:fe6d:c150"),
        ({"mac": "0A-58-A9-FE-01-01"}, PROXY, "fe80::858:a9ff:fefe:101"),
        ({"mac": "52:54:00:12:34:56"}, "52:54:00:12:34:56", "fe80::5054:ff:fe12:3456"),
    ],
)
def test_a_mac_belongs_to_an_address_and_a_link_local_to_a_mac(given: Any, mac: str, link_local: str) -> None:
    assert decide("mac", given) == {"mac": mac, "linkLocal": link_local}


@pytest.mark.parametrize("given", [{}, {"address": "x"}, {"mac": "x"}, {"address": "10.44.7.23/24"}])
def test_neither_address_nor_mac_is_invalid(given: Any) -> None:
    assert decide("mac", given) == error("invalid")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"clusterSubnets": CLUSTER}, f"{PROXY} 169.254.1.1 fe80::1 10.44.0.0/16 fd44::/48"),
        ({"clusterSubnets": ["FD44:0::/48", "10.44.0.0/16"]}, f"{PROXY} 169.254.1.1 fe80::1 fd44::/48 10.44.0.0/16"),
        ({}, f"{PROXY} 169.254.1.1 fe80::1"),
        (
            {"full": False, "clusterSubnets": CLUSTER, "gateways": ["10.44.7.1"], "neighbours": ["10.44.7.48"]},
            "169.254.1.1 10.44.7.1 10.44.7.48",
        ),
        (
            {"full": False, "gateways": ["fd44::1", "10.44.7.1"], "neighbours": ["fd44::48", "10.44.7.1"]},
            "169.254.1.1 10.44.7.1",
        ),
        ({"full": False}, "169.254.1.1"),
    ],
)
def test_the_proxy_answers_for_subnets_or_on_an_old_ovn_for_ipv4_hosts(given: Any, text: str) -> None:
    assert decide("arp_proxy", given) == {"arp_proxy": text}


def test_only_the_default_network_has_a_proxy_on_its_router_port() -> None:
    row = {"name": "stor-hv-b", "type": "router", "addresses": ["router"], "options": {"router-port": "rtos-hv-b"}}
    given = {"hypervisor": "hv-b", "network": "default", "topology": "routed", "clusterSubnets": CLUSTER}
    text = f"{PROXY} 169.254.1.1 fe80::1 10.44.0.0/16 fd44::/48"
    assert decide("router_port", given) == row | {"options": row["options"] | {"arp_proxy": text}}
    assert decide("router_port", given | {"network": None, "topology": None})["options"]["arp_proxy"] == text
    assert decide("router_port", given | {"network": "blue"}) == row
    old = decide("router_port", given | {"full": False, "gateways": ["10.44.7.1"]})
    assert old["options"]["arp_proxy"] == "169.254.1.1 10.44.7.1"


def garps(**more: Any) -> Any:
    given = {
        "state": READY,
        "topology": "layer2",
        "subnets": ["192.168.40.0/24", "fd40::/64"],
        "gateways": ["192.168.40.1", "fd40::1"],
        "targetJoinAddress": "100.65.0.9",
        "interface": "ovn-k8s-mp3",
    }
    return decide("gateway_garps", given | more)


def frames(mac: str, ip: str = "192.168.40.1") -> list[dict[str, str]]:
    frame = {
        "ethDst": BROADCAST,
        "senderMac": mac,
        "senderIp": ip,
        "targetMac": "00:00:00:00:00:00",
        "targetIp": ip,
    }
    return [{"op": "request", **frame}, {"op": "reply", **frame}]


@pytest.mark.parametrize(
    ("more", "mac"),
    [
        ({}, "0a:58:64:41:00:09"),
        ({"topology": None}, "0a:58:64:41:00:09"),
        ({"targetJoinAddress": "100.65.0.9/16"}, "0a:58:64:41:00:09"),
        ({"transitRouter": True, "targetJoinAddress": None}, "0a:58:c0:a8:28:01"),
        ({"topology": "routed", "targetJoinAddress": None}, PROXY),
        ({"topology": "routed", "transitRouter": True}, PROXY),
    ],
)
def test_each_ipv4_subnet_has_a_request_and_a_reply_with_its_gateways_mac(more: Any, mac: str) -> None:
    assert garps(**more) == {"interface": "ovn-k8s-mp3", "frames": frames(mac)}


def test_the_gateway_of_a_subnet_is_the_one_that_lies_in_it() -> None:
    found = garps(
        subnets=["192.168.41.0/24", "192.168.42.0/24", "192.168.40.0/24"],
        gateways=["192.168.40.1", "192.168.41.1"],
    )
    mac = "0a:58:64:41:00:09"
    assert found["frames"] == frames(mac, "192.168.41.1") + frames(mac)


@pytest.mark.parametrize(
    "more",
    [{"state": None}, {"state": "InProgress"}, {"state": "Failed"}, {"subnets": ["fd40::/64"]}, {"gateways": []}],
)
def test_no_gateway_is_announced_before_the_target_is_ready_or_without_one(more: Any) -> None:
    assert garps(**more)["frames"] == []


def test_a_long_interface_is_cut_and_a_missing_join_address_refused() -> None:
    assert garps(interface="ovn-k8s-mp1234567")["interface"] == "ovn-k8s-mp12345"
    assert garps(targetJoinAddress=None) == error("invalid")
    assert garps(state="Ready") == error("invalid")


def advertise(**more: Any) -> Any:
    given = {
        "state": READY,
        "target": "hv-b",
        "joinAddresses": JOINS,
        "joinSubnetV6": "fd99::/64",
        "mac": "0a:58:c0:a8:28:09",
        "addresses": ["192.168.40.9/24", "FD40::0009/64", "fd40::a/64"],
        "gateways": ["192.168.40.1", "fd40::1"],
    }
    return decide("gateway_advertisements", given | more)


def advertisement(mac: str, link_local: str, lifetime: int, **more: Any) -> dict[str, Any]:
    return {
        "ethSrc": mac,
        "ethDst": "0a:58:c0:a8:28:09",
        "ipSrc": link_local,
        "ipDst": "fd40::9",
        "hopLimit": 255,
        "icmpType": 134,
        "curHopLimit": 255,
        "managed": True,
        "preference": "high" if lifetime else "medium",
        "routerLifetime": lifetime,
        "sourceLinkLayer": mac,
    } | more


OLD_A = advertisement(JOIN_MAC["hv-a"], "fe80::858:64ff:fe41:4", 0)
OLD_B = advertisement(JOIN_MAC["hv-b"], "fe80::858:64ff:fe41:9", 0)
MAC_C = decide("mac", {"address": "fd99::c"})
OLD_C = advertisement(MAC_C["mac"], MAC_C["linkLocal"], 0)


def test_the_guest_forgets_every_other_gateway_and_learns_the_targets() -> None:
    new = advertisement(JOIN_MAC["hv-b"], "fe80::858:64ff:fe41:9", 65535)
    assert advertise() == {"advertisements": [OLD_A, OLD_C, new]}
    swapped = JOINS | {"hv-b": JOINS["hv-b"][::-1]}
    assert advertise(joinAddresses=swapped)["advertisements"][-1] == new


def test_behind_a_shared_router_it_forgets_them_all_and_its_address_of_the_join_subnet() -> None:
    prefix = {
        "prefix": "fd99::/64", "onLink": True, "autonomous": True, "validLifetime": 0, "preferredLifetime": 0,
    }  # fmt: skip
    new = advertisement("0a:58:c0:a8:28:01", "fe80::858:c0ff:fea8:2801", 65535, prefixes=[prefix])
    assert advertise(transitRouter=True) == {"advertisements": [OLD_A, OLD_B, OLD_C, new]}
    own = decide("mac", {"address": "fd40::1"})
    last = advertise(transitRouter=True, gateways=["FD40::1"], joinSubnetV6=None)["advertisements"][-1]
    assert last == advertisement(own["mac"], own["linkLocal"], 65535)


def test_a_new_gateway_that_is_not_known_is_an_error() -> None:
    assert advertise(transitRouter=True, gateways=[]) == error("gateways-missing")
    assert advertise(target="hv-z") == error("gateways-missing")


@pytest.mark.parametrize(
    "more",
    [
        {"state": None},
        {"state": "InProgress"},
        {"state": "Failed"},
        {"addresses": ["192.168.40.9/24"]},
        {"addresses": []},
    ],
)
def test_nothing_is_advertised_before_the_target_is_ready_or_to_a_guest_without_ipv6(more: Any) -> None:
    assert advertise(**more) == {"advertisements": []}
    assert advertise(transitRouter=True, gateways=[], **more) == {"advertisements": []}

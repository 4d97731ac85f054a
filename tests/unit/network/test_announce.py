"""The bytes of announcements."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.unit.network.builders import decide, error

from outlive.base import Invalid
from outlive.network import (
    ArpFrame,
    NeighbourAdvertisement,
    PrefixInformation,
    RarpFrame,
    RouterAdvertisement,
    announce_address,
    encode_frame,
)

MAC = "0a:58:0a:2c:07:17"
ARP_HEAD = "000108000604"


def checksum(packet: bytes) -> int:
    """Of an IPv6 packet with ICMPv6: 0 if it is right."""
    message = packet[40:]
    pseudo = packet[8:40] + struct.pack("!II", len(message), 58)
    total = sum(struct.unpack(f"!{len(pseudo + message) // 2}H", pseudo + message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def test_an_address_is_announced_by_a_request_and_a_reply_with_its_own_four_bytes() -> None:
    ether = "ffffffffffff0a580a2c07170806"
    body = "0a580a2c07170a2c07170000000000000a2c0717"
    found = [encode_frame(frame).hex() for frame in announce_address("10.44.7.23", MAC)]
    assert found == [f"{ether}{ARP_HEAD}0001{body}", f"{ether}{ARP_HEAD}0002{body}"]
    mapped = [encode_frame(frame).hex() for frame in announce_address("::ffff:10.44.7.23", MAC)]
    assert mapped == found


def test_a_frame_of_a_decision_is_sent_as_it_is() -> None:
    given = {"state": "TargetDomainReady", "topology": "routed", "subnets": ["10.44.7.0/24"], "gateways": ["10.44.7.1"]}
    (request, _) = decide("gateway_garps", given)["frames"]
    import msgspec

    assert encode_frame(msgspec.convert(request, ArpFrame)).hex() == (
        f"ffffffffffff0a58a9fe01010806{ARP_HEAD}00010a58a9fe01010a2c07010000000000000a2c0701"
    )


def test_a_rarp_names_the_mac_alone_and_has_the_tag_of_a_vlan() -> None:
    body = f"{ARP_HEAD}00030a580a2c0717000000000a580a2c071700000000"
    assert encode_frame(RarpFrame(mac=MAC)).hex() == f"ffffffffffff0a580a2c07178035{body}"
    assert encode_frame(RarpFrame(mac=MAC), vlan=100).hex() == f"ffffffffffff0a580a2c0717810000648035{body}"


@pytest.mark.parametrize(("router", "flags"), [(False, "20"), (True, "a0")])
def test_a_neighbour_advertisement_tells_all_nodes_to_override(router: bool, flags: str) -> None:
    of = {"router": True} if router else {}
    frame = encode_frame(NeighbourAdvertisement(address="fd44:0:0:7::17", mac=MAC, **of))
    address = "fd440000000000070000000000000017"
    assert frame[:14].hex() == "3333000000010a580a2c071786dd"
    assert frame[14:54].hex() == f"6000000000203aff{address}ff020000000000000000000000000001"
    assert frame[54:56].hex() == "8800"
    assert checksum(frame[14:]) == 0
    assert frame[58:].hex() == f"{flags}000000{address}02010a580a2c0717"


def advertisement(**changes: Any) -> RouterAdvertisement:
    return RouterAdvertisement(
        **{
            "eth_src": "0a:58:64:41:00:09",
            "eth_dst": "0a:58:c0:a8:28:09",
            "ip_src": "fe80::858:64ff:fe41:9",
            "ip_dst": "fd40::9",
            "preference": "high",
            "router_lifetime": 65535,
            "source_link_layer": "0a:58:64:41:00:09",
            **changes,
        }
    )


def test_a_router_advertisement_has_its_flags_lifetime_and_source() -> None:
    frame = encode_frame(advertisement())
    assert frame[:14].hex() == "0a58c0a828090a586441000986dd"
    addresses = "fe80000000000000085864fffe410009fd400000000000000000000000000009"
    assert frame[14:54].hex() == f"6000000000183aff{addresses}"
    assert frame[54:56].hex() == "8600"
    assert checksum(frame[14:]) == 0
    assert frame[58:].hex() == "ff88ffff000000000000000001010a5864410009"
    withdrawn = encode_frame(advertisement(preference="medium", router_lifetime=0))
    assert withdrawn[58:62].hex() == "ff800000"
    assert checksum(withdrawn[14:]) == 0


def test_a_prefix_is_an_option_of_32_bytes() -> None:
    prefix = PrefixInformation(prefix="fd99::/64", on_link=True, autonomous=True)
    frame = encode_frame(advertisement(prefixes=(prefix,)))
    assert frame[-32:].hex() == "030440c0" + "00" * 12 + "fd990000000000000000000000000000"
    assert frame[18:20].hex() == "0038"
    assert checksum(frame[14:]) == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"prefix": "fd99::/64", "onLink": True, "autonomous": True},
            "40" "c0" "00000000" "00000000" "00000000" "fd990000000000000000000000000000",
        ),
        (
            {"prefix": "FD99::1/48", "onLink": True, "validLifetime": 3600, "preferredLifetime": 4294967295},
            "30" "80" "00000e10" "ffffffff" "00000000" "fd990000000000000000000000000000",
        ),
        ({"prefix": "::/0", "autonomous": True}, "00" "40" + "00" * 28),
    ],
)  # fmt: skip
def test_a_prefix_option_is_30_bytes_behind_type_and_length(given: Any, expected: str) -> None:
    assert decide("prefix_option", given) == {"hex": expected, "length": 30}


@pytest.mark.parametrize(
    "given", [{}, {"prefix": "10.44.0.0/16"}, {"prefix": "fd99::1"}, {"prefix": "fd99::/64", "validLifetime": -1}]
)
def test_a_prefix_that_is_none_is_invalid(given: Any) -> None:
    assert decide("prefix_option", given) == error("invalid")


def test_a_frame_is_not_made_of_the_wrong_family_or_vlan() -> None:
    for frame, vlan in (
        (announce_address("fd44::1", MAC)[0], None),
        (NeighbourAdvertisement(address="10.44.7.23", mac=MAC), None),
        (RarpFrame(mac="x"), None),
        (RarpFrame(mac=MAC), 0),
        (RarpFrame(mac=MAC), 4095),
    ):
        with pytest.raises(Invalid):
            encode_frame(frame, vlan=vlan)

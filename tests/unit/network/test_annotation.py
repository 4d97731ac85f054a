"""The network annotation, read and written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.builders import IPV4, IPV6, MAC, addresses, decide, error

LAYER2 = {
    "ip_addresses": ["192.168.40.9/24"],
    "mac_address": "0a:58:c0:a8:28:09",
    "tunnel_id": 6,
    "role": "secondary",
}
FULL = {
    "ip_addresses": [IPV4],
    "mac_address": MAC,
    "gateway_ips": ["10.44.7.1"],
    "ip_address": IPV4,
    "gateway_ip": "10.44.7.1",
    "role": "primary",
}
NOTHING = {"gateways": [], "routes": [], "role": None, "tunnelId": None, "ipv6LlaGateway": None}


def decode(entry: Any, network: str = "default") -> Any:
    return decide("annotation_decode", {"annotation": json.dumps({"default": entry}), "network": network})


def encode(existing: Any = None, **members: Any) -> Any:
    return decide("annotation_encode", {"network": "default", "existing": existing} | addresses(**members))


def test_each_network_of_an_annotation_is_read_by_its_key() -> None:
    text = json.dumps({"default": FULL, "till/green": LAYER2})
    one = decide("annotation_decode", {"annotation": text, "network": "default"})
    assert one == NOTHING | {"mac": MAC, "addresses": [IPV4], "gateways": ["10.44.7.1"], "role": "primary"}
    other = decide("annotation_decode", {"annotation": text, "network": "till/green"})
    assert other == NOTHING | {
        "mac": "0a:58:c0:a8:28:09", "addresses": ["192.168.40.9/24"], "tunnelId": 6, "role": "secondary",
    }  # fmt: skip


@pytest.mark.parametrize("text", [None, "{}", "null", '{"default":null}', '{"till/green":{}}'])
def test_a_key_or_network_that_is_absent_is_not_set_yet(text: str | None) -> None:
    assert decide("annotation_decode", {"annotation": text, "network": "default"}) == error("not-set")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', '{"default":7}', '{"default":[]}', "[" * 5000])
def test_an_annotation_that_is_no_object_of_objects_is_invalid(text: str) -> None:
    assert decide("annotation_decode", {"annotation": text, "network": "default"}) == error("invalid")


@pytest.mark.parametrize(
    "changes",
    [
        {"mac_address": None},
        {"mac_address": ""},
        {"mac_address": "0a:58:0a:2c:07"},
        {"mac_address": "0a:58:0a:2c:07:1g"},
        {"mac_address": "0a:58-0a:2c:07:17"},
        {"ip_addresses": ["10.44.7.23"]},
        {"ip_addresses": ["10.44.7.23/33"]},
        {"ip_addresses": ["10.44.7.23/255.255.255.0"]},
        {"ip_addresses": ["10.44.7.256/24"]},
        {"ip_addresses": ["fe80::1%eth0/64"]},
        {"ip_addresses": IPV4},
        {"ip_addresses": [7]},
        {"ip_address": "10.44.7.24/24"},
        {"ip_address": "10.44.7.23/25"},
        {"ip_address": "x"},
        {"gateway_ips": ["10.44.7"]},
        {"gateway_ips": ["10.44.7.1/24"]},
        {"gateway_ip": "10.44.7.2"},
        {"routes": [{"dest": "0.0.0.0/0", "nextHop": "10.44.7.1"}]},
        {"routes": [{"dest": "10.0.0.1/0", "nextHop": ""}]},
        {"routes": [{"dest": "::/0", "nextHop": ""}]},
        {"routes": [{"dest": "10.45.0.0", "nextHop": ""}]},
        {"routes": [{"nextHop": "10.44.7.1"}]},
        {"routes": [{"dest": "10.45.0.0/16", "nextHop": "gw"}]},
        {"routes": [{"dest": "10.45.0.0/16", "nextHop": "fd44::1"}]},
        {"routes": [{"dest": "fd45::/64", "nextHop": "10.44.7.1"}]},
        {"ipv6_lla_gateway_ip": "fd44::1"},
        {"ipv6_lla_gateway_ip": "169.254.1.1"},
        {"ipv6_lla_gateway_ip": "x"},
        {"tunnel_id": "6"},
        {"tunnel_id": -1},
        {"role": 7},
    ],
)
def test_an_entry_with_a_value_that_cannot_be_read_is_invalid(changes: dict[str, Any]) -> None:
    assert decode(FULL | changes) == error("invalid")


@pytest.mark.parametrize("several", [None, []])
def test_a_single_value_is_the_list_where_that_is_empty(several: Any) -> None:
    entry = {"mac_address": MAC, "ip_addresses": several, "gateway_ips": several}
    assert decode(entry)["addresses"] == []
    found = decode(entry | {"ip_address": IPV4, "gateway_ip": "10.44.7.1"})
    assert (found["addresses"], found["gateways"]) == ([IPV4], ["10.44.7.1"])


def test_texts_are_read_in_their_shortest_lower_form() -> None:
    entry = {
        "mac_address": "0A-58-0A-2C-07-17",
        "ip_addresses": ["FD44:0:0:7:0:0:0:17/64", "::ffff:10.44.7.23/120"],
        "gateway_ips": ["FD44:0000::1", "::ffff:10.44.7.1"],
        "routes": [{"dest": "10.45.1.2/16"}, {"dest": "FD45::1/64", "nextHop": "FD44::0001"}],
        "ipv6_lla_gateway_ip": "FE80:0::1",
        "tunnel_id": 0,
        "unknown": [],
    }
    assert decode(entry) == {
        "mac": MAC,
        "addresses": [IPV6, IPV4],
        "gateways": ["fd44::1", "10.44.7.1"],
        "routes": [{"dest": "10.45.0.0/16", "nextHop": ""}, {"dest": "fd45::/64", "nextHop": "fd44::1"}],
        "role": None,
        "tunnelId": None,
        "ipv6LlaGateway": "fe80::1",
    }


def test_a_single_address_is_written_twice_and_absent_members_are_left_out() -> None:
    assert encode(role="primary") == {"value": {"default": FULL}}
    assert encode(addresses=[], gateways=[]) == {"value": {"default": {"ip_addresses": None, "mac_address": MAC}}}
    routes = [{"dest": "10.45.0.0/16"}, {"dest": "10.46.0.0/16", "nextHop": "10.44.7.9"}]
    both = encode(addresses=[IPV4, IPV6], gateways=["fd44:0:0:7::1", "10.44.7.1"], routes=routes, tunnelId=3)
    assert both["value"]["default"] == {
        "ip_addresses": [IPV4, IPV6],
        "mac_address": MAC,
        "gateway_ips": ["10.44.7.1", "fd44:0:0:7::1"],
        "routes": [{"dest": "10.45.0.0/16", "nextHop": ""}, {"dest": "10.46.0.0/16", "nextHop": "10.44.7.9"}],
        "tunnel_id": 3,
    }
    lla = encode(ipv6LlaGateway="FE80::1")["value"]["default"]
    assert lla["ipv6_lla_gateway_ip"] == "fe80::1"


def test_other_networks_stay_as_they_are_nulls_too() -> None:
    green = LAYER2 | {"ip_addresses": None, "routes": None}
    assert encode({"till/green": green, "x": None})["value"] == {
        "till/green": green,
        "x": None,
        "default": {name: value for name, value in FULL.items() if name != "role"},
    }


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, None),
        (FULL, None),
        ({"ip_address": IPV4}, None),
        ({"ip_addresses": None}, "address-override"),
        ({"ip_addresses": ["10.44.7.24/24"]}, "address-override"),
        ({"ip_addresses": ["10.44.7.23/16"]}, "address-override"),
        ({"ip_addresses": [IPV4, IPV6]}, "address-override"),
        ({"ip_addresses": ["x"]}, "invalid"),
    ],
)
def test_addresses_of_a_pod_are_never_changed(before: Any, expected: str | None) -> None:
    answer = encode({"default": before}, role="primary")
    assert answer == ({"value": {"default": FULL}} if expected is None else error(expected))


def test_the_order_of_addresses_may_change() -> None:
    before = {"default": {"mac_address": MAC, "ip_addresses": [IPV6, IPV4]}}
    assert encode(before, addresses=[IPV4, IPV6])["value"]["default"]["ip_addresses"] == [IPV4, IPV6]


@pytest.mark.parametrize(
    "changes",
    [
        {"gateways": ["10.44.7.1", "10.44.7.2"]},
        {"mac": "x"},
        {"mac": None},
        {"addresses": ["10.44.7.23"]},
        {"routes": [{"dest": "0.0.0.0/0"}]},
        {"ipv6LlaGateway": "fd44::1"},
        {"tunnelId": -1},
    ],
)
def test_nothing_is_written_that_could_not_be_read(changes: dict[str, Any]) -> None:
    assert encode(**changes) == error("invalid")


HOSTS = st.lists(
    st.one_of(
        st.tuples(st.ip_addresses(v=4), st.integers(1, 32)), st.tuples(st.ip_addresses(v=6), st.integers(1, 128))
    ),
    max_size=3,
    unique=True,
)


@given(HOSTS, st.binary(min_size=6, max_size=6), st.integers(1, 9) | st.none(), st.sampled_from([None, "primary"]))
def test_what_is_written_is_read_again(hosts: Any, mac: bytes, tunnel: int | None, role: str | None) -> None:
    port = {"mac": mac.hex(":"), "addresses": [f"{a}/{m}" for a, m in hosts], "tunnelId": tunnel, "role": role}
    value = decide("annotation_encode", {"network": "n", **port})["value"]
    read = decide("annotation_decode", {"annotation": json.dumps(value), "network": "n"})
    again = decide("annotation_encode", {"network": "n", "existing": value, **read})
    assert again == {"value": value}
    assert read["mac"] == port["mac"]
    assert len(read["addresses"]) == len(hosts)

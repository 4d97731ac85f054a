"""Decisions of networks that hosts make themselves: addresses of a host, MTU, order of firewall rules."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.cli import decision_table
from outlive.node.links import AddressInput, MtuInput, choose_mtu, plan_addresses, usable_range
from outlive.resources import decode_as, encode

TABLE = decision_table()


def decide(name: str, given: Any) -> Any:
    return decode_as(Any, TABLE.decide_json(name, encode(given)))


def address(hostname: str = "hv3", network: str = "10.0.0.0/24", selection: str = "by-id", **more: Any) -> Any:
    floating = more.pop("floating", "10.0.0.250")
    return decide(
        "addr.plan", {"hostname": hostname, "network": network, "floating": floating, "selection": selection} | more
    )


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({}, "10.0.0.3/24"),
        ({"hostname": "rack7-node012"}, "10.0.0.12/24"),
        ({"hostname": "a2b"}, "10.0.0.2/24"),
        ({"hostname": "node1.dc9"}, "10.0.0.1/24"),
        ({"selection": "10.0.0.254"}, "10.0.0.254/24"),
        ({"gateway": "10.0.0.1"}, "10.0.0.3/24"),
        ({"gateway": None}, "10.0.0.3/24"),
        ({"network": "10.0.0.0/31", "floating": "10.0.0.1", "hostname": "n1"}, "10.0.0.0/31"),
        ({"network": "fd00::/64", "floating": "fd00::ff", "hostname": "n1"}, "fd00::1/64"),
        ({"network": "fd00::/127", "floating": "fd00::1", "hostname": "n1"}, "fd00::/127"),
        ({"network": "fd00::/64", "floating": "fd00::ffff:ffff:ffff:ffff", "selection": "FD00:0::7"}, "fd00::7/64"),
    ],
)
def test_the_own_address_follows_from_the_number_or_is_the_one_that_was_chosen(given: Any, own: str) -> None:
    assert address(**given)["own"] == own


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"network": "10.0.0.1/24", "floating": "nonsense", "hostname": "none"}, "bad_network"),
        ({"network": "ten"}, "bad_network"),
        ({"floating": "10.0.0.0", "hostname": "none"}, "bad_floating"),
        ({"floating": "10.0.0.255"}, "bad_floating"),
        ({"floating": "10.0.1.9"}, "bad_floating"),
        ({"floating": "fd00::1"}, "bad_floating"),
        ({"floating": "nonsense"}, "bad_floating"),
        ({"network": "fd00::/64", "floating": "fd00::"}, "bad_floating"),
        ({"hostname": "none"}, "no_id"),
        ({"hostname": "node0"}, "no_id"),
        ({"hostname": "node00"}, "no_id"),
        ({"hostname": "node9-a0"}, "no_id"),
        ({"hostname": "node.7"}, "no_id"),
        ({"hostname": "node255"}, "bad_own"),
        ({"hostname": "node" + "9" * 5000}, "bad_own"),
        ({"network": "10.0.0.7/32", "floating": "10.0.0.7", "hostname": "n2"}, "bad_own"),
        ({"network": "10.0.0.7/32", "floating": "10.0.0.7", "hostname": "n1"}, "collision"),
        ({"selection": "10.0.0.0"}, "bad_own"),
        ({"selection": "10.0.1.1"}, "bad_own"),
        ({"selection": "by-name"}, "bad_own"),
        ({"selection": "fe80::1%eth0"}, "bad_own"),
        ({"hostname": "node250"}, "collision"),
        ({"selection": "10.0.0.1", "gateway": "10.0.0.1"}, "collision"),
        ({"gateway": "nonsense", "network": "ten"}, "invalid"),
    ],
)
def test_the_first_thing_that_is_wrong_with_addresses_is_the_error(given: Any, code: str) -> None:
    assert address(**given) == {"error": code}


@given(st.integers(1, 260), st.integers(20, 32), st.sampled_from([None, "10.0.0.1"]))
def test_hosts_of_different_numbers_never_share_an_address(number: int, length: int, gateway: str | None) -> None:
    network = ip_network(f"10.0.0.0/{length}")
    first, last = usable_range(network)
    floating = str(network.network_address + (last - first + (0 if length > 30 else 1)))
    given = {"hostname": f"n{number}", "network": str(network), "floating": floating, "selection": "by-id"}
    answer = decide("addr.plan", given | {"gateway": gateway})
    index = first + number - 1
    if index > last:
        assert answer == {"error": "bad_own"}
    elif str(type(network.network_address)(index)) in (floating, gateway):
        assert answer == {"error": "collision"}
    else:
        assert answer == {"own": f"{type(network.network_address)(index)}/{length}", "floating": f"{floating}/{length}"}


def mtu(requested: Any = None, kind: str = "bridged") -> Any:
    return decide("net.mtu", {"type": kind, "requested": requested, "bridge_mtu": 9000, "cluster_mtu": 1500})


@pytest.mark.parametrize(
    ("requested", "kind", "answer"),
    [
        (None, "bridged", (9000, True, 9000)),
        ("", "managed", (1450, True, 1450)),
        (9001, "bridged", (9000, True, 9000)),
        ("1500", "managed", (1450, True, 1450)),
        (1450, "managed", (1450, False, 1450)),
        ("1400", "managed", (1400, False, 1450)),
        (576, "managed", (576, False, 1450)),
        ("9" * 5000, "managed", (1450, True, 1450)),
        ("01400", "managed", (1400, False, 1450)),
    ],
)
def test_a_network_gets_what_it_asks_for_at_most_what_lies_below(requested: Any, kind: str, answer: Any) -> None:
    assert mtu(requested, kind) == dict(zip(("mtu", "store", "max"), answer, strict=True))


@pytest.mark.parametrize(
    "requested", [575, "575", 0, -1400, "-1400", "1e3", " 1400", "1400 ", "x", "١٤٠٠", 1400.5, "1400.0"]
)
def test_nonsense_is_no_mtu(requested: Any) -> None:
    assert mtu(requested) == {"error": "bad_mtu"}


def test_what_a_network_lies_on_is_needed() -> None:
    assert decide("net.mtu", {"type": "bridged", "cluster_mtu": 1500}) == {"error": "invalid"}
    assert decide("net.mtu", {"type": "managed", "bridge_mtu": 1500}) == {"error": "invalid"}
    assert decide("net.mtu", {"type": "routed", "bridge_mtu": 1500}) == {"error": "invalid"}


@given(st.one_of(st.none(), st.integers(576, 70_000)), st.integers(700, 9100))
def test_an_mtu_is_written_down_exactly_where_it_is_another_one(requested: int | None, below: int) -> None:
    answer = choose_mtu(MtuInput(type="managed", requested=requested or "", cluster_mtu=below))
    assert answer.mtu <= answer.max == below - 50
    assert answer.store == (answer.mtu != requested)


def order(rules: dict[str, Any], op: Any = None) -> Any:
    answer = decide("firewall.order", {"rules": rules, "op": op})
    return answer.get("order", answer)


RULES = {"c": 2, "a": "10", "b": 2, "d": -1}


@pytest.mark.parametrize(
    ("op", "answer"),
    [
        (None, ["d", "b", "c", "a"]),
        ({"add": "new", "at": 0}, ["new", "d", "b", "c", "a"]),
        ({"add": "new", "at": 2}, ["d", "b", "new", "c", "a"]),
        ({"add": "new", "at": None}, ["d", "b", "c", "a", "new"]),
        ({"add": "new"}, ["d", "b", "c", "a", "new"]),
        ({"add": "new", "at": 99}, ["d", "b", "c", "a", "new"]),
        ({"remove": "b"}, ["d", "c", "a"]),
        ({"add": "a"}, {"error": "exists"}),
        ({"remove": "new"}, {"error": "missing"}),
        ({"add": "new", "at": -1}, {"error": "invalid"}),
        ({}, {"error": "invalid"}),
        ({"add": "new", "remove": "a"}, {"error": "invalid"}),
    ],
)
def test_rules_go_by_number_then_by_name_and_a_change_keeps_the_others_in_order(op: Any, answer: Any) -> None:
    assert order(RULES, op) == answer


@pytest.mark.parametrize("number", ["", "two", "1.5", 1.5, "٢", True])
def test_an_order_that_is_no_integer_is_refused(number: Any) -> None:
    assert order({"a": number}) == {"error": "invalid"}


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(-9, 9), max_size=6),
    st.text(min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(0, 9)),
)
def test_a_rule_that_is_added_and_removed_again_changes_nothing(rules: dict[str, int], new: str, at: Any) -> None:
    before = order(rules)
    if new in rules:
        assert order(rules, {"add": new, "at": at}) == {"error": "exists"}
        return
    added = order(rules, {"add": new, "at": at})
    assert added.index(new) == min(len(rules) if at is None else at, len(rules))
    numbered = {name: place for place, name in enumerate(added)}
    assert order(numbered, {"remove": new}) == before


def test_both_addresses_have_the_length_of_the_network() -> None:
    given = AddressInput(hostname="n7", network="10.8.0.0/16", floating="10.8.255.254", selection="by-id")
    plan = plan_addresses(given)
    assert (plan.own, plan.floating) == ("10.8.0.7/16", "10.8.255.254/16")

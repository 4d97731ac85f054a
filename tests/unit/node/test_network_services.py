"""What services of managed networks read, made from their specs: arguments, rules, zones, answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput, Refused, Unavailable
from outlive.node.services import (
    BANNER,
    SERIALS_OF_TERM,
    DhcpFiles,
    FirewallKeeper,
    LeaseChange,
    MetadataVm,
    ServedLease,
    ServedNetwork,
    ZoneRecord,
    ZoneState,
    answer_metadata,
    check_rule,
    count_free,
    dhcp_arguments,
    lease_lines,
    merge_changes,
    needs_restart,
    plan_zone,
    render_firewall,
    reservation_files,
    view_network,
    view_networks,
)
from outlive.node.services.role_places import role_places
from outlive.resources import (
    DhcpRange,
    DhcpReservation,
    FirewallRule,
    ObjectMeta,
    Subnet,
    SystemNetwork,
    VirtualNetwork,
    VirtualNetworkSpec,
)

FILES = DhcpFiles(hosts="/h", script="/s")
V4 = Subnet(cidr="10.8.0.0/24", gateway="10.8.0.1", dhcp=DhcpRange(start="10.8.0.10", end="10.8.0.12"))
V6 = Subnet(cidr="fd00:8::/64", dhcp=DhcpRange())
_replace = msgspec.structs.replace


def network(name: str = "blue", vni: int = 8, **changes: Any) -> VirtualNetwork:
    spec: dict[str, Any] = {"type": "managed", "vni": vni, "subnets": (V4,), **changes}
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=VirtualNetworkSpec(**spec))


def served(**changes: Any) -> ServedNetwork:
    return view_network(network(**changes))


# DHCP


def test_a_server_listens_on_its_bridge_alone() -> None:
    arguments = dhcp_arguments(served(subnets=(V4, V6)), FILES)
    assert "--bind-interfaces" in arguments
    assert [one for one in arguments if one.startswith("--listen-address")] == [
        "--listen-address=10.8.0.1",
        "--listen-address=fd00:8::1",
    ]
    interfaces = [one for one in arguments if "interface=" in one]
    assert interfaces == ["--interface=vmbr8", "--except-interface=lo"]


@pytest.mark.parametrize(
    ("subnets", "ranges"),
    [
        ((V4,), ["10.8.0.10,10.8.0.12,255.255.255.0,48h"]),
        ((V4, V6), ["10.8.0.10,10.8.0.12,255.255.255.0,48h", "fd00:8::,ra-stateless,ra-names,64,24h"]),
        ((V6,), ["fd00:8::2,fd00:8::ffff:ffff:ffff:ffff,64,24h"]),
        ((_replace(V4, dhcp=None), V6), ["fd00:8::,ra-stateless,ra-names,64,24h"]),
        ((_replace(V4, dhcp=None),), []),
    ],
)
def test_ranges_are_those_of_the_families_that_have_dhcp(subnets: tuple[Subnet, ...], ranges: list[str]) -> None:
    arguments = dhcp_arguments(served(subnets=subnets), FILES)
    assert [one.partition("=")[2] for one in arguments if one.startswith("--dhcp-range")] == ranges


def test_guests_are_given_the_mtu_of_their_network_also_where_they_do_not_ask_for_it() -> None:
    blue = network()
    arguments = dhcp_arguments(view_network(_replace(blue, status=_replace(blue.status, mtu=1450))), FILES)
    assert "--dhcp-option-force=option:mtu,1450" in arguments
    assert not any("mtu" in one for one in dhcp_arguments(view_network(blue), FILES))


@pytest.mark.parametrize(
    ("changes", "restarts"),
    [
        ({"domain": "blue.example"}, True),
        ({"subnets": (_replace(V4, gateway="10.8.0.2"),)}, True),
        ({"subnets": (V4, V6)}, True),
        ({"reservations": (DhcpReservation(mac="02:00:00:00:00:01", address="10.8.0.5"),)}, False),
        ({"name_servers": ("ns1.example",)}, False),
        ({"rules": (FirewallRule(name="x", direction="in", rule="drop"),)}, False),
    ],
)
def test_only_what_a_server_reads_at_its_start_restarts_it(changes: dict[str, Any], restarts: bool) -> None:
    assert needs_restart(served(), served(**changes)) is restarts


def test_reservations_are_one_file_for_each_interface() -> None:
    kept = (
        DhcpReservation(mac="02:00:00:00:00:0A", address="10.8.0.5", hostname="web"),
        DhcpReservation(mac="02-00-00-00-00-0b", address="fd00:8::5"),
    )
    assert reservation_files(served(subnets=(V4, V6), reservations=kept)) == {
        "02-00-00-00-00-0a": "02:00:00:00:00:0a,10.8.0.5,web\n",
        "02-00-00-00-00-0b": "02:00:00:00:00:0b,[fd00:8::5]\n",
    }


def test_leases_are_printed_as_the_server_reads_them() -> None:
    leases = [
        ServedLease(
            address="fd00:8::9", mac="02:00:00:00:00:03", hostname="six", client_id="00:01", iaid="7", expires=8
        ),
        ServedLease(address="10.8.0.12", mac="02:00:00:00:00:02", expires=7),
        ServedLease(address="10.8.0.2", mac="02:00:00:00:00:01", hostname="one", client_id="01:02", expires=9),
        ServedLease(address="fd00:8::8", mac="02:00:00:00:00:04"),
        ServedLease(address="10.8.0.3", mac="02:00:00:00:00:05", hostname="a\n9 02:00:00:00:00:06 10.8.0.4 b *"),
        ServedLease(address="no address", mac="02:00:00:00:00:06"),
    ]
    v4 = ["9 02:00:00:00:00:01 10.8.0.2 one 01:02", "7 02:00:00:00:00:02 10.8.0.12 * *"]
    assert lease_lines(served(), leases[1:3]).splitlines() == v4
    duid, *lines = lease_lines(served(subnets=(V6,)), leases).splitlines()
    assert lines == [*v4, "8 7 fd00:8::9 six 00:01"]
    assert duid.startswith("duid 00:04:")
    assert lease_lines(served(subnets=(V6,), vni=9), ()) != f"{duid}\n"


def change(action: str, mac: str, address: str, expires: int, hostname: str = "") -> LeaseChange:
    return LeaseChange(
        vni=8, action=action, lease=ServedLease(address=address, mac=mac, expires=expires, hostname=hostname)
    )


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({}, [change("add", "a", "1", 5)], {"1": ("a", 5)}),
        ({"1": ("a", 5)}, [change("old", "a", "1", 9)], {"1": ("a", 9)}),
        ({"1": ("a", 5)}, [change("del", "a", "1", 5)], {}),
        ({"1": ("a", 5)}, [change("add", "b", "1", 9)], {"1": ("b", 9)}),
        ({"1": ("a", 9)}, [change("add", "b", "1", 5)], {"1": ("a", 9)}),
        ({"1": ("a", 9)}, [change("del", "a", "1", 5)], {"1": ("a", 9)}),
        ({"1": ("a", 9)}, [change("old", "a", "1", 0)], {"1": ("a", 0)}),
        ({"1": ("a", 9)}, [change("del", "a", "2", 9)], {"1": ("a", 9)}),
        ({"1": ("b", 5)}, [change("del", "a", "1", 9)], {"1": ("b", 5)}),
        ({"1": ("a", 5)}, [change("add", "a", "2", 9)], {"1": ("a", 5), "2": ("a", 9)}),
    ],
)
def test_changes_are_merged_and_older_ones_change_nothing(
    before: dict[str, tuple[str, int]], changes: list[LeaseChange], after: dict[str, tuple[str, int]]
) -> None:
    leases = {address: ServedLease(address=address, mac=mac, expires=end) for address, (mac, end) in before.items()}
    assert {address: (one.mac, one.expires) for address, one in merge_changes(leases, changes).items()} == after


changes_of_leases = st.lists(
    st.builds(
        change,
        st.sampled_from(("add", "old", "del")),
        st.sampled_from("abc"),
        st.sampled_from("123"),
        st.integers(0, 9),
    )
)


@given(changes_of_leases)
def test_an_address_has_the_lease_that_ends_last_and_a_spool_that_is_read_twice_changes_nothing(
    changes: list[LeaseChange],
) -> None:
    given = [one for one in changes if one.action != "del" and one.lease.expires]
    merged = merge_changes({}, given)
    ends = {address: max(one.lease.expires for one in given if one.lease.address == address) for address in merged}
    assert {address: one.expires for address, one in merged.items()} == ends
    if len({one.lease.expires for one in given}) == len(given):
        assert merge_changes(merged, given) == merged


def test_a_range_is_full_once_every_address_is_leased_or_reserved() -> None:
    kept = DhcpReservation(mac="02:00:00:00:00:01", address="10.8.0.10")
    view = served(reservations=(kept,))
    assert count_free(view, []) == 2
    assert count_free(view, [ServedLease(address="10.8.0.10"), ServedLease(address="10.8.0.11")]) == 1
    assert count_free(view, [ServedLease(address="10.8.0.12"), ServedLease(address="10.8.0.11")]) == 0
    assert count_free(served(subnets=(V6,)), []) is None


# What makes no sense


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"subnets": (_replace(V4, cidr="10.8.0.1/24"),)}, "subnets[0].cidr"),
        ({"subnets": (_replace(V4, gateway="10.9.0.1"),)}, "subnets[0].gateway"),
        ({"subnets": (_replace(V4, gateway=""),)}, "subnets[0].gateway"),
        ({"subnets": (_replace(V4, dhcp=DhcpRange(start="10.8.0.9", end="10.8.0.8")),)}, "subnets[0].dhcp"),
        ({"subnets": (_replace(V4, dhcp=DhcpRange(start="10.7.0.9", end="10.8.0.9")),)}, "subnets[0].dhcp"),
        ({"subnets": (_replace(V4, dhcp=DhcpRange()),)}, "subnets[0].dhcp.start"),
        ({"subnets": (_replace(V6, cidr="fd00::/48"),)}, "subnets[0].cidr"),
        ({"subnets": (V4, V4)}, "subnets[1]"),
        ({"domain": "a b"}, "spec.domain"),
        ({"name_servers": ("x y",)}, "spec.nameServers"),
        ({"vni": 0}, "VirtualNetwork/blue"),
        ({"reservations": (DhcpReservation(mac="02:00:00:00:00:01", address="10.9.0.1"),)}, "reservations[0]"),
        ({"reservations": (DhcpReservation(mac="x\ny", address="10.8.0.5"),)}, "reservations[0]"),
        (
            {"reservations": (DhcpReservation(mac="02:00:00:00:00:01", address="10.8.0.5", hostname="a,b"),)},
            "reservations[0].hostname",
        ),
    ],
)
def test_a_network_that_makes_no_sense_is_refused_with_the_field(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInput) as refused:
        view_network(network(**changes))
    assert place in refused.value.place
    assert refused.value.remedy


def test_other_networks_are_served_and_of_two_with_one_vni_or_domain_the_first() -> None:
    found, refused = view_networks(
        [
            network("blue", 8),
            network("copy", 8, domain="copy.example"),
            network("name", 9, domain="blue.local"),
            network("odd", 10, domain="a b"),
            network("over", 13, subnets=(_replace(V4, cidr="10.8.0.0/16"),)),
            network("red", 11, subnets=(_replace(V4, cidr="10.11.0.0/24", gateway="10.11.0.1", dhcp=None),)),
            network("system", 14, subnets=(_replace(V4, cidr="10.0.0.0/25", gateway="10.0.0.1", dhcp=None),)),
            network("other", 12, type="bridged"),
        ],
        {"cluster": "10.0.0.0/24", "storage": "nonsense"},
    )
    assert list(found) == ["blue", "red"]
    assert refused.keys() == {"copy", "name", "odd", "over", "system"}
    assert "blue" in refused["copy"]
    assert refused["over"] == "10.8.0.0/16 overlaps 10.8.0.0/24 of blue (write another subnet)"
    assert "system network cluster" in refused["system"]


# Firewall


@pytest.mark.parametrize(
    "rule",
    [
        "accept }",
        "} chain x {",
        "accept; drop",
        "accept\ndrop",
        'comment "a" "b',
        "jump vmbr9-in",
        'include "/etc/passwd"',
        "goto x",
        "",
        " ",
        "accept # all",
    ],
)
def test_a_text_that_is_more_than_one_rule_is_refused(rule: str) -> None:
    with pytest.raises(BadInput):
        check_rule(rule, "x")


def test_rules_stand_in_their_order_and_each_direction_is_judged_by_itself() -> None:
    rules = (
        FirewallRule(name="ten", direction="in", order=10, rule="tcp dport { 22, 80 } accept"),
        FirewallRule(name="two", direction="in", order=2, rule='ip saddr 10.0.0.1 accept comment "a; b"'),
        FirewallRule(name="also two", direction="in", order=2, rule="ct state established accept"),
        FirewallRule(name="out", direction="out", rule="drop"),
    )
    document = render_firewall([served(subnets=(V4, V6), rules=rules)])
    inward = document.partition("chain vmbr8-in {")[2].partition("  }\n")[0].split("\n    ")[1:]
    assert [one.strip() for one in inward] == [rules[2].rule, rules[1].rule, rules[0].rule]
    assert document.index("delete table inet outlive_networks") < document.index("chain")
    assert "ip daddr 10.8.0.0/24 jump vmbr8-in" in document
    assert "ip6 saddr fd00:8::/64 jump vmbr8-out" in document
    assert document.count("hook forward") == 2
    assert "flush ruleset" not in document


class PickyFirewall:
    """Takes no document with a word."""

    def __init__(self) -> None:
        self.loaded = ""
        self.is_installed = True

    async def load(self, document: str) -> None:
        await self.check(document)
        self.loaded = document

    async def has_chain(self, table: str, chain: str) -> bool:
        return f"table inet {table} {{" in self.loaded and f"chain {chain} {{" in self.loaded

    async def check(self, document: str) -> None:
        if not self.is_installed:
            raise Unavailable("nft is not installed")
        if "nonsense" in document:
            raise Refused("syntax error")


async def test_a_host_routes_for_networks_only_while_their_rules_are_in_force() -> None:
    port = PickyFirewall()
    keeper, blue, red = FirewallKeeper(port), served(), served(name="red", vni=9)
    port.is_installed = False
    with pytest.raises(Unavailable):
        await keeper.apply({"blue": blue})
    assert keeper.covered == frozenset()
    port.is_installed = True
    await keeper.apply({"blue": blue})
    assert keeper.covered == {"blue"}
    port.is_installed = False
    with pytest.raises(Unavailable):
        await keeper.apply({"blue": blue, "red": red})
    assert keeper.covered == {"blue"}, "what is in force stays"
    port.loaded = ""
    port.is_installed = True
    await keeper.apply({"blue": blue})
    port.loaded = ""  # somebody flushes all tables …
    port.is_installed = False
    await keeper.check()
    with pytest.raises(Unavailable):
        await keeper.apply({"blue": blue})
    assert keeper.covered == frozenset(), "… and nobody can put it back"


async def test_a_network_whose_rules_are_not_taken_keeps_its_former_ones_and_others_get_theirs() -> None:
    def named(name: str, vni: int, rule: str) -> ServedNetwork:
        subnet = _replace(V4, cidr=f"10.{vni}.0.0/24", gateway=f"10.{vni}.0.1", dhcp=None)
        rules = (FirewallRule(name="r", direction="in", rule=rule),)
        return view_network(network(name, vni, subnets=(subnet,), rules=rules))

    port = PickyFirewall()
    keeper = FirewallKeeper(port)
    await keeper.apply({"blue": named("blue", 8, "tcp dport 1 accept")})
    await keeper.apply(
        {
            "blue": named("blue", 8, "nonsense"),
            "green": named("green", 9, "tcp dport 2 accept"),
            "red": named("red", 10, "nonsense"),
        }
    )
    assert {name: why.split(":")[0] for name, why in keeper.refused.items()} == {
        "blue": "rule 'r'",
        "red": "rule 'r'",
    }
    assert "tcp dport 1 accept" in port.loaded
    assert "tcp dport 2 accept" in port.loaded
    assert "drop" in port.loaded.partition("chain vmbr10-in {")[2].partition("}")[0]
    await keeper.apply({"blue": named("blue", 8, "tcp dport 3 accept")})
    assert keeper.refused == {}
    assert "tcp dport 3 accept" in port.loaded


# Names


def test_a_zone_gets_the_difference_and_a_higher_serial() -> None:
    view = served(name_servers=("ns1.example",))
    first = plan_zone(view, ZoneState(), None, default_server="ns.example", term=3)
    assert first is not None
    assert first.soa.content == f"ns1.example hostmaster.blue.local {3 * SERIALS_OF_TERM + 1} 10800 1800 86400 86400"
    have = ZoneState(3 * SERIALS_OF_TERM + 1, first.soa.content, frozenset(first.add))
    assert plan_zone(view, have, None, default_server="ns.example", term=3) is None
    guest = ZoneRecord("one.blue.local", "A", "10.8.0.10", 600)
    apex = ZoneRecord("blue.local", "NS", "ns.blue.local", 600)
    foreign = ZoneRecord("x.example", "A", "10.8.0.10", 600)
    second = plan_zone(view, have, [apex, guest, foreign], default_server="ns.example", term=3)
    assert second is not None
    assert (second.add, second.remove) == ((guest,), ())
    assert second.soa.content.split()[2] == str(3 * SERIALS_OF_TERM + 2)
    have = ZoneState(have.serial + 1, second.soa.content, have.records | {guest})
    third = plan_zone(view, have, [], default_server="ns.example", term=4)
    assert third is not None
    assert (third.remove, third.soa.content.split()[2]) == ((guest,), str(4 * SERIALS_OF_TERM + 1))
    assert plan_zone(view, have, None, default_server="ns.example", term=4) is None, "no transfer changes no name"


@given(st.integers(0, 2**31), st.integers(1, 30_000))
def test_serials_rise(serial: int, term: int) -> None:
    change = plan_zone(served(), ZoneState(serial), [], default_server="ns.example", term=term)
    assert change is not None
    assert int(change.soa.content.split()[2]) > serial


# Metadata


@pytest.mark.parametrize(
    ("path", "known", "answer"),
    [
        ("/", False, (200, BANNER)),
        ("/latest/meta-data/", True, (200, "instance-id\nname\nprofile\n")),
        ("/2009-04-04/meta-data/instance-id", True, (200, "u-1")),
        ("/latest/meta-data/name", True, (200, "vm-1")),
        ("/latest/meta-data/profile", True, (200, "small")),
        ("/latest/user-data", True, (200, "#!")),
        ("/latest/meta-data/name", False, (404, "")),
        ("/latest/user-data", False, (404, "")),
        ("/latest/meta-data/other", True, (404, "")),
        ("/latest", True, (404, "")),
    ],
)
def test_metadata_is_given_to_those_who_are_known(path: str, known: bool, answer: tuple[int, str]) -> None:
    vm = MetadataVm(instance_id="u-1", name="vm-1", profile="small", user_data="#!") if known else None
    found = answer_metadata(path, vm)
    assert (found.status, found.text) == answer


def test_floating_addresses_are_on_the_bridge_that_the_host_uses_for_the_network() -> None:
    systems = {
        "upstream": SystemNetwork(cidr="192.0.2.0/24", floating="192.0.2.10"),
        "cluster": SystemNetwork(cidr="10.0.0.0/16", floating="10.0.0.10"),
        "storage": SystemNetwork(cidr="10.1.0.0/16", floating="10.1.0.10"),
    }
    bridge_of = {"upstream": "brcluster", "cluster": "brcluster"}
    assert role_places(systems, bridge_of, [served(subnets=(V4, V6))]) == {  # type: ignore[arg-type]
        "upstream": [("brcluster", "192.0.2.10/24")],
        "cluster": [("brcluster", "10.0.0.10/16")],
        "metadata": [("lo", "169.254.169.254/32")],
        "gateways": [("vmbr8", "10.8.0.1/24"), ("vmbr8", "fd00:8::1/64")],
    }

"""The ports of one VM on a layer2 or localnet network: single situations, whole lives, and any order of events."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.network.builders import decide
from tests.unit.network.rows import DHCP, HYPERVISORS, IDS, LOCAL, PORTS, ROUTES, Row, Rows, as_sets, copy

from outlive.network import ConflictRule, find_conflicts

MAC = "0a:58:c0:a8:28:09"
TEXT = f"{MAC} 192.168.40.9 fd10::9"
NETWORKS = [
    ("layer2", "global", "overlay"),
    ("layer2", "interconnect", "overlay"),
    ("layer2", "interconnect", "evpn"),
    ("localnet", "global", "overlay"),
    ("localnet", "interconnect", "overlay"),
]


def entry(number: int) -> Row:
    """What the copy has on network ``green``: the VM's addresses and a tunnel id of its own."""
    addresses = ["192.168.40.9/24", "fd10::9/64"]
    return {"mac": MAC, "addresses": addresses, "gateways": ["192.168.40.1"], "tunnelId": 10 + number}


def green(number: int, hypervisor: str, **changes: Any) -> Row:
    """A copy with a port on network ``green``; whether it is migratable does not matter here."""
    return copy(number, hypervisor, migratable=False) | {"networks": {"till/green": entry(number)}} | changes


def others() -> Rows:
    """Rows that look like the VM's and are not on this network."""
    return {
        ROUTES: [{"ip_prefix": "192.168.40.9", "nexthop": "1.2.3.4", "policy": "dst-ip", "external_ids": LOCAL}],
        DHCP: [{"cidr": "x", "external_ids": {"k8s.ovn.org/name": "shop/cart", "k8s.ovn.org/owner-controller": "x"}}],
        PORTS: [
            {"name": "shop_virt-launcher-cart-1", "switch": "hv-a", "external_ids": IDS},
            {"name": "blue", "switch": "blue", "external_ids": {**IDS, "k8s.ovn.org/nad": "till/blue"}},
        ],
    }


def follow(network: tuple[str, str, str], zone: str, copies: list[Row], rows: Rows, **changes: Any) -> Row:
    """The answer in a zone; asked again it changes nothing, and one port at most answers for the MAC."""
    topology, mode, transport = network
    question = {
        "topology": topology,
        "zoneMode": mode,
        "transport": transport,
        "localHypervisors": list(HYPERVISORS) if mode == "global" else [zone],
        "chassis": {name: f"c-{name}" for name in HYPERVISORS},
        "network": "green",
        "nad": "till/green",
        "controller": "green-network-controller",
        "vm": {"namespace": "shop", "name": "cart"},
        "copies": copies,
    } | changes
    answer: Row = decide("follow_switch", question | {"rows": rows})
    if "error" in answer:
        return answer
    again = decide("follow_switch", question | {"rows": answer["rows"]})
    assert (again["ops"], again["rows"]) == ([], answer["rows"])
    assert [one for one in find_conflicts(answer["rows"]) if one.rule is ConflictRule.MAC] == []
    before, after = as_sets(rows), as_sets(answer["rows"])
    for table, foreign in as_sets(others()).items():
        assert set(foreign) & set(before.get(table, ())) <= set(after.get(table, ()))
    return answer


class SwitchLife:
    """A VM through its migrations: the copies that exist, and the rows of every database after each event."""

    def __init__(self, network: tuple[str, str, str]) -> None:
        self.network = network
        self.copies: dict[int, Row] = {}
        self.rows = {zone: others() for zone in (["global"] if network[1] == "global" else HYPERVISORS)}

    def set(self, number: int, hypervisor: str = "", **changes: Any) -> None:
        """A copy is created, or changes."""
        self.copies[number] = (self.copies.get(number) or green(number, hypervisor)) | changes
        self.follow()

    def remove(self, number: int) -> None:
        """A copy is deleted."""
        del self.copies[number]
        self.follow()

    def follow(self) -> None:
        """Every database is brought up to date."""
        for zone in self.rows:
            self.rows[zone] = follow(self.network, zone, list(self.copies.values()), self.rows[zone])["rows"]

    def expect(self, *ports: tuple[int, str, bool | None]) -> None:
        """These are the VM's ports, by copy and hypervisor, and whether they are enabled."""
        topology, mode, transport = self.network
        for zone, rows in self.rows.items():
            expected = [
                port(self.network, number, hypervisor, enabled, local=zone in ("global", hypervisor))
                for number, hypervisor, enabled in ports
                if zone in ("global", hypervisor) or (topology, transport) == ("layer2", "overlay")
            ]
            own = [row for row in rows[PORTS] if row.get("switch", "").startswith("green")]
            assert as_sets({PORTS: own}) == as_sets({PORTS: expected}), (mode, zone)


def port(network: tuple[str, str, str], number: int, hypervisor: str, enabled: bool | None, *, local: bool) -> Row:
    """The port of a copy; a disabled one has no addresses."""
    topology = network[0]
    options = {"requested-chassis": f"c-{hypervisor}", "iface-id-ver": f"uid-{number}"}
    if network == ("layer2", "interconnect", "overlay"):
        options["requested-tnl-key"] = str(10 + number)
    row: Row = {
        "name": f"till.green_shop_virt-launcher-cart-{number}",
        "switch": f"green_ovn_{topology}_switch",
        "type": "" if local else "remote",
        "addresses": [] if enabled is False else [TEXT],
        "port_security": [TEXT],
        "enabled": enabled,
        "options": options,
        "external_ids": {
            "namespace": "shop",
            "pod": "true",
            "k8s.ovn.org/network": "green",
            "k8s.ovn.org/nad": "till/green",
            "k8s.ovn.org/topology": topology,
            **IDS,
        },
    }
    return {name: value for name, value in row.items() if value not in (None, [], "")}


@pytest.fixture(params=NETWORKS, ids=" ".join)
def life(request: pytest.FixtureRequest) -> SwitchLife:
    """A VM that was born on hv-a and runs there."""
    one = SwitchLife(request.param)
    one.set(1, "hv-a")
    one.set(1, runsOn="hv-a")
    one.expect((1, "hv-a", None))
    return one


READY = "2030-01-01T00:30:00Z"


def test_a_vm_moves_on_and_home_again_and_leaves_nothing(life: SwitchLife) -> None:
    path = [(1, "hv-a", None), (2, "hv-b", True), (3, "hv-c", True), (4, "hv-a", True)]
    for (old, source, enabled), (new, target, _) in pairwise(path):
        life.set(new, target)
        life.expect((old, source, enabled), (new, target, False))
        life.set(new, readyAt=READY)
        life.expect((old, source, False), (new, target, True))
        life.set(old, completed=True)
        life.expect((new, target, True))
        life.remove(old)
        life.expect((new, target, True))
    life.set(4, completed=True)
    life.expect()
    life.remove(4)
    assert all(as_sets(rows) == as_sets(others()) for rows in life.rows.values())


def test_a_failed_migration_has_the_source_enabled_by_name_and_the_target_deleted(life: SwitchLife) -> None:
    for ready in (None, READY):
        life.set(2, "hv-b")
        life.set(2, readyAt=ready)
        life.set(2, completed=True)
        life.expect((1, "hv-a", True))
        life.remove(2)
        life.expect((1, "hv-a", True))


def test_a_source_that_vanishes_leaves_an_enabled_target(life: SwitchLife) -> None:
    life.set(2, "hv-b")
    life.set(2, readyAt=READY)
    life.remove(1)
    life.expect((2, "hv-b", True))


def test_a_source_that_is_killed_early_leaves_a_target_with_addresses(life: SwitchLife) -> None:
    life.set(2, "hv-b")
    life.set(1, completed=True)
    life.expect((2, "hv-b", None))


def test_a_copy_whose_addresses_cannot_be_read_keeps_its_port_and_gets_no_new_one() -> None:
    rows = follow(NETWORKS[0], "global", [green(1, "hv-a")], others())["rows"]
    assert follow(NETWORKS[0], "global", [green(1, "hv-a", networks={})], rows)["ops"] == []
    assert follow(NETWORKS[0], "global", [green(1, "hv-a"), green(2, "hv-b", networks={})], rows)["ops"] == []


def test_a_port_of_a_target_in_another_zone_that_was_left_here_is_deleted() -> None:
    network = NETWORKS[4]
    left = port(network, 2, "hv-b", None, local=True)
    rows = follow(network, "hv-a", [green(1, "hv-a"), green(2, "hv-b")], {PORTS: [left]})["rows"]
    assert as_sets(rows) == as_sets({PORTS: [port(network, 1, "hv-a", None, local=True)]})


def test_guests_of_a_primary_layer2_network_get_dhcp_from_the_subnets_gateway() -> None:
    changes = {"role": "primary", "mtu": 1342, "dnsServiceIPs": ["10.45.0.10"]}
    rows = follow(NETWORKS[1], "hv-a", [green(1, "hv-a")], {}, **changes)["rows"]
    assert [row["cidr"] for row in rows[DHCP]] == ["192.168.40.0/24", "fd10::/64"]
    assert rows[DHCP][0]["options"]["router"] == "192.168.40.1"
    assert rows[PORTS][0]["dhcpv4_options"].startswith("green-network-controller:VirtualMachine:shop/cart:")
    moved = [green(1, "hv-a"), green(2, "hv-b", readyAt=READY)]
    both = follow(NETWORKS[1], "hv-a", moved, rows, **changes)["rows"]
    assert len(both[DHCP]) == 2  # as long as a copy is here
    gone = follow(NETWORKS[1], "hv-a", moved[1:], both, **changes)["rows"]
    assert (gone[DHCP], "dhcpv4_options" in gone[PORTS][0]) == ([], False)
    assert follow(NETWORKS[3], "hv-a", [green(1, "hv-a")], {}, **changes)["rows"][DHCP] == []


def test_three_living_copies_and_a_port_without_a_number_are_refused() -> None:
    copies = [green(1, "hv-a"), green(2, "hv-b"), green(3, "hv-c")]
    assert follow(NETWORKS[0], "global", copies, {}) == {"error": "ambiguous-migration"}
    unnumbered = {"till/green": entry(1) | {"tunnelId": None}}
    one = [green(1, "hv-a", networks=unnumbered)]
    assert follow(NETWORKS[1], "hv-a", one, {}) == {"error": "tunnel-key-missing"}


COPIES = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["hv-a", "hv-b", "hv-c"]),
        st.sampled_from([{}, {"readyAt": READY}, {"completed": True}, {"networks": {}}, {"hypervisor": None}]),
    ),
    max_size=2,
    unique_by=lambda one: one[0],
)


@settings(max_examples=60)
@given(st.sampled_from(NETWORKS), st.sampled_from(["hv-a", "hv-b"]), st.lists(COPIES, max_size=5))
def test_any_sequence_ends_without_rows_and_one_port_at_most_answers(
    network: tuple[str, str, str], zone: str, sequence: list[list[tuple[int, str, Row]]]
) -> None:
    rows = others()
    for copies in sequence:
        given = [green(number, hypervisor) | json.loads(json.dumps(change)) for number, hypervisor, change in copies]
        rows = follow(network, zone, given, rows)["rows"]
    assert as_sets(follow(network, zone, [], rows)["rows"]) == as_sets(others())

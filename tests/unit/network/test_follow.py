"""The rows of one VM on a routed network: single situations, whole lives, and any order of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.network.builders import MAC, decide
from tests.unit.network.rows import (
    DHCP,
    HYPERVISORS,
    IDS,
    LOCAL,
    POLICIES,
    PORTS,
    ROUTES,
    Row,
    Rows,
    as_sets,
    catch_alls,
    copy,
    dhcp_rows,
    local_routes,
    policies,
    port,
    question,
    remote_routes,
)

ZONES = ["global", *HYPERVISORS]


def others() -> Rows:
    """Rows of other owners, some of which look like the VM's."""
    return {
        ROUTES: [
            {"ip_prefix": "10.44.7.0/24", "nexthop": "100.88.0.7", "policy": "dst-ip"},
            {"ip_prefix": "10.44.7.0/24", "nexthop": "100.64.0.7", "policy": "src-ip"},
            {"ip_prefix": "192.0.2.1", "nexthop": "192.0.2.2", "external_ids": {"k8s.ovn.org/name": "shop/cart"}},
            {"ip_prefix": "10.44.7.48", "nexthop": "1.2.3.4", "external_ids": {**LOCAL, "k8s.ovn.org/vm": "till"}},
        ],
        POLICIES: [{"priority": 1004, "match": "ip4.src == 10.44.7.23", "action": "allow", "external_ids": IDS}],
        DHCP: [{"cidr": "10.44.7.0/24", "external_ids": {**LOCAL, "k8s.ovn.org/name": "shop/till"}}],
        PORTS: [
            {"name": "shop_till", "switch": "hv-a", "external_ids": {**IDS, "k8s.ovn.org/vm": "till"}},
            {
                "name": "green.net_shop_virt-launcher-cart-1",
                "switch": "green_ovn_layer2_switch",
                "external_ids": {**IDS, "k8s.ovn.org/nad": "green/net", "k8s.ovn.org/topology": "layer2"},
            },
            {"name": "stor-hv-a", "switch": "hv-a", "type": "router", "addresses": ["router"]},
        ],
    }


def merge(*parts: Rows) -> Rows:
    """The tables of all of these."""
    tables = {table for part in parts for table in part}
    return {table: [row for part in parts for row in part.get(table, [])] for table in tables}


def follow(zone: str, copies: list[Row], rows: Rows, families: str = "dual", **changes: Any) -> Row:
    """The answer in a zone; asked again it changes nothing, and no address has two routes."""
    answer: Row = decide("follow", question(zone, copies, rows, families=families, **changes))
    if "error" in answer:
        return answer
    again = decide("follow", question(zone, copies, answer["rows"], families=families, **changes))
    assert again["ops"] == []
    assert again["rows"] == answer["rows"]
    prefixes = [(row["ip_prefix"], row["policy"]) for row in answer["rows"][ROUTES] if row.get("policy")]
    assert len(prefixes) == len(set(prefixes))
    assert len(answer["why"]) > 0
    return answer


def rows_of(answer: Row) -> dict[str, list[str]]:
    """The answer's rows, to compare."""
    return as_sets(answer["rows"])


def born(families: str = "dual", **changes: Any) -> Row:
    """The first copy, which runs at home."""
    return copy(1, "hv-a", families=families, runsOn="hv-a") | changes


# --- single situations ------------------------------------------------------------------------------------------------


def test_a_copy_without_addresses_or_without_a_place_has_no_port_yet() -> None:
    lacking: list[Row] = [{"networks": {}}, {"hypervisor": None, "runsOn": None}, {"hostNetwork": True}]
    for changes in lacking:
        assert rows_of(follow("hv-a", [born(**changes)], {})) == {}


def test_a_copy_that_is_not_migratable_has_a_port_but_neither_dhcp_nor_routes() -> None:
    one = copy(1, "hv-b", migratable=False, runsOn="hv-b")
    assert rows_of(follow("hv-b", [one], {})) == as_sets({PORTS: [port(1, "hv-b", dhcp=False)]})


def test_copies_of_other_vms_and_pods_that_are_none_are_overlooked() -> None:
    till = copy(5, "hv-a", vm={"namespace": "shop", "name": "till"}, runsOn="hv-a")
    pod = copy(6, "hv-a", vm=None, runsOn="hv-a")
    alone = follow("hv-a", [born()], others())
    assert follow("hv-a", [till, born(), pod], others())["rows"] == alone["rows"]


def test_addresses_are_asked_of_the_network_that_is_followed() -> None:
    networks = {"till/blue": {"mac": MAC, "addresses": ["10.44.7.23/24"]}}
    one = born(networks=networks)
    assert rows_of(follow("hv-a", [one], {})) == {}
    answer = follow("hv-a", [one], {}, network="till/blue")
    (found,) = answer["rows"][PORTS]
    assert found["name"] == "till.blue_shop_virt-launcher-cart-1"
    assert found["external_ids"]["k8s.ovn.org/nad"] == "till/blue"
    assert answer["rows"] == follow("hv-a", [], answer["rows"])["rows"] | {PORTS: [found], DHCP: answer["rows"][DHCP]}
    assert rows_of(follow("hv-a", [], answer["rows"], network="till/blue")) == {}


def test_an_existing_port_keeps_what_is_not_the_vms() -> None:
    old = {
        "name": "shop_virt-launcher-cart-1",
        "switch": "hv-a",
        "type": "remote",
        "up": True,
        "tag": 7,
        "options": {"x": "y", "requested-chassis": "c-old"},
        "external_ids": {"z": "w"},
    }
    (found,) = follow("hv-a", [born()], {PORTS: [old]})["rows"][PORTS]
    assert found["options"] == {"x": "y", "requested-chassis": "c-hv-a"}  # no interface version where none was
    assert found["external_ids"] == {"z": "w", "namespace": "shop", "pod": "true", **IDS}
    assert (found["up"], found["tag"], "type" in found, "enabled" in found) == (True, 7, False, False)
    (found,) = follow("hv-a", [born()], {PORTS: [old | {"options": {"iface-id-ver": "old"}}]})["rows"][PORTS]
    assert found["options"] == {"iface-id-ver": "uid-1", "requested-chassis": "c-hv-a"}


def test_a_chassis_that_is_not_given_is_the_hypervisors_name() -> None:
    for hypervisors in ({}, {"hv-a": {"subnets": ["10.44.7.0/24", "fd44:0:0:7::/64"]}}):
        answer = follow("hv-a", [copy(1, "hv-a")], {}, hypervisors=hypervisors)
        assert answer["rows"][PORTS][0]["options"]["requested-chassis"] == "hv-a"


def test_without_port_security_the_column_stays_empty() -> None:
    answer = follow("hv-a", [born()], {PORTS: [port(1, "hv-a")]}, portSecurity=False)
    assert "port_security" not in answer["rows"][PORTS][0]


@pytest.mark.parametrize(
    ("changes", "option", "value"),
    [
        ({"dhcpRouter": "subnet"}, "router", "10.44.7.1"),
        ({"mtu": None}, "mtu", None),
        ({"dnsServiceIPs": ["fd45::a"]}, "dns_server", None),
    ],
)
def test_settings_reach_the_dhcp_row(changes: Row, option: str, value: str | None) -> None:
    (row,) = follow("hv-a", [born("IPv4")], {}, "IPv4", **changes)["rows"][DHCP]
    assert row["options"].get(option) == value


def test_fqdn_is_left_out_where_ovn_does_not_have_it() -> None:
    (row,) = follow("hv-a", [born("IPv6")], {}, "IPv6", fqdn=False)["rows"][DHCP]
    assert row["options"] == {"dns_server": "fd45::a", "server_id": "0a:58:6d:6d:c1:50"}


def test_a_copy_is_ready_where_the_vm_is_said_to_run_or_with_a_ready_time() -> None:
    for changes, ready in (
        ({}, False),
        ({"runsOn": "hv-a"}, False),
        ({"runsOn": "hv-b"}, True),
        ({"readyAt": "x"}, True),
        ({"readyAt": ""}, False),
        ({"readyAt": "x", "migratable": False}, False),
        ({"readyAt": "x", "hostNetwork": True}, False),
        ({"readyAt": "x", "completed": True}, False),
    ):
        answer = follow("hv-b", [copy(2, "hv-b", **changes)], {})
        assert bool(answer["rows"][ROUTES]) is ready, changes


def test_more_than_two_living_copies_are_no_error_the_newest_decides() -> None:
    copies = [born(), copy(2, "hv-b", readyAt="x", runsOn="hv-b"), copy(3, "hv-c", readyAt="x", runsOn="hv-c")]
    assert as_sets({ROUTES: follow("hv-a", copies, {})["rows"][ROUTES]}) == as_sets(
        {ROUTES: remote_routes("hv-c", "dual")}
    )
    answer = follow("global", copies, {})
    assert as_sets({PORTS: answer["rows"][PORTS]}) == as_sets(
        {PORTS: [port(1, "hv-a", enabled=False), port(2, "hv-b", enabled=False), port(3, "hv-c")]}
    )


def test_a_left_port_stays_disabled_though_the_next_migration_has_begun() -> None:
    copies = [born(), copy(2, "hv-b", readyAt="x"), copy(3, "hv-c")]
    found = follow("global", copies, {})["rows"][PORTS]
    assert as_sets({PORTS: found}) == as_sets(
        {PORTS: [port(1, "hv-a", enabled=False), port(2, "hv-b"), port(3, "hv-c")]}
    )


def test_of_two_copies_of_one_second_the_id_decides_and_a_ready_time_disables_the_other() -> None:
    source, target = born(), copy(2, "hv-b", at=1)
    for ready in (None, "2030-01-01T00:02:00Z"):
        copies = [{**target, "readyAt": ready}, source]
        found = follow("global", copies, {})["rows"]
        enabled = False if ready else None
        assert as_sets({PORTS: found[PORTS]}) == as_sets({PORTS: [port(1, "hv-a", enabled=enabled), port(2, "hv-b")]})
        assert as_sets({ROUTES: found[ROUTES]}) == as_sets({ROUTES: local_routes("hv-b", "dual") if ready else []})


def test_of_two_copies_of_one_second_neither_is_left_without_a_ready_time() -> None:
    for copies in (
        [born(), copy(2, "hv-b", at=1, runsOn="hv-b")],
        [copy(2, "hv-a", at=1, runsOn="hv-a"), copy(1, "hv-b")],
    ):
        found = follow("global", copies, {})["rows"]
        assert all(row.get("addresses") for row in found[PORTS])


def test_without_disable_source_all_ports_stay_as_they_are() -> None:
    copies = [born(), copy(2, "hv-b", readyAt="x")]
    found = follow("global", copies, {}, disableSource=False)["rows"][PORTS]
    assert as_sets({PORTS: found}) == as_sets({PORTS: [port(1, "hv-a"), port(2, "hv-b")]})


def test_while_a_failed_target_remains_the_dhcp_rows_of_other_zones_wait() -> None:
    rows = {DHCP: dhcp_rows("dual"), PORTS: [port(2, "hv-b")]}
    failed = [born(), copy(2, "hv-b", completed=True)]
    waiting = follow("hv-b", failed, rows)["rows"]
    assert as_sets(waiting) == as_sets({DHCP: dhcp_rows("dual")})
    assert rows_of(follow("hv-b", failed[:1], waiting)) == {}


def test_a_hypervisor_that_was_deleted_is_no_home_and_its_vms_keep_their_addresses() -> None:
    hypervisors = {name: one for name, one in HYPERVISORS.items() if name != "hv-a"}
    answer = follow("hv-b", [copy(2, "hv-b", runsOn="hv-b")], {}, hypervisors=hypervisors)
    assert as_sets({ROUTES: answer["rows"][ROUTES]}) == as_sets(
        {ROUTES: local_routes("hv-b", "dual") + catch_alls("hv-b", "dual")}
    )


@pytest.mark.parametrize("missing", ["vm", "zoneMode"])
def test_a_question_without_what_it_is_about_is_refused(missing: str) -> None:
    given = question("global", [], {})
    del given[missing]
    assert decide("follow", given) == {"error": "invalid"}


# --- whole lives ------------------------------------------------------------------------------------------------------


class Life:
    """A VM through its migrations: the copies that exist, and the rows of every database after each event."""

    def __init__(self, mode: str, families: str) -> None:
        self.families = families
        self.copies: dict[int, Row] = {}
        self.rows = {zone: others() for zone in (["global"] if mode == "global" else HYPERVISORS)}
        self._exits: dict[str, list[Row]] = {zone: [] for zone in self.rows}

    def set(self, number: int, hypervisor: str | None = None, **changes: Any) -> None:
        """A copy is created, or changes."""
        one = self.copies.get(number) or copy(number, hypervisor, families=self.families)
        self.copies[number] = one | changes
        self.follow()

    def remove(self, number: int) -> None:
        """A copy is deleted."""
        del self.copies[number]
        self.follow()

    def follow(self) -> None:
        """Every database is brought up to date."""
        for zone in self.rows:
            self.rows[zone] = follow(zone, list(self.copies.values()), self.rows[zone], self.families)["rows"]

    def expect(self, runs_on: str | None, *ports: Row, dhcp: str = "") -> None:
        """The VM's traffic goes to this hypervisor, and these are its ports; ``dhcp``: zones with DHCP rows."""
        for zone, rows in self.rows.items():
            own: Rows = {ROUTES: [], POLICIES: [], PORTS: [], DHCP: []}
            if runs_on not in (None, "hv-a"):
                is_local = zone in ("global", runs_on)
                own[ROUTES] += (local_routes if is_local else remote_routes)(runs_on, self.families)
                if zone == "global":
                    own[POLICIES] += policies(runs_on, self.families)
                elif is_local:
                    self._exits[zone] = catch_alls(zone, self.families)
            own[ROUTES] += self._exits[zone]
            served = zone in dhcp.split() or (zone == "global" and bool(dhcp))
            if served:
                own[DHCP] += dhcp_rows(self.families)
            own[PORTS] += [
                row if served else {name: value for name, value in row.items() if not name.startswith("dhcp")}
                for row in ports
                if zone in ("global", row["switch"])
            ]
            assert as_sets(rows) == as_sets(merge(others(), own)), zone

    def port(self, number: int, hypervisor: str, enabled: bool | None = None) -> Row:
        """A port of this VM."""
        return port(number, hypervisor, self.families, enabled=enabled)

    def migrate(self, number: int, source: str, target: str, source_enabled: bool | None = None) -> None:
        """From one hypervisor to the next, with every event in between; the source has copy ``number - 1``."""
        old, new = number - 1, number
        away = self.port(old, source, source_enabled)
        self.set(new, target)
        self.expect(source, away, self.port(new, target), dhcp=f"{source} {target}")
        self.set(new, readyAt="2030-01-01T00:30:00Z")
        self.expect(target, self.port(old, source, False), self.port(new, target), dhcp=target)
        self.set(new, runsOn=target)
        self.set(old, runsOn=target)
        self.expect(target, self.port(old, source, False), self.port(new, target), dhcp=target)
        self.set(old, completed=True)
        self.expect(target, self.port(new, target), dhcp=target)
        self.remove(old)
        self.expect(target, self.port(new, target), dhcp=target)


@pytest.fixture(params=["global", "interconnect"])
def mode(request: pytest.FixtureRequest) -> str:
    """How databases are cut."""
    return str(request.param)


@pytest.fixture(params=["IPv4", "IPv6", "dual"])
def life(request: pytest.FixtureRequest, mode: str) -> Life:
    """A VM that was born on hv-a and runs there."""
    one = Life(mode, request.param)
    one.set(1, "hv-a")
    one.expect(None, one.port(1, "hv-a"), dhcp="hv-a")
    one.set(1, runsOn="hv-a")
    one.expect("hv-a", one.port(1, "hv-a"), dhcp="hv-a")
    return one


def end(life: Life, number: int) -> None:
    """The VM stops; nothing of it is left."""
    life.set(number, completed=True)
    life.expect(None)
    life.remove(number)
    life.expect(None)


def test_a_migration_that_fails_before_it_is_ready_changes_nothing_for_the_source(life: Life) -> None:
    life.set(2, "hv-b")
    life.set(2, completed=True)
    life.expect("hv-a", life.port(1, "hv-a"), dhcp="hv-a hv-b")
    life.remove(2)
    life.expect("hv-a", life.port(1, "hv-a"), dhcp="hv-a")
    end(life, 1)


def test_a_migration_that_fails_away_from_home_keeps_the_routes_of_the_source(life: Life) -> None:
    life.migrate(2, "hv-a", "hv-b")
    life.set(3, "hv-c")
    life.set(3, completed=True)
    life.expect("hv-b", life.port(2, "hv-b"), dhcp="hv-b hv-c")
    life.remove(3)
    life.expect("hv-b", life.port(2, "hv-b"), dhcp="hv-b")
    life.migrate(3, "hv-b", "hv-a")
    end(life, 3)


def test_a_target_that_is_killed_after_it_was_ready_gives_the_vm_back_to_the_source(life: Life) -> None:
    life.set(2, "hv-b")
    life.set(2, readyAt="2030-01-01T00:30:00Z")
    life.expect("hv-b", life.port(1, "hv-a", False), life.port(2, "hv-b"), dhcp="hv-b")
    life.set(2, completed=True)
    life.expect("hv-a", life.port(1, "hv-a", True), dhcp="hv-a hv-b")
    life.remove(2)
    life.expect("hv-a", life.port(1, "hv-a", True), dhcp="hv-a")
    life.migrate(2, "hv-a", "hv-b", source_enabled=True)
    end(life, 2)


def test_a_source_that_vanishes_leaves_a_target_that_is_found_at_once(life: Life) -> None:
    life.set(2, "hv-b")
    life.remove(1)
    life.expect(None, life.port(2, "hv-b"), dhcp="hv-a hv-b")
    life.set(2, readyAt="2030-01-01T00:30:00Z")
    life.expect("hv-b", life.port(2, "hv-b"), dhcp="hv-b")
    end(life, 2)


# --- any order of events ----------------------------------------------------------------------------------------------

COPIES = st.lists(
    st.builds(
        lambda number, hypervisor, runs_on, ready, at, flags: (
            copy(
                number,
                hypervisor,
                at=at,
                runsOn=runs_on,
                readyAt="2030-01-01T00:30:00Z" if ready else None,
                completed="c" in flags,
                migratable="m" not in flags,
            )
            | ({"networks": {}} if "n" in flags else {})
        ),
        st.integers(1, 4),
        st.sampled_from(["hv-a", "hv-b", "hv-c", None]),
        st.sampled_from(["hv-a", "hv-b", "hv-c", None]),
        st.booleans(),
        st.integers(1, 3),
        st.sampled_from(["", "", "", "c", "c", "n", "m"]),
    ),
    max_size=4,
    unique_by=lambda one: one["id"],
)


@settings(max_examples=60)
@given(st.sampled_from(ZONES), st.lists(COPIES, max_size=5))
def test_any_sequence_of_copies_ends_without_rows_and_touches_no_others(zone: str, sequence: list[list[Row]]) -> None:
    rows = others()
    foreign = as_sets(others())
    for copies in sequence:
        rows = follow(zone, copies, rows)["rows"]
        found = as_sets(rows)
        assert all(set(foreign[table]) <= set(found[table]) for table in foreign)
        living = {f"shop_{one['name']}" for one in copies if not one["completed"]}
        assert {row["name"] for row in rows[PORTS] if is_own(row)} <= living
    rows = follow(zone, [], rows)["rows"]
    exits = [row for row in rows[ROUTES] if row.get("policy") == "src-ip" and "/24" not in row["ip_prefix"]]
    assert as_sets(rows) == as_sets(merge(others(), {ROUTES: exits}))
    assert all("external_ids" not in row for row in exits)


def is_own(row: Row) -> bool:
    """True for a port of the VM on the followed network."""
    ids = row.get("external_ids", {})
    return ids.get("k8s.ovn.org/vm") == "cart" and "k8s.ovn.org/nad" not in ids


@settings(max_examples=60)
@given(COPIES)
def test_once_the_newest_copy_is_ready_no_older_one_can_be_reached(copies: list[Row]) -> None:
    living = sorted(
        (one for one in copies if not one["completed"] and one["hypervisor"]),
        key=lambda one: (one["created"], one["id"]),
    )
    rows = follow("global", copies, {})["rows"]
    reachable = {row["name"] for row in rows[PORTS] if row.get("addresses")}
    if living and living[-1]["readyAt"] and living[-1]["migratable"] and living[-1]["networks"]:
        assert reachable == {f"shop_{living[-1]['name']}"}

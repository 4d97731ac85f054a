"""Rows of VMs of our own hosts: as a VM lives, moves and goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.network import (
    DHCP,
    HOST_KEY,
    ISOLATED_KEY,
    NAMESPACE_KEY,
    NETWORK_KEY,
    NOBODY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    PORTS,
    ROUTES,
    SWITCHES,
    VM_KEY,
    OwnNetwork,
    OwnPort,
    OwnVmInput,
    OwnVmResult,
    Rows,
    isolated_hosts,
    plan_own_vm,
)
from outlive.resources import interface_id

ID = "b3a4f0d0-0000-4000-8000-000000000002"
MAC = "0a:58:c0:a8:28:09"
GREEN = OwnNetwork(name="green", type="layer2", dhcp=True)
WIRE = OwnNetwork(name="wire", type="localnet")
BLUE = OwnNetwork(
    name="blue",
    type="routed",
    dhcp=True,
    host_subnets={"kvm-1": ("10.44.0.0/24",), "kvm-2": ("10.44.1.0/24",), "kvm-3": ("10.44.2.0/24",)},
)
HOSTS = ("kvm-1", "kvm-2", "kvm-3")


def port(network: OwnNetwork = GREEN, **changes: Any) -> OwnPort:
    address = "10.44.0.9/24" if network.type == "routed" else "192.168.40.9/24"
    mode = "twin" if network.type == "routed" else "shared"
    facts = {"interface": ID, "network": network, "mode": mode, "mac": MAC, "addresses": (address,), **changes}
    return OwnPort(**facts)


def plan(
    rows: Rows, *ports: OwnPort, host: str | None = "kvm-1", target: str | None = None, **more: Any
) -> OwnVmResult:
    facts = {
        "vm": "cart",
        "host": host,
        "target": target,
        "ports": ports,
        "strategies": ("rarp",),
        "rows": rows,
        **more,
    }
    result = plan_own_vm(OwnVmInput(**facts))
    assert plan_own_vm(OwnVmInput(**{**facts, "rows": result.rows})).ops == (), "planned again, nothing changes"
    return result


def ports_of(rows: Rows) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows.get(PORTS, [])}


def test_a_port_is_bound_by_the_chassis_of_its_host_and_served_by_dhcp() -> None:
    rows = plan({}, port(), chassis={"kvm-1": "ch-7"}).rows
    (row,) = rows[PORTS]
    assert row["name"] == ID
    assert row["switch"] == "green_ovn_layer2_switch"
    assert row["addresses"] == row["port_security"] == [f"{MAC} 192.168.40.9"]
    assert row["options"] == {"requested-chassis": "ch-7"}
    assert row["dhcpv4_options"] == rows[DHCP][0]["external_ids"]["k8s.ovn.org/id"]
    assert row["external_ids"][OWNER_KEY] == OWN_CONTROLLER


def test_during_a_move_both_chassis_bind_a_shared_port_and_the_target_waits_for_the_guest() -> None:
    before = plan({}, port()).rows
    moving = plan(before, port(), target="kvm-2").rows
    assert ports_of(moving)[ID]["options"] == {"requested-chassis": "kvm-1,kvm-2", "activation-strategy": "rarp"}
    after = plan(moving, port(), host="kvm-2").rows
    assert ports_of(after)[ID]["options"] == {"requested-chassis": "kvm-2"}
    aborted = plan(moving, port()).rows
    assert aborted == before


def test_an_ovn_that_binds_a_port_once_keeps_it_at_the_source_until_the_target_has_the_guest() -> None:
    before = plan({}, port(), strategies=()).rows
    assert plan(before, port(), target="kvm-2", strategies=()).ops == ()


def test_twins_on_one_switch_swap_in_one_transaction() -> None:
    twin = port(mode="twin")
    moving = plan(plan({}, twin).rows, twin, target="kvm-2").rows
    source, target = (ports_of(moving)[interface_id(ID, "twin", host)] for host in ("kvm-1", "kvm-2"))
    assert (source.get("enabled"), source["addresses"]) == (None, [f"{MAC} 192.168.40.9"])
    assert (target["enabled"], target.get("addresses"), target["port_security"]) == (
        False,
        None,
        [f"{MAC} 192.168.40.9"],
    )
    after = ports_of(plan(moving, twin, host="kvm-2").rows)
    assert set(after) == {interface_id(ID, "twin", "kvm-2")}
    assert "enabled" not in after[interface_id(ID, "twin", "kvm-2")]


def test_away_from_home_routes_lead_to_the_switch_of_the_host_and_at_home_there_are_none() -> None:
    home = plan({}, port(BLUE)).rows
    assert home.get(ROUTES, []) == []
    assert home[PORTS][0]["switch"] == "blue_kvm-1"
    moving = plan(home, port(BLUE), target="kvm-2").rows
    assert moving.get(ROUTES, []) == []
    away = plan(moving, port(BLUE), host="kvm-2").rows
    (route,) = away[ROUTES]
    assert (route["ip_prefix"], route["nexthop"], route["policy"]) == ("10.44.0.9", "10.44.0.9", "dst-ip")
    assert route["output_port"] == "rtos-blue_kvm-2"
    assert [row["external_ids"][HOST_KEY] for row in away[PORTS]] == ["kvm-2"]
    third = plan(away, port(BLUE), host="kvm-3").rows
    assert [route["output_port"] for route in third[ROUTES]] == ["rtos-blue_kvm-3"]
    assert plan(third, port(BLUE)).rows == home


def test_a_port_without_managed_addresses_has_its_mac_and_no_dhcp() -> None:
    rows = plan({}, port(WIRE, addresses=())).rows
    assert rows[PORTS][0]["addresses"] == [MAC]
    assert rows.get(DHCP, []) == []


def test_without_port_security_a_port_gets_what_is_for_unknown_macs() -> None:
    row = plan({}, port(WIRE, port_security=False)).rows[PORTS][0]
    assert row["addresses"] == [f"{MAC} 192.168.40.9", "unknown"]
    assert "port_security" not in row


def isolated(rows: Rows, name: str, host: str, epoch: int = 3) -> Rows:
    changed = [
        {**row, "external_ids": {**row["external_ids"], f"{ISOLATED_KEY}{host}": str(epoch)}}
        if row["name"] == name
        else row
        for row in rows[PORTS]
    ]
    return {**rows, PORTS: changed}


def test_a_host_that_is_isolated_from_a_port_does_not_bind_it_and_the_next_one_does() -> None:
    rows = isolated(plan({}, port()).rows, ID, "kvm-1")
    cut = plan(rows, port()).rows
    assert ports_of(cut)[ID]["options"] == {"requested-chassis": NOBODY}
    elsewhere = plan(cut, port(), host="kvm-2").rows
    assert ports_of(elsewhere)[ID]["options"] == {"requested-chassis": "kvm-2"}
    assert f"{ISOLATED_KEY}kvm-1" in ports_of(elsewhere)[ID]["external_ids"], "the mark stays until it is lifted"


def test_a_twin_that_its_host_is_isolated_from_stays_disabled_until_that_ends() -> None:
    twin = interface_id(ID, "twin", "kvm-1")
    cut = plan(isolated(plan({}, port(BLUE)).rows, twin, "kvm-1"), port(BLUE)).rows
    elsewhere = plan(cut, port(BLUE), host="kvm-2").rows
    assert ports_of(elsewhere)[twin]["enabled"] is False
    assert ports_of(elsewhere)[twin]["options"] == {"requested-chassis": NOBODY}
    lifted = [
        {**row, "external_ids": {key: one for key, one in row["external_ids"].items() if ISOLATED_KEY not in key}}
        for row in elsewhere[PORTS]
    ]
    after = plan({**elsewhere, PORTS: lifted}, port(BLUE), host="kvm-2").rows
    assert set(ports_of(after)) == {interface_id(ID, "twin", "kvm-2")}


@pytest.mark.parametrize("network", [GREEN, BLUE], ids=lambda one: one.type)
def test_the_port_of_an_interface_that_is_gone_answers_nobody_while_it_bears_a_mark_of_isolation(
    network: OwnNetwork,
) -> None:
    name = ID if network is GREEN else interface_id(ID, "twin", "kvm-1")
    moving = plan(plan({}, port(network)).rows, port(network), target="kvm-2").rows
    gone = plan(isolated(moving, name, "kvm-1"))
    kept = ports_of(gone.rows)
    assert set(kept) == {name}
    assert kept[name]["enabled"] is False
    assert "addresses" not in kept[name]
    assert kept[name]["options"] == {"requested-chassis": NOBODY}
    assert isolated_hosts(kept[name]) == {"kvm-1": 3}
    assert gone.rows[DHCP] == []
    back = plan(gone.rows, port(network), host="kvm-2").rows
    assert [row for row in ports_of(back).values() if row.get("enabled") is not False], "a new port is programmed"


@pytest.mark.parametrize("network", [GREEN, WIRE, BLUE], ids=lambda one: one.type)
@pytest.mark.parametrize("host", ["kvm-1", "kvm-2", None])
def test_rows_of_an_interface_without_a_port_stay_as_they_are_wherever_the_vm_is(
    network: OwnNetwork, host: str | None
) -> None:
    rows = plan({}, port(network), host="kvm-2").rows
    kept = plan(rows, host=host, portless=(ID.upper(),))
    assert kept.ops == ()
    assert kept.portless == (ID,)
    assert plan({}, host=host, portless=(ID,)).portless == (), "there are none"
    gone = plan(rows, host=host)
    assert gone.rows[PORTS] == gone.rows[DHCP] == gone.rows[ROUTES] == []


def test_a_controller_that_deletes_a_port_has_read_whether_a_host_is_isolated_from_it() -> None:
    (op,) = [op for op in plan(plan({}, port()).rows).ops if op.table == PORTS]
    assert all(where["external_ids"][OWNER_KEY] == OWN_CONTROLLER for where in op.where)


FOREIGN = {"neutron": "yes"}
OF_ANOTHER_VM = {OWNER_KEY: OWN_CONTROLLER, NAMESPACE_KEY: OWN_NAMESPACE, VM_KEY: "other"}
OF_PODS = {OWNER_KEY: "default-network-controller", NAMESPACE_KEY: OWN_NAMESPACE, VM_KEY: "cart"}
TWIN = interface_id(ID, "twin", "kvm-2")


@pytest.mark.parametrize(
    ("network", "table", "row"),
    [
        (GREEN, PORTS, {"name": ID, "switch": "theirs", "external_ids": FOREIGN}),
        (GREEN, PORTS, {"name": ID, "switch": "green_ovn_layer2_switch", "external_ids": OF_ANOTHER_VM}),
        (GREEN, PORTS, {"name": ID, "switch": "theirs", "external_ids": OF_PODS}),
        (BLUE, PORTS, {"name": TWIN, "switch": "theirs", "external_ids": FOREIGN}),
        (GREEN, SWITCHES, {"name": "green_ovn_layer2_switch"}),
        (BLUE, SWITCHES, {"name": "blue_kvm-2", "external_ids": {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: "red"}}),
        (BLUE, ROUTES, {"ip_prefix": "10.44.0.9", "nexthop": "10.0.0.1", "policy": "dst-ip"}),
        (BLUE, ROUTES, {"ip_prefix": "10.44.0.9/32", "nexthop": "10.0.0.1", "external_ids": OF_ANOTHER_VM}),
    ],
)
def test_a_row_that_belongs_to_somebody_else_is_never_changed_and_the_port_is_refused(
    network: OwnNetwork, table: str, row: dict[str, Any]
) -> None:
    before = plan({table: [row]}, port(network), host="kvm-2")
    assert before.ops == ()
    assert list(before.foreign) == [ID]
    if table != PORTS:
        rows = plan({}, port(network)).rows
        moved = plan({**rows, table: [*rows.get(table, []), row]}, port(network), host="kvm-2")
        assert moved.ops == (), "what it had stays"


def test_a_port_beside_one_that_is_refused_is_served() -> None:
    other = "b3a4f0d0-0000-4000-8000-000000000003"
    foreign: Rows = {PORTS: [{"name": ID, "switch": "theirs", "external_ids": FOREIGN}]}
    result = plan(foreign, port(), port(interface=other, mac="0a:58:c0:a8:28:0a", addresses=("192.168.40.10/24",)))
    assert list(result.foreign) == [ID]
    assert ports_of(result.rows)[other]["options"] == {"requested-chassis": "kvm-1"}


def test_a_route_of_somebody_else_matters_before_the_guest_is_sent() -> None:
    rows = plan({}, port(BLUE)).rows
    theirs = {"ip_prefix": "10.44.0.9", "nexthop": "10.0.0.1", "policy": "dst-ip"}
    assert plan({**rows, ROUTES: [theirs]}, port(BLUE)).foreign == {}, "at home it needs no route"
    assert list(plan({**rows, ROUTES: [theirs]}, port(BLUE), target="kvm-2").foreign) == [ID]


OWNERS: tuple[dict[str, str], ...] = ({}, FOREIGN, OF_ANOTHER_VM, OF_PODS)
ANY_ROW = st.one_of(
    st.tuples(st.just(PORTS), st.sampled_from((ID, *(interface_id(ID, "twin", host) for host in HOSTS)))),
    st.tuples(st.just(ROUTES), st.sampled_from(("10.44.0.9", "10.44.0.9/32", "0.0.0.0/0"))),
)


@pytest.mark.parametrize("network", [GREEN, WIRE, BLUE], ids=lambda one: one.type)
@given(
    places=st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from((None, *HOSTS))), min_size=1, max_size=4),
    others=st.lists(st.tuples(ANY_ROW, st.sampled_from(OWNERS)), max_size=3, unique_by=lambda one: one[0]),
)
@settings(max_examples=60, deadline=None)
def test_whatever_a_vm_does_rows_of_others_stay_as_they_are(
    network: OwnNetwork,
    places: list[tuple[str, str | None]],
    others: list[tuple[tuple[str, str], dict[str, str]]],
) -> None:
    theirs: list[tuple[str, dict[str, Any]]] = []
    for (table, name), ids in others:
        column = {PORTS: {"name": name, "switch": "s"}, ROUTES: {"ip_prefix": name, "policy": "dst-ip"}}[table]
        theirs.append((table, {**column, "external_ids": ids} if ids else column))
    rows: Rows = {}
    for table, row in theirs:
        rows.setdefault(table, []).append(row)
    for host, target in places:
        rows = plan(rows, port(network), host=host, target=target).rows
    rows = plan(rows, host=None).rows
    assert all(row in rows[table] for table, row in theirs)


@pytest.mark.parametrize("network", [GREEN, WIRE, BLUE], ids=lambda one: one.type)
@given(
    places=st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from((None, *HOSTS))), max_size=8), twin=st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_after_any_life_no_row_is_left_and_no_switch_ever_has_two_ports_with_the_mac(
    network: OwnNetwork, places: list[tuple[str, str | None]], twin: bool
) -> None:
    one = port(network, mode="twin") if twin else port(network)
    rows: Rows = {}
    for host, target in places:
        rows = plan(rows, one, host=host, target=target).rows
        reached: dict[str, int] = {}
        for row in rows[PORTS]:
            if row.get("addresses"):
                reached[row["switch"]] = reached.get(row["switch"], 0) + 1
        assert all(count == 1 for count in reached.values())
        assert len({row["ip_prefix"] for row in rows.get(ROUTES, [])}) == len(rows.get(ROUTES, []))
    assert not any(plan(rows, host=None).rows.values())


OTHER = "b3a4f0d0-0000-4000-8000-000000000003"


def test_an_interface_that_is_refused_keeps_its_ports_on_whatever_host_with_dhcp_rows_and_routes() -> None:
    moving = plan(plan({}, port(BLUE), host="kvm-2").rows, port(BLUE), host="kvm-2", target="kvm-3").rows
    other = port(interface=OTHER, mac="0a:58:c0:a8:28:0a", addresses=())
    refused = plan(moving, other, kept=(ID,))
    assert ports_of(refused.rows).items() >= ports_of(moving).items()
    assert (refused.rows[ROUTES], refused.rows[DHCP]) == (moving[ROUTES], moving[DHCP])
    assert set(ports_of(plan(refused.rows, other).rows)) == {OTHER}


def test_a_vm_that_arrives_while_the_cluster_is_paused_keeps_the_ports_of_which_the_store_says_nothing() -> None:
    other = port(interface=OTHER, mac="0a:58:c0:a8:28:0a", addresses=("192.168.40.10/24",))
    moving = plan({}, port(), other, target="kvm-2").rows
    arrived = plan(moving, port(), host="kvm-2", paused=True, arrived=True)
    assert ports_of(arrived.rows)[ID]["options"] == {"requested-chassis": "kvm-2"}
    assert ports_of(arrived.rows)[OTHER] == ports_of(moving)[OTHER]
    assert plan(moving, port(), host="kvm-2", paused=True).ops == ()

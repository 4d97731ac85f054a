"""Whom a packet for a VM reaches, from every zone and every switch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.network.builders import decide
from tests.unit.network.rows import (
    HYPERVISORS,
    PORTS,
    ROUTES,
    Row,
    Rows,
    copy,
    hosts,
    local_routes,
    port,
    question,
    remote_routes,
)

from outlive.network import Arrival, HypervisorNetwork, NetworkZone, ZoneRows, find_arrivals
from outlive.resources import convert

NETWORKS = {name: convert(HypervisorNetwork, one) for name, one in HYPERVISORS.items()}
READY = "2030-01-01T00:30:00Z"


def zones_of(rows: dict[str, Rows]) -> dict[str, ZoneRows]:
    """The zones with these rows."""
    return {
        name: ZoneRows(
            zone=NetworkZone(
                mode="global" if name == "global" else "interconnect",
                local=tuple(HYPERVISORS) if name == "global" else (name,),
                hypervisors=NETWORKS,
            ),
            rows=found,
        )
        for name, found in rows.items()
    }


def reached(rows: dict[str, Rows], families: str = "dual") -> dict[str, set[str]]:
    """Ports that packets for the VM reach, by where they come from."""
    zones = zones_of(rows)
    starts = [(zone, switch) for zone, one in zones.items() for switch in ("", *one.zone.local)]
    return {
        f"{zone} {switch} {address}": {one.port for one in find_arrivals(zones, zone, address, switch)}
        for zone, switch in starts
        for address in hosts(families)
    }


def follow_all(copies: list[Row], rows: dict[str, Rows], **changes: Any) -> dict[str, Rows]:
    """The rows of every zone after ``network.follow``."""
    return {zone: decide("follow", question(zone, copies, found, **changes))["rows"] for zone, found in rows.items()}


def empty(mode: str) -> dict[str, Rows]:
    """Zones without rows."""
    return {zone: {} for zone in (["global"] if mode == "global" else HYPERVISORS)}


@pytest.mark.parametrize("mode", ["global", "interconnect"])
def test_every_packet_reaches_the_copy_where_the_vm_runs(mode: str) -> None:
    source, target = copy(1, "hv-a", runsOn="hv-a"), copy(2, "hv-b")
    rows = follow_all([source], empty(mode))
    assert set(map(tuple, reached(rows).values())) == {("shop_virt-launcher-cart-1",)}
    rows = follow_all([source, target | {"readyAt": READY}], rows)
    assert set(map(tuple, reached(rows).values())) == {("shop_virt-launcher-cart-2",)}
    rows = follow_all([source, target | {"readyAt": READY, "completed": True}], rows)
    assert set(map(tuple, reached(rows).values())) == {("shop_virt-launcher-cart-1",)}


def test_without_disabling_the_source_its_neighbours_go_on_to_reach_it() -> None:
    copies = [copy(1, "hv-a", runsOn="hv-a"), copy(2, "hv-b", readyAt=READY)]
    rows = follow_all(copies, empty("interconnect"), disableSource=False)
    found = reached(rows)
    assert found["hv-a hv-a 10.44.7.23"] == {"shop_virt-launcher-cart-1"}
    assert found["hv-a  10.44.7.23"] == {"shop_virt-launcher-cart-2"}


def test_two_routes_of_one_prefix_share_the_flows() -> None:
    old = {**local_routes("hv-c", "IPv4")[0]}
    rows: Rows = {ROUTES: [old, *local_routes("hv-b", "IPv4")], PORTS: [port(2, "hv-b"), port(3, "hv-c")]}
    arrivals = find_arrivals(zones_of({"global": rows}), "global", "10.44.7.23")
    assert arrivals == {Arrival("global", f"shop_virt-launcher-cart-{number}") for number in (2, 3)}


def test_routes_that_lead_in_a_circle_lose_the_packet() -> None:
    rows = {"hv-b": {ROUTES: remote_routes("hv-c", "IPv4")}, "hv-c": {ROUTES: remote_routes("hv-b", "IPv4")}}
    assert find_arrivals(zones_of(rows), "hv-b", "10.44.7.23") == set()


def test_a_remote_port_leads_to_the_zone_that_has_it() -> None:
    here, there = port(1, "green") | {"type": "remote"}, port(1, "green")
    zones = zones_of({"hv-a": {PORTS: [here]}, "hv-b": {PORTS: [there]}})
    assert find_arrivals(zones, "hv-a", "10.44.7.23", "green") == {Arrival("hv-b", "shop_virt-launcher-cart-1")}


CHANGES: list[Row] = [{}, {"readyAt": READY}, {"readyAt": READY}, {"completed": True}, {"runsOn": "hv-b"}]
COPIES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(list(HYPERVISORS)), st.sampled_from(CHANGES)),
    max_size=3,
    unique_by=lambda one: one[0],
)


@settings(max_examples=50)
@given(st.sampled_from(["global", "interconnect"]), st.lists(COPIES, max_size=5))
def test_after_any_sequence_all_packets_reach_the_newest_copy_once_it_is_ready(
    mode: str, sequence: list[list[tuple[int, str, Row]]]
) -> None:
    rows = empty(mode)
    for one in sequence:
        copies = [copy(number, hypervisor) | changes for number, hypervisor, changes in one]
        rows = follow_all(copies, rows)
        living = sorted((each for each in copies if not each["completed"]), key=lambda each: str(each["created"]))
        newest = living[-1] if living else None
        if newest and (newest["readyAt"] or newest["runsOn"] == newest["hypervisor"]):
            assert set(map(tuple, reached(rows).values())) == {(f"shop_{newest['name']}",)}

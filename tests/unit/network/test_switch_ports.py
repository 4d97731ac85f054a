"""Ports on layer2 and localnet networks: which there are, which is enabled, and their columns."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.unit.network.builders import MAC, decide
from tests.unit.network.rows import Row

from outlive.network import MigrationState

TEXT = f"{MAC} 192.168.40.9 fd10::9"
READY, PROGRESS, FAILED = "TargetDomainReady", "InProgress", "Failed"
ALL, A, B, C = ["hv-a", "hv-b", "hv-c"], ["hv-a"], ["hv-b"], ["hv-c"]


def ports(state: str | None, local: list[str], topology: str = "layer2", **changes: Any) -> Any:
    """The answer for a migration from hv-a to hv-b."""
    given = {
        "topology": topology,
        "localHypervisors": local,
        "state": state,
        "source": {"copy": "s", "hypervisor": "hv-a"},
        "target": {"copy": "t", "hypervisor": "hv-b"},
        "mac": MAC,
        "addresses": ["192.168.40.9/24", "fd10::9/64"],
    }
    return decide("ports", given | changes)


def port(copy: str, enabled: bool | None, kind: str = "") -> Row:
    """A port with addresses unless it is disabled."""
    addresses = [] if enabled is False else [TEXT]
    return {"copy": copy, "type": kind, "enabled": enabled, "addresses": addresses, "port_security": [TEXT]}


@pytest.mark.parametrize(
    ("state", "changes", "expected", "delete"),
    [
        (None, {"target": None}, [port("s", None)], []),
        (None, {"source": None}, [port("t", None)], []),
        (PROGRESS, {}, [port("s", None), port("t", False)], []),
        (READY, {}, [port("s", False), port("t", True)], []),
        (READY, {"source": None}, [port("t", True)], []),
        (READY, {"source": {"copy": "s", "hypervisor": None}}, [port("t", True)], []),
        (FAILED, {}, [port("s", True)], ["t"]),
        (FAILED, {"source": None}, [], ["t"]),
    ],
)
@pytest.mark.parametrize("topology", ["layer2", "localnet"])
def test_in_one_zone_each_state_has_its_ports(
    topology: str, state: str | None, changes: Row, expected: list[Row], delete: list[str]
) -> None:
    assert ports(state, ALL, topology, **changes) == {"ports": expected, "delete": delete}


@pytest.mark.parametrize(
    ("local", "state", "expected", "delete"),
    [
        (A, PROGRESS, [port("s", None), port("t", False, "remote")], []),
        (B, PROGRESS, [port("s", None, "remote"), port("t", False)], []),
        (C, PROGRESS, [port("s", None, "remote"), port("t", False, "remote")], []),
        (A, READY, [port("s", False), port("t", True, "remote")], []),
        (B, READY, [port("s", False, "remote"), port("t", True)], []),
        (C, READY, [port("s", False, "remote"), port("t", True, "remote")], []),
        (A, FAILED, [port("s", True)], ["t"]),
        (B, FAILED, [port("s", True, "remote")], ["t"]),
        (C, FAILED, [port("s", True, "remote")], ["t"]),
    ],
)
def test_on_an_overlay_every_zone_has_all_ports_and_swaps_them(
    local: list[str], state: str, expected: list[Row], delete: list[str]
) -> None:
    assert ports(state, local) == {"ports": expected, "delete": delete}


@pytest.mark.parametrize(("topology", "transport"), [("localnet", "overlay"), ("layer2", "evpn")])
@pytest.mark.parametrize(
    ("local", "state", "expected", "delete"),
    [
        (A, PROGRESS, [port("s", None)], ["t"]),
        (B, PROGRESS, [port("t", False)], []),
        (C, PROGRESS, [], ["t"]),
        (A, READY, [port("s", False)], ["t"]),
        (B, READY, [port("t", True)], []),
        (C, READY, [], ["t"]),
        (A, FAILED, [port("s", True)], ["t"]),
        (B, FAILED, [], ["t"]),
        (C, FAILED, [], ["t"]),
    ],
)
def test_without_an_overlay_a_zone_has_only_its_own_ports(
    topology: str, transport: str, local: list[str], state: str, expected: list[Row], delete: list[str]
) -> None:
    assert ports(state, local, topology, transport=transport) == {"ports": expected, "delete": delete}


def test_a_vm_without_managed_addresses_has_its_mac_alone() -> None:
    found = ports(FAILED, ALL, "localnet", addresses=None)["ports"]
    assert [(one["addresses"], one["port_security"]) for one in found] == [([MAC], [MAC])]


def test_port_security_can_be_off_also_for_a_disabled_port() -> None:
    found = ports(READY, ALL, portSecurity=False)["ports"]
    assert [(one["addresses"], one["port_security"]) for one in found] == [([], []), ([TEXT], [])]


def test_no_database_ever_has_two_ports_of_one_vm_with_addresses_while_it_moves() -> None:
    states = [None, *(str(one) for one in MigrationState)]
    sources = [None, {"copy": "s"}, {"copy": "s", "hypervisor": "hv-a"}]
    networks = [("layer2", "overlay"), ("layer2", "evpn"), ("localnet", "overlay"), ("other", "overlay")]
    for state, (topology, transport), local, source in product(states, networks, [ALL, A, B, C, []], sources):
        answer = ports(state, local, topology, transport=transport, source=source)
        assert sum(bool(one["addresses"]) for one in answer["ports"]) <= 1
        assert not {one["copy"] for one in answer["ports"]} & set(answer["delete"])


def port_row(**changes: Any) -> Any:
    """The columns of a local port on network ``green``."""
    given = {
        "topology": "layer2",
        "interconnect": True,
        "local": True,
        "copy": "uid-1",
        "chassis": "c-hv-a",
        "tunnelId": 6,
        "network": "green",
        "nad": "till/green",
        "namespace": "till",
    }
    return decide("port_row", given | changes)


GREEN = {
    "namespace": "till",
    "pod": "true",
    "k8s.ovn.org/network": "green",
    "k8s.ovn.org/nad": "till/green",
    "k8s.ovn.org/topology": "layer2",
}
OPTIONS = {"requested-chassis": "c-hv-a", "iface-id-ver": "uid-1"}
NUMBERED = {**OPTIONS, "requested-tnl-key": "6"}


@pytest.mark.parametrize(
    ("changes", "kind", "options", "ids"),
    [
        ({}, "", NUMBERED, GREEN),
        ({"local": False}, "remote", NUMBERED, GREEN),
        ({"interconnect": False}, "", OPTIONS, GREEN),
        ({"interconnect": False, "tunnelId": 0}, "", OPTIONS, GREEN),
        ({"topology": "localnet", "tunnelId": None}, "", OPTIONS, {**GREEN, "k8s.ovn.org/topology": "localnet"}),
        (
            {"topology": "routed", "network": "default", "nad": "default"},
            "",
            OPTIONS,
            {"namespace": "till", "pod": "true"},
        ),
        ({"chassis": None}, "", {"iface-id-ver": "uid-1", "requested-tnl-key": "6"}, GREEN),
    ],
)
def test_a_port_says_where_and_whose_it_is(changes: Row, kind: str, options: Row, ids: Row) -> None:
    assert port_row(**changes) == {"type": kind, "options": options, "external_ids": ids}


@pytest.mark.parametrize("number", [None, 0, -1])
def test_a_port_that_several_zones_know_needs_a_number(number: int | None) -> None:
    assert port_row(tunnelId=number) == {"error": "tunnel-key-missing"}

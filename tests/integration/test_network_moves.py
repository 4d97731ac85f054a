"""Guests of our own hosts move on real OVN, under ping and TCP, while parts of the cloud die."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.command import proof
from lab.network import NetworkLab, Pings, Stream, started
from lab.processes import until

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.component("ovn"), pytest.mark.slow]
TYPES = ("layer2", "localnet", "routed")
ADDRESSES = {"layer2": ("192.168.40.50", "fd00:40::50")}
"""Of a guest with both families; they are chosen for it. The others have what the controller gives them."""
PLACES = {"layer2": ("host-2", "host-1"), "localnet": ("host-2", "host-1"), "routed": ("host-2", "host-3", "host-1")}
"""Where guests move to, one after the other. A routed one is at home on the last, and moves between two others too."""
HANDED_OVER = 5
"""Pings that one copy may answer twice: while both chassis have the port, a frame may come by the wire and a tunnel."""
SILENCE_MS = 10_000.0
"""A guest that was heard again at all was heard within this time; how soon is measured by bench network_moves."""
SETTLED_S = 60.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkLab]:
    folder = os.environ.get("OUTLIVE_TEST_OVN")
    for one in started(tmp_path_factory.mktemp("lab"), programs=Path(folder) if folder else None):
        for network in TYPES:
            one.make_guest(network, network, "host-1", addresses=ADDRESSES.get(network, ()))
        for network in TYPES:
            one.warm_up(network, one.await_guest(network))
        yield one


@pytest.fixture(autouse=True)
def _all_hosts_run(lab: NetworkLab) -> None:
    """Each test begins with three hosts, whatever the one before did to them."""
    for host in lab.hosts:
        if not host.on:
            until(lambda name=host.name: proof(lab, name), f"{host.name} is proven dead, and left alone", 60)
            host.power_on()

    def all_hold() -> bool:
        members = {one["metadata"]["name"]: one["record"] for one in lab.objects("memberships")}
        held = all(members[host.name].get("state", "Held") == "Held" for host in lab.hosts)
        return held and all(members[host.name]["bootId"] == host.boot_id for host in lab.hosts)

    until(all_hold, "all hosts are members", 90)
    assert lab.ovn is not None
    ovn = lab.ovn
    until(lambda: ovn.registered() >= {host.name for host in lab.hosts}, "all hosts are chassis", SETTLED_S)


def addresses(lab: NetworkLab, name: str) -> list[str]:
    return [str(one).partition("/")[0] for one in lab.port(name)["status"]["addresses"]]


def address(lab: NetworkLab, name: str) -> str:
    return addresses(lab, name)[0]


def assert_settled(lab: NetworkLab, name: str, host: str) -> None:
    """One copy, on that host, which answers; OVN has its rows and no others, but those that hosts are isolated from."""
    until(lambda: lab.copies(name) == [host], f"{name} runs on {host} alone", SETTLED_S)
    for one in addresses(lab, name):
        lab.warm_up(name, one)
    port = until(
        lambda: (found := lab.port(name))["status"]["activeOn"] == host and found, "the port follows", SETTLED_S
    )
    assert port["status"]["interfaces"].keys() == {host}
    away = name == "routed" and not address(lab, name).startswith(home_prefix(lab, host))
    expected = {port["status"]["interfaces"][host], *([address(lab, name)] if away else [])}

    def has_its_rows() -> bool:
        rows = lab.rows_of(name)
        return expected <= rows and rows - expected <= lab.isolated_rows(name)

    until(has_its_rows, f"OVN has the rows of {name} and no others", SETTLED_S)


def home_prefix(lab: NetworkLab, host: str) -> str:
    (network,) = (one for one in lab.objects("virtualnetworks") if one["metadata"]["name"] == "routed")
    return str(network["status"]["hostSubnets"][host][0]).rpartition(".")[0] + "."


@pytest.mark.parametrize("network", TYPES)
def test_a_guest_keeps_its_address_and_its_connections_there_and_back(lab: NetworkLab, network: str) -> None:
    ips, peer = addresses(lab, network), lab.peer(network)
    assert len(ips) == len(ADDRESSES.get(network, ("one",)))
    for one in ips:
        lab.warm_up(network, one)
    for target in PLACES[network]:
        pings, stream = [Pings(peer, one) for one in ips], Stream(peer, ips[0])
        assert lab.move(network, target) == ""
        time.sleep(0.5)
        why_ended, stall_ms = stream.stop()
        heard = [one.stop() for one in pings]
        assert why_ended == ""
        assert max(one.doubled for one in heard) <= HANDED_OVER, "no second copy answers"
        assert max(stall_ms, *(one.longest_ms for one in heard)) < SILENCE_MS
        assert_settled(lab, network, target)
        assert addresses(lab, network) == ips
    until(lambda: "gapMs" in lab.port(network)["status"], "the gap is measured", SETTLED_S)


def test_a_move_whose_network_is_not_prepared_is_aborted_and_nothing_has_moved(lab: NetworkLab) -> None:
    network = "routed"
    assert lab.ovn is not None
    source = lab.host_of(network)
    target = "host-3" if source != "host-3" else "host-2"
    chassis = next(one for one in lab.ovn.chassis if one.name == target)
    other = next(one for one in TYPES if one != network)
    lab.warm_up(other, address(lab, other))
    pings, others = (Pings(lab.peer(one), address(lab, one)) for one in (network, other))
    chassis.pause()
    try:
        assert lab.move(network, target) == "network-not-ready"
    finally:
        chassis.resume()
    heard, usual = pings.stop(), others.stop()
    assert heard.doubled <= HANDED_OVER
    assert heard.longest_ms < 1000 + usual.longest_ms, "the guest was heard all the time, as one that nobody moves"
    assert_settled(lab, network, source)


def gather(lab: NetworkLab) -> str:
    """Bring all guests to one host; which."""
    places = {one: lab.host_of(one) for one in TYPES}
    host = max(places.values(), key=list(places.values()).count)
    for network in TYPES:
        if places[network] != host:
            assert lab.move(network, host) == ""
    return host


def test_controllers_that_are_killed_in_the_middle_finish_the_moves_when_they_are_back(lab: NetworkLab) -> None:
    source = gather(lab)
    target = "host-2" if source != "host-2" else "host-1"
    lab.begin_moves(TYPES, target)
    lab.server.kill()
    time.sleep(1.0)
    lab.start_server()
    for network in TYPES:
        lab.await_move(network, target)
        assert_settled(lab, network, lab.host_of(network))


def test_a_target_that_dies_in_the_middle_leaves_one_copy_of_each_guest_that_answers(lab: NetworkLab) -> None:
    source = gather(lab)
    target = next(one for one in lab.hosts if one.name not in (source, "host-1"))
    lab.begin_moves(TYPES, target.name)
    target.power_off()

    def place_of(network: str) -> str:
        status = lab.vm(network)["status"]
        move = status.get("migration") or {"phase": "aborted"}
        host = str(status["assigned"]["hypervisor"])
        return host if move.get("phase") == "aborted" and host != target.name and lab.copies(network) == [host] else ""

    for network in TYPES:
        host = until(lambda one=network: place_of(one), f"{network} has one copy", 120)
        assert_settled(lab, network, host)


def test_after_a_power_loss_the_guest_answers_at_its_address_elsewhere(lab: NetworkLab) -> None:
    network = "routed"
    ip, source = address(lab, network), lab.host_of(network)
    size = lab.console(network).stat().st_size
    lab.host(source).power_off()
    assert lab.await_guest(network, after=size, limit_s=120) == ip
    host = lab.host_of(network)
    assert host != source
    assert_settled(lab, network, host)

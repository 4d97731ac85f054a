"""What nodes announce after a VM of pods has moved, in each kind of network, and what EVPN fabrics are told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from tests.support.pod_worlds import PodWorld, entry_of
from tests.unit.network.builders import decide

from outlive.network import EvpnNetwork, EvpnSettings

PROXY = "0a58a9fe0101"
MAC = "0a:58:0a:2c:07:17"
OWN = MAC.replace(":", "")
V4 = {"mac": MAC, "addresses": ["10.44.7.23/24"], "gateways": ["10.44.7.1"]}
V6 = {"mac": MAC, "addresses": ["fd44:0:0:7::17/64"], "gateways": ["fd44:0:0:7::1"]}
JOINS = {"hv-a": ["100.65.0.7", "fd99::7"], "hv-b": ["100.65.0.8", "fd99::8"]}
READY = {"id": "m-1", "state": "TargetDomainReady", "target": "hv-b", "number": "0", "topology": "routed"}
NEAR = {"address": "10.44.7.48", "mac": "0a:58:0a:2c:07:30"}


def announced(**given: Any) -> dict[str, list[str]]:
    found = decide("pod_announcements", {**READY, **given})["announcements"]
    assert all(one["scheduleMs"] == [0, 500, 2000] for one in found)
    return {one["hypervisor"]: one["frames"] for one in found}


@pytest.mark.parametrize(
    "given",
    [
        {"state": "InProgress"},
        {"state": "Failed"},
        {"state": None},
        {"number": ""},
        {"topology": "localnet", "role": "primary"},
        {"topology": "layer2", "role": "secondary"},
    ],
)
def test_nothing_is_announced_where_no_cache_is_wrong(given: dict[str, Any]) -> None:
    assert announced(entry=V4, home="hv-a", joinAddresses=JOINS, **given) == {}


def test_away_from_home_all_is_at_the_proxy() -> None:
    found = announced(entry=V4, home="hv-a", neighbours=[NEAR])
    (told,) = found["hv-b"]
    assert told.startswith(OWN + PROXY + "0806")
    request, reply = found["hv-a"]
    assert (request[12:24], request[40:44], reply[40:44]) == (PROXY, "0001", "0002")


def test_at_home_again_all_is_where_it_is() -> None:
    away = {**NEAR, "address": "10.44.7.49", "atHome": False}
    found = announced(entry=V4, home="hv-b", neighbours=[NEAR, away])
    assert set(found) == {"hv-b"}, "one announcement for the guest, one of the guest"
    of_guest = decide("pod_announcements", {**READY, "entry": V4, "home": "hv-b", "neighbours": [NEAR, away]})
    to_guest, to_all = (one["frames"] for one in of_guest["announcements"])
    assert [frame[12:24] for frame in to_guest] == ["0a580a2c0730", PROXY]
    assert all(frame[12:24] == OWN for frame in to_all)


def test_a_home_that_nobody_has_is_told_nothing() -> None:
    assert announced(entry=V4, neighbours=[]) == {}


def test_the_gateway_of_the_home_subnet_is_at_the_proxy_if_guests_know_it() -> None:
    found = announced(entry=V4, home="hv-a", dhcpRouter="subnet")
    assert [frame[12:24] for frame in found["hv-b"]] == [PROXY, PROXY]
    assert "hv-b" not in announced(entry=V4, home="hv-a")


def test_ipv6_neighbours_are_advertised() -> None:
    found = announced(entry=V6, home="hv-a", neighbours=[{**NEAR, "address": "fd44:0:0:7::30"}])
    assert all(frame.startswith("333300000001" + PROXY + "86dd") for frames in found.values() for frame in frames)


def test_a_primary_layer2_network_tells_the_guest_of_the_targets_router() -> None:
    layer2 = {"topology": "layer2", "role": "primary", "number": "3", "joinAddresses": JOINS}
    (ipv4,) = announced(entry=V4, **layer2).values()
    assert [frame[12:24] for frame in ipv4] == ["0a5864410008"] * 2
    (ipv6,) = announced(entry=V6, **layer2).values()
    assert [frame[12:24] for frame in ipv6] == ["0a5864410007", "0a5864410008"], "the old router first"
    (shared,) = announced(entry=V4, transitRouter=True, **layer2).values()
    assert [frame[12:24] for frame in shared] == ["0a580a2c0701"] * 2


class Table:
    """``NeighbourTable`` that keeps what it is told."""

    def __init__(self) -> None:
        self.there: set[tuple[str, str]] = set()

    async def ensure(self, network: str, mac: str, addresses: Collection[str]) -> None:
        self.there |= {(network, one) for one in (mac, *addresses)}

    async def delete(self, network: str, mac: str, addresses: Collection[str]) -> None:
        self.there -= {(network, one) for one in (mac, *addresses)}


async def test_a_fabric_is_told_by_the_hypervisor_where_the_vm_runs() -> None:
    evpn = EvpnSettings(networks={"shop.green": EvpnNetwork(port="p")})
    world = PodWorld(evpn=evpn)
    tables: dict[str, Table] = {}
    zones = {}
    for name in ("hv-a", "hv-b"):
        zones[name] = zone = world.zone(name)
        own = msgspec.structs.replace(evpn, hypervisor=name)
        pods = msgspec.structs.replace(zone.settings.pods, evpn=own)
        zone.settings = msgspec.structs.replace(zone.settings, pods=pods)
        zone.neighbours = tables[name] = Table()
    await world.network("shop.green")
    for zone in zones.values():
        zone.start()
    await world.settle()

    def known() -> list[bool]:
        return [bool(table.there) for table in tables.values()]

    world.run("cart-1", "cart", "hv-a", routed=False, entries=entry_of("shop/green", 9))
    await world.settle()
    assert known() == [True, False]
    assert tables["hv-a"].there == {("shop.green", "0a:58:c0:a8:28:09"), ("shop.green", "192.168.40.9")}
    world.run("cart-2", "cart", "hv-b", routed=False, up=False, entries=entry_of("shop/green", 9))
    await world.settle()
    assert known() == [True, False]
    assert zones["hv-a"].nb.port("shop.green_shop_cart-2") is None, "an EVPN fabric needs no ports of other zones"
    world.ready("cart-2")
    await world.settle()
    assert known() == [False, True]
    world.remove("cart-1")
    await world.settle()
    assert known() == [False, True]
    world.complete("cart-2")
    await world.settle()
    assert known() == [False, False]
    for zone in zones.values():
        await zone.kill()

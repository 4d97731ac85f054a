"""The follower of VMs that are pods, on a virtual API server and a northbound database in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

import pytest
from tests.support.loops import run, run_by
from tests.support.northbound import NEW, OLD
from tests.support.pod_worlds import NETWORKS, NODES, PodWorld, Zone, entry_of, node_document

from outlive.network import (
    ANNOUNCEMENTS,
    ATTACHMENTS,
    DHCP,
    NETWORK_NUMBER,
    NODE_SUBNETS,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTES,
)
from outlive.resources.foreign import KubernetesNode, KubernetesService

Story = Callable[[PodWorld, Zone], Awaitable[None]]


def play(story: Story, **settings: object) -> None:
    """A story with one zone whose follower runs."""

    async def played() -> None:
        world = PodWorld(**settings)  # type: ignore[arg-type]
        zone = world.zone()
        zone.start()
        await world.settle()
        await story(world, zone)
        await zone.kill()

    run(played())


def routes(zone: Zone) -> dict[str, str]:
    return {row["ip_prefix"]: str(row.get("output_port", row["nexthop"])) for row in zone.nb.table(ROUTES)}


@run_by(play)
async def test_a_vm_is_born_with_addresses_of_its_node_a_port_and_dhcp(world: PodWorld, zone: Zone) -> None:
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    entry = world.entry("cart-1")
    assert entry["ip_addresses"] == ["10.44.7.3/24", "fd44:0:0:7::3/64"]
    assert entry["mac_address"] == "0a:58:0a:2c:07:03"
    port = zone.nb.port("shop_cart-1")
    assert port is not None
    assert port["addresses"] == ["0a:58:0a:2c:07:03 10.44.7.3 fd44:0:0:7::3"]
    assert port["options"]["requested-chassis"] == "c-hv-a"
    assert port["dhcpv4_options"] == "default-network-controller:VirtualMachine:shop/cart:10.44.7.0/24"
    assert len(zone.nb.table(DHCP)) == 2
    assert zone.nb.table(ROUTES) == []


@run_by(play)
async def test_a_vm_moves_and_comes_back(world: PodWorld, zone: Zone) -> None:
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    world.run("cart-2", "cart", "hv-b", up=False)
    await world.settle()
    assert world.entry("cart-2") == world.entry("cart-1")
    assert routes(zone) == {}
    assert zone.nb.port("shop_cart-2")
    world.ready("cart-2")
    await world.settle()
    assert routes(zone) == {"10.44.7.3": "rtos-hv-b", "fd44:0:0:7::3": "rtos-hv-b"}
    assert {row["nexthops"][0] for row in zone.nb.table(POLICIES)} == {"100.64.0.8", "fd98::8"}
    source = zone.nb.port("shop_cart-1") or {}
    assert source["enabled"] is False
    assert "addresses" not in source
    announced = world.annotation("cart-2", "outlive.dev/announcements")
    assert [(one["hypervisor"], one["interface"]) for one in announced] == [("hv-a", "ovn-k8s-mp0")]
    world.complete("cart-1")
    await world.settle()
    assert zone.nb.port("shop_cart-1") is None
    assert len(zone.nb.table(DHCP)) == 2
    world.run("cart-3", "cart", "hv-a", up=False)
    await world.settle()
    world.ready("cart-3")
    await world.settle()
    assert routes(zone) == {}
    assert zone.nb.table(POLICIES) == []
    world.remove("cart-1")
    world.complete("cart-2")
    world.remove("cart-2")
    world.complete("cart-3")
    world.remove("cart-3")
    await world.settle()
    assert zone.nb.table(DHCP) == []
    assert zone.nb.port("shop_cart-3") is None
    world.run("other-1", "other", "hv-a")
    await world.settle()
    assert world.entry("other-1")["ip_addresses"][0] == "10.44.7.3/24", "the address is free again"


@run_by(play)
async def test_a_target_that_becomes_ready_is_followed_before_others_though_its_source_is_gone(
    world: PodWorld, zone: Zone
) -> None:
    await migrating(world, ready=False)
    world.complete("cart-1")
    world.remove("cart-1")
    await world.settle()
    before = decisions_about_moves(zone)
    world.ready("cart-2")
    await world.settle()
    assert decisions_about_moves(zone) == before + 1
    assert routes(zone) == {"10.44.7.3": "rtos-hv-b", "fd44:0:0:7::3": "rtos-hv-b"}


def decisions_about_moves(zone: Zone) -> float:
    (found,) = re.findall(rb'network_decide_seconds_count\{queue="moves"\} (\S+)', zone.metrics.render())
    return float(found)


def ports(zone: Zone) -> dict[str, str]:
    """Port of a VM → whether traffic reaches it."""
    found = {}
    for row in zone.nb.table(PORTS):
        if row.get("external_ids", {}).get("pod") == "true":
            enabled = row.get("enabled", True) and bool(row.get("addresses"))
            found[row["name"]] = "on" if enabled else "off"
    return found


async def migrating(world: PodWorld, *, ready: bool = True, **options: object) -> None:
    """``shop/cart`` born on hv-a, and on its way to hv-b."""
    world.run("cart-1", "cart", "hv-a", **options)  # type: ignore[arg-type]
    await world.settle()
    world.run("cart-2", "cart", "hv-b", up=False, **options)  # type: ignore[arg-type]
    await world.settle()
    if ready:
        world.ready("cart-2")
        await world.settle()


@run_by(play)
async def test_three_vms_with_one_hostname_are_three_vms(world: PodWorld, zone: Zone) -> None:
    for number in (1, 2, 3):
        world.run(f"web-{number}-1", f"web-{number}", "hv-a", labels={"vm.kubevirt.io/name": "web"})
    await world.settle()
    addresses = {world.entry(f"web-{number}-1")["ip_addresses"][0] for number in (1, 2, 3)}
    assert len(addresses) == 3
    assert len(ports(zone)) == 3
    assert zone.events.emitted == []


@run_by(play)
async def test_an_annotation_that_cannot_be_read_holds_nobody_else_up_and_takes_nothing_away(
    world: PodWorld, zone: Zone
) -> None:
    await migrating(world)
    before = ports(zone)
    world.annotate("cart-2", **{NETWORKS: "{no JSON"})
    world.run("other-1", "other", "hv-c", annotations={NETWORKS: '{"default": {"mac_address": "x"}}'})
    world.run("third-1", "third", "hv-c")
    await world.settle(5)
    assert world.entry("third-1")["ip_addresses"][0] == "10.44.9.3/24"
    assert ports(zone) == {**before, "shop_third-1": "on"}
    assert "NetworkAnnotationUnreadable" in zone.events.reasons("cart-2")
    assert "NetworkAnnotationUnreadable" in zone.events.reasons("other-1")
    assert set(routes(zone).values()) == {"rtos-hv-b"}


@run_by(play)
async def test_more_than_two_living_copies_are_told_on_a_layer2_network(world: PodWorld, zone: Zone) -> None:
    await world.network("shop.green")
    for number in (1, 2, 3):
        world.run(f"cart-{number}", "cart", NODES[number - 1], routed=False, entries=entry_of("shop/green", 9))
        await world.settle(1)
    await world.settle()
    assert "AmbiguousMigration" in zone.events.reasons("cart-3")


@run_by(play)
async def test_a_pod_that_does_not_name_its_vm_is_told(world: PodWorld, zone: Zone) -> None:
    world.run("cart-1", "", "hv-a")
    await world.settle()
    assert zone.events.reasons("cart-1") == ["NetworkAnnotationUnreadable"]


@pytest.mark.parametrize("kind", ["layer2", "localnet"])
@run_by(play)
async def test_ports_of_one_switch_are_swapped_in_one_transaction(world: PodWorld, zone: Zone, *, kind: str) -> None:
    await world.network("shop.green", kind, physical_network="phys")
    entries = entry_of("shop/green", 9)
    await migrating(world, ready=False, routed=False, entries=entries)
    source, target = "shop.green_shop_cart-1", "shop.green_shop_cart-2"
    assert ports(zone) == {source: "on", target: "off"}
    row = zone.nb.port(target) or {}
    assert row["port_security"] == ["0a:58:c0:a8:28:09 192.168.40.9"]
    assert row["switch"] == f"shop.green_ovn_{kind}_switch"
    commits = len(zone.nb.commits)
    world.ready("cart-2")
    await world.settle()
    assert ports(zone) == {source: "off", target: "on"}
    assert len(zone.nb.commits) == commits + 1
    assert len(zone.nb.table(DHCP)) == (kind == "layer2")
    world.complete("cart-2")
    await world.settle()
    assert ports(zone) == {source: "on"}
    world.remove("cart-2")
    await world.settle()
    assert ports(zone) == {source: "on"}
    world.complete("cart-1")
    world.remove("cart-1")
    await world.settle()
    assert ports(zone) == {}
    assert zone.nb.table(DHCP) == []


@run_by(play)
async def test_a_target_on_a_layer2_network_waits_for_the_address_of_its_claim(world: PodWorld, zone: Zone) -> None:
    await world.network("shop.green")
    world.run("cart-1", "cart", "hv-a", routed=False, entries=entry_of("shop/green", 9))
    await world.settle()
    world.run("cart-2", "cart", "hv-b", routed=False, up=False)
    await world.settle()
    assert ports(zone) == {"shop.green_shop_cart-1": "on"}
    world.annotate("cart-2", **{NETWORKS: json.dumps(entry_of("shop/green", 9))})
    await world.settle()
    assert ports(zone) == {"shop.green_shop_cart-1": "on", "shop.green_shop_cart-2": "off"}


@run_by(play)
async def test_a_primary_layer2_network_announces_the_gateway_of_the_target(world: PodWorld, zone: Zone) -> None:
    await world.network("green", annotations={ATTACHMENTS: "shop/net, other/net", NETWORK_NUMBER: "3"})
    await migrating(world, routed=False, entries=entry_of("shop/net", 9))
    (announced,) = world.annotation("cart-2", ANNOUNCEMENTS)
    assert (announced["hypervisor"], announced["interface"]) == ("hv-b", "ovn-k8s-mp3")
    assert len(announced["frames"]) == 2, "a request and a reply"
    assert "0a5864410008" in announced["frames"][0], "the MAC of the target's router, 100.65.0.8"
    assert announced["scheduleMs"] == [0, 500, 2000]


@run_by(play)
async def test_a_network_that_no_virtual_network_claims_is_somebody_elses(world: PodWorld, zone: Zone) -> None:
    world.run("cart-1", "cart", "hv-a", routed=False, entries=entry_of("shop/blue", 9))
    await world.settle()
    assert ports(zone) == {}


@run_by(play)
async def test_guests_away_from_home_and_their_neighbours_are_told_of_each_other(world: PodWorld, zone: Zone) -> None:
    world.run("near-1", "near", "hv-a")
    await world.settle()
    await migrating(world)
    announced = {one["hypervisor"]: one for one in world.annotation("cart-2", ANNOUNCEMENTS)}
    assert set(announced) == {"hv-a", "hv-b"}
    proxy = "0a58a9fe0101"
    assert all(proxy in frame for one in announced.values() for frame in one["frames"])
    assert announced["hv-b"]["frames"][0].startswith("0a580a2c0704"), "to the guest alone"
    again = world.annotation("cart-2", ANNOUNCEMENTS)
    world.arrived("cart-2")
    await world.settle()
    assert world.annotation("cart-2", ANNOUNCEMENTS) == again


@pytest.mark.parametrize("version", [NEW, OLD])
async def test_switches_answer_for_the_cluster_or_on_old_ovn_for_single_addresses(version: str) -> None:
    world = PodWorld(families=(4,))
    zone = world.zone(version=version)
    zone.start()
    await world.settle()
    world.run("near-1", "near", "hv-a")
    await migrating(world)
    proxies = {name: (zone.nb.port(f"stor-{name}") or {})["options"]["arp_proxy"] for name in ("hv-a", "hv-b")}
    macs = {row["mac"] for row in zone.nb.table(ROUTER_PORTS)}
    if version is NEW:
        assert set(proxies.values()) == {"0a:58:a9:fe:01:01 169.254.1.1 fe80::1 10.44.0.0/16"}
        assert macs == {"0a:58:00:00:00:01"}
    else:
        assert proxies["hv-a"] == "169.254.1.1"
        assert set(proxies["hv-b"].split()) == {"169.254.1.1", "10.44.7.1", "10.44.7.3"}, (
            "but not for cart, which is there"
        )
        assert macs == {"0a:58:a9:fe:01:01"}
    await zone.kill()


@run_by(play)
async def test_a_subnet_that_goes_to_a_new_node_keeps_the_address_of_a_vm_that_travels(
    world: PodWorld, zone: Zone
) -> None:
    await migrating(world)
    world.complete("cart-1")
    world.remove("cart-1")
    world.server.remove(KubernetesNode, "hv-a")
    await world.settle()
    world.server.add(KubernetesNode, node_document("hv-d", 7))
    world.run("new-1", "new", "hv-d")
    await world.settle()
    assert world.entry("cart-2")["ip_addresses"][0] == "10.44.7.3/24"
    assert world.entry("new-1")["ip_addresses"][0] == "10.44.7.4/24"
    assert set(routes(zone).values()) == {"rtos-hv-b"}


@run_by(play)
async def test_a_vm_without_a_dns_service_waits_for_one_and_others_keep_theirs(world: PodWorld, zone: Zone) -> None:
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    world.server.remove(KubernetesService, "kube-system/kube-dns")
    await world.settle(60)
    world.run("cart-2", "cart", "hv-b", up=False)
    await world.settle()
    world.ready("cart-2")
    await world.settle()
    assert ports(zone) == {"shop_cart-1": "off", "shop_cart-2": "on"}


@run_by(play)
async def test_a_database_that_is_away_for_ten_minutes_is_programmed_when_it_is_back(
    world: PodWorld, zone: Zone
) -> None:
    zone.nb.away = True
    await migrating(world)
    await world.settle(600)
    zone.nb.away = False
    await world.settle(40)
    assert ports(zone) == {"shop_cart-1": "off", "shop_cart-2": "on"}


@run_by(play)
async def test_an_address_that_an_older_vm_has_gives_the_younger_no_port(world: PodWorld, zone: Zone) -> None:
    world.run("cart-1", "cart", "hv-a")
    await world.settle()
    stolen = {"default": world.entry("cart-1")}
    world.run("thief-1", "thief", "hv-a", entries=stolen)
    await world.settle()
    assert ports(zone) == {"shop_cart-1": "on"}
    assert "AddressTwice" in zone.events.reasons("thief-1")


@run_by(play, families=(4,))
async def test_addresses_of_a_full_subnet_are_told(world: PodWorld, zone: Zone) -> None:
    tiny = node_document("hv-z", 30, (4,))
    tiny["metadata"]["annotations"][NODE_SUBNETS] = '{"default": "10.44.30.0/30"}'
    world.server.add(KubernetesNode, tiny)
    await world.settle()
    world.run("cart-1", "cart", "hv-z")
    await world.settle()
    assert world.entry("cart-1") is None
    assert zone.events.reasons("cart-1") == ["NoAddressLeft"]

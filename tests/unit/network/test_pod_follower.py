"""The follower of VMs that are pods, on a virtual API server and a northbound database in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.support.loops import run
from tests.support.pod_worlds import PodWorld, Zone

from outlive.network.operations import DHCP, POLICIES, ROUTES

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
    return {row["ip_prefix"]: row.get("output_port", row["nexthop"]) for row in zone.nb.table(ROUTES)}


def test_a_vm_is_born_with_addresses_of_its_node_a_port_and_dhcp() -> None:
    async def story(world: PodWorld, zone: Zone) -> None:
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

    play(story)


def test_a_vm_moves_and_comes_back() -> None:
    async def story(world: PodWorld, zone: Zone) -> None:
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

    play(story)

"""Bridged networks: VLANs of two hosts, on a kernel that has them."""

from __future__ import annotations

import pytest
from tests.support.link_namespaces import inside, namespaces
from tests.support.loops import run_real
from tests.support.own_links import (
    CLUSTER_NET,
    OwnLinks,
    devices,
    following,
    guest,
    network,
    new_store,
    pings,
    settings,
    shown,
    switched,
)

from outlive.resources import VirtualNetwork

ONE, TWO = "vlan-1", "vlan-2"

pytestmark = [pytest.mark.component("kernel-guest"), pytest.mark.slow]


def test_a_bridged_network_joins_guests_of_two_hosts_by_their_vlan_alone() -> None:
    async def story() -> None:
        store = await new_store(cluster=CLUSTER_NET)
        await store.create(network("green", type="bridged", vni=80, mtu=9000))
        await store.create(network("grey", type="bridged", vni=81))
        given = {"systemNetworks": {}, "bridgeDevice": "eth0", "bridgeMtu": 1500}
        one = OwnLinks(ONE, "node1", store, settings(**given))
        two = OwnLinks(TWO, "node2", store, settings(**given))
        async with following(one, two):
            for host in (one, two):
                await host.start()
                assert (await host.settle(), host.problem()) == (2, "")
                assert host.links.made == {"green": "", "grey": ""}
            assert devices(ONE) == {"eth0", "vlan80", "vmbr80", "vlan81", "vmbr81"}
            vlan = shown(ONE, "vlan80")
            assert (vlan["linkinfo"]["info_data"]["id"], vlan["link"], vlan["mtu"]) == (80, "eth0", 1500)
            assert inside(ONE, "sysctl", "-n", "net.ipv6.conf.vmbr80.disable_ipv6").strip() == "1"
            assert "inet6" not in inside(ONE, "ip", "addr", "show", "dev", "vmbr80")
            with namespaces(f"{ONE}a", f"{TWO}b", f"{TWO}c"):
                guest(ONE, "vmbr80", f"{ONE}a", "192.168.80.10/24")
                guest(TWO, "vmbr80", f"{TWO}b", "192.168.80.11/24")
                guest(TWO, "vmbr81", f"{TWO}c", "192.168.80.12/24")
                assert pings(f"{ONE}a", "192.168.80.11")
                assert not pings(f"{ONE}a", "192.168.80.12"), "another VLAN"
            found = await store.get(VirtualNetwork, "grey")
            await store.delete(found.ref)
            for host in (one, two):
                while host.networks.get("grey"):
                    await host.links._clock.sleep(0.02)
                await host.settle()
            assert devices(ONE) == devices(TWO) == {"eth0", "vlan80", "vmbr80"}

    with switched(ONE, TWO):
        run_real(story())

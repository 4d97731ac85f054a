"""Hosts that make their own network: bridges, addresses, networks of VMs, and the way back from what cuts one off."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.link_namespaces import inside, namespaces
from tests.support.loops import run_real
from tests.support.own_links import (
    CLUSTER_NET,
    Notes,
    OwnLinks,
    ReachableStore,
    addresses,
    devices,
    following,
    guest,
    network,
    new_store,
    pings,
    set_networks,
    settings,
    shown,
    switched,
)

from outlive.base import Random, SystemClock, SystemIds
from outlive.drivers.links import KernelLinks, Netlink
from outlive.node.vm import NodeSettings
from outlive.resources import Hypervisor, ObjectMeta, VirtualNetwork, convert
from outlive.roles import HostLinks, NodePorts, NodeRole

pytestmark = [pytest.mark.component("links"), pytest.mark.slow]
ONE, TWO = f"ol-{os.getpid()}-1", f"ol-{os.getpid()}-2"


def test_a_host_gets_a_bridge_with_its_addresses_and_nothing_changes_the_second_time() -> None:
    async def story() -> None:
        store = await new_store(
            cluster=CLUSTER_NET, upstream={"cidr": "10.92.0.0/24", "floating": "10.92.0.9", "gateway": "10.92.0.1"}
        )
        given = {"cluster": {"device": "eth0", "mtu": 1400}, "upstream": {"device": "eth0", "address": "10.92.0.7"}}
        inside(ONE, "ip", "addr", "add", "172.20.0.5/24", "dev", "eth0")
        host = OwnLinks(ONE, "node-12", store, settings(systemNetworks=given))
        async with following(host):
            await host.start()
            assert await host.settle() == 2
            found = shown(ONE, "brcluster")
            assert (found["mtu"], found["operstate"]) == (1400, "UP")
            assert addresses(ONE, "brcluster") == ["10.91.0.12/24", "10.92.0.7/24", "172.20.0.5/24"]
            assert addresses(ONE, "eth0") == []
            assert shown(ONE, "eth0")["master"] == "brcluster"
            assert "default via 10.92.0.1 dev brcluster" in inside(ONE, "ip", "route")
            names = (
                "net.ipv4.ip_forward",
                "net.ipv4.conf.brcluster.rp_filter",
                "net.ipv4.conf.all.accept_source_route",
            )
            assert inside(ONE, "sysctl", "-n", *names).split() == ["1", "0", "0"]
            assert host.links.bridge_of == {"cluster": "brcluster", "upstream": "brcluster"}
            assert host.links.addresses == {"cluster": "10.91.0.12", "upstream": "10.92.0.7"}
            assert host.problem() == ""
            inside(ONE, "ip", "addr", "del", "10.91.0.12/24", "dev", "brcluster")
            await host.settle()
            assert "10.91.0.12/24" in addresses(ONE, "brcluster")

    with switched(ONE):
        run_real(story())


def test_a_managed_network_joins_guests_of_two_hosts_and_goes_once_nobody_is_on_it() -> None:
    async def story() -> None:
        store = await new_store(cluster=CLUSTER_NET)
        for number in (1, 2):
            host = Hypervisor(metadata=ObjectMeta(name=f"node{number}"))
            await store.create(host)
            known = await store.get(Hypervisor, f"node{number}")
            status = convert(type(known.status), {"addresses": {"cluster": f"10.91.0.{number}"}})
            await store.replace_status(Hypervisor(metadata=known.metadata, spec=known.spec, status=status))
        await store.create(network("blue", type="managed", vni=70))
        await store.create(network("red", type="managed", vni=71))
        inside(ONE, "ip", "link", "add", "vmbr71", "type", "bridge")
        one, two = (OwnLinks(space, f"node{number}", store, settings()) for number, space in ((1, ONE), (2, TWO)))
        async with following(one, two):
            for host in (one, two):
                await host.start()
                await host.settle()
            assert one.links.made == {"blue": "", "red": "device vmbr71 is there already, and somebody else made it"}
            assert two.links.made == {"blue": "", "red": ""}
            assert "red: device vmbr71 is there already" in one.problem()
            assert devices(ONE) == {"eth0", "brcluster", "vmbr70", "vxlan70", "vmbr71"}
            assert shown(ONE, "vmbr70")["mtu"] == 1450
            assert shown(ONE, "vmbr70")["ifalias"] == "outlive:blue"
            tunnel = shown(ONE, "vxlan70")["linkinfo"]["info_data"]
            assert (tunnel["id"], tunnel["port"], tunnel["local"]) == (70, 4789, "10.91.0.1")
            assert inside(ONE, "sysctl", "-n", "net.ipv6.conf.vmbr70.disable_ipv6").strip() == "1"
            assert "inet6" not in inside(ONE, "ip", "addr", "show", "dev", "vmbr70")
            offload = [
                line for line in inside(ONE, "ethtool", "-k", "vmbr70").splitlines() if "tx-checksumming" in line
            ]
            assert offload == ["tx-checksumming: off"]

            with namespaces(f"{ONE}a", f"{TWO}b"):
                guest(ONE, "vmbr70", f"{ONE}a", "192.168.70.10/24")
                guest(TWO, "vmbr70", f"{TWO}b", "192.168.70.11/24")
                assert pings(f"{ONE}a", "192.168.70.11")
                assert await one.settle() == 1, "guests of a network change nothing about it"

                for name in ("blue", "red"):
                    found = await store.get(VirtualNetwork, name)
                    await store.delete(found.ref)
                await until(lambda: not one.networks.get("blue") and not two.networks.get("blue"))
                await two.settle()
                assert "vmbr70" in devices(TWO), "a guest is still attached"
                assert "still attached to vmbr70" in two.problem()
            await one.settle()
            await two.settle()
            assert devices(ONE) == {"eth0", "brcluster", "vmbr71"}
            assert devices(TWO) == {"eth0", "brcluster"}
            assert (one.problem(), two.problem()) == ("", "")

    with switched(ONE, TWO):
        run_real(story())


async def until(is_so: Any) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - the kernel changes it
            await asyncio.sleep(0.02)


FAR = "172.30.0.1"
CUTTING = {"cidr": "10.92.0.0/24", "floating": "10.92.0.250", "gateway": "10.92.0.99"}
"""With it the default route leads to a router that is not there."""


def routed_host(switch: str) -> None:
    """The host reaches the store behind its default route."""
    inside(switch, "ip", "addr", "add", "172.20.0.1/24", "dev", "sw0")
    inside(switch, "ip", "addr", "add", f"{FAR}/32", "dev", "lo")
    inside(ONE, "ip", "addr", "add", "172.20.0.5/24", "dev", "eth0")
    inside(ONE, "ip", "route", "add", "default", "via", "172.20.0.1")
    inside(ONE, "ip", "route", "add", "172.31.0.0/16", "via", "172.20.0.2")


def state() -> tuple[Any, ...]:
    """All that a host is reached by."""
    forward = inside(ONE, "sysctl", "-a", "--pattern", "ip_forward$|v6.conf.all.forwarding|rp_filter|source_route")
    routes = inside(ONE, "ip", "route").replace(" proto static", "")
    return addresses(ONE, "eth0"), routes, devices(ONE), sorted(forward.splitlines())


CUT_OFF = {"systemNetworks": {"upstream": {"device": "eth0"}}, "confirmTimeout": 1.0}
PATIENT = {**CUT_OFF, "confirmTimeout": 10.0}
"""For what is to be confirmed, or seen before it is undone, on a machine that does other things."""


def test_a_change_that_cuts_the_host_off_from_its_store_is_undone_and_not_tried_again() -> None:
    async def story(switch: str) -> None:
        routed_host(switch)
        before, inner = state(), await new_store(upstream=CUTTING)
        host = OwnLinks(ONE, "node1", ReachableStore(inner, ONE, FAR), settings(**CUT_OFF))
        async with following(host):
            await host.start()
            await host.links.check_links()
            assert state() == before
            assert "the store did not answer within 1 s of the change, so it was undone" in host.problem()
            changes = host.port.changes
            await host.links.check_links()
            assert host.port.changes == changes

            await set_networks(inner, upstream={**CUTTING, "gateway": "", "floating": "10.92.0.251"})
            host.links.settings = settings(**PATIENT)
            assert await host.settle() == 2, "what is wanted has changed, so it is tried"
            assert addresses(ONE, "brupstream") == ["10.92.0.1/24", "172.20.0.5/24"]
            routes = inside(ONE, "ip", "route")
            assert "default via 172.20.0.1 dev brupstream" in routes
            assert "172.31.0.0/16 via 172.20.0.2 dev brupstream" in routes
            assert host.problem() == ""

    with switched(ONE) as switch:
        run_real(story(switch))


def test_what_a_killed_daemon_had_changed_is_undone_by_the_next_one() -> None:
    async def story(switch: str) -> None:
        routed_host(switch)
        before, inner = state(), await new_store(upstream=CUTTING)
        killed = OwnLinks(ONE, "node1", ReachableStore(inner, ONE, FAR), settings(**PATIENT))
        async with following(killed):
            await killed.start()
            looking = asyncio.ensure_future(killed.links.check_links())
            await until(lambda: "brupstream" in devices(ONE) and "10.92.0.99" in inside(ONE, "ip", "route"))
            looking.cancel()
            await asyncio.wait((looking,))
        assert state() != before
        following_daemon = OwnLinks(ONE, "node1", ReachableStore(inner, ONE, FAR), settings(**CUT_OFF), killed.notes)
        async with following(following_daemon):
            await following_daemon.start()
            assert state() == before
            await following_daemon.links.check_links()
            assert state() == before
            assert "the daemon ended before the store had answered" in following_daemon.problem()

    with switched(ONE) as switch:
        run_real(story(switch))


def test_a_host_that_boots_gets_its_addresses_back_before_it_reaches_the_store() -> None:
    async def story(switch: str) -> None:
        inside(switch, "ip", "addr", "add", "10.91.0.99/24", "dev", "sw0")
        inside(ONE, "ip", "addr", "add", "10.91.0.5/24", "dev", "eth0")
        store = ReachableStore(await new_store(cluster=CLUSTER_NET), ONE, "10.91.0.99")
        first = OwnLinks(ONE, "node5", store, settings())
        async with following(first):
            await first.start()
            await first.settle()
        inside(ONE, "ip", "link", "del", "brcluster")
        again = OwnLinks(ONE, "node5", store, settings(), first.notes)
        async with following(again):
            assert not pings(ONE, "10.91.0.99")
            await again.start()
            await again.links.check_links()
            assert addresses(ONE, "brcluster") == ["10.91.0.5/24"]
            assert pings(ONE, "10.91.0.99")

    with switched(ONE) as switch:
        run_real(story(switch))


def test_what_cannot_be_is_told_by_name_and_all_else_is_served() -> None:
    async def story() -> None:
        store = await new_store(cluster=CLUSTER_NET, storage={"cidr": "10.93.0.1/24", "floating": "10.93.0.9"})
        await store.create(network("green", type="bridged", vni=80))
        given = {
            name: {"device": device} for name, device in (("cluster", "eth0"), ("storage", "eth7"), ("upstream", "x"))
        }
        host = OwnLinks(ONE, "node3", store, settings(systemNetworks=given))
        async with following(host):
            await host.start()
            await host.settle()
            assert addresses(ONE, "brcluster") == ["10.91.0.3/24"]
            assert "storage: 10.93.0.1/24 has host bits set" in host.problem()
            assert "upstream: Cluster/default has no spec.systemNetworks.upstream" in host.problem()
            assert host.links.made == {
                "green": "this host has no device for bridged networks (set links.bridgeDevice in node.yaml)"
            }
            await set_networks(store, cluster=CLUSTER_NET, storage={"cidr": "10.93.0.0/24", "floating": "10.93.0.9"})
            await host.links.check_links()
            assert "storage: there is no device eth7" in host.problem()

    with switched(ONE):
        run_real(story())


def test_a_daemon_makes_its_links_before_it_has_joined_and_the_primary_writes_mtus_down() -> None:
    async def story() -> None:
        store = await new_store(cluster=CLUSTER_NET)
        await store.create(network("blue", type="managed", vni=70, mtu=9000))
        clock, ids = SystemClock(), SystemIds()
        machine, none = SimpleNamespace(boot_id=lambda: "b", machine_id=lambda: "m"), cast("Any", None)
        port = KernelLinks(clock, Netlink(f"/run/netns/{ONE}"))
        links = HostLinks(port, Notes(), settings())
        ports = NodePorts(none, cast("Any", machine), none, none, none, links=links)
        role = NodeRole(store, store, NodeSettings(), ports, host="node4", clock=clock, random=Random(1), ids=ids)
        leader = SimpleNamespace(elector=SimpleNamespace(is_leader=True))
        role._primary = cast("Any", leader)
        tasks = [asyncio.ensure_future(part()) for _, part in role._link_parts()]
        found = role.daemon.shared.links
        assert found is not None
        await until(lambda: found.made == {"blue": ""} and "vmbr70" in devices(ONE))
        async with asyncio.timeout(30):
            while not (mtu := (await store.get(VirtualNetwork, "blue")).status.mtu):  # noqa: ASYNC110 - the leader
                await asyncio.sleep(0.05)
        assert mtu == 1450
        assert (found.addresses, found.bridge_of) == ({"cluster": "10.91.0.4"}, {"cluster": "brcluster"})
        traffic = role.daemon.shared.traffic
        assert traffic is not None
        await traffic.count_traffic()
        assert traffic.list_rates()["eth0"].state == "up"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await port.close()

    with switched(ONE):
        run_real(story())

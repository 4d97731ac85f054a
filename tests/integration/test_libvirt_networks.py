"""Real libvirt guests on what a host makes by itself: bridges of managed networks, and virtual functions.

This machine's kernel has no card with virtual functions: the end of a cable that is named like one stands for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from lab import guest
from lab.hosts import Switch
from lab.network import Pings
from lab.ovn import Workload
from msgspec.structs import replace
from tests.conformance.ports.real_libvirt import RealHypervisors, real_hosts, two_hosts
from tests.support.link_namespaces import cable, inside, namespaces
from tests.support.loops import run_real
from tests.support.network_hosts import NetworkHosts
from tests.support.own_links import CLUSTER_NET, OwnLinks, following, network, new_store, settings
from tests.support.primary_hosts import PrimaryHost

from outlive.base import Refused, SystemClock
from outlive.node.links import BridgedPorts
from outlive.node.ports import MigrationSettings, NoNetworks
from outlive.resources import (
    FunctionPlace,
    Hypervisor,
    ObjectMeta,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachineSpec,
    complete_vm,
    convert,
    with_function_places,
)
from outlive.store import MemoryStore

pytestmark = [
    pytest.mark.component("libvirt"),
    pytest.mark.component("links"),
    pytest.mark.component("network-services"),
    pytest.mark.slow,
]
LIMIT_S: Final = 120.0
MAC: Final = "52:54:00:00:70:07"
SILENCE_S: Final = 10.0
"""A guest that moves on a machine that does other things is heard again within this time."""


def machine(hosts: RealHypervisors, name: str, interfaces: str, extra: str) -> tuple[VirtualMachine, Path]:
    """A VM that boots, and its console."""
    console, disk = hosts.state / f"{name}.console", guest.make_disk(hosts.state / f"{name}.disk.img")
    console.write_text("")
    xml = guest.definition(name, disk, console, interfaces=interfaces, extra=extra)
    vm = VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(definition=xml))
    return complete_vm(vm), console


async def written(console: Path, pattern: str) -> re.Match[str]:
    """What the guest writes to its console."""

    def find() -> re.Match[str] | None:
        return re.search(pattern, console.read_text(errors="replace"))

    async with asyncio.timeout(60):
        while not (found := find()):  # noqa: ASYNC110 - a guest writes
            await asyncio.sleep(0.05)
    return found


async def move_while_heard(
    hosts: RealHypervisors, there: VirtualMachine, source: str, target: str, peer: str, address: str
) -> None:
    """Move the VM, which is ``there`` on its target, while a peer pings it: it is heard again, and never twice."""
    receiving, sending = hosts.remote(target), hosts.remote(source)
    await receiving.call("functions", {"names": ["nic0v3", "eth9"]})
    await receiving.create(there, run_id=f"to-{target}", epoch=7, incoming=MigrationSettings())
    (waiting,) = await receiving.list_domains()
    pings = Pings(Workload(peer), address)
    await asyncio.sleep(0.3)
    await sending.migrate(there.name, target, listens=waiting.listens, settings=MigrationSettings())
    await sending.destroy(there.name)
    async with asyncio.timeout(SILENCE_S):
        while not await asyncio.to_thread(Workload(peer).reaches, address):
            pass
    heard = await asyncio.to_thread(pings.stop)
    assert heard.doubled == 0, "both of its hosts answered"


@contextlib.asynccontextmanager
async def own_links(store: MemoryStore, spaces: dict[str, str]) -> AsyncIterator[dict[str, OwnLinks]]:
    """Hosts that make networks by themselves, on cables of their own; all of it is removed afterwards."""
    switch, links = two_hosts().switch, {}
    for number, (host, space) in enumerate(spaces.items(), 1):
        await store.create(Hypervisor(metadata=ObjectMeta(name=host)))
        known = await store.get(Hypervisor, host)
        status = convert(type(known.status), {"addresses": {"cluster": f"10.91.0.{number}"}})
        await store.replace_status(Hypervisor(metadata=known.metadata, spec=known.spec, status=status))
        switch.connect(f"own{number}", space, "eth1")
        inside(space, "ip", "link", "set", "eth1", "up")
        given = {"cluster": {"device": "eth1", "address": f"10.91.0.{number}"}}
        links[host] = OwnLinks(space, host, store, settings(systemNetworks=given))
    try:
        async with following(*links.values()):
            for one in links.values():
                await one.start()
                await one.settle()
            yield links
    finally:
        for space in spaces.values():
            for device in ("vmbr70", "vxlan70", "brcluster", "eth1"):
                inside(space, "sh", "-c", f"ip link del {device} || true")


@contextlib.asynccontextmanager
async def primary(store: MemoryStore, prefix: str, host: str) -> AsyncIterator[None]:
    """The host is the primary: it has the gateways of networks and serves DHCP."""
    with tempfile.TemporaryDirectory(prefix="outlive-") as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101
        places = NetworkHosts(prefix, (host,), ())
        fleet = SimpleNamespace(clock=SystemClock(), store=store, folder=Path(folder), hosts=places, times=[])
        one = PrimaryHost(cast("Any", fleet), host, 1)
        inside(f"{prefix}-{host}", "ip", "link", "add", "brup", "up", "type", "bridge")
        one.start()
        try:
            yield
        finally:
            one.freeze()
            await asyncio.gather(*one.tasks, return_exceptions=True)
            await one.links.close()
            inside(f"{prefix}-{host}", "ip", "link", "del", "brup")


def test_a_guest_on_a_managed_network_gets_its_address_and_moves_with_it() -> None:
    """Attached by its port to the network's bridge of each host, and heard across hosts by the tunnel."""

    async def story() -> None:
        async with real_hosts() as hosts:
            prefix = two_hosts().switch.prefix
            spaces = {f"host-{name}": f"{prefix}-host-{name}" for name in "ab"}
            store = await new_store(cluster=CLUSTER_NET)
            subnet = {
                "cidr": "10.70.0.0/24",
                "gateway": "10.70.0.1",
                "dhcp": {"start": "10.70.0.100", "end": "10.70.0.120"},
            }
            blue = await store.create(network("blue", type="managed", vni=70, subnets=[subnet]))
            await store.replace_status(replace(blue, status=replace(blue.status, mtu=1450)))
            plain = f"<interface type='user'><mac address='{MAC}'/><model type='virtio'/></interface>"
            vm, console = machine(hosts, "vm-7", plain, "net=dhcp")
            port = {"metadata": {"name": "vm-7.0"}, "spec": {"vm": "vm-7", "network": "blue", "mac": MAC}}
            await store.create(convert(VirtualMachinePort, port))
            async with own_links(store, spaces) as links, primary(store, prefix, "host-a"):
                plugged = {}
                for host, one in links.items():
                    plugged[host] = await BridgedPorts(
                        store, host, partial(getattr, one.links, "made"), NoNetworks()
                    ).plug(vm)
                await hosts.remote("a").create(plugged["host-a"], run_id="r1", epoch=7)
                found = await written(console, r"address (\S+) router (\S+) mtu (\d+)")
                assert found[1].startswith("10.70.0.1")
                assert (found[2], found[3]) == ("10.70.0.1", "1450")
                with namespaces(f"{prefix}-peer"):
                    cable(f"{prefix}-peer", "eth0", spaces["host-b"], "peer")
                    inside(spaces["host-b"], "ip", "link", "set", "peer", "master", "vmbr70")
                    inside(f"{prefix}-peer", "ip", "addr", "add", "10.70.0.200/24", "dev", "eth0")
                    way = (plugged["host-b"], "a", "b", f"{prefix}-peer", found[1])
                    await move_while_heard(hosts, *way)
                assert "vnet" not in inside(spaces["host-a"], "ip", "link", "show", "master", "vmbr70")
                assert "vnet" in inside(spaces["host-b"], "ip", "link", "show", "master", "vmbr70")
                await hosts.remote("b").destroy("vm-7")

    run_real(story(), limit_s=LIMIT_S)


@contextlib.contextmanager
def dhcp_server(switch: Switch, space: str) -> Iterator[None]:
    """Somebody on the switch who gives addresses."""
    switch.connect("fp", space, "eth0")
    inside(space, "ip", "addr", "add", "10.8.0.1/24", "dev", "eth0")
    inside(space, "ip", "link", "set", "eth0", "up")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config")
        config.write_text(
            f"start 10.8.0.10\nend 10.8.0.20\ninterface eth0\nlease_file {folder}/leases\npidfile {folder}/pid\n"
            "option subnet 255.255.255.0\n"
        )
        Path(folder, "leases").touch()
        server = subprocess.Popen(Workload(space).command("busybox", "udhcpd", "-f", str(config)))
        try:
            yield
        finally:
            server.terminate()
            server.wait()


def test_a_guest_on_a_function_by_macvtap_moves_live_to_one_whose_device_has_another_name() -> None:
    """``passthrough``: the device has the guest's MAC address while the guest has it, and its own afterwards."""

    async def story() -> None:
        async with real_hosts() as hosts:
            prefix = two_hosts().switch.prefix
            one, two, peer = f"{prefix}-host-a", f"{prefix}-host-b", f"{prefix}-fpeer"
            for _ in range(10):  # all hosts share /dev, where macvtap devices are named by their numbers
                inside(two, "ip", "link", "add", "number", "type", "veth", "peer", "name", "number2")
                inside(two, "ip", "link", "del", "number")
            switch = two_hosts().switch
            switch.connect("vf1", one, "nic0v3")
            switch.connect("vf2", two, "eth9")
            own = inside(one, "cat", "/sys/class/net/nic0v3/address")
            interface = (
                f"<interface type='direct'><mac address='{MAC}'/><source dev='nic0v3' mode='passthrough'/>"
                "<model type='virtio'/></interface>"
            )
            vm, console = machine(hosts, "vm-8", interface, "net=dhcp")
            with namespaces(peer), dhcp_server(switch, peer):
                source = hosts.remote("a")
                with pytest.raises(Refused, match=r"nic0v3.*hostDevices"):
                    await source.create(vm, run_id="r0", epoch=7)
                await source.call("functions", {"names": ["nic0v3"]})
                await source.create(vm, run_id="r1", epoch=7)
                address = (await written(console, r"address (10\.8\.\S+)"))[1]
                assert inside(one, "cat", "/sys/class/net/nic0v3/address").strip() == MAC
                place = FunctionPlace(name="nic0v3", pci="", device="eth9", vlan=0)
                definition = with_function_places(vm.spec.definition, [place])
                there = replace(vm, spec=replace(vm.spec, definition=definition))
                await move_while_heard(hosts, there, "a", "b", peer, address)
                assert inside(two, "cat", "/sys/class/net/eth9/address").strip() == MAC
                assert inside(one, "cat", "/sys/class/net/nic0v3/address") == own
                await hosts.remote("b").destroy("vm-8")
            for space, device in ((one, "nic0v3"), (two, "eth9")):
                inside(space, "ip", "link", "del", device)

    run_real(story(), limit_s=LIMIT_S)


def test_a_function_that_is_passed_through_is_a_definition_that_libvirt_takes() -> None:
    """It looks for the device, which is not there: the host is at fault, and not what was written."""

    async def story() -> None:
        async with real_hosts() as hosts:
            address = "<address type='pci' domain='0x0000' bus='0xfe' slot='0x10' function='0x2'/>"
            interface = (
                f"<interface type='hostdev' managed='yes'><mac address='{MAC}'/><source>{address}</source>"
                "<alias name='ua-nic0v3'/></interface>"
            )
            vm, _ = machine(hosts, "vm-9", interface, "")
            (need,) = vm.spec.functions
            assert (need.name, need.pci) == ("nic0v3", "0000:fe:10.2")
            place = FunctionPlace(name="nic0v3", pci="0000:fe:10.2", device="", vlan=7)
            there = replace(vm, spec=replace(vm.spec, definition=with_function_places(vm.spec.definition, [place])))
            driver = hosts.remote("a")
            with pytest.raises(Refused, match=r"0000:fe:10\.2.*hostDevices"):
                await driver.create(there, run_id="r0", epoch=7)
            await driver.call("functions", {"names": ["0000:fe:10.2"]})
            with pytest.raises(Refused, match=r"does not start: .*(passthrough of host PCI devices|0000:fe:10\.2)"):
                await driver.create(there, run_id="r1", epoch=7)

    run_real(story(), limit_s=LIMIT_S)

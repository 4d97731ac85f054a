"""A host's side of networks in OVN: which interfaces get an id of this host, and what is remembered."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from msgspec.structs import replace

from outlive.base import LoopClock, Random, SeededIds
from outlive.drivers.ovn import OvnNetwork, host_network
from outlive.network import Announcer
from outlive.resources import (
    Announcement,
    ObjectMeta,
    PortMove,
    Resource,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachinePortStatus,
    VirtualMachineSpec,
    VirtualNetwork,
    VirtualNetworkSpec,
    complete_vm,
    interface_id,
    parse,
)
from outlive.store import MemoryStore

HOST = "kvm-1"
ID = "b3a4f0d0-0000-4000-8000-000000000002"
MACS = ("52:54:00:00:00:01", "52:54:00:00:00:02")
DEFINITION = f"""<domain type='kvm'><name>cart</name><uuid>6f1a7c9e-0000-4000-8000-000000000001</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<interface type='bridge'><source bridge='br'/><mac address='{MACS[0]}'/>
<virtualport type='openvswitch'><parameters profileid='web'/></virtualport></interface>
<interface type='bridge'><source bridge='br-int'/><mac address='{MACS[1]}'/>
<virtualport type='openvswitch'><parameters interfaceid='{ID}'/></virtualport></interface></devices></domain>"""
BLUE = VirtualNetwork(
    metadata=ObjectMeta(name="blue"), spec=VirtualNetworkSpec(type="routed", subnets=(Subnet(cidr="10.44.0.0/16"),))
)


def vm(name: str = "cart", definition: str = DEFINITION) -> VirtualMachine:
    return complete_vm(VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(definition=definition)))


def port(number: int, vm: str = "cart", **status: object) -> VirtualMachinePort:
    return VirtualMachinePort(
        metadata=ObjectMeta(name=f"{vm}.{number}"),
        spec=VirtualMachinePortSpec(vm=vm, network="blue", mac=MACS[number % 2]),
        status=VirtualMachinePortStatus(**status),  # type: ignore[arg-type]
    )


class Switch:
    """Has all interfaces plugged, and all their flows."""

    async def start(self) -> None:
        """At once."""

    async def read_devices(self) -> dict[str, str]:
        return {interface_id(ID, "twin", HOST): "tap0"}

    async def wait_installed(self, interfaces: Collection[str], limit_s: float) -> tuple[str, ...]:
        return ()


class Sent(Announcer):
    """Remembers how often something was sent."""

    def __init__(self) -> None:
        self.count = 0

    async def send(
        self, interface: str, frames: Sequence[bytes], schedule_ms: Sequence[int], *, vlan: int | None = None
    ) -> int:
        self.count += 1
        return len(frames)


def network_of(clock: LoopClock, *objects: Resource, announcer: Announcer | None = None) -> OvnNetwork:
    store = MemoryStore(clock, SeededIds(Random(1)))
    store.load(objects)
    return OvnNetwork(store, Switch(), HOST, 10.0, clock=clock, announcer=announcer)


async def test_an_interface_without_an_id_is_plugged_as_it_is_defined() -> None:
    plugged = await network_of(LoopClock(), BLUE, port(0), port(1)).plug(vm())
    assert plugged.spec.ports == (MACS[0], interface_id(ID, "twin", HOST))
    assert parse(plugged.spec.definition).port_ids == plugged.spec.ports, "else no host starts it"


async def test_a_move_does_not_wait_for_an_interface_without_an_id() -> None:
    ready = port(1, migration=PortMove(id="m1", prepared=True))
    network = network_of(LoopClock(), BLUE, port(0), ready)
    assert await network.prepare(vm(), "m1") == ""


async def test_a_port_of_another_vm_neither_changes_an_interface_nor_stops_its_moves() -> None:
    stray = port(1)
    stray = replace(stray, spec=replace(stray.spec, vm="db"))
    network = network_of(LoopClock(), BLUE, stray)
    assert await network.plug(vm()) == vm()
    assert await network.prepare(vm(), "m1") == ""


async def test_a_target_plugs_an_interface_as_its_port_was_made_whatever_its_mode_is_to_be() -> None:
    green = replace(BLUE, metadata=ObjectMeta(name="green"), spec=replace(BLUE.spec, type="layer2"))
    made = port(1, network="green", port_mode="shared")
    made = replace(made, spec=replace(made.spec, port_mode="twin"))
    assert (await network_of(LoopClock(), green, made).plug(vm())).spec.ports == (MACS[0], ID)


async def test_what_was_sent_last_is_remembered_of_a_limited_number_of_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_network, "SENT_LIMIT", 2)
    clock, sent = LoopClock(), Sent()
    names = ("a", "b", "c")
    told = {
        "migration": PortMove(id="m1", prepared=True),
        "announcements": (Announcement(id="m1", hypervisor=HOST, interface="i", frames=("ffff",)),),
    }
    network = network_of(clock, BLUE, *(port(1, name, **told) for name in names), announcer=sent)
    for name in names:
        await network.plugged_ports(VirtualMachine(metadata=ObjectMeta(name=name), spec=vm().spec))
        network.announce(name)
        await clock.sleep(1)
    assert sent.count == len(names)
    assert len(network._sent) == 2

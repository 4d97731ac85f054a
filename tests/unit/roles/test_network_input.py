"""Bad input of networks: told with the object's name, and others are served."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from tests.support.network_clouds import Cloud, guest, in_cloud

from outlive.resources import (
    Assigned,
    Condition,
    Migration,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    condition,
)
from outlive.resources.networks import Subnet, VirtualMachinePortSpec, VirtualNetworkSpec

NOBODY = Condition(type="Programmed", status="Unknown")


def network(name: str, cidr: str, kind: str = "routed") -> VirtualNetwork:
    spec = VirtualNetworkSpec(type=kind, subnets=(Subnet(cidr=cidr),))  # type: ignore[arg-type]
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec)


def port_object(name: str, vm: str, network: str, mac: str) -> VirtualMachinePort:
    spec = VirtualMachinePortSpec(vm=vm, network=network, mac=mac)
    return VirtualMachinePort(metadata=ObjectMeta(name=name), spec=spec)


def with_mac(guest: list[Resource], mac: str) -> list[Resource]:
    """The VM with another MAC on its port."""
    vm, port = guest
    assert isinstance(port, VirtualMachinePort)
    return [vm, replace(port, spec=replace(port.spec, mac=mac))]


def test_a_malformed_routed_network_is_told_with_its_name_and_others_are_served() -> None:
    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("web") == ""
        assert await cloud.programmed("lost") == "network-invalid"
        found = condition((await cloud.store.get(VirtualNetwork, "apple")).status.conditions, "Programmed")
        assert found is not None
        assert (found.status, found.reason) == ("False", "network-invalid")
        assert "apple" in found.message
        await asyncio.sleep(75)
        assert "network-port-refused.lost.0" in await cloud.faults()

    in_cloud("red", story, beside=(network("apple", "10.44.0.1/16"), *guest("lost", "apple", 7)))


def test_a_mac_that_is_none_is_told_of_its_port_and_other_ports_are_served_also_those_of_its_vm() -> None:
    wrong = with_mac(guest("lost", "red", 7), "52:54")
    second = port_object("lost.1", "lost", "red", "02:00:00:00:02:07")
    (vm, port), interfaces = wrong, ("00000000-0000-4000-8000-000000000007", "00000000-0000-4000-8000-000000000008")
    assert isinstance(vm, VirtualMachine)
    vm = replace(vm, spec=replace(vm.spec, ports=interfaces))

    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("lost") == "mac-invalid"
        other = await cloud.store.get(VirtualMachinePort, "lost.1")
        assert (condition(other.status.conditions, "Programmed") or NOBODY).status == "True"
        await cloud.plug("ch-1")
        await cloud.set_vm(migration=Migration(id="m1", source="ch-1", target="ch-2"))
        await asyncio.sleep(2)
        await cloud.set_vm(migration=None, assigned=Assigned(hypervisor="ch-2"))
        await asyncio.sleep(5)
        status = (await cloud.port()).status
        assert (status.active_on, [one.hypervisor for one in status.announcements]) == ("ch-2", ["ch-2"])

    in_cloud("red", story, beside=(vm, port, second))


def test_macs_are_compared_in_one_form() -> None:
    older = with_mac(guest("older", "green", 7, hour=1), "02-00-00-00-AA-0B")
    younger = with_mac(guest("younger", "green", 8, hour=2), "02:00:00:00:aa:0b")

    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("older") == ""
        assert await cloud.programmed("younger") == "mac-twice"
        row = cloud.row("00000000-0000-4000-8000-000000000007")
        assert row is not None
        assert row["addresses"][0].startswith("02:00:00:00:aa:0b ")

    in_cloud("green", story, beside=(*older, *younger))


def test_of_two_vms_with_one_interface_id_the_older_keeps_its_port() -> None:
    interface = "00000000-0000-4000-8000-00000000ab07"
    older = guest("older", "green", 7, hour=1, interface=interface)
    younger = guest("a-younger", "green", 8, host="ch-2", hour=2, interface=interface.upper())

    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("older") == ""
        found = condition((await cloud.port_of("a-younger")).status.conditions, "Programmed")
        assert found is not None
        assert found.reason == "interface-twice"
        assert "older" in found.message
        assert "a-younger" in found.message
        row = cloud.row(interface)
        assert row is not None
        assert row["external_ids"]["k8s.ovn.org/vm"] == "older"
        assert "NotProgrammed" in await cloud.events()
        assert await cloud.programmed("web") == ""
        await cloud.store.delete((await cloud.store.get(VirtualMachine, "older")).ref)
        await asyncio.sleep(40)
        assert await cloud.programmed("a-younger") == ""

    in_cloud("green", story, beside=(*older, *younger))


def test_an_older_vm_that_comes_to_have_the_interface_id_of_a_younger_one_gets_its_port() -> None:
    own, other = "00000000-0000-4000-8000-00000000ab08", "00000000-0000-4000-8000-00000000ab07"
    older, younger = (
        guest("older", "green", 7, hour=1, interface=own),
        guest("younger", "green", 8, hour=2, interface=other),
    )

    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("younger") == ""
        vm = await cloud.store.get(VirtualMachine, "older")
        await cloud.store.replace(replace(vm, spec=replace(vm.spec, ports=(other,))))
        await asyncio.sleep(40)
        assert (await cloud.programmed("older"), await cloud.programmed("younger")) == ("", "interface-twice")
        row = cloud.row(other)
        assert row is not None
        assert row["external_ids"]["k8s.ovn.org/vm"] == "older"
        assert cloud.row(own) is None

    in_cloud("green", story, beside=(*older, *younger))

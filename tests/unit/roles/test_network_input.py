"""Bad input of networks: told with the object's name, and others are served."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.support.network_clouds import INTERFACE, MAC, Cloud, guest, in_cloud

from outlive.network import PORTS, SWITCHES, upsert
from outlive.resources import (
    Assigned,
    Condition,
    Migration,
    ObjectMeta,
    ObjectRef,
    Resource,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualNetwork,
    VirtualNetworkSpec,
    find_condition,
    interface_id,
)

pytestmark = pytest.mark.slow

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


@run_by(in_cloud, "red", beside=(network("apple", "10.44.0.1/16"), *guest("lost", "apple", 7)))
async def test_a_malformed_routed_network_is_told_with_its_name_and_others_are_served(cloud: Cloud) -> None:
    assert await cloud.programmed("web") == ""
    assert await cloud.programmed("lost") == "network-invalid"
    found = find_condition((await cloud.store.get(VirtualNetwork, "apple")).status.conditions, "Programmed")
    assert found is not None
    assert (found.status, found.reason) == ("False", "network-invalid")
    assert "apple" in found.message
    await asyncio.sleep(75)
    assert "network-port-refused.lost.0" in await cloud.faults()


def test_a_mac_that_is_none_is_told_of_its_port_and_other_ports_are_served_also_those_of_its_vm() -> None:
    wrong = with_mac(guest("lost", "red", 7), "52:54")
    second = port_object("lost.1", "lost", "red", "02:00:00:00:02:07")
    (vm, port), interfaces = wrong, ("00000000-0000-4000-8000-000000000007", "00000000-0000-4000-8000-000000000008")
    assert isinstance(vm, VirtualMachine)
    vm = replace(vm, spec=replace(vm.spec, ports=interfaces))

    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("lost") == "mac-invalid"
        other = await cloud.store.get(VirtualMachinePort, "lost.1")
        assert (find_condition(other.status.conditions, "Programmed") or NOBODY).status == "True"
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
        found = find_condition((await cloud.port_of("a-younger")).status.conditions, "Programmed")
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


def test_an_older_vm_that_comes_to_have_the_interface_id_of_a_younger_one_gets_its_port_when_that_is_gone() -> None:
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
        told = (await cloud.programmed("older"), await cloud.programmed("younger"))
        assert told == ("foreign-row", "interface-twice"), "nothing is taken from a VM that runs"
        row = cloud.row(other)
        assert row is not None
        assert row["external_ids"]["k8s.ovn.org/vm"] == "younger"
        await cloud.store.delete(ObjectRef(kind="VirtualMachinePort", name="younger.0"))
        await asyncio.sleep(40)
        assert await cloud.programmed("older") == ""
        row = cloud.row(other)
        assert row is not None
        assert row["external_ids"]["k8s.ovn.org/vm"] == "older"
        assert cloud.row(own) is None

    in_cloud("green", story, beside=(*older, *younger))


def address(port: VirtualMachinePort) -> str:
    """The only address of a port."""
    (found,) = port.status.addresses
    return found


async def change_port(cloud: Cloud, vm: str, **spec: object) -> None:
    port = await cloud.port_of(vm)
    await cloud.store.replace(replace(port, spec=replace(port.spec, **spec)))  # type: ignore[arg-type]
    await asyncio.sleep(2)


async def notice(cloud: Cloud, vm: str) -> str:
    """What is wrong with the network or the addresses of its first port, which is programmed all the same."""
    found = find_condition((await cloud.port_of(vm)).status.conditions, "AddressesReserved")
    return found.reason if found is not None and found.status == "False" else ""


@pytest.mark.parametrize("hours", [(1, 2), (2, 1)])
def test_of_two_ports_that_were_given_one_address_the_older_keeps_it(hours: tuple[int, int]) -> None:
    given = ("10.1.0.9/24",)
    guests = [guest(f"vm-{hour}", "green", 7 + hour, hour=hour, granted=given) for hour in hours]

    async def story(cloud: Cloud) -> None:
        assert (await cloud.programmed("vm-1"), await cloud.programmed("vm-2")) == ("", "address-twice")
        assert "AddressTaken" in await cloud.events()
        vm = await cloud.store.get(VirtualMachine, "vm-2")
        await cloud.store.replace(replace(vm, spec=replace(vm.spec, power_state="stopped")))
        await asyncio.sleep(2)
        assert await cloud.programmed("vm-2") == ""
        assert address(await cloud.port_of("vm-2")) != "10.1.0.9/24", "a VM that is down gets another one"

    in_cloud("green", story, beside=[one for each in guests for one in each])


@run_by(in_cloud, "green", beside=guest("older", "green", 7, hour=0))
async def test_a_port_that_comes_to_ask_for_the_address_of_another_one_keeps_its_own(cloud: Cloud) -> None:
    before, taken = address(await cloud.port_of("older")), address(await cloud.port())
    await change_port(cloud, "older", addresses=(taken,))
    assert (await cloud.programmed("older"), await cloud.programmed("web")) == ("", "")
    assert address(await cloud.port_of("older")) == before
    assert await notice(cloud, "older") == "address-twice"
    await change_port(cloud, "older", addresses=("10.1.0.77",))
    assert address(await cloud.port_of("older")) == before
    assert await notice(cloud, "older") == "addresses-changed"
    vm = await cloud.store.get(VirtualMachine, "older")
    await cloud.store.replace(replace(vm, spec=replace(vm.spec, power_state="stopped")))
    await asyncio.sleep(2)
    assert address(await cloud.port_of("older")) == "10.1.0.77/24"
    assert await notice(cloud, "older") == ""


@pytest.mark.parametrize("written", ["2001:DB8::7", "2001:db8:0:0::7/64", "2001:0db8::0007"])
def test_an_address_in_another_form_is_the_same_address(written: str) -> None:
    async def story(cloud: Cloud) -> None:
        assert address(await cloud.port_of("older")) == "2001:db8::7/64"
        assert await cloud.programmed("younger") == "address-twice"

    in_cloud(
        "green",
        story,
        beside=(
            network("six", "2001:db8::/64", "layer2"),
            *guest("older", "six", 7, hour=1, addresses=(written,)),
            *guest("younger", "six", 8, hour=2, addresses=("2001:db8::7",)),
        ),
    )


ODD = VirtualNetwork(
    metadata=ObjectMeta(name="odd"),
    spec=VirtualNetworkSpec(
        type="layer2",
        subnets=(Subnet(cidr="10.9.0.0/24", gateway="10.9.0.1", excluded=("10.9.0.64/26",)), Subnet(cidr="fd09::/64")),
    ),
)


@pytest.mark.parametrize(
    ("network", "unfit"),
    [
        ("odd", "10.9.0.1"),
        ("odd", "10.9.0.65"),
        ("odd", "10.9.0.255"),
        ("odd", "10.8.0.7"),
        ("odd", "fd08::7"),
        ("odd", "house"),
        ("red", "10.44.0.1"),
        ("red", "10.45.0.7/24"),
    ],
)
def test_an_address_that_no_port_may_have_is_told_and_a_port_that_has_one_keeps_it(network: str, unfit: str) -> None:
    async def story(cloud: Cloud) -> None:
        assert await cloud.programmed("wrong") == "no-address"
        assert (await cloud.port_of("wrong")).status.addresses == ()
        before = (await cloud.port_of("right")).status.addresses
        await change_port(cloud, "right", addresses=(unfit,))
        assert (await cloud.programmed("right"), await notice(cloud, "right")) == ("", "no-address")
        assert (await cloud.port_of("right")).status.addresses == before

    in_cloud(
        "green",
        story,
        beside=(ODD, *guest("wrong", network, 7, addresses=(unfit,)), *guest("right", network, 8)),
    )


@run_by(in_cloud, "green")
async def test_an_address_that_a_network_comes_to_exclude_is_kept_by_the_port_that_has_it(cloud: Cloud) -> None:
    before = address(await cloud.port())
    green = await cloud.store.get(VirtualNetwork, "green")
    subnets = (Subnet(cidr="10.1.0.0/24", excluded=(before.partition("/")[0],)),)
    await cloud.store.replace(replace(green, spec=replace(green.spec, subnets=subnets)))
    await asyncio.sleep(2)
    assert (await cloud.programmed("web"), await notice(cloud, "web")) == ("", "no-address")
    assert address(await cloud.port()) == before
    assert "NotChanged" in await cloud.events()


@run_by(in_cloud, "green", beside=(network("blue", "10.7.0.0/24", "layer2"),))
async def test_a_port_changes_its_network_once_its_vm_is_down(cloud: Cloud) -> None:
    before = await cloud.port()
    await change_port(cloud, "web", network="blue")
    assert (await cloud.programmed("web"), await notice(cloud, "web")) == ("", "network-changed")
    row = cloud.row(INTERFACE)
    assert row is not None
    assert (row["switch"], (await cloud.port()).status.addresses) == (
        "green_ovn_layer2_switch",
        before.status.addresses,
    )
    assert await cloud.check() == [("not-bound", "VirtualMachinePort/web.0")]
    vm = await cloud.vm()
    await cloud.store.replace(replace(vm, spec=replace(vm.spec, power_state="stopped")))
    await asyncio.sleep(2)
    row = cloud.row(INTERFACE)
    assert row is not None
    assert (row["switch"], address(await cloud.port())) == ("blue_ovn_layer2_switch", "10.7.0.1/24")
    assert (await cloud.programmed("web"), await notice(cloud, "web")) == ("", "")


@pytest.mark.parametrize("kind", ["green", "red"])
def test_after_a_restore_of_the_store_a_vm_keeps_the_addresses_that_its_rows_have(kind: str) -> None:
    has = "10.44.0.7" if kind == "red" else "10.1.0.7"
    switch = "red_ch-1" if kind == "red" else "green_ovn_layer2_switch"
    ids = {
        "k8s.ovn.org/owner-controller": "outlive-network-controller",
        "namespace": "outlive.dev",
        "k8s.ovn.org/network": kind,
        "k8s.ovn.org/vm": "web",
        "k8s.ovn.org/namespace": "outlive.dev",
        "outlive.dev/interface": INTERFACE,
    }
    row = {"name": "left", "switch": switch, "addresses": [f"{MAC.upper()} {has}"], "external_ids": ids}

    async def story(cloud: Cloud) -> None:
        assert (await cloud.programmed("web"), address(await cloud.port())) == ("", f"{has}/24")

    ours = {key: value for key, value in ids.items() if key in ("k8s.ovn.org/owner-controller", "k8s.ovn.org/network")}
    rows = (
        upsert(SWITCHES, {"name": switch}, {"name": switch, "external_ids": ours}),
        upsert(PORTS, {"name": "left"}, row),
    )
    others = [one for number in range(2, 12) for one in guest(f"a-{number:02}", kind, number)]
    in_cloud(kind, story, beside=others, rows=rows)


@run_by(in_cloud, "green", beside=(network("tiny", "10.7.0.0/29", "layer2"),))
async def test_addresses_of_ports_that_are_gone_are_free_again(cloud: Cloud) -> None:
    for number in range(2, 12):
        vm, port = guest(f"vm-{number}", "tiny", number)
        await cloud.store.create(vm)
        await cloud.store.replace_status(
            replace(vm, metadata=(await cloud.store.get(VirtualMachine, vm.name)).metadata)
        )
        await cloud.store.create(port)
        await asyncio.sleep(2)
        assert await cloud.programmed(vm.name) == ""
        await cloud.store.delete((await cloud.store.get(VirtualMachinePort, port.name)).ref)
        await asyncio.sleep(35)


@run_by(in_cloud, "red")
async def test_ports_of_vms_that_are_gone_or_elsewhere_are_not_remembered(cloud: Cloud) -> None:
    network = cloud.role.network
    assert network is not None
    assert network._vm_of_port == {interface_id(INTERFACE, "twin", "ch-1"): "web"}
    await cloud.set_vm(assigned=Assigned(hypervisor="ch-2"))
    await asyncio.sleep(2)
    assert network._vm_of_port == {interface_id(INTERFACE, "twin", "ch-2"): "web"}
    await cloud.store.delete((await cloud.port()).ref)
    await asyncio.sleep(2)
    assert network._vm_of_port == {}

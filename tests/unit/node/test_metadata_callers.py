"""Whom the metadata server answers: one VM on the network that the question came from, and nobody in doubt."""

from __future__ import annotations

import pytest

from outlive.node.services import ServedLease, ServedNetwork, collect_facts, find_caller
from outlive.resources import (
    DhcpReservation,
    ObjectMeta,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachineSpec,
)

MAC, OTHER = "02:00:00:00:00:01", "02:00:00:00:00:02"
BLUE = ServedNetwork(
    name="blue", vni=10, domain="blue.local", reservations=(DhcpReservation(mac=OTHER.upper(), address="10.10.0.9"),)
)
RED = ServedNetwork(name="red", vni=20, domain="red.local")
LEASES = [ServedLease(address="10.10.0.100", mac=MAC)]


def vm(name: str, *interfaces: tuple[str, str]) -> VirtualMachine:
    each = "".join(f"<interface><mac address='{mac}'/><source bridge='{at}'/></interface>" for mac, at in interfaces)
    definition = f"<domain><devices>{each}</devices></domain>"
    spec = VirtualMachineSpec(definition=definition, ports=tuple(mac for mac, _ in interfaces))
    return VirtualMachine(metadata=ObjectMeta(name=name), spec=spec)


def port(vm: str, mac: str, network: str, index: int = 0) -> VirtualMachinePort:
    spec = VirtualMachinePortSpec(vm=vm, network=network, mac=mac)
    return VirtualMachinePort(metadata=ObjectMeta(name=f"{vm}.{index}"), spec=spec)


@pytest.mark.parametrize(
    ("vms", "ports", "caller"),
    [
        ([vm("a", (MAC, "vmbr10"))], [], "a"),
        ([vm("a", (MAC, "vmbr10")), vm("b", (MAC, "vmbr20"))], [], "a"),
        ([vm("a", (MAC, "vmbr20"))], [], ""),
        ([vm("a", (MAC, "vmbr10")), vm("b", (MAC, "vmbr10"))], [], ""),
        ([vm("a", (MAC, "vmbr20"), (OTHER, "vmbr10"))], [], ""),
        ([vm("a", (MAC, "br0"))], [port("a", MAC, "blue")], "a"),
        ([vm("a", (MAC, "vmbr10"))], [port("a", MAC, "red")], ""),
        ([vm("a", ("6f9619ff-8b86-4011-b42d-00cf4fc964ff", "br0"))], [port("a", MAC, "blue")], "a"),
        ([vm("a", (MAC, "vmbr20")), vm("b", (MAC, "br0"))], [port("a", MAC, "red"), port("b", MAC, "blue")], "b"),
        (
            [VirtualMachine(metadata=ObjectMeta(name="a"), spec=VirtualMachineSpec(definition="<", ports=(MAC,)))],
            [],
            "",
        ),
    ],
)
def test_a_caller_is_the_one_vm_whose_interface_is_on_the_network(
    vms: list[VirtualMachine], ports: list[VirtualMachinePort], caller: str
) -> None:
    found = find_caller(BLUE, "10.10.0.100", LEASES, collect_facts(vms, ports))
    assert (found.name if found is not None else "") == caller


def test_a_reserved_address_names_its_interface_and_an_address_of_nobody_nobody() -> None:
    facts = collect_facts([vm("a", (OTHER, "vmbr10"))], [])
    found = find_caller(BLUE, "10.10.0.9", [], facts)
    assert found is not None
    assert found.name == "a"
    assert find_caller(BLUE, "10.10.0.77", LEASES, facts) is None
    assert find_caller(RED, "10.10.0.9", [], facts) is None

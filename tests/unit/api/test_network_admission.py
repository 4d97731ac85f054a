"""What the server asks of networks and of ports of VMs before they are written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.support.loops import run_real

from outlive.api import Neighbours, check_admission
from outlive.base import Invalid, SystemClock, SystemIds
from outlive.resources import (
    Assigned,
    ObjectMeta,
    Resource,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachinePortStatus,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
)
from outlive.store import MemoryStore


def network(name: str, *cidrs: str, kind: str = "routed", mtu: int = 0) -> VirtualNetwork:
    subnets = tuple(Subnet(cidr=one) for one in cidrs)
    spec = VirtualNetworkSpec(type=kind, subnets=subnets, mtu=mtu)  # type: ignore[arg-type]
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec)


def port(mac: str) -> VirtualMachinePort:
    spec = VirtualMachinePortSpec(vm="web", network="blue", mac=mac)
    return VirtualMachinePort(metadata=ObjectMeta(name="web.0"), spec=spec)


def checked(stored: tuple[Resource, ...], *networks: Resource) -> None:
    """Each of them, beside those that are stored and those before it."""

    async def check() -> None:
        store = MemoryStore(SystemClock(), SystemIds())
        store.load(stored)
        neighbours = Neighbours(store)
        for one in networks:
            await neighbours.check(one)

    run_real(check())


@pytest.mark.parametrize(
    "wrong", [network("blue", "10.44.0.1/16"), network("blue"), port("52:54"), port("01" + 5 * ":00")]
)
def test_a_malformed_network_or_port_is_not_written(wrong: VirtualNetwork | VirtualMachinePort) -> None:
    with pytest.raises(Invalid) as error:
        check_admission(wrong)
    assert wrong.name in error.value.message
    assert error.value.remedy


def test_a_network_and_a_port_in_each_form_are_written() -> None:
    assert check_admission(network("blue", "10.44.0.0/16", "fd44::/32")) == ()
    assert check_admission(port("52-54-00-00-00-0A")) == check_admission(port("52:54:00:00:00:0a")) == ()


def test_a_routed_network_that_overlaps_another_one_is_not_written() -> None:
    blue, red = network("blue", "10.44.0.0/16"), network("red", "10.44.7.0/24")
    with pytest.raises(Invalid, match="overlap those of blue"):
        checked((blue,), red)
    with pytest.raises(Invalid, match="overlap those of blue"):
        checked((), blue, red)
    checked((blue,), network("red", "10.44.7.0/24", kind="layer2"), network("red", "10.45.0.0/16"))


def test_networks_that_overlap_already_may_be_changed_otherwise() -> None:
    blue, red = network("blue", "10.44.0.0/16"), network("red", "10.44.7.0/24")
    checked((blue, red), network("red", "10.44.7.0/24", mtu=1400), replace(blue, spec=replace(blue.spec, mtu=1400)))


def test_an_interface_id_that_another_vm_has_is_not_written() -> None:
    interface, mac = "b3a4f0d0-0000-4000-8000-00000000ab02", "52:54:00:00:00:01"

    def vm(name: str, *ports: str) -> VirtualMachine:
        return VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(ports=ports))

    with pytest.raises(Invalid, match=f"VM web has the interface id {interface}, and so has VM cart"):
        checked((vm("cart", interface),), vm("web", interface.upper()))
    with pytest.raises(Invalid, match="and so has VM cart"):
        checked((vm("web"),), vm("cart", interface), vm("web", interface))
    checked((vm("cart", interface), vm("web", interface)), vm("web", interface, mac), vm("cart", mac))


def test_a_network_that_has_ports_does_not_get_another_type() -> None:
    blue, red = network("blue", "10.44.0.0/16", kind="layer2"), network("red", "10.45.0.0/16", kind="layer2")
    moved = replace(port("52:54:00:00:00:01"), status=VirtualMachinePortStatus(network="red"))
    for name in ("blue", "red"):
        with pytest.raises(Invalid, match=f"VirtualNetwork {name} is layer2, and has 1 port: web.0"):
            checked((blue, red, moved), network(name, "10.46.0.0/16", kind="routed"))
    checked((blue, red), network("blue", "10.44.0.0/16", kind="bridged"))
    checked((blue, moved), network("blue", "10.47.0.0/16", kind="layer2"))


def test_an_interface_gets_no_other_id_while_its_guest_runs() -> None:
    first, second = (f"b3a4f0d0-0000-4000-8000-00000000ab0{number}" for number in (1, 2))
    running = VirtualMachine(
        metadata=ObjectMeta(name="web"),
        spec=VirtualMachineSpec(ports=(first,)),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor="kvm-1")),
    )
    changed = replace(running, spec=replace(running.spec, ports=(second,)))
    own = port("52:54:00:00:00:01")
    with pytest.raises(Invalid, match=f"VM web runs, and its interface 0, of port web.0, has the id {first}"):
        checked((running, own), changed)
    checked((running,), changed)
    checked((replace(running, status=VirtualMachineStatus()), own), changed)
    checked((running, own), replace(running, spec=replace(running.spec, ports=(first, second))))
    checked((running, own), replace(running, spec=replace(running.spec, ports=())))

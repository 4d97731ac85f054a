"""What is changed of a port or network while guests use it: it waits until they are down, and is told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loops import run_by
from tests.support.network_controllers import Controlled, control, host, interface, network, port, vm

from outlive.network import SWITCHES
from outlive.resources import VirtualMachine, VirtualMachinePort, VirtualNetwork, find_condition, interface_id

pytestmark = pytest.mark.slow


async def notice(controlled: Controlled, name: str = "web.0") -> str:
    """What is wrong with the port though it is programmed: a code."""
    found = find_condition(
        (await controlled.store.get(VirtualMachinePort, name)).status.conditions, "AddressesReserved"
    )
    return found.reason if found is not None and found.status == "False" else ""


async def stop_vm(controlled: Controlled) -> None:
    await controlled.change(VirtualMachine, "web", spec={"power_state": "stopped"})


async def start_vm(controlled: Controlled) -> None:
    await controlled.change(VirtualMachine, "web", spec={"power_state": "running"})


@run_by(control, host("kvm-1"), network(), vm(), port())
async def test_a_running_guest_keeps_its_interface_when_the_mode_of_its_port_is_changed(controlled: Controlled) -> None:
    before = controlled.rows()
    await controlled.change(VirtualMachinePort, "web.0", spec={"port_mode": "twin"})
    assert (controlled.rows(), await notice(controlled)) == (before, "mode-changed")
    await controlled.stop()
    await controlled.start()
    assert controlled.rows() == before, "another controller knows it as well"
    await stop_vm(controlled)
    await start_vm(controlled)
    assert set(controlled.rows()) == {interface_id(interface(), "twin", "kvm-1")}
    assert await notice(controlled) == ""


@pytest.mark.parametrize("addressing", ["managed", "none"])
@pytest.mark.parametrize(("first", "second"), [((), ("192.168.40.99",)), (("192.168.40.7",), ("192.168.40.99",))])
def test_a_running_guest_keeps_its_addresses_when_its_port_is_given_others(
    addressing: Any, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.rows()
        await controlled.change(VirtualMachinePort, "web.0", spec={"addresses": second})
        assert (controlled.rows(), await notice(controlled)) == (before, "addresses-changed")
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == ""
        await stop_vm(controlled)
        await start_vm(controlled)
        (text,) = (one for one in controlled.rows()[interface()]["addresses"] if one != "unknown")
        assert (text.split()[1:], await notice(controlled)) == (["192.168.40.99"], "")

    control(story, host("kvm-1"), network(addressing=addressing), vm(), port(addresses=first))


@run_by(control, host("kvm-1"), network(addressing="none"), vm(), port(addresses=("192.168.40.7",)))
async def test_a_running_guest_keeps_its_addresses_when_its_port_is_to_have_none(controlled: Controlled) -> None:
    before = controlled.rows()
    await controlled.change(VirtualMachinePort, "web.0", spec={"addresses": ()})
    assert (controlled.rows(), await notice(controlled)) == (before, "addresses-changed")
    await stop_vm(controlled)
    assert (await controlled.store.get(VirtualMachinePort, "web.0")).status.addresses == ()


@pytest.mark.parametrize("wanted", ["bridged", "routed", "localnet"])
@run_by(control, host("kvm-1"), network(), vm(), port())
async def test_a_network_with_ports_keeps_its_type(controlled: Controlled, *, wanted: Any) -> None:
    rows, switches = controlled.rows(), controlled.rows(SWITCHES)
    await controlled.change(VirtualNetwork, "green", spec={"type": wanted, "physical_network": "net"})
    await controlled.stop()
    await controlled.start()
    assert (controlled.rows(), controlled.rows(SWITCHES)) == (rows, switches)
    assert await controlled.problem_of(VirtualMachinePort, "web.0") == "type-changed"
    assert await controlled.problem_of(VirtualNetwork, "green") == "type-changed"
    await controlled.delete(VirtualMachinePort, "web.0")
    await controlled.clock.sleep(30)
    assert not set(controlled.rows(SWITCHES)) & set(switches)
    assert await controlled.problem_of(VirtualNetwork, "green") == ""


@pytest.mark.parametrize("first", ["layer2", "localnet", "routed"])
def test_a_network_without_ports_that_hosts_come_to_make_themselves_leaves_nothing_in_ovn(first: Any) -> None:
    async def story(controlled: Controlled) -> None:
        assert controlled.rows(SWITCHES)
        await controlled.change(VirtualNetwork, "green", spec={"type": "bridged"})
        assert (controlled.rows(), controlled.rows(SWITCHES)) == ({}, {})

    control(story, host("kvm-1"), network(type=first, physical_network="net"))


@run_by(control, host("kvm-1"), network(), vm(), port(addresses=("192.168.40.7",)), starts=False)
async def test_a_mode_that_is_changed_while_ovn_is_away_waits_as_well(controlled: Controlled) -> None:
    controlled.ovn.faults.northbound_down = True
    await controlled.start()
    await controlled.change(VirtualMachinePort, "web.0", spec={"port_mode": "twin"})
    controlled.ovn.faults.northbound_down = False
    await controlled.clock.sleep(60)
    assert (set(controlled.rows()), await notice(controlled)) == ({interface()}, "mode-changed")

"""What the network controller does with rows of others."""

from __future__ import annotations

from tests.support.network_controllers import Controlled, control, host, interface, network, port, vm

from outlive.network.operations import SWITCHES
from outlive.resources import Event, VirtualMachinePort, VirtualNetwork
from outlive.store import list_all

FOREIGN = {"k8s.ovn.org/owner-controller": "green-network-controller"}


async def events(controlled: Controlled) -> set[tuple[str, str, str]]:
    """Kind, name and reason of all that was told."""
    found = [one async for one in list_all(controlled.store, Event)]
    return {(one.regarding.kind, one.regarding.name, one.reason) for one in found}


def test_a_switch_of_another_controller_stays_as_it_is_and_other_networks_are_served() -> None:
    async def story(controlled: Controlled) -> None:
        theirs = {"name": "green_ovn_layer2_switch", "external_ids": FOREIGN}
        controlled.write(SWITCHES, theirs)
        await controlled.start()
        assert controlled.rows(SWITCHES)["green_ovn_layer2_switch"] == theirs
        assert set(controlled.rows()) == {interface(2)}
        assert await controlled.problem_of(VirtualNetwork, "green") == "foreign-row"
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == "foreign-row"
        assert await controlled.problem_of(VirtualMachinePort, "db.0") == ""
        await controlled.settle()
        assert ("VirtualNetwork", "green", "NotProgrammed") in await events(controlled)
        assert ("VirtualMachinePort", "web.0", "NotProgrammed") in await events(controlled)

    objects = (host("kvm-1"), network(), network("blue", cidr="192.168.41.0/24"), vm(), port())
    control(story, *objects, vm("db", ports=(interface(2),)), port("db.0", "blue"), starts=False)


def test_two_vms_with_one_interface_id_do_not_take_each_others_port() -> None:
    async def story(controlled: Controlled) -> None:
        before = controlled.rows()[interface()]
        await controlled.create(vm("db", "kvm-2"), port("db.0", mac="0a:58:c0:a8:28:0a"))
        await controlled.settle()
        assert controlled.rows() == {interface(): before}
        assert await controlled.problem_of(VirtualMachinePort, "db.0") == "foreign-row"
        assert await controlled.problem_of(VirtualMachinePort, "web.0") == ""

    control(story, host("kvm-1"), host("kvm-2"), network(), vm(), port())


def test_networks_whose_names_are_alike_have_switches_of_their_own() -> None:
    async def story(controlled: Controlled) -> None:
        assert set(controlled.rows(SWITCHES)) == {"a-b_ovn_layer2_switch", "a.b_ovn_layer2_switch", "default_kvm-1"}

    names = (network("a-b"), network("a.b", cidr="192.168.41.0/24"), network("default", "routed", "10.44.0.0/16"))
    control(story, host("kvm-1"), *names)

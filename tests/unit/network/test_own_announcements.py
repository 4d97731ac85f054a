"""Guests of our own hosts and their neighbours learn where the other is after a move."""

from __future__ import annotations

from outlive.network import PROXY_MAC, OwnNetwork, OwnPort, tell_guest, tell_neighbours
from outlive.resources import (
    ObjectMeta,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachinePortStatus,
    interface_id,
)

BLUE = OwnNetwork(
    name="blue", type="routed", host_subnets={"kvm-1": ("10.44.0.0/24", "fd44::/64"), "kvm-2": ("10.44.1.0/24",)}
)
MAC = "0a:00:00:00:00:09"
OWN = OwnPort(interface="i", network=BLUE, mode="twin", mac=MAC, addresses=("10.44.0.9/24", "fd44::9/64"))


def neighbour(name: str, mac: str, *addresses: str) -> VirtualMachinePort:
    return VirtualMachinePort(
        metadata=ObjectMeta(name=f"{name}.0"),
        spec=VirtualMachinePortSpec(vm=name, network="blue", mac=mac),
        status=VirtualMachinePortStatus(addresses=addresses),
    )


THERE = neighbour("there", "0A:00:00:00:00:01", "10.44.0.1/24", "fd44::1/64")
AWAY = neighbour("away", "0a:00:00:00:00:02", "10.44.0.2/24")
STRANGER = neighbour("stranger", "0a:00:00:00:00:03", "10.44.1.3/24")
ALL = [(THERE, "kvm-1"), (AWAY, "kvm-2"), (STRANGER, "kvm-1")]


def senders(frames: tuple[str, ...]) -> list[str]:
    """The MAC that each ARP reply tells of; of IPv6 that of its option, which is last."""
    macs = [one[44:56] if one[24:28] == "0806" else one[-12:] for one in frames]
    return [":".join(mac[at : at + 2] for at in range(0, 12, 2)) for mac in macs]


def test_away_from_home_every_neighbour_of_the_home_subnet_is_behind_the_router() -> None:
    (told,) = tell_guest(OWN, "kvm-2", "m-1", ALL, 256)
    assert (told.id, told.hypervisor, told.interface) == ("m-1", "kvm-2", interface_id("i", "twin", "kvm-2"))
    assert senders(told.frames) == [PROXY_MAC] * 3


def test_at_home_again_those_who_are_there_have_their_own_macs() -> None:
    (told,) = tell_guest(OWN, "kvm-1", "m-2", ALL, 256)
    assert senders(told.frames) == ["0a:00:00:00:00:01", "0a:00:00:00:00:01", PROXY_MAC]


def test_a_guest_without_neighbours_is_told_nothing() -> None:
    assert tell_guest(OWN, "kvm-2", "m-1", [(STRANGER, "kvm-1")], 256) == ()


def test_no_more_neighbours_are_told_of_than_the_limit_says() -> None:
    (told,) = tell_guest(OWN, "kvm-2", "m-1", ALL, 2)
    assert len(told.frames) == 2


def test_neighbours_hear_where_the_guest_is_by_arp_and_by_neighbour_advertisement() -> None:
    for is_home, mac in ((False, PROXY_MAC), (True, MAC)):
        frames = tuple(one.hex() for one in tell_neighbours(OWN.addresses, MAC, is_home=is_home))
        assert senders(frames) == [mac, mac, mac], "request and reply for IPv4, an advertisement for IPv6"
        assert all(one.startswith("ffffffffffff") for one in frames[:2])


def test_a_neighbour_that_cannot_be_read_keeps_nothing_from_others() -> None:
    odd = [(neighbour("mac", "52:54", "10.44.0.5/24"), "kvm-2"), (neighbour("ip", MAC, "house"), "kvm-2")]
    (told,) = tell_guest(OWN, "kvm-2", "m-1", [*odd, *ALL], 256)
    assert senders(told.frames) == [PROXY_MAC] * 3

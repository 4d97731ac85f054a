"""What a guest of our own hosts is told after it has moved on a routed network: at which MACs its neighbours are now.

Away from home its neighbours are behind the router, whose proxy answers for them; at home they have their own MACs
again. The neighbours learn from their own host where the guest is (``drivers.ovn.host_network``). The gateway has the
same MAC everywhere, and on one switch for all hosts nobody's MAC changes its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, ip_interface

from outlive.base.errors import Invalid
from outlive.network.addressing import Address, parse_any, parse_host, parse_mac
from outlive.network.announce import ArpFrame, Frame, NeighbourAdvertisement, announce_address, encode_frame
from outlive.network.names import PROXY_MAC
from outlive.network.own_vms import OwnPort
from outlive.resources import Announcement, VirtualMachinePort
from outlive.resources.networks import interface_id


def tell_guest(
    own: OwnPort, host: str, move: str, neighbours: Iterable[tuple[VirtualMachinePort, str]], limit: int
) -> tuple[Announcement, ...]:
    """The announcement for the guest, which is on that host now; none where it has no neighbours of its home.

    ``neighbours``: other ports of the network, and the host of each.
    """
    homes = {ip_interface(one).network for one in own.addresses}
    is_home = any(str(ip_interface(one).network) in own.network.host_subnets.get(host, ()) for one in own.addresses)
    frames: list[Frame] = []
    for port, place in neighbours:
        try:
            mac, addresses = parse_mac(port.spec.mac), [parse_host(one) for one in port.status.addresses]
        except Invalid:
            continue  # it has no rows in OVN either, and its own condition says why
        for address in addresses:
            if address.network in homes and len(frames) < limit:
                frames.append(_at(own.mac, address.ip, mac if is_home and place == host else PROXY_MAC))
    if not frames:
        return ()
    interface = interface_id(own.interface, own.mode, host)
    encoded = tuple(encode_frame(one).hex() for one in frames)
    return (Announcement(id=move, hypervisor=host, interface=interface, frames=encoded),)


def tell_neighbours(addresses: Iterable[str], mac: str, *, is_home: bool) -> tuple[bytes, ...]:
    """Frames for the guests of the home host: the VM's addresses are at its own MAC again, or at the router's."""
    frames: list[Frame] = []
    for cidr in addresses:
        address = parse_any(cidr)
        at = mac if is_home else PROXY_MAC
        if isinstance(address, IPv4Address):
            frames += announce_address(str(address), at)
        else:
            frames.append(NeighbourAdvertisement(address=str(address), mac=at))
    return tuple(encode_frame(one) for one in frames)


def _at(guest: str, address: Address, mac: str) -> Frame:
    if isinstance(address, IPv4Address):
        text = str(address)
        return ArpFrame(op="reply", eth_dst=guest, sender_mac=mac, sender_ip=text, target_mac=guest, target_ip=text)
    return NeighbourAdvertisement(address=str(address), mac=mac)

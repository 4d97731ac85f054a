"""Section ``links`` of a host's configuration: what of its network the daemon makes. Absent: nothing."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from outlive.base import BadInput
from outlive.node.functions.account import SriovDevices, check_devices
from outlive.node.links.host_addresses import BY_ID
from outlive.resources import SMALLEST_MTU, SystemNetworkName
from outlive.runtime import Duration

DEVICE_BYTES: Final = 15
"""The longest name of a device."""
MtuSetting = Annotated[int, Meta(ge=0, le=65_535)]


class SystemLink(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How this host is on one system network."""

    device: str
    """The card or bond; networks may share one."""
    mtu: MtuSetting = 0
    """MTU of the device and its bridge; 0: unchanged."""
    address: str = BY_ID
    """The host's address: ``by-id``, from the number in its name, or the address itself."""


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``links``."""

    system_networks: dict[SystemNetworkName, SystemLink] = {}
    """Networks that this host is on by bridges of its own: ``upstream``, ``cluster``, ``storage``."""
    bridge_device: str = ""
    """Device for VLANs of bridged networks; empty: no bridged networks."""
    bridge_mtu: MtuSetting = 1500
    """The largest MTU of a bridged network; device and switch must support it."""
    evpn: bool = False
    """Whether a routing daemon maintains VXLAN flooding; else the daemon does."""
    legacy_source_route: bool = False
    """Allow source routing."""
    confirm_timeout: Duration = Duration(10.0)
    """How long the store may take to answer after a change of the host's network, before that is undone; at most half
    of the guard's time-out."""
    sriov: SriovDevices = ()
    """Network cards that this host divides into virtual functions."""

    def __post_init__(self) -> None:
        for name, link in self.system_networks.items():
            check_device(link.device, f"links.systemNetworks.{name}.device")
            check_mtu(link.mtu, f"links.systemNetworks.{name}.mtu")
        if self.bridge_device:
            check_device(self.bridge_device, "links.bridgeDevice")
        check_mtu(self.bridge_mtu or 1, "links.bridgeMtu")
        check_devices(self.sriov)

    @property
    def is_on(self) -> bool:
        """Whether the daemon makes bridges of its own."""
        return bool(self.system_networks or self.bridge_device)


def check_device(name: str, place: str) -> None:
    """``BadInput`` for what cannot be the name of a device."""
    if (
        not name
        or len(name.encode()) > DEVICE_BYTES
        or not name.isprintable()
        or set(name) & set("/ :")
        or name == ".."
    ):
        remedy = f"write a name of at most {DEVICE_BYTES} bytes, as ip link shows it"
        raise BadInput(f"{name[:80]!r} cannot be the name of a device", place=place, remedy=remedy)


def check_mtu(mtu: int, place: str) -> None:
    """``BadInput`` for what no device takes; 0 is none."""
    if 0 < mtu < SMALLEST_MTU:
        raise BadInput(f"{mtu} is no MTU", place=place, remedy=f"write a number from {SMALLEST_MTU} on")

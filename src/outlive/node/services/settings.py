"""Section ``services`` of a host's configuration: what it serves to managed networks while it is the primary."""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import BadInput
from outlive.node.services.served_networks import DOMAIN

PUBLIC_DIR: Final = "/run/outlive-services"


class ServicesSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``services``. It counts on coordinators whose section ``links`` makes networks."""

    managed_networks: bool = True
    """Whether the primary serves managed networks: gateways, DHCP, metadata, firewall. Floating addresses it has all
    the same."""
    name_server: bool = True
    """Whether it answers names of all managed networks on its floating addresses; needs PowerDNS."""
    default_name_server: str = "ns.local"
    """Name of the name server in zones of networks that name none."""
    public_dir: str = PUBLIC_DIR
    """Folder of files for programs that give up their rights; it may be empty after a boot."""
    dnsmasq: str = "dnsmasq"
    """The DHCP server."""
    pdns: str = "pdns_server"
    """The name server."""

    def __post_init__(self) -> None:
        server = self.default_name_server
        if DOMAIN.fullmatch(server) is None:
            place = "services.defaultNameServer"
            raise BadInput(f"{server!r} is no name", place=place, remedy="write one such as ns.example")

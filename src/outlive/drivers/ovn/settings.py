"""Section ``network`` of a host's configuration: whether a controller programs the networks of its VMs in OVN."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.network import PREFIX, KeyPrefix
from outlive.runtime import Duration


class HostNetworkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``network`` of a host's configuration."""

    driver: Literal["off", "ovn"] = "off"
    """``ovn``: the host is a chassis of OVN, and the controllers program the ports of its VMs."""
    northbound: str = ""
    """On coordinators: OVN's northbound database, with commas, to isolate ports. Empty: no isolation of ports."""
    southbound: str = ""
    """OVN's southbound database, in the same way."""
    key_file: str = ""
    """Private key (PEM) for ``ssl:`` connections."""
    certificate_file: str = ""
    """Certificate (PEM) for ``ssl:`` connections."""
    ca_file: str = ""
    """Authorities (PEM) that the databases' certificates are checked with."""
    key_prefix: KeyPrefix = PREFIX
    """Prefix of keys in ``external_ids``; the same as on servers."""
    switch: str = "unix:/run/openvswitch/db.sock"
    """Database of the host's own Open vSwitch."""
    prepare_timeout: Duration = Duration(10.0)
    """How long a live migration to this host waits for the network before it is aborted."""

    def __post_init__(self) -> None:
        if bool(self.northbound) != bool(self.southbound):
            raise ValueError("northbound and southbound are named together")
        if self.prepare_timeout <= 0:
            raise ValueError(f"prepareTimeout {self.prepare_timeout} must be more than 0")

"""Section ``network`` of a host's configuration: whether a controller programs the networks of its VMs in OVN."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.network.names import PREFIX
from outlive.network.settings import KeyPrefix
from outlive.runtime.units import Duration


class HostNetworkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``network`` of a host's configuration."""

    driver: Literal["off", "ovn"] = "off"
    """``ovn``: the host is a chassis of OVN, and the controllers program the ports of its VMs; ``off``: nobody does."""
    northbound: str = ""
    """On coordinators: OVN's northbound database, by which they cut the ports of a condemned host; servers of a cluster
    with commas between them. Empty: this host cuts no ports."""
    southbound: str = ""
    """OVN's southbound database, in the same way."""
    key_file: str = ""
    """Private key (PEM) for ``ssl:`` connections."""
    certificate_file: str = ""
    """Certificate (PEM) for ``ssl:`` connections."""
    ca_file: str = ""
    """Authorities (PEM) that the databases' certificates are checked with."""
    key_prefix: KeyPrefix = PREFIX
    """Of the keys in ``external_ids`` of rows; the same as on servers."""
    switch: str = "unix:/run/openvswitch/db.sock"
    """Database of the host's own Open vSwitch."""
    prepare_timeout: Duration = Duration(10.0)
    """How long a live migration to this host waits until the network is prepared; then it is aborted, and nothing was
    moved."""

    def __post_init__(self) -> None:
        if bool(self.northbound) != bool(self.southbound):
            raise ValueError("northbound and southbound are named together")
        if self.prepare_timeout <= 0:
            raise ValueError(f"prepareTimeout {self.prepare_timeout} must be more than 0")

"""All services of a host as one set of ports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outlive.base.clock import Clock
from outlive.drivers.services.dhcp_servers import DnsmasqServers
from outlive.drivers.services.firewall import NftFirewall
from outlive.drivers.services.metadata_server import MetadataServer
from outlive.drivers.services.name_server import PowerDnsServer
from outlive.drivers.services.supervisor import Supervisor
from outlive.node.ports.services import ServicePorts


def service_ports(
    folder: Path,
    public: Path,
    clock: Clock,
    *,
    watch: Callable[[int], None] | None = None,
    dnsmasq: str = "dnsmasq",
    pdns: str = "pdns_server",
) -> ServicePorts:
    """Return the real ones; ``watch`` is called with each process.

    ``folder``: of the daemon alone, and there after a boot; ``public``: where programs read that give up their rights.
    What a former daemon left running is ended.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    public.mkdir(mode=0o755, parents=True, exist_ok=True)
    supervisor = Supervisor(folder / "programs", clock, watch=watch)
    supervisor.end_leftovers()
    return ServicePorts(
        dhcp=DnsmasqServers(folder / "dhcp", public / "dhcp", supervisor, clock, program=dnsmasq),
        names=PowerDnsServer(public / "names", supervisor, program=pdns),
        firewall=NftFirewall(),
        metadata=MetadataServer(),
    )

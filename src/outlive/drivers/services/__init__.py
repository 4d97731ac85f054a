"""Programs of the host that serve managed networks: dnsmasq, PowerDNS, nft, and a metadata server of our own."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.drivers.services.dhcp_servers import DnsmasqServers
    from outlive.drivers.services.metadata_server import MetadataServer
    from outlive.drivers.services.name_server import PowerDnsServer
    from outlive.drivers.services.programs import NftFirewall, service_ports
    from outlive.drivers.services.role_guard import ARGV, STUCK_S, RoleGuard
    from outlive.drivers.services.supervisor import SETTLED_S, Supervisor
else:
    __getattr__ = load_exports(__name__)

"""Metrics of what a coordinator does as the primary: its addresses, and DHCP of managed networks."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.node.role_addresses import RoleAddresses
from outlive.node.services.network_services import NetworkServices


def service_metrics(addresses: RoleAddresses | None, services: NetworkServices | None) -> list[Metric]:
    """Return them for one scrape; where this host is not the primary, no network is named. Names lack the prefix."""
    had = GaugeMetricFamily("node_role_addresses", "Addresses of the primary coordinator that this host has")
    had.add_metric([], len(addresses.have) if addresses is not None else 0)
    failed = GaugeMetricFamily(
        "node_role_addresses_failed", "Addresses of the primary coordinator that this host could not add or remove"
    )
    failed.add_metric([], len(addresses.failures) if addresses is not None else 0)
    leases = GaugeMetricFamily("node_dhcp_leases", "Leases of a managed network that is served", labels=["network"])
    free = GaugeMetricFamily(
        "node_dhcp_free_addresses", "Free IPv4 addresses of the range of a managed network", labels=["network"]
    )
    dead = GaugeMetricFamily("node_network_services_failed", "Services that do not run, by kind", labels=["service"])
    for usage in services.usages() if services is not None else ():
        leases.add_metric([usage.network], usage.leases)
        if usage.free is not None:
            free.add_metric([usage.network], usage.free)
    for service, count in (services.count_failures() if services is not None else {}).items():
        dead.add_metric([service], count)
    return [had, failed, leases, free, dead]

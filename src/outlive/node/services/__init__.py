"""What the primary coordinator serves to managed networks: gateways, DHCP, names, firewall, metadata."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.services.callers import BANNER, METADATA_ADDRESS, METADATA_PORT, MetadataAnswer, MetadataVm
    from outlive.node.services.callers import answer_metadata, collect_facts, find_caller
    from outlive.node.services.dhcp import DhcpFiles, LeaseChange, ServedLease, count_free, dhcp_arguments, lease_lines
    from outlive.node.services.dhcp import lease_name, merge_changes, needs_restart, reservation_files
    from outlive.node.services.firewall import FirewallKeeper, check_rule, render_firewall
    from outlive.node.services.lease_store import LeaseStore
    from outlive.node.services.network_services import DROP_S, FIREWALL_S, LAST_LEASES_S, LOOK_S, SYNC_S, NameSettings
    from outlive.node.services.network_services import NetworkServices, service_metrics
    from outlive.node.services.served_networks import ServedNetwork, ServedSubnet, ServicesSettings, view_network
    from outlive.node.services.served_networks import view_networks
    from outlive.node.services.zones import SERIALS_OF_TERM, ZoneChange, ZoneRecord, ZoneState, plan_zone
else:
    __getattr__ = load_exports(__name__)

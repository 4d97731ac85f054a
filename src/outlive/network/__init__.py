"""The network that follows a VM: addresses, DHCP, gateway and routes in OVN (docs/how-to/network-controller.md)."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.network.address_book import AddressBook, AddressedPort, read_addresses
    from outlive.network.addresses import SubnetTexts
    from outlive.network.addressing import address_key, is_group, mac_key, parse_any, parse_mac, parse_subnet
    from outlive.network.admission import ADMIT, DEFAULT_IDENTITIES, GUARDED, AdmitInput, PodIdentities
    from outlive.network.announce import BROADCAST, GATEWAY_SCHEDULE_MS, RESUME_SCHEDULE_MS, ArpFrame
    from outlive.network.announce import NeighbourAdvertisement, PrefixInformation, RarpFrame, RouterAdvertisement
    from outlive.network.announce import announce_address, encode_frame, tell_guest, tell_neighbours
    from outlive.network.cleanup import ClusterPause, RowCleanup, find_orphans
    from outlive.network.controller import NetworkController
    from outlive.network.copies import Copy, PortAddresses, PortRoute, VmKey
    from outlive.network.decisions import DECISIONS
    from outlive.network.faults import ChassisTable, HostChassis, NetworkFaults, unclear_chassis
    from outlive.network.host_limits import NetworkHostLimits, NetworkNames, ReachedHosts, reached_hosts
    from outlive.network.host_limits import with_host_limits
    from outlive.network.informers import NetworkInformers, StatusWriter, interface_indexes, interfaces_of, networks_of
    from outlive.network.informers import port_indexes
    from outlive.network.inspection import CONFLICTS_LIMIT, ConflictRule, NetworkFinding, compare_rows, describe_row
    from outlive.network.inspection import find_conflicts, find_named, find_row_conflicts, judge_binding, judge_learned
    from outlive.network.inspector import NetworkInspector
    from outlive.network.names import CHECK_PATH, CLUSTER_ROUTER, DEFAULT_CONTROLLER, DEFAULT_NETWORK, HOST_KEY, ID_KEY
    from outlive.network.names import INTERFACE_KEY, ISOLATED_KEY, LAYER2, LOCAL, LOCALNET, NAMESPACE_KEY, NAME_KEY
    from outlive.network.names import NETWORK_KEY, NOBODY, OWNER_KEY, OWN_CONTROLLER, OWN_NAMESPACE, PREFIX, PROXY_MAC
    from outlive.network.names import TOPOLOGY_KEY, TRACE_PATH, VM_KEY, ZONE_KEY, own_switch, router_port, switch_name
    from outlive.network.operations import DHCP, LIMIT, POLICIES, PORTS, ROUTERS, ROUTER_PORTS, ROUTES, SWITCHES
    from outlive.network.operations import Columns, Op, Rows, apply, delete, find, has, is_same, is_same_row, needed_ops
    from outlive.network.operations import patch_row, upsert
    from outlive.network.own_networks import add_reservation, add_rule, change_network, check_beside, check_beside_hosts
    from outlive.network.own_networks import completed_network, domain_of, ordered_rules, read_subnet
    from outlive.network.own_networks import remove_reservation, remove_rule
    from outlive.network.own_vms import OwnNetwork, OwnPort, OwnVmInput, OwnVmResult, isolated_hosts, plan_own_vm
    from outlive.network.owners import external_ids, vm_in, vm_keys
    from outlive.network.packets import Arrival, TracePacket, TracePort, ZoneRows, compose_packet, compose_packets
    from outlive.network.packets import find_arrivals
    from outlive.network.pod_announcements import PodAnnouncement
    from outlive.network.pod_cache import PodCache
    from outlive.network.pod_facts import ANNOUNCEMENTS, NODE_CHASSIS, NODE_NUMBER, NODE_SUBNETS, NODE_TRANSIT
    from outlive.network.pod_facts import PodReports, read_pod
    from outlive.network.pod_follower import PodFollower
    from outlive.network.pods import ATTACHMENTS, DOMAIN_ANNOTATION, LAUNCHER, LAUNCHER_LABEL, MIGRATABLE_ANNOTATION
    from outlive.network.pods import NETWORK_NUMBER, READY_ANNOTATION, RUNS_ON_LABEL, NetworkPodView
    from outlive.network.pool import add_mask, address_problem, check_network, check_port, find_overlaps, free_address
    from outlive.network.pool import share_subnets
    from outlive.network.ports import Announcer, Applied, Binding, Chassis, NeighbourTable, NorthboundDb, OvnFeatures
    from outlive.network.ports import PacketTracer, Plan, Receipt, Scope, SouthboundDb, chassis_name, ovn_features
    from outlive.network.routes import ClusterSubnet, HypervisorNetwork, NetworkZone
    from outlive.network.scopes import NAMES_LIMIT, OWN_NETWORK, ChangeBatches, ChangeReader, is_in_scope, is_marked
    from outlive.network.scopes import is_within, match_addresses, prefix_bounds, row_names, row_network, row_vm
    from outlive.network.scopes import scoped_rows, without_host_mask
    from outlive.network.settings import EvpnNetwork, EvpnSettings, KeyPrefix, NetworkSettings, PodNetworkSettings
    from outlive.network.stage_times import measure_gap, probes_of
    from outlive.network.status import MigrationState
    from outlive.network.topology import TopologyInput, TopologyResult, plan_topology
    from outlive.network.traces import TraceOutcome, read_trace, traced_ports
    from outlive.network.views import VmPlace, add_masks, is_down, reach_problem
else:
    __getattr__ = load_exports(__name__)

"""Inventories: what a source says about hosts and VMs becomes resources, checked as a whole before the first write."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.inventory.check import Existing, ImportOptions, WantedInventory, check_inventory, check_leaving_out
    from outlive.inventory.check import synthetic_flavor
    from outlive.inventory.cloud_hosts import has_vm_on, make_host, vanished_host
    from outlive.inventory.cloud_slots import cloud_reservation, patch_operations, slot_of
    from outlive.inventory.cloud_sync import CloudCaches, CloudInventorySyncer, InventoryCluster
    from outlive.inventory.network_ports import IMPORT_PORTS_LIMIT, KnownNetworks, PortRecord, plan_ports
    from outlive.inventory.node_config import Imported, fencing_lines, read_node_config
    from outlive.inventory.node_networks import ReadNetworks, is_dump, read_network_dump
    from outlive.inventory.places import HostSearchResult, creation_request, place_vms
    from outlive.inventory.plan import ImportPlan, apply_plan, find_notices, object_name, plan_import
    from outlive.inventory.ports import InventorySource, Reading
    from outlive.inventory.power_states import GuestPower, parse_status_map, power_state
    from outlive.inventory.records import GROUP_POLICIES, IMPORT_HOSTS_LIMIT, IMPORT_VMS_LIMIT, FlavorRecord, HostRecord
    from outlive.inventory.records import Inventory, VmRecord
    from outlive.inventory.selection import RowCondition, Selection, check_columns, parse_where, selects, unknown_column
    from outlive.inventory.settings import InventoryClusterSettings, InventorySettings, OpenStackSettings
    from outlive.inventory.sync import HOSTS_OF_A_BATCH, HOST_MISSES, InventorySyncer, RecordBatch, split_records
    from outlive.inventory.write import apply_import, read_existing
else:
    __getattr__ = load_exports(__name__)

"""Wires the parts of each role from ports: ``cli`` passes the real drivers, a simulation its own."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.roles.node import HostFunctions, HostLinks, HostServices, NodePorts, NodeRole
    from outlive.roles.settings import SECTIONS, LogSettings, RoleSettings, role_settings
    from outlive.roles.storage_cuts import StorageCuts
    from outlive.roles.up import ROLE, UpRole
    from outlive.roles.up_ports import InventoryCache, Limes, NetworkDatabases, PodCluster, Ports
else:
    __getattr__ = load_exports(__name__)

"""A host's own network, where its daemon makes it: system bridges, addresses, and networks of VMs."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.node.links.plan import LinkMemoryKeeper
from outlive.node.links.reconciler import LinkReconciler
from outlive.node.links.settings import LinkSettings

if TYPE_CHECKING:
    from outlive.node.links.host_addresses import AddressInput, check_system_networks, plan_addresses, usable_range
    from outlive.node.links.mtus import NetworkMtus
    from outlive.node.links.plan import SYSTEM, ConfirmInput, LinkPlanInput, confirm_change, placed_by, plan_links
    from outlive.node.links.plan import undo_ops
    from outlive.node.links.settings import SystemLink
    from outlive.node.links.vm_ports import BridgedPorts, TrafficMeter, rates_between
    from outlive.node.links.wanted import LinkFacts, MtuInput, PlacedAddress, choose_mtu, compose_links, mtu_of
else:
    __getattr__ = load_exports(__name__)

__all__ = ["LinkMemoryKeeper", "LinkReconciler", "LinkSettings"]

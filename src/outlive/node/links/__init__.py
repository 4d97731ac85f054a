"""A host's own network, where its daemon makes it: system bridges, addresses, and networks of VMs."""

from outlive.node.links.notes import LinkMemoryKeeper
from outlive.node.links.reconciler import LinkReconciler
from outlive.node.links.settings import LinkSettings

__all__ = ["LinkMemoryKeeper", "LinkReconciler", "LinkSettings"]

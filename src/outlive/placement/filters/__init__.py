"""The filters: each says which hosts may take a request, and why not."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.placement.filters.capacity import EnoughCapacity, compute_demand, vm_amounts
    from outlive.placement.filters.location import HostDemands, StatusConditions
else:
    __getattr__ = load_exports(__name__)

"""The views: tables that show hosts, VMs and slots as they are, for people and programs (read only).

``make_views(inventory, options)`` gives those of ``VIEWS`` that are asked for, each as a ``Table`` of plain values
(docs/reference/failover-operation.md#views). Nothing here reads a store or a database, and nothing is decided from a
view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from outlive.base.errors import BadInput
from outlive.failover.report.views import hosts, slots, vms
from outlive.failover.report.views.data import Cell, Inventory, Table, ViewData, ViewOptions, inventory_of

__all__ = ["VIEWS", "Cell", "Inventory", "Table", "ViewOptions", "inventory_of", "make_views"]

VIEWS: Final[Mapping[str, Callable[[ViewData], Table]]] = MappingProxyType(
    {
        "hypervisor-summary": hosts.hypervisor_summary,
        "flavor-summary": hosts.flavor_summary,
        "levels": slots.levels,
        "hypervisors": hosts.hypervisors,
        "hypervisors-vms-res": hosts.hypervisors_vms_res,
        "vms": vms.vms,
        "not-in-db": vms.not_in_db,
        "without-res": vms.without_res,
        "stale": slots.stale,
        "reservations": slots.reservations,
        "validation": slots.validation,
        "by-host": slots.by_host,
        "summary": hosts.summary,
        "all-servers": vms.all_servers,
    }
)
"""Every view by its name, in the order in which they are shown."""


def make_views(inventory: Inventory, options: ViewOptions | None = None) -> list[Table]:
    """The views that the options ask for, without those that they hide; ``BadInput`` for an unknown name."""
    options = options or ViewOptions()
    for name in (*options.views, *options.hide):
        if name not in VIEWS:
            raise BadInput(f"there is no view {name[:80]!r}", remedy=f"one of {', '.join(VIEWS)}")
    data = ViewData(inventory, options)
    wanted = [name for name in VIEWS if (not options.views or name in options.views) and name not in options.hide]
    return [VIEWS[name](data) for name in wanted]

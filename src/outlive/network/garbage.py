"""Rows of VMs that are gone: which they are, and the operations that delete them.

At start, and again from time to time, every row that names a VM is compared with the VMs that exist. A row that names
another controller, or has no zone key, belongs to somebody else
(docs/reference/network-decisions.md#routes-and-garbage).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from outlive.network.names import DEFAULT_CONTROLLER, LOCAL, OWNER_KEY, ZONE_KEY
from outlive.network.operations import DHCP, POLICIES, ROUTES, Rows, RowsChange, RowsDraft
from outlive.network.owners import delete_rows, external_ids, is_on_cluster_router, vm_in
from outlive.runtime.decisions import Decision


def is_orphan(ids: Mapping[str, str], vms: Mapping[str, bool], controller: str) -> bool:
    """True if a row with these external ids was made for a VM that is gone, or is left from another zone of it.

    ``vms``: ``namespace/name`` to whether the VM is local. A row that names no owner is the default controller's.
    """
    if ZONE_KEY not in ids or (ids.get(OWNER_KEY) or DEFAULT_CONTROLLER) != controller:
        return False
    vm = vm_in(ids)
    if vm is None:
        return False
    is_local = vms.get(str(vm))
    return is_local is None or (is_local and ids[ZONE_KEY] != LOCAL)


class OrphanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.orphan`` gets."""

    external_ids: dict[str, str] = msgspec.field(name="external_ids", default_factory=dict)
    """Of one row."""
    vms: dict[str, bool] = {}
    """``namespace/name`` of every VM to whether it is local."""
    controller: str
    """That asks, and deletes only rows of its own."""


class OrphanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether a row goes."""

    delete: bool


class SweepInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.sweep`` gets."""

    controller: str
    vms: dict[str, bool] = {}
    rows: Rows = {}


def sweep(given: SweepInput) -> RowsChange:
    """Delete all routes, policies and DHCP rows that are orphans."""
    draft = RowsDraft(given.rows)
    for table in (ROUTES, POLICIES, DHCP):
        orphans = [
            row
            for row in draft.table(table)
            if is_on_cluster_router(row) and is_orphan(external_ids(row), given.vms, given.controller)
        ]
        draft.add(*delete_rows(table, orphans))
    return draft.change()


ORPHAN: Final[Decision[OrphanInput, OrphanResult]] = Decision(
    "network.orphan",
    lambda given: OrphanResult(delete=is_orphan(given.external_ids, given.vms, given.controller)),
    OrphanInput,
    OrphanResult,
    "Whether a row was made for a VM that is gone",
    nulls_are_absent=True,
)
SWEEP: Final = Decision(
    "network.sweep",
    sweep,
    SweepInput,
    RowsChange,
    "The rows of VMs that are gone",
    nulls_are_absent=True,
)

"""VMs whose rows are right already when a follower starts: found in one pass over all rows, and not looked at again.

After a restart that is nearly all of them. A VM counts as settled only as long as nothing that its rows follow from has
changed (``mark``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from outlive.network.operations import DHCP, POLICIES, PORTS, ROUTES, Columns, Rows
from outlive.network.pod_rows import VmRowsInput, plan_vm_rows, scope_of
from outlive.network.ports import OvnFeatures
from outlive.network.routes import BY_SOURCE
from outlive.network.scopes import match_addresses, row_vm, without_host_mask
from outlive.runtime.informer import Informer

T = TypeVar("T")


class RowsByVm:
    """All rows of a database, by what a VM's plan reads."""

    def __init__(self, rows: Rows) -> None:
        self._entries: dict[Hashable, list[tuple[str, Columns]]] = {}
        self._ways_out: list[Columns] = []
        """Routes by source: the ways out of a zone, which are nobody's own."""
        for table in (ROUTES, POLICIES, DHCP, PORTS):
            for row in rows.get(table, ()):
                for key in _keys(table, row):
                    self._entries.setdefault(key, []).append((table, row))
                if table == ROUTES and row.get("policy") == BY_SOURCE:
                    self._ways_out.append(row)

    def rows_for(self, given: VmRowsInput) -> Rows:
        """The rows that a plan for the VM reads."""
        scope = scope_of(given)
        keys: list[Hashable] = [str(given.vm), *(("port", one) for one in scope.ports)]
        keys += [("address", one) for one in scope.addresses]
        found = {id(row): (table, row) for key in keys for table, row in self._entries.get(key, ())}
        rows: Rows = {}
        for table, row in found.values():
            rows.setdefault(table, []).append(row)
        if given.zone.mode == "interconnect":
            known = {id(row) for row in rows.get(ROUTES, ())}
            rows.setdefault(ROUTES, []).extend(row for row in self._ways_out if id(row) not in known)
        return rows


def _keys(table: str, row: Columns) -> Iterable[Hashable]:
    if vm := row_vm(table, row):
        yield vm
    if table == PORTS:
        yield ("port", row.get("name"))
    elif table == ROUTES:
        yield ("address", without_host_mask(str(row.get("ip_prefix", ""))))
    elif table == POLICIES:
        yield from (("address", one) for one in match_addresses(str(row.get("match", ""))))


def is_settled(given: VmRowsInput, rows: RowsByVm, features: OvnFeatures) -> bool:
    """True if the VM's rows are as they have to be on all its networks."""
    plan = plan_vm_rows(given, rows.rows_for(given), features)
    return not plan.ops and not plan.problems


class DerivedView(Generic[T]):
    """A value that is made from all objects of an informer, and anew once these are others."""

    def __init__(self, informer: Informer[Any], make: Callable[[Sequence[Any]], T]) -> None:
        self._informer = informer
        self._make = make
        self._changes = -1
        self._value = make(())

    def get(self) -> T:
        """The value for the objects of now; the same object as long as these are the same."""
        if self._changes != self._informer.figures.changes:
            self._changes, self._value = self._informer.figures.changes, self._make(self._informer.items())
        return self._value

"""What reservations hold, as columns that follow every change of a reservation.

A run takes "all that is held" and gives back only what this one request may use, found in small indexes;
no run looks at all reservations. Amounts are whole numbers, one row of the matrix a resource, one column a host row
of the fleet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.placement.request import Intent
from outlive.placement.reservations import (
    AMOUNT_LIMIT,
    CapacityQuery,
    blocks_somebody,
    is_locked,
    is_ready,
    unused_amounts,
)
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Amounts, Reservation

Matrix = NDArray[np.int64]
_TYPES: Final = (FAILOVER, COMMITTED, IN_FLIGHT)
_ALL_ROWS: Final = slice(None)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One reservation as the ledger sees it. ``used`` and ``full`` map a resource's row to its amount."""

    reservation: Reservation
    ready: bool
    rows: tuple[int, ...]
    """Host rows on which it holds something."""
    host_row: int
    """Row of ``status.host``, -1 without one."""
    blocks: bool
    """Whether it holds anything from a request that it does not know."""
    used: Mapping[int, int]
    full: Mapping[int, int]

    @property
    def name(self) -> str:
        """The reservation's name."""
        return self.reservation.name

    @property
    def kind(self) -> str:
        """Its type."""
        return self.reservation.spec.type

    @property
    def reusable(self) -> bool:
        """Whether it is a ready slot that no VM has consumed."""
        return self.kind == FAILOVER and self.ready and self.reservation.status.consumer is None


class Bucket:
    """Entries that are looked up together, with their amounts as arrays that are made when first asked for."""

    def __init__(self) -> None:
        self.entries: dict[str, LedgerEntry] = {}
        self._arrays: tuple[NDArray[np.intp], Matrix, Matrix] | None = None
        self._host_rows: NDArray[np.intp] | None = None
        self._unclaimed: tuple[NDArray[np.intp], NDArray[np.object_], NDArray[np.int64]] | None = None

    def put(self, entry: LedgerEntry) -> None:
        """Add the entry."""
        self.entries[entry.name] = entry
        self._arrays = self._host_rows = self._unclaimed = None

    def drop(self, name: str) -> None:
        """Remove the entry."""
        self.entries.pop(name, None)
        self._arrays = self._host_rows = self._unclaimed = None

    def host_rows(self) -> NDArray[np.intp]:
        """Row of ``status.host`` of each entry that has one."""
        if self._host_rows is None:
            rows = [entry.host_row for entry in self.entries.values() if entry.host_row >= 0]
            self._host_rows = np.array(rows, dtype=np.intp)
        return self._host_rows

    def get_unclaimed(self) -> tuple[NDArray[np.intp], NDArray[np.object_], NDArray[np.int64]]:
        """Of commitment slots that have a host: its row, the slot's zone, and bytes that no VM is meant for."""
        if self._unclaimed is None:
            there = [entry for entry in self.entries.values() if entry.host_row >= 0]
            self._unclaimed = (
                np.array([entry.host_row for entry in there], dtype=np.intp),
                np.array([entry.reservation.spec.availability_zone for entry in there], dtype=object),
                np.array([_unclaimed_bytes(entry.reservation) for entry in there], dtype=np.int64),
            )
        return self._unclaimed

    def as_arrays(self, width: int) -> tuple[NDArray[np.intp], Matrix, Matrix]:
        """Host rows (n), used and full amounts (width x n) of all entries that hold something."""
        if self._arrays is None or self._arrays[1].shape[0] != width:
            holding = [(row, entry) for entry in self.entries.values() if entry.blocks for row in entry.rows]
            rows = np.array([row for row, _ in holding], dtype=np.intp)
            used = np.zeros((width, len(holding)), dtype=np.int64)
            full = np.zeros((width, len(holding)), dtype=np.int64)
            for at, (_, entry) in enumerate(holding):
                for resource, amount in entry.used.items():
                    used[resource, at] = amount
                for resource, amount in entry.full.items():
                    full[resource, at] = amount
            self._arrays = (rows, used, full)
        return self._arrays


class Buckets:
    """Key → bucket; a key without entries costs nothing."""

    def __init__(self) -> None:
        self._buckets: dict[object, Bucket] = {}

    def get(self, key: object) -> Bucket | None:
        """The bucket of that key, ``None`` when it is empty."""
        return self._buckets.get(key)

    def put(self, keys: Iterable[object], entry: LedgerEntry) -> None:
        """Add the entry under each key."""
        for key in keys:
            self._buckets.setdefault(key, Bucket()).put(entry)

    def drop(self, keys: Iterable[object], name: str) -> None:
        """Remove the entry from each key."""
        for key in keys:
            bucket = self._buckets.get(key)
            if bucket is not None:
                bucket.drop(name)
                if not bucket.entries:
                    del self._buckets[key]


class Ledger:
    """All reservations: totals per host row, and the indexes from which a request finds what it may use."""

    def __init__(self, width: int, rows: int) -> None:
        self._used = {kind: np.zeros((width, rows), dtype=np.int64) for kind in _TYPES}
        self._full = {kind: np.zeros((width, rows), dtype=np.int64) for kind in _TYPES}
        self._ready_slots = np.zeros((width, rows), dtype=np.int64)
        self._entries: dict[str, LedgerEntry] = {}
        self._on_row = Buckets()
        """Host row → reservations that touch it."""
        self.slots_of_vm = Buckets()
        """VM → ready failover slots that list it."""
        self.commitments = Buckets()
        """(project, group) → ready commitment slots."""
        self.open_commitments = Buckets()
        """The same without those that are locked: VMs of the project may use them."""
        self.in_flight_of_vm = Buckets()
        """VM → in-flight reservations for it."""
        self._slots_expecting = Buckets()
        """VM → commitment slots that are meant for it."""
        self.slots_of_group = Buckets()
        """Resource group → ready failover slots that have a host; the empty key holds all of them."""
        self.in_flight_count = 0
        """In-flight reservations."""
        self.revision = 0

    def resize(self, width: int, rows: int) -> None:
        """Make room for more resources and host rows; what was there stays."""
        self._used = {kind: _grow(matrix, width, rows) for kind, matrix in self._used.items()}
        self._full = {kind: _grow(matrix, width, rows) for kind, matrix in self._full.items()}
        self._ready_slots = _grow(self._ready_slots, width, rows)

    def find_entry(self, name: str) -> LedgerEntry | None:
        """The reservation of that name."""
        return self._entries.get(name)

    def list_entries(self) -> list[LedgerEntry]:
        """All reservations, by name."""
        return [self._entries[name] for name in sorted(self._entries)]

    def entries_on_row(self, row: int) -> list[LedgerEntry]:
        """The reservations that touch a host row, by name."""
        bucket = self._on_row.get(row)
        return [bucket.entries[name] for name in sorted(bucket.entries)] if bucket is not None else []

    def has_entries_on(self, row: int) -> bool:
        """Whether any reservation names the host of this row."""
        return self._on_row.get(row) is not None

    def put(
        self,
        reservation: Reservation,
        rows: tuple[int, ...],
        host_row: int,
        resources: Mapping[str, int],
        *,
        landed: bool = False,
        running: Container[str] = (),
    ) -> None:
        """Add or replace a reservation that touches these rows; ``resources`` maps a name to its matrix row.

        ``landed``: its consumer is among the VMs of its host, so that it holds nothing any more. ``running``: the VMs
        that the host of ``host_row`` reports. After a reservation in
        flight was put or dropped, the slots that expect its VM (``slots_expecting``) must be put again.
        """
        self.drop(reservation.name)
        entry = LedgerEntry(
            reservation=reservation,
            ready=is_ready(reservation),
            rows=rows,
            host_row=host_row,
            blocks=blocks_somebody(reservation) and not landed,
            used=_columns_of(
                unused_amounts(reservation, arriving=self._arriving_vms(reservation, rows), running=running), resources
            ),
            full=_columns_of(unused_amounts(reservation, ignore_allocations=True), resources),
        )
        self._entries[entry.name] = entry
        self._count(entry, 1)
        for buckets, keys in self._index_keys(entry):
            buckets.put(keys, entry)
        self.revision += 1

    def _arriving_vms(self, reservation: Reservation, rows: tuple[int, ...]) -> frozenset[str]:
        """VMs that a commitment slot is meant for and that have room in flight on its host."""
        details = reservation.spec.committed_resource_reservation
        if details is None or not details.allocations:
            return frozenset()
        rooms = ((vm, self.in_flight_of_vm.get(vm)) for vm in details.allocations)
        return frozenset(
            vm
            for vm, bucket in rooms
            if bucket is not None and any(row in rows for one in bucket.entries.values() for row in one.rows)
        )

    def slots_expecting(self, vm: str) -> list[Reservation]:
        """The commitment slots that are meant for a VM, by name."""
        bucket = self._slots_expecting.get(vm)
        return [bucket.entries[name].reservation for name in sorted(bucket.entries)] if bucket is not None else []

    def drop(self, name: str) -> LedgerEntry | None:
        """Remove a reservation and return what it was."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        self._count(entry, -1)
        for buckets, keys in self._index_keys(entry):
            buckets.drop(keys, name)
        self.revision += 1
        return entry

    def reserved_amounts(self, query: CapacityQuery, rows: slice = _ALL_ROWS) -> Matrix:
        """What all reservations hold from a request with this query, before its own unlocks (a new matrix)."""
        source = self._full if query.ignore_allocations else self._used
        counted = [source[kind][:, rows] for kind in _TYPES if kind not in query.ignored_types]
        total: Matrix = counted[0].copy() if counted else np.zeros_like(self._ready_slots[:, rows])
        for amounts in counted[1:]:
            total += amounts
        if query.intent is Intent.REUSE_FAILOVER_RESERVATION and FAILOVER not in query.ignored_types:
            total -= self._ready_slots[:, rows]
        return total

    def blocking_entries(self, query: CapacityQuery, row: int) -> list[LedgerEntry]:
        """The reservations that block something on a host row from a request with this query, by name."""
        unlocked = {name for bucket in self.unlocked_buckets(query) for name in bucket.entries}
        reuses = query.intent is Intent.REUSE_FAILOVER_RESERVATION
        return [
            entry
            for entry in self.entries_on_row(row)
            if entry.blocks
            and entry.kind not in query.ignored_types
            and entry.name not in unlocked
            and not (reuses and entry.reusable)
        ]

    def unlocked_buckets(self, query: CapacityQuery) -> list[Bucket]:
        """The entries that give way to this very request and are counted by ``reserved_amounts``."""
        found: list[Bucket | None] = []
        sold = query.intent is not Intent.RESERVE_FOR_COMMITTED_RESOURCE and not query.locked
        if COMMITTED not in query.ignored_types and sold and query.group:
            found.append(self.open_commitments.get((query.project, query.group)))
        if FAILOVER not in query.ignored_types and query.intent is Intent.EVACUATE:
            found.append(self.slots_of_vm.get(query.vm))
        if IN_FLIGHT not in query.ignored_types and query.vm:
            found.append(self.in_flight_of_vm.get(query.vm))
        return [bucket for bucket in found if bucket is not None]

    def _count(self, entry: LedgerEntry, sign: int) -> None:
        self.in_flight_count += sign * (entry.kind == IN_FLIGHT)
        if not entry.blocks:
            return
        for row in entry.rows:
            for resource, amount in entry.used.items():
                self._used[entry.kind][resource, row] += sign * amount
            for resource, amount in entry.full.items():
                self._full[entry.kind][resource, row] += sign * amount
                if entry.reusable:
                    self._ready_slots[resource, row] += sign * amount

    def _index_keys(self, entry: LedgerEntry) -> list[tuple[Buckets, tuple[object, ...]]]:
        """The indexes under which an entry is found."""
        spec = entry.reservation.spec
        found: list[tuple[Buckets, tuple[object, ...]]] = [(self._on_row, entry.rows)]
        if entry.kind == IN_FLIGHT:
            own = spec.in_flight_reservation
            if own is not None and own.vm_id:
                found.append((self.in_flight_of_vm, (own.vm_id,)))
        elif entry.kind == FAILOVER and entry.ready:
            members = entry.reservation.status.failover_reservation
            group = spec.failover_reservation.resource_group if spec.failover_reservation else ""
            groups = () if entry.host_row < 0 else ("", group) if group else ("",)
            consumer = entry.reservation.status.consumer
            listed = tuple(members.allocations) if members else ()
            found.append((self.slots_of_vm, (consumer.vm,) if consumer is not None else listed))
            found.append((self.slots_of_group, groups))
        elif entry.kind == COMMITTED and spec.committed_resource_reservation is not None:
            details = spec.committed_resource_reservation
            found.append((self._slots_expecting, tuple(details.allocations)))
            if entry.ready and details.resource_group:
                owner = ((details.project_id, details.resource_group),)
                found.append((self.commitments, owner))
                if not is_locked(entry.reservation):
                    found.append((self.open_commitments, owner))
        return found


def _columns_of(amounts: Amounts, resources: Mapping[str, int]) -> dict[int, int]:
    """Amounts by matrix row; negative ones hold nothing, absurd ones hold everything."""
    return {
        resources[name]: min(amount, AMOUNT_LIMIT)
        for name, amount in amounts.items()
        if amount > 0 and name in resources
    }


def _grow(matrix: Matrix, width: int, rows: int) -> Matrix:
    grown = np.zeros((width, rows), dtype=np.int64)
    grown[: matrix.shape[0], : matrix.shape[1]] = matrix
    return grown


def _unclaimed_bytes(slot: Reservation) -> int:
    """Memory of a commitment slot that no VM is meant for; negative where they need more than it has."""
    details = slot.spec.committed_resource_reservation
    meant = details.allocations.values() if details is not None else ()
    left = slot.spec.resources.memory_bytes - sum(one.resources.memory_bytes for one in meant)
    return max(-AMOUNT_LIMIT, min(left, AMOUNT_LIMIT))

"""All hosts as columns, kept current by single upserts, so that a filter is a few vector operations.

A host has a *row*; rows are reused, and a host that only a reservation names has one too, so that its
blocked amounts are right the moment it appears. ``live`` says which rows are known hosts. The public view
(``names``, ``free``) has the known hosts by name and no rows at all.

Slow facts (zone, traits, conditions, …) and figures (amounts, reservations) have revisions of their own:
what is derived from them is remembered until one changes. Hosts with equal slow facts are of one *class*, and a
filter judges each class once.
Not promised: vectors handed out are views or shared, so nobody writes into them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from outlive.placement.columns import NOBODY, BoolVector, Columns, FloatVector, IntVector, Rows
from outlive.placement.domains import Domains
from outlive.placement.ledger import Ledger
from outlive.placement.pending import Change, PendingChanges
from outlive.placement.quota import Quotas
from outlive.placement.records import KnowledgeRecords
from outlive.placement.request import Intent
from outlive.placement.reservations import CapacityQuery, arrival_host, awaited_vm, blocked_hosts, has_landed
from outlive.placement.rules import HostFacts, facts_of
from outlive.placement.settings import PlacementSettings
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Amounts, Hypervisor, Reservation

NEVER = -(2**60)
"""The free amount of a host whose figure cannot be trusted: nothing fits."""


T = TypeVar("T")
S = TypeVar("S", bound=np.generic)


class RevisionCache(Generic[T]):
    """Answers by key for as long as a revision lasts, the last ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._revision: object = None
        self._found: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, revision: object, key: Hashable, build: Callable[[], T]) -> T:
        """What ``build`` says, until the revision is another one."""
        if self._revision != revision:
            self._found.clear()
            self._revision = revision
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        found = self._found[key] = build()
        if len(self._found) > self._limit:
            self._found.popitem(last=False)
        return found


class Fleet:
    """Hosts and reservations as columns."""

    def __init__(self, settings: PlacementSettings | None = None) -> None:
        self.settings = settings if settings is not None else PlacementSettings()
        self.columns = Columns()
        self.static_revision = 0
        self.figures_revision = 0
        self._masks: RevisionCache[BoolVector] = RevisionCache(self.settings.mask_cache)
        self._verdicts: RevisionCache[list[bool]] = RevisionCache(self.settings.mask_cache)
        self._base: RevisionCache[IntVector] = RevisionCache(_AVAILABLE_KEPT)
        self._available: RevisionCache[IntVector] = RevisionCache(_AVAILABLE_KEPT)
        self._sizes: RevisionCache[tuple[FloatVector, BoolVector]] = RevisionCache(_SIZES_KEPT)
        self._overbooked: RevisionCache[dict[str, int]] = RevisionCache(_OVERBOOKED_KEPT)
        self._named: tuple[Sequence[str], int, BoolVector] | None = None
        """What ``mask_hosts`` was asked last, when, and its answer."""
        self._facts: list[HostFacts] = []
        """The facts of each class; some may be nobody's any more."""
        self._class_of: dict[HostFacts, int] = {}
        self._classes_revision = 0
        """Rises when classes are numbered anew."""
        self._rows_of_vm: dict[str, set[int]] = {}
        """VM → rows of hosts that report it."""
        self._rows: dict[str, int] = {}
        self._hosts: list[Hypervisor | None] = []
        self._instances: list[frozenset[str]] = []
        self._unused_rows: list[int] = []
        self._view: tuple[int, tuple[str, ...], dict[str, int], Rows] | None = None
        self.ledger = Ledger(2, self.columns.rows)
        self._shown: dict[str, Reservation] = {}
        """Reservations as the store shows them."""
        self._pending = PendingChanges()
        self.quotas = Quotas()
        """What projects may still use."""
        self.domains = Domains()
        """Whose domain has which name."""
        self.records = KnowledgeRecords()
        """What somebody has extracted about hosts and VMs."""

    # -- changes ---------------------------------------------------------------------------------------

    def upsert_host(self, host: Hypervisor) -> None:
        """The host exists and looks like this now."""
        row = self._ensure_row(host.name)
        status = host.status
        self._hosts[row] = host
        self._add_resources(status.capacity, status.effective_capacity, status.allocation)
        self.columns.set_amounts(row, host)
        self._set_instances(row, frozenset(instance.id for instance in status.instances))
        number = self._ensure_class(facts_of(host))
        if self.columns.classes[row] != number:
            self.columns.set_class(row, number)
            self.static_revision += 1
        self.figures_revision += 1

    def remove_host(self, name: str) -> None:
        """The host is gone; reservations on it stay."""
        row = self.find_row(name)
        if row is None:
            return
        self._hosts[row] = None
        self.columns.set_class(row, NOBODY)
        self._set_instances(row, frozenset())
        self.columns.set_amounts(row, None)
        self.static_revision += 1
        self.figures_revision += 1
        self._forget_row(row)

    def upsert_reservation(self, reservation: Reservation) -> None:
        """The store shows the reservation like this now; what is decided about it counts on top."""
        self._shown[reservation.name] = reservation
        self._count(reservation.name)

    def remove_reservation(self, name: str) -> None:
        """The store does not show the reservation any more; what is decided about it still counts."""
        self._shown.pop(name, None)
        self._count(name)

    def decide(self, name: str, by: Hashable, change: Change, *, instead_of: Hashable = None) -> None:
        """Count a reservation with this change until ``by`` settles it. ``instead_of``: whose decision it replaces."""
        if instead_of is not None:
            self._pending.drop(name, instead_of)
        self._pending.put(name, by, change)
        self._count(name)

    def settle(self, name: str, by: Hashable) -> None:
        """Forget what ``by`` decided about a reservation: the store has it, or the decision was reverted."""
        if self._pending.drop(name, by):
            self._count(name)

    def settle_all(self, by: Hashable) -> None:
        """Forget everything that somebody decided."""
        for name in self._pending.decided_names(by):
            self.settle(name, by)

    def counted_reservation(self, name: str) -> Reservation | None:
        """A reservation as it counts: as the store shows it, with what is decided about it."""
        entry = self.ledger.find_entry(name)
        return None if entry is None else entry.reservation

    def _count(self, name: str) -> None:
        shown = self._shown.get(name)
        wanted = self._pending.apply(name, shown) if name in self._pending else shown
        if wanted is not None:
            self._put_reservation(wanted)
            return
        self.quotas.release(name)
        entry = self.ledger.drop(name)
        if entry is not None:
            for row in entry.rows:
                self._forget_row(row)
            self._update_expecting_slots(entry.reservation)

    def _put_reservation(self, reservation: Reservation) -> None:
        self._add_resources(reservation.spec.resources)
        if reservation.spec.type == IN_FLIGHT:
            self.quotas.hold(reservation)
        hosts = blocked_hosts(reservation)
        rows = tuple(self._ensure_row(host) for host in hosts)
        host_row = self._rows[reservation.status.host] if reservation.status.host in hosts else -1
        before = self.ledger.find_entry(reservation.name)
        arrival = arrival_host(reservation)
        landed = bool(arrival) and has_landed(reservation, self._instances[self._rows[arrival]])
        running = self._instances[host_row] if host_row >= 0 else frozenset[str]()
        self.ledger.put(reservation, rows, host_row, self.resources, landed=landed, running=running)
        for row in before.rows if before is not None else ():
            self._forget_row(row)
        for one in (reservation, before.reservation) if before is not None else (reservation,):
            self._update_expecting_slots(one)

    def _update_expecting_slots(self, room: Reservation) -> None:
        """Commitment slots hold less while a VM that they are meant for has room in flight on their host."""
        details = room.spec.in_flight_reservation
        if room.spec.type == IN_FLIGHT and details is not None:
            for slot in self.ledger.slots_expecting(details.vm_id):
                self._put_reservation(slot)

    # -- the public view: known hosts by name ---------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Known hosts, by name."""
        return self._view_by_name()[0]

    @property
    def index(self) -> Mapping[str, int]:
        """Name → position in ``names``."""
        return self._view_by_name()[1]

    @property
    def rows_by_name(self) -> Rows:
        """The row of each of ``names``."""
        return self._view_by_name()[2]

    def free_amounts(self) -> NDArray[np.int64]:
        """(hosts, 2): milli-cores and bytes left after allocations and all reservations; -1 where unknown."""
        rows = self._view_by_name()[2]
        left = self.available_amounts(_EVERYTHING)[:2, rows].T.copy()
        base = self.base_free(ignore_allocations=False)[:2, rows].T
        left[left < 0] = 0
        left[base == NEVER] = -1
        return left

    def find_host(self, name: str) -> Hypervisor | None:
        """The host's record, ``None`` when it is not known."""
        row = self._rows.get(name)
        return None if row is None else self._hosts[row]

    def find_facts(self, name: str) -> HostFacts | None:
        """What filters read of a host."""
        row = self._rows.get(name)
        return None if row is None else self.facts_at(row)

    def instances_on(self, name: str) -> frozenset[str]:
        """The VMs that a host reports."""
        row = self._rows.get(name)
        return frozenset() if row is None else self._instances[row]

    @property
    def vms(self) -> Collection[str]:
        """Every VM that some host reports."""
        return self._rows_of_vm.keys()

    def list_reservations(self) -> list[Reservation]:
        """All reservations, by name."""
        return [entry.reservation for entry in self.ledger.list_entries()]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    # -- columns, for filters and weighers; every vector has ``size`` entries --------------------------

    @property
    def resources(self) -> Mapping[str, int]:
        """Resource → its row in every matrix of amounts."""
        return self.columns.resources

    @property
    def size(self) -> int:
        """Rows in use, known hosts or not."""
        return self.columns.size

    @property
    def live(self) -> BoolVector:
        """Rows that are known hosts."""
        return self._masks.get(self.static_revision, "live", lambda: _freeze(self.columns.classes != NOBODY))

    def find_row(self, name: str) -> int | None:
        """The row of a known host."""
        row = self._rows.get(name)
        return row if row is not None and self._hosts[row] is not None else None

    def row_of(self, name: str) -> int | None:
        """The row of a host, known or only named by a reservation."""
        return self._rows.get(name)

    def mask_hosts(self, names: Sequence[str]) -> BoolVector:
        """The rows of these known hosts; other names are passed over. Shared: copy to change."""
        if self._named is not None and self._named[0] is names and self._named[1] == self.static_revision:
            return self._named[2]
        mask = np.zeros(self.size + 1, dtype=np.bool_)
        rows: Mapping[str, int] = self._rows
        mask[np.fromiter(map(rows.get, names, repeat(-1)), dtype=np.intp, count=len(names))] = True
        known = _freeze(mask[:-1] & self.live)
        self._named = (names, self.static_revision, known)
        return known

    def facts_at(self, row: int) -> HostFacts | None:
        """What filters read of the host of a row; ``None`` where it is not known."""
        number = int(self.columns.classes[row])
        return None if number == NOBODY else self._facts[number]

    def rows_of_vm(self, vm: str) -> list[int]:
        """Rows of the hosts that report the VM."""
        return list(self._rows_of_vm.get(vm, ()))

    def hosts_of_vm(self, vm: str) -> tuple[str, ...]:
        """Known hosts that report the VM, by name; what a lost host reported last does not count."""
        known = (self._hosts[row] for row in self._rows_of_vm.get(vm, ()))
        return tuple(sorted(host.name for host in known if host is not None and not host.status.lost))

    def mask_accepted(self, key: Hashable, accepts: Callable[[HostFacts], bool]) -> BoolVector:
        """Known hosts whose facts are accepted, asked once for each class. Shared: copy to change.

        ``key`` names everything that the answer rests on besides the facts.
        """

        def build() -> BoolVector:
            verdicts = self._verdicts.get(self._classes_revision, key, list)
            verdicts.extend([accepts(facts) for facts in self._facts[len(verdicts) :]])
            return _freeze(np.array([*verdicts, False], dtype=np.bool_)[self.columns.classes])

        return self._masks.get(self.static_revision, key, build)

    def amounts_by_row(self, key: str, resource: str) -> tuple[FloatVector, BoolVector]:
        """One amount of every row as numbers to calculate with, and where it is known. Shared: copy to change."""

        def build() -> tuple[FloatVector, BoolVector]:
            column = self.resources.get(resource)
            if column is None:
                return np.zeros(self.size), np.zeros(self.size, dtype=np.bool_)
            return self.columns.get_amounts(key)[column].astype(np.float64), self.columns.get_known(key)[column].copy()

        return self._sizes.get(self.figures_revision, (key, resource), build)

    def base_free(self, *, ignore_allocations: bool) -> IntVector:
        """(resources, rows): free before reservations; ``NEVER`` where unknown or negative. Shared: copy to change."""

        def build() -> IntVector:
            free, known = self.columns.get_amounts("capacity"), self.columns.get_known("capacity")
            if not ignore_allocations:
                free, known = free - self.columns.get_amounts("allocation"), known & self.columns.counted
            return _freeze(np.where(known & (free >= 0), free, NEVER))

        return self._base.get(self.figures_revision, ignore_allocations, build)

    def available_amounts(self, query: CapacityQuery) -> IntVector:
        """(resources, rows): free for a request with this query, before what it may unlock; ``NEVER`` or less where
        unknown. Shared: copy to change.
        """
        base = self.base_free(ignore_allocations=query.ignore_allocations)
        if query.ignored_types == _ALL_TYPES:
            return base
        key = (query.ignore_allocations, query.ignored_types, query.intent is Intent.REUSE_FAILOVER_RESERVATION)
        held = self.ledger.reserved_amounts
        return self._available.get(
            (self.figures_revision, self.ledger.revision),
            key,
            lambda: _freeze(base - held(query)[: base.shape[0], : self.size]),
        )

    def overbooked_amounts(self, name: str, query: CapacityQuery | None = None) -> Mapping[str, int]:
        """Resource → how much more than it has the host holds in VMs and reservations; empty where all fits, or where
        its figures are not known. ``query``: what counts; everything without it.
        """
        asked, revision = query if query is not None else _EVERYTHING, (self.figures_revision, self.ledger.revision)
        return self._overbooked.get(revision, (name, asked), lambda: self._compute_excess(name, asked))

    def _compute_excess(self, name: str, query: CapacityQuery) -> dict[str, int]:
        row = self.find_row(name)
        if row is None or not self.columns.counted[row]:
            return {}
        free = self.columns.get_amounts("capacity")[:, row] - self.columns.get_amounts("allocation")[:, row]
        known, held = (
            self.columns.get_known("capacity")[:, row],
            self.ledger.reserved_amounts(query, slice(row, row + 1)),
        )
        left = {one: int(free[at] - held[at, 0]) for one, at in self.resources.items() if known[at]}
        return {one: -amount for one, amount in left.items() if amount < 0}

    # -- inside ----------------------------------------------------------------------------------------

    def _view_by_name(self) -> tuple[tuple[str, ...], dict[str, int], Rows]:
        if self._view is None or self._view[0] != self.static_revision:
            names = tuple(sorted(name for name, row in self._rows.items() if self._hosts[row] is not None))
            rows = np.array([self._rows[name] for name in names], dtype=np.intp)
            self._view = (self.static_revision, names, {name: at for at, name in enumerate(names)}, rows)
        return self._view[1:]

    def _ensure_row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is not None:
            return row
        if self._unused_rows:
            row = self._unused_rows.pop()
        else:
            before = self.columns.rows
            row = self.columns.add_row()
            self._hosts.append(None)
            self._instances.append(frozenset())
            if self.columns.rows > before:
                self.ledger.resize(len(self.resources), self.columns.rows)
        self._rows[name] = row
        self.columns.set_name(row, name)
        self.static_revision += 1
        self.figures_revision += 1
        return row

    def _ensure_class(self, facts: HostFacts) -> int:
        """The class of hosts with these facts."""
        number = self._class_of.get(facts)
        if number is not None:
            return number
        if len(self._facts) > _CLASSES_SPARE + 2 * self.size:
            self._renumber_classes()
        self._facts.append(facts)
        self._class_of[facts] = len(self._facts) - 1
        return len(self._facts) - 1

    def _renumber_classes(self) -> None:
        """Forget the classes that no host has any more."""
        used, places = np.unique(self.columns.classes, return_inverse=True)
        kept = [int(number) for number in used if number != NOBODY]
        shift = len(used) - len(kept)
        for row, place in enumerate(places.tolist()):
            self.columns.set_class(row, place - shift)
        self._facts = [self._facts[number] for number in kept]
        self._class_of = {facts: number for number, facts in enumerate(self._facts)}
        self._classes_revision += 1
        self.static_revision += 1

    def _set_instances(self, row: int, now: frozenset[str]) -> None:
        """The VMs that the host of this row reports; what holds room for one of them holds nothing, or again, and a
        commitment slot holds what one of its VMs does not use any more."""
        before, self._instances[row] = self._instances[row], now
        for vm in now - before:
            self._rows_of_vm.setdefault(vm, set()).add(row)
        for vm in before - now:
            rows = self._rows_of_vm[vm]
            rows.discard(row)
            if not rows:
                del self._rows_of_vm[vm]
        changed = now ^ before
        for entry in self.ledger.entries_on_row(row) if changed else ():
            details = entry.reservation.spec.committed_resource_reservation
            listed = details.allocations if details is not None else ()
            if awaited_vm(entry.reservation) in changed or not changed.isdisjoint(listed):
                self._put_reservation(entry.reservation)

    def _forget_row(self, row: int) -> None:
        """Give the row back when neither a host nor a reservation needs it."""
        if self._hosts[row] is not None or self.ledger.has_entries_on(row):
            return
        if self._rows.pop(str(self.columns.names[row]), None) is not None:
            self.columns.set_name(row, "")
            self._unused_rows.append(row)

    def _add_resources(self, *amounts: Amounts | None) -> None:
        """Make room for every resource that is named."""
        for some in amounts:
            for name in some if some is not None else ():
                if name not in self.resources and self.columns.add_resource(name):
                    self.ledger.resize(len(self.resources), self.columns.rows)
                    self.figures_revision += 1


def _freeze(vector: NDArray[S]) -> NDArray[S]:
    """The vector, which nobody may write into."""
    vector.setflags(write=False)
    return vector


_AVAILABLE_KEPT = 16
_SIZES_KEPT = 256
_OVERBOOKED_KEPT = 100_000
_CLASSES_SPARE = 64
"""Classes that nobody is in any more, beyond two for each row."""
_ALL_TYPES = frozenset({FAILOVER, COMMITTED, IN_FLIGHT})
_EVERYTHING = CapacityQuery(intent=Intent.UNKNOWN)

"""All hosts as columns, kept current by single upserts, so that a filter is a few vector operations.

A host has a *row*; rows are reused, and a host that only a reservation names has one too, so that its
blocked amounts are right the moment it appears. ``live`` says which rows are known hosts. The public view
(``names``, ``free``) has the known hosts by name and no rows at all.

Slow facts (zone, traits, conditions, …) and figures (amounts, reservations) have revisions of their own:
what filters derive from slow facts is remembered until such a fact changes.
Not promised: vectors handed out are views or shared, so nobody writes into them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlive.placement.columns import BoolVector, Columns, FloatVector, HostFacts, IntVector, Postings, Rows, facts_of
from outlive.placement.ledger import Ledger
from outlive.placement.request import Intent
from outlive.placement.reservations import CapacityQuery, blocked_hosts, has_landed
from outlive.placement.settings import PlacementSettings
from outlive.resources import COMMITTED, FAILOVER, IN_FLIGHT, Amounts, Hypervisor, Reservation

NEVER = -(2**60)
"""The free amount of a host whose figure cannot be trusted: nothing fits."""


class Sizes(NamedTuple):
    """An amount of every row, and where it is known."""

    values: FloatVector
    known: BoolVector
    all_known: bool
    """Whether it is known everywhere."""


class Fleet:
    """Hosts and reservations as columns."""

    def __init__(self, settings: PlacementSettings | None = None) -> None:
        self.settings = settings if settings is not None else PlacementSettings()
        self.columns = Columns()
        self.static_revision = 0
        self.figures_revision = 0
        self.traits = Postings()
        self.aggregates = Postings()
        self.project_hosts = Postings()
        """Project → hosts whose ``allowedProjects`` list it."""
        self.tenants = Postings()
        """Project → hosts with an aggregate that is reserved for it."""
        self.instances = Postings()
        """VM → hosts that report it."""
        self._masks: OrderedDict[Hashable, BoolVector] = OrderedDict()
        self._masks_revision = -1
        self._available: OrderedDict[tuple[object, ...], NDArray[np.int64]] = OrderedDict()
        self._available_revision = (-1, -1)
        self._sizes: dict[tuple[str, str], Sizes] = {}
        self._sizes_revision = -1
        self._named: tuple[Sequence[str], int, BoolVector] | None = None
        """What ``named`` was asked last, when, and its answer."""
        self._overbooked: dict[str, dict[str, int]] = {}
        self._overbooked_revision = (-1, -1)
        self._rows: dict[str, int] = {}
        self._hosts: list[Hypervisor | None] = []
        self._facts: list[HostFacts | None] = []
        self._row_names: list[str] = []
        self._unused_rows: list[int] = []
        self._view: tuple[int, tuple[str, ...], dict[str, int], Rows] | None = None
        self.ledger = Ledger(2, self.columns.rows)

    # -- changes ---------------------------------------------------------------------------------------

    def upsert_host(self, host: Hypervisor) -> None:
        """The host exists and looks like this now."""
        row = self._row(host.name)
        old, new = self._facts[row], facts_of(host)
        self._hosts[row] = host
        self._facts[row] = new
        status = host.status
        self._add_resources(status.capacity, status.effective_capacity, status.allocation)
        self.columns.set_amounts(row, host)
        if old is None or old.instances != new.instances:
            self.instances.replace(row, old.instances if old else (), new.instances)
            self._land(row, (old.instances if old else frozenset()) ^ new.instances)
        if old is None or not old.same_slow_facts(new):
            self._set_slow_facts(row, old, new)
            self.static_revision += 1
        self.figures_revision += 1

    def remove_host(self, name: str) -> None:
        """The host is gone; reservations on it stay."""
        row = self._rows.get(name)
        old = self._facts[row] if row is not None else None
        if row is None or old is None:
            return
        self._set_slow_facts(row, old, None)
        self.instances.replace(row, old.instances, ())
        self._land(row, old.instances)
        self._hosts[row] = self._facts[row] = None
        self.columns.set_amounts(row, None)
        self.static_revision += 1
        self.figures_revision += 1
        self._forget_row(row)

    def upsert_reservation(self, reservation: Reservation) -> None:
        """The reservation exists and looks like this now."""
        self._add_resources(reservation.spec.resources)
        rows = tuple(self._row(host) for host in blocked_hosts(reservation))
        host_row = self._rows[reservation.status.host] if reservation.status.host else -1
        before = self.ledger.entry(reservation.name)
        facts = self._facts[host_row] if host_row >= 0 else None
        landed = facts is not None and has_landed(reservation, facts.instances)
        self.ledger.put(reservation, rows, host_row, self.resources, landed=landed)
        for row in before.rows if before is not None else ():
            self._forget_row(row)

    def remove_reservation(self, name: str) -> None:
        """The reservation is gone."""
        entry = self.ledger.drop(name)
        for row in entry.rows if entry is not None else ():
            self._forget_row(row)

    # -- the public view: known hosts by name ---------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Known hosts, by name."""
        return self._by_name()[0]

    @property
    def index(self) -> Mapping[str, int]:
        """Name → position in ``names``."""
        return self._by_name()[1]

    def free(self) -> NDArray[np.int64]:
        """(hosts, 2): milli-cores and bytes left after allocations and all reservations; -1 where unknown."""
        rows = self._by_name()[2]
        left = self.available(_EVERYTHING)[:2, rows].T.copy()
        base = self.base(ignore_allocations=False)[:2, rows].T
        left[left < 0] = 0
        left[base == NEVER] = -1
        return left

    def host(self, name: str) -> Hypervisor | None:
        """The host's record, ``None`` when it is not known."""
        row = self._rows.get(name)
        return None if row is None else self._hosts[row]

    def facts(self, name: str) -> HostFacts | None:
        """What filters read of a host."""
        row = self._rows.get(name)
        return None if row is None else self._facts[row]

    def reservations(self) -> list[Reservation]:
        """All reservations, by name."""
        return [entry.reservation for entry in self.ledger.entries()]

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
        return self.columns.flag("live")

    def row(self, name: str) -> int | None:
        """The row of a known host."""
        row = self._rows.get(name)
        return row if row is not None and self._facts[row] is not None else None

    def row_of(self, name: str) -> int | None:
        """The row of a host, known or only named by a reservation."""
        return self._rows.get(name)

    def named(self, names: Sequence[str]) -> BoolVector:
        """The rows of these known hosts; other names are passed over. Shared: copy to change."""
        if self._named is not None and self._named[0] is names and self._named[1] == self.static_revision:
            return self._named[2]
        mask = np.zeros(self.size + 1, dtype=np.bool_)
        rows: Mapping[str, int] = self._rows
        mask[np.fromiter(map(rows.get, names, repeat(-1)), dtype=np.intp, count=len(names))] = True
        known = mask[:-1] & self.live
        known.setflags(write=False)
        self._named = (names, self.static_revision, known)
        return known

    def facts_at(self, row: int) -> HostFacts | None:
        """What filters read of the host of a row."""
        return self._facts[row]

    def rows_mask(self, rows: Iterable[int]) -> BoolVector:
        """A mask that is true at these rows."""
        mask = np.zeros(self.size, dtype=np.bool_)
        picked = np.fromiter(rows, dtype=np.intp)
        mask[picked] = True
        return mask

    def has_trait(self, trait: str) -> BoolVector:
        """Rows with the trait."""
        return self.remembered(("trait", trait), lambda: self.rows_mask(self.traits.rows(trait)))

    def remembered(self, key: Hashable, build: Callable[[], BoolVector]) -> BoolVector:
        """What ``build`` says, until a slow fact of any host changes. The cache keeps the last few hundred keys."""
        revision = self.static_revision
        if self._masks_revision != revision:
            self._masks.clear()
            self._masks_revision = revision
        mask = self._masks.get(key)
        if mask is None:
            mask = build()
            mask.setflags(write=False)
            self._masks[key] = mask
            if len(self._masks) > self.settings.mask_cache:
                self._masks.popitem(last=False)
        else:
            self._masks.move_to_end(key)
        return mask

    def sizes(self, key: str, resource: str) -> Sizes:
        """One amount of every row as numbers to calculate with, kept until a figure changes."""
        if self._sizes_revision != self.figures_revision:
            self._sizes.clear()
            self._sizes_revision = self.figures_revision
        found = self._sizes.get((key, resource))
        if found is None:
            column = self.resources.get(resource)
            if column is None:
                found = Sizes(np.zeros(self.size), np.zeros(self.size, dtype=np.bool_), False)
            else:
                known = self.columns.present(key)[column].copy()
                found = Sizes(self.columns.amounts(key)[column].astype(np.float64), known, bool(known.all()))
                found.values.setflags(write=False)
            self._sizes[key, resource] = found
        return found

    def base(self, *, ignore_allocations: bool) -> IntVector:
        """(resources, rows): free before reservations; ``NEVER`` where unknown or negative."""
        return self.available(
            CapacityQuery(intent=_EVERYTHING.intent, ignore_allocations=ignore_allocations, ignored_types=_ALL_TYPES)
        )

    def available(self, query: CapacityQuery) -> IntVector:
        """(resources, rows): free for a request with this query, before what it may unlock. Shared: copy to change."""
        revision = (self.figures_revision, self.ledger.revision)
        if self._available_revision != revision:
            self._available.clear()
            self._available_revision = revision
        key = (query.ignore_allocations, query.ignored_types, query.intent is Intent.REUSE_FAILOVER_RESERVATION)
        found = self._available.get(key)
        if found is None:
            free, known = self.columns.amounts("capacity"), self.columns.present("capacity")
            if not query.ignore_allocations:
                free, known = free - self.columns.amounts("allocation"), known & self.columns.flag("counted")
            free = np.where(known & (free >= 0), free, NEVER)
            if query.ignored_types != _ALL_TYPES:
                held = self.ledger.held(query)[: free.shape[0], : self.size]
                free = np.where(free == NEVER, NEVER, free - held)
            found = free
            found.setflags(write=False)
            self._available[key] = found
            if len(self._available) > _AVAILABLE_KEPT:
                self._available.popitem(last=False)
        return found

    def overbooked(self, name: str) -> Mapping[str, int]:
        """Resource → how much more than it has the host holds in VMs and reservations; empty where all fits, or where
        its figures are not known.
        """
        revision = (self.figures_revision, self.ledger.revision)
        if self._overbooked_revision != revision:
            self._overbooked_revision = revision
            self._overbooked.clear()
        found = self._overbooked.get(name)
        if found is None:
            found = self._overbooked[name] = self._excess(name)
        return found

    def _excess(self, name: str) -> dict[str, int]:
        row = self.row(name)
        if row is None or not self.columns.flag("counted")[row]:
            return {}
        free = self.columns.amounts("capacity")[:, row] - self.columns.amounts("allocation")[:, row]
        known, held = self.columns.present("capacity")[:, row], self.ledger.held(_EVERYTHING, slice(row, row + 1))
        left = {one: int(free[at] - held[at, 0]) for one, at in self.resources.items() if known[at]}
        return {one: -amount for one, amount in left.items() if amount < 0}

    # -- inside ----------------------------------------------------------------------------------------

    def _by_name(self) -> tuple[tuple[str, ...], dict[str, int], Rows]:
        if self._view is None or self._view[0] != self.static_revision:
            names = tuple(sorted(name for name, row in self._rows.items() if self._facts[row] is not None))
            rows = np.array([self._rows[name] for name in names], dtype=np.intp)
            self._view = (self.static_revision, names, {name: at for at, name in enumerate(names)}, rows)
        return self._view[1:]

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is not None:
            return row
        if self._unused_rows:
            row = self._unused_rows.pop()
            self._row_names[row] = name
        else:
            before = self.columns.rows
            row = self.columns.add_row()
            self._row_names.append(name)
            self._hosts.append(None)
            self._facts.append(None)
            if self.columns.rows > before:
                self.ledger.resize(len(self.resources), self.columns.rows)
        self._rows[name] = row
        self.columns.set_name(row, name)
        self.static_revision += 1
        self.figures_revision += 1
        return row

    def _land(self, row: int, changed: frozenset[str]) -> None:
        """VMs came to the host of this row, or left it: slots that they consume hold nothing, or hold again."""
        for entry in self.ledger.on_row(row):
            consumer = entry.reservation.status.consumer
            if consumer is not None and consumer.vm in changed:
                self.upsert_reservation(entry.reservation)

    def _forget_row(self, row: int) -> None:
        """Give the row back when neither a host nor a reservation needs it."""
        name = self._row_names[row]
        if self._facts[row] is None and not self.ledger.touches(row) and name in self._rows:
            del self._rows[name]
            self._row_names[row] = ""
            self.columns.set_name(row, "")
            self._unused_rows.append(row)

    def _add_resources(self, *amounts: Amounts | None) -> None:
        """Make room for every resource that is named."""
        for some in amounts:
            for name in some if some is not None else ():
                if name not in self.resources and self.columns.add_resource(name):
                    self.ledger.resize(len(self.resources), self.columns.rows)
                    self.figures_revision += 1

    def _set_slow_facts(self, row: int, old: HostFacts | None, new: HostFacts | None) -> None:
        for postings, attribute in (
            (self.traits, "traits"),
            (self.aggregates, "aggregates"),
            (self.project_hosts, "allowed_projects"),
            (self.tenants, "tenants"),
        ):
            postings.replace(row, getattr(old, attribute) if old else (), getattr(new, attribute) if new else ())
        self.columns.set_facts(row, new)


_AVAILABLE_KEPT = 16
_ALL_TYPES = frozenset({FAILOVER, COMMITTED, IN_FLIGHT})
_EVERYTHING = CapacityQuery(intent=Intent.UNKNOWN)

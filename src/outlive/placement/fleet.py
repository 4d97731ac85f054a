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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlive.base.hashing import stable_hash
from outlive.placement.blocking import AMOUNT_LIMIT, CapacityQuery, blocked_hosts
from outlive.placement.facts import HostFacts, facts_of
from outlive.placement.ledger import Ledger
from outlive.placement.postings import Postings
from outlive.placement.request import Intent
from outlive.placement.settings import PlacementSettings
from outlive.resources import COMMITTED, CPU, FAILOVER, IN_FLIGHT, MEMORY, Amounts, Hypervisor, Reservation

BoolVector = NDArray[np.bool_]
IntVector = NDArray[np.int64]
FloatVector = NDArray[np.float64]
Rows = NDArray[np.intp]

NEVER = -(2**60)
"""The free amount of a host whose figure cannot be trusted: nothing fits."""
_FIRST_ROWS = 64


class Sizes(NamedTuple):
    """An amount of every row, and where it is known."""

    values: FloatVector
    known: BoolVector


class Fleet:
    """Hosts and reservations as columns."""

    def __init__(self, settings: PlacementSettings | None = None) -> None:
        self.settings = settings if settings is not None else PlacementSettings()
        self.resources: dict[str, int] = {CPU: 0, MEMORY: 1}
        """Resource → its row in every matrix of amounts."""
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
        self._rows: dict[str, int] = {}
        self._hosts: list[Hypervisor | None] = []
        self._facts: list[HostFacts | None] = []
        self._row_names: list[str] = []
        self._unused_rows: list[int] = []
        self._codes: dict[str, int] = {}
        self._words_of: list[str] = []
        self._view: tuple[int, tuple[str, ...], dict[str, int], Rows] | None = None
        self._names = np.empty(_FIRST_ROWS, dtype=object)
        self._hashes = np.zeros(_FIRST_ROWS, dtype=np.uint64)
        self._bools = {key: np.zeros(_FIRST_ROWS, dtype=np.bool_) for key in _BOOLS}
        self._words = {key: np.full(_FIRST_ROWS, -1, dtype=np.int64) for key in _WORDS}
        self._amounts = {key: np.zeros((2, _FIRST_ROWS), dtype=np.int64) for key in _AMOUNTS}
        self._present = {key: np.zeros((2, _FIRST_ROWS), dtype=np.bool_) for key in _AMOUNTS}
        self.ledger = Ledger(2, _FIRST_ROWS, slots_ready_without_condition=self.settings.slots_ready_without_condition)

    # -- changes ---------------------------------------------------------------------------------------

    def upsert_host(self, host: Hypervisor) -> None:
        """The host exists and looks like this now."""
        row = self._row(host.name)
        old, new = self._facts[row], facts_of(host)
        self._hosts[row] = host
        self._facts[row] = new
        self._set_amounts(row, host)
        if old is None or old.instances != new.instances:
            self.instances.replace(row, old.instances if old else (), new.instances)
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
        self._hosts[row] = self._facts[row] = None
        for present in self._present.values():
            present[:, row] = False
        self.static_revision += 1
        self.figures_revision += 1
        self._forget_row(row)

    def upsert_reservation(self, reservation: Reservation) -> None:
        """The reservation exists and looks like this now."""
        for name in reservation.spec.resources:
            self._resource(name)
        rows = tuple(self._row(host) for host in blocked_hosts(reservation))
        host_row = self._rows[reservation.status.host] if reservation.status.host else -1
        before = self.ledger.entry(reservation.name)
        self.ledger.put(reservation, rows, host_row, self.resources)
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

    def reservations_on(self, name: str) -> list[Reservation]:
        """The reservations that are wanted or found on the host, by name."""
        row = self._rows.get(name)
        return [] if row is None else [entry.reservation for entry in self.ledger.on_row(row)]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    # -- columns, for filters and weighers; every vector has ``size`` entries --------------------------

    @property
    def size(self) -> int:
        """Rows in use, known hosts or not."""
        return len(self._row_names)

    @property
    def live(self) -> BoolVector:
        """Rows that are known hosts."""
        return self._bools["live"][: self.size]

    @property
    def row_names(self) -> NDArray[np.object_]:
        """Name of each row."""
        return self._names[: self.size]

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """``stable_hash`` of each row's name."""
        return self._hashes[: self.size]

    def row(self, name: str) -> int | None:
        """The row of a known host."""
        row = self._rows.get(name)
        return row if row is not None and self._facts[row] is not None else None

    def named(self, names: Sequence[str]) -> BoolVector:
        """The rows of these known hosts (a new mask); other names are passed over."""
        mask = np.zeros(self.size + 1, dtype=np.bool_)
        rows: Mapping[str, int] = self._rows
        mask[np.fromiter(map(rows.get, names, repeat(-1)), dtype=np.intp, count=len(names))] = True
        return mask[:-1] & self.live

    def flag(self, key: str) -> BoolVector:
        """A yes-or-no fact of each row: one of ``live, usable, in_service, ha, pinned, reserved, mapped``."""
        return self._bools[key][: self.size]

    def word(self, key: str) -> IntVector:
        """A fact of each row as a code (see ``code``): one of ``zone, hypervisor_type, cpu_arch, migration``."""
        return self._words[key][: self.size]

    def code(self, key: str, value: str) -> int:
        """The code of a word; -2, which no row has, for a word that no host ever had."""
        return self._codes.get(f"{key}\0{value}", -2)

    def decode(self, code: int) -> str:
        """The word of a code."""
        return self._words_of[code]

    def matching(self, key: str, accepts: Callable[[str], bool]) -> BoolVector:
        """Rows whose word is accepted; asked once for each different word."""
        words = self.word(key)
        good = [code for code in np.unique(words).tolist() if code >= 0 and accepts(self.decode(code))]
        return np.isin(words, good)

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

    def amounts(self, key: str) -> IntVector:
        """(resources, rows) of one of ``capacity`` (effective, else plain), ``effective``, ``allocation``."""
        return self._amounts[key][:, : self.size]

    def present(self, key: str) -> BoolVector:
        """(resources, rows): where such an amount is known."""
        return self._present[key][:, : self.size]

    def sizes(self, key: str, resource: str) -> Sizes:
        """One amount of every row as numbers to calculate with, kept until a figure changes."""
        if self._sizes_revision != self.figures_revision:
            self._sizes.clear()
            self._sizes_revision = self.figures_revision
        found = self._sizes.get((key, resource))
        if found is None:
            column = self.resources.get(resource)
            if column is None:
                found = Sizes(np.zeros(self.size), np.zeros(self.size, dtype=np.bool_))
            else:
                found = Sizes(self.amounts(key)[column].astype(np.float64), self.present(key)[column].copy())
            self._sizes[key, resource] = found
        return found

    def base(self, *, ignore_allocations: bool) -> IntVector:
        """(resources, rows): free before reservations; ``NEVER`` where unknown or negative."""
        return self.available(
            CapacityQuery(intent=_EVERYTHING.intent, ignore_allocations=ignore_allocations, ignored_types=_ALL_TYPES)
        )

    def raw_base(self, *, ignore_allocations: bool) -> tuple[IntVector, BoolVector]:
        """(resources, rows): free before reservations, negative ones too, and where it is known at all."""
        known = self.present("capacity")
        if ignore_allocations:
            return self.amounts("capacity"), known
        if self.settings.overbooked_hosts == "drop":
            known = known & self.flag("counted")
        return self.amounts("capacity") - self.amounts("allocation"), known

    def available(self, query: CapacityQuery) -> IntVector:
        """(resources, rows): free for a request with this query, before what it may unlock. Shared: copy to change."""
        revision = (self.figures_revision, self.ledger.revision)
        if self._available_revision != revision:
            self._available.clear()
            self._available_revision = revision
        key = (query.ignore_allocations, query.ignored_types, query.intent is Intent.REUSE_FAILOVER_RESERVATION)
        found = self._available.get(key)
        if found is None:
            free, known = self.raw_base(ignore_allocations=query.ignore_allocations)
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
            row = len(self._row_names)
            self._row_names.append(name)
            self._hosts.append(None)
            self._facts.append(None)
            if row >= len(self._hashes):
                self._grow(2 * len(self._hashes))
        self._rows[name] = row
        self._names[row] = name
        self._hashes[row] = stable_hash(name)
        self.static_revision += 1
        self.figures_revision += 1
        return row

    def _forget_row(self, row: int) -> None:
        """Give the row back when neither a host nor a reservation needs it."""
        name = self._row_names[row]
        if self._facts[row] is None and not self.ledger.touches(row) and name in self._rows:
            del self._rows[name]
            self._row_names[row] = ""
            self._names[row] = ""
            self._unused_rows.append(row)

    def _resource(self, name: str) -> int:
        if name not in self.resources:
            self.resources[name] = len(self.resources)
            self._grow(len(self._hashes))
        return self.resources[name]

    def _grow(self, rows: int) -> None:
        width = len(self.resources)
        self._names = _longer(self._names, rows, None)
        self._hashes = _longer(self._hashes, rows, 0)
        self._bools = {key: _longer(column, rows, fill=False) for key, column in self._bools.items()}
        self._words = {key: _longer(column, rows, -1) for key, column in self._words.items()}
        self._amounts = {key: _larger(matrix, width, rows) for key, matrix in self._amounts.items()}
        self._present = {key: _larger(matrix, width, rows) for key, matrix in self._present.items()}
        self.ledger.resize(width, rows)
        self.figures_revision += 1

    def _set_amounts(self, row: int, host: Hypervisor) -> None:
        status = host.status
        effective, allocation = status.effective_capacity, status.allocation
        for key, amounts in (
            ("capacity", host.effective_capacity()),
            ("effective", effective),
            ("allocation", allocation),
        ):
            self._set_row(key, row, amounts if amounts is not None else Amounts())
        self._bools["counted"][row] = allocation is not None

    def _code_of(self, key: str, word: str) -> int:
        code = self._codes.setdefault(f"{key}\0{word}", len(self._codes))
        if code == len(self._words_of):
            self._words_of.append(word)
        return code

    def _set_row(self, key: str, row: int, amounts: Amounts) -> None:
        columns = {self._resource(name): amount for name, amount in amounts.items()}
        values, present = self._amounts[key], self._present[key]
        values[:, row] = 0
        present[:, row] = False
        for column, amount in columns.items():
            values[column, row] = max(-AMOUNT_LIMIT, min(amount, AMOUNT_LIMIT))
            present[column, row] = True

    def _set_slow_facts(self, row: int, old: HostFacts | None, new: HostFacts | None) -> None:
        for postings, attribute in (
            (self.traits, "traits"),
            (self.aggregates, "aggregates"),
            (self.project_hosts, "allowed_projects"),
            (self.tenants, "tenants"),
        ):
            postings.replace(row, getattr(old, attribute) if old else (), getattr(new, attribute) if new else ())
        flags = {
            "live": new is not None,
            "usable": new is not None and new.bad_condition is None,
            "in_service": new is not None and new.in_service,
            "ha": new is not None and new.high_availability,
            "pinned": new is not None and bool(new.allowed_projects),
            "reserved": new is not None and bool(new.tenants),
            "mapped": new is not None and new.hypervisor_type != "",
        }
        for key, value in flags.items():
            self._bools[key][row] = value
        for key in _WORDS:
            word = getattr(new, key) if new else None
            self._words[key][row] = -1 if word is None else self._code_of(key, word)


_BOOLS = ("live", "usable", "in_service", "ha", "pinned", "reserved", "mapped", "counted")
_WORDS = ("zone", "hypervisor_type", "cpu_arch", "raw_type", "migration")
_AMOUNTS = ("capacity", "effective", "allocation")
_AVAILABLE_KEPT = 16
_ALL_TYPES = frozenset({FAILOVER, COMMITTED, IN_FLIGHT})
_EVERYTHING = CapacityQuery(intent=Intent.UNKNOWN)


def _longer(column: NDArray[Any], rows: int, fill: object) -> NDArray[Any]:
    grown = np.full(rows, fill, dtype=column.dtype)
    grown[: len(column)] = column
    return grown


def _larger(matrix: NDArray[Any], width: int, rows: int) -> NDArray[Any]:
    grown = np.zeros((width, rows), dtype=matrix.dtype)
    grown[: matrix.shape[0], : matrix.shape[1]] = matrix
    return grown

"""Every set of K failed units, looked at one by one: who is affected, who has none.

The plain answer to the question that tolerance answers by a theorem, for whoever wants to see every case. A VM is
affected by the cases that have its own unit; for each of these all its slots are judged, on bit arrays that hold a row
of cases at a time (docs/reference/failover-analysis.md#surviving).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from outlive.failover.analysis.matrix import Ints, SurvivalMatrix, Truths

BITS_TOGETHER = 1 << 23
"""Pairs of slot and unit that are looked at together: 8 MiB."""
COUNTED = 1 << 21
"""Lost pairs of VM and case of which the worst cases are counted; beyond it no worst case is told."""


class Tally(NamedTuple):
    """What enumeration found; cases are tuples of unit numbers, ascending."""

    landed: int
    """Pairs of a case and an affected VM that has a slot of its own."""
    lost: int
    """Pairs of a case and an affected VM that has none."""
    lost_vms: Ints
    """How often each VM is lost."""
    pairs: list[tuple[int, tuple[int, ...]]]
    """Of the lost, (VM, case), as many as were asked for; every VM that is lost comes before any second case."""
    worst: list[tuple[tuple[int, ...], int]]
    """The cases that lose most VMs, with how many."""


class Row(NamedTuple):
    """Cases that differ in their last unit only, for the VMs of one run."""

    vms: Ints
    prefix: tuple[int, ...]
    """Units that fail besides a VM's own and the last one."""
    offset: int
    """The last unit is the column's number plus this; without any further unit there is one column."""
    valid: Truths
    """VM, column → whether this is a case, and no repetition of one."""
    open: Truths
    """VM, place of the slot, column → whether the slot is the VM's own in that case."""


def effort(matrix: SurvivalMatrix, failures: int) -> int:
    """How many pairs of a case and an affected VM there are."""
    units = len(matrix.unit_names)
    return len(matrix.vms) * comb(max(0, units - 1), failures - 1) if failures else 0


def enumerated(matrix: SurvivalMatrix, failures: int, *, listed: int, worst: int) -> Tally:
    """Look at every set of ``failures`` units (one at least); at most ``listed`` lost pairs and ``worst`` cases."""
    tally = _Sums(matrix, listed, failures)
    for row in _rows(matrix, failures):
        tally.add(row)
    return tally.done(worst)


def _rows(matrix: SurvivalMatrix, failures: int) -> Iterator[Row]:
    """Every case of every VM once."""
    units = len(matrix.unit_names)
    bits = matrix.rows()
    bare = np.nonzero(matrix.degree == 0)[0]
    step = max(1, BITS_TOGETHER // max(1, units if failures > 1 else 1))
    for begin in range(0, len(bare), step):
        vms = bare[begin : begin + step]
        free: Truths = np.zeros((len(vms), 0, units if failures > 1 else 1), dtype=bool)
        if failures == 1:
            yield Row(vms, (), 0, np.ones((len(vms), 1), dtype=bool), free)
        else:
            yield from _rows_of(matrix, vms, free, failures)
    for vms, claims in matrix.by_degree(step):
        alone = matrix.alone[claims]
        if failures == 1:
            yield Row(vms, (), 0, np.ones((len(vms), 1), dtype=bool), alone[:, :, None])
            continue
        row = bits[matrix.claim_slot[claims]]
        touched = np.unpackbits(row.astype("<u8").view(np.uint8), axis=2, bitorder="little", count=units)
        free = (touched == 0) & alone[:, :, None]
        free[np.arange(len(vms)), :, matrix.own[vms]] = alone
        yield from _rows_of(matrix, vms, free, failures)


def _rows_of(matrix: SurvivalMatrix, vms: Ints, free: Truths, failures: int) -> Iterator[Row]:
    """Two failures or more.

    ``free``: VM, slot, unit → whether the failure of the VM's own unit and this one leaves the slot to it.
    """
    here, own, units = np.arange(len(vms)), matrix.own[vms], free.shape[2]
    for prefix in combinations(range(units), failures - 2):
        offset = prefix[-1] + 1 if prefix else 0
        left = free[:, :, offset:]
        for unit in prefix:
            left = left & free[:, :, unit : unit + 1]
        valid = np.ones((len(vms), units - offset), dtype=bool)
        inside = own >= offset
        valid[here[inside], own[inside] - offset] = False
        valid[np.isin(own, prefix)] = False
        yield Row(vms, prefix, offset, valid, left)


class _Sums:
    """Adds rows up."""

    def __init__(self, matrix: SurvivalMatrix, listed: int, failures: int) -> None:
        self._matrix = matrix
        self._failures = failures
        self._landed = self._lost = 0
        self._lost_vms: Ints = np.zeros(len(matrix.vms), dtype=np.int64)
        self._listed = listed
        self._first: list[tuple[int, tuple[int, ...]]] = []
        self._more: list[tuple[int, tuple[int, ...]]] = []
        self._codes: list[Ints] = []
        self._coded = 0
        self._codable = len(matrix.unit_names) ** failures < 2**62

    def add(self, row: Row) -> None:
        """Judge all its cases."""
        served = row.open.any(axis=1) & row.valid
        self._landed += int(served.sum())
        lost = row.valid & ~served
        count = int(lost.sum())
        if not count:
            return
        self._lost += count
        self._list(row, lost)
        self._lost_vms[row.vms] += lost.sum(axis=1)
        if self._codable and self._coded + count <= COUNTED:
            at, column = np.nonzero(lost)
            self._coded += count
            self._codes.append(self._encoded(self._cases(row, at, column)))
        else:
            self._codable = False

    def _cases(self, row: Row, at: Ints, column: Ints) -> Ints:
        """The units of these cases, a line each, ascending."""
        columns = [self._matrix.own[row.vms[at]], *(np.full(len(at), unit, dtype=np.int64) for unit in row.prefix)]
        if self._failures > 1:
            columns.append(column + row.offset)
        cases: Ints = np.sort(np.stack(columns, axis=1), axis=1)
        return cases

    def _list(self, row: Row, lost: Truths) -> None:
        new = np.nonzero(lost.any(axis=1) & (self._lost_vms[row.vms] == 0))[0][: self._listed - len(self._first)]
        first = lost[new].argmax(axis=1)
        cases = self._cases(row, new, first).tolist()
        self._first += [(vm, tuple(case)) for vm, case in zip(row.vms[new].tolist(), cases, strict=True)]
        if len(self._more) >= self._listed:
            return
        rest = lost.copy()
        rest[new, first] = False
        at, column = np.nonzero(rest)
        at, column = at[: self._listed - len(self._more)], column[: self._listed - len(self._more)]
        cases = self._cases(row, at, column).tolist()
        self._more += [(vm, tuple(case)) for vm, case in zip(row.vms[at].tolist(), cases, strict=True)]

    def _encoded(self, cases: Ints) -> Ints:
        code: Ints = np.zeros(len(cases), dtype=np.int64)
        for column in range(cases.shape[1]):
            code = code * len(self._matrix.unit_names) + cases[:, column]
        return code

    def _decoded(self, code: int) -> tuple[int, ...]:
        units = []
        for _ in range(self._failures):
            code, unit = divmod(code, len(self._matrix.unit_names))
            units.append(unit)
        return tuple(reversed(units))

    def done(self, worst: int) -> Tally:
        """Everything together."""
        most: list[tuple[tuple[int, ...], int]] = []
        if self._codable and self._codes:
            codes, counts = np.unique(np.concatenate(self._codes), return_counts=True)
            order = np.argsort(-counts, kind="stable")[:worst]
            most = [
                (self._decoded(code), count)
                for code, count in zip(codes[order].tolist(), counts[order].tolist(), strict=True)
            ]
        return Tally(
            landed=self._landed,
            lost=self._lost,
            lost_vms=self._lost_vms,
            pairs=sorted([*self._first, *self._more[: self._listed - len(self._first)]]),
            worst=most,
        )

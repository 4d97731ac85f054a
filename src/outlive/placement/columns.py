"""Arrays with one entry a row: names, classes of equal facts, amounts. They grow as needed.

Only storage: what a row means and when it is in use is the business of ``outlive.placement.fleet``.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import stable_hash
from outlive.placement.reservations import AMOUNT_LIMIT
from outlive.resources import CPU, MEMORY, Amounts, Hypervisor

BoolVector = NDArray[np.bool_]
IntVector = NDArray[np.int64]
FloatVector = NDArray[np.float64]
Rows = NDArray[np.intp]

RESOURCES_LIMIT: Final = 64
"""Different resources that are kept. What an inventory names beyond counts as unknown, so nothing is placed on it."""
_FIRST_ROWS: Final = 64
NOBODY: Final = -1
"""The class of a row that is no known host."""
_AMOUNTS: Final = ("capacity", "effective", "allocation")


class Columns:
    """The arrays. ``size`` rows of them are in use; ``rows`` exist."""

    def __init__(self) -> None:
        self.size = 0
        self.rows = _FIRST_ROWS
        self.resources: dict[str, int] = {CPU: 0, MEMORY: 1}
        """Resource → its row in every matrix of amounts."""
        self._names = np.empty(_FIRST_ROWS, dtype=object)
        self._view: NDArray[np.object_] | None = None
        """The names as they were handed out; it stays as it is when a row gets another name."""
        self._quoted: tuple[NDArray[np.object_], NDArray[np.bytes_]] | None = None
        self._hashes = np.zeros(_FIRST_ROWS, dtype=np.uint64)
        self._counted = np.zeros(_FIRST_ROWS, dtype=np.bool_)
        self._classes = np.full(_FIRST_ROWS, NOBODY, dtype=np.int64)
        self._amounts = {key: np.zeros((2, _FIRST_ROWS), dtype=np.int64) for key in _AMOUNTS}
        self._present = {key: np.zeros((2, _FIRST_ROWS), dtype=np.bool_) for key in _AMOUNTS}

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def names(self) -> NDArray[np.object_]:
        """Name of each row; what is handed out stays as it is when rows get other names."""
        if self._view is None:
            self._view = self._names[: self.size]
        return self._view

    def json_list(self, names: NDArray[np.object_], rows: Rows) -> bytes:
        """The names of these rows as a JSON list; each name is encoded once for as long as no row gets another."""
        if self._quoted is None or self._quoted[0] is not names:
            self._quoted = (names, np.array([msgspec.json.encode(name) + b"," for name in names.tolist()], dtype="S"))
        return b"[" + self._quoted[1][rows].tobytes().replace(b"\0", b"")[:-1] + b"]"

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """``stable_hash`` of each row's name."""
        return self._hashes[: self.size]

    @property
    def classes(self) -> IntVector:
        """Of each row the number of its facts in the fleet, ``NOBODY`` where it is no known host."""
        return self._classes[: self.size]

    @property
    def counted(self) -> BoolVector:
        """Rows of hosts that say what runs on them."""
        return self._counted[: self.size]

    def get_amounts(self, key: str) -> IntVector:
        """(resources, rows) of one of ``capacity`` (effective, else plain), ``effective``, ``allocation``."""
        return self._amounts[key][:, : self.size]

    def get_known(self, key: str) -> BoolVector:
        """(resources, rows): where such an amount is known."""
        return self._present[key][:, : self.size]

    # -- writing ---------------------------------------------------------------------------------------

    def add_row(self) -> int:
        """A row at the end."""
        if self.size >= self.rows:
            self._grow(2 * self.rows)
        self.size += 1
        return self.size - 1

    def set_name(self, row: int, name: str) -> None:
        """Whose row it is; the empty name for nobody's."""
        if self._view is not None:
            self._names, self._view = self._names.copy(), None
        self._names[row] = name
        self._hashes[row] = stable_hash(name)

    def add_resource(self, name: str) -> bool:
        """Make room for a resource; whether the matrices grew."""
        if name in self.resources or len(self.resources) >= RESOURCES_LIMIT:
            return False
        self.resources[name] = len(self.resources)
        self._grow(self.rows)
        return True

    def set_class(self, row: int, number: int) -> None:
        """Which facts the host of the row has."""
        self._classes[row] = number

    def set_amounts(self, row: int, host: Hypervisor | None) -> None:
        """The figures of a host, or that there is none. Its resources must have been added."""
        status = host.status if host is not None else None
        self._set_row("capacity", row, host.effective_capacity() if host is not None else None)
        self._set_row("effective", row, status.effective_capacity if status is not None else None)
        self._set_row("allocation", row, status.allocation if status is not None else None)
        self._counted[row] = status is not None and status.allocation is not None

    def _set_row(self, key: str, row: int, amounts: Amounts | None) -> None:
        values, present = self._amounts[key], self._present[key]
        values[:, row] = 0
        present[:, row] = False
        for name, amount in amounts.items() if amounts is not None else ():
            column = self.resources.get(name)
            if column is not None:
                values[column, row] = max(-AMOUNT_LIMIT, min(amount, AMOUNT_LIMIT))
                present[column, row] = True

    def _grow(self, rows: int) -> None:
        width = len(self.resources)
        self.rows = rows
        self._names = _lengthen(self._names, rows, None)
        self._hashes = _lengthen(self._hashes, rows, 0)
        self._counted = _lengthen(self._counted, rows, fill=False)
        self._classes = _lengthen(self._classes, rows, NOBODY)
        self._amounts = {key: _enlarge(matrix, width, rows) for key, matrix in self._amounts.items()}
        self._present = {key: _enlarge(matrix, width, rows) for key, matrix in self._present.items()}


def _lengthen(column: NDArray[Any], rows: int, fill: object) -> NDArray[Any]:
    grown = np.full(rows, fill, dtype=column.dtype)
    grown[: len(column)] = column
    return grown


def _enlarge(matrix: NDArray[Any], width: int, rows: int) -> NDArray[Any]:
    grown = np.zeros((width, rows), dtype=matrix.dtype)
    grown[: matrix.shape[0], : matrix.shape[1]] = matrix
    return grown

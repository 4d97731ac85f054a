"""Which rows of the fleet have a value: a trait, an aggregate, a project, a VM. Kept current row by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

EMPTY: Final[frozenset[int]] = frozenset()


class Postings:
    """Value → rows that have it."""

    def __init__(self) -> None:
        self._rows: dict[str, set[int]] = {}

    def rows(self, value: str) -> set[int] | frozenset[int]:
        """The rows with that value."""
        return self._rows.get(value, EMPTY)

    def values(self) -> list[str]:
        """Every value that some row has, in order."""
        return sorted(self._rows)

    def replace(self, row: int, old: Iterable[str], new: Iterable[str]) -> None:
        """The row had the values ``old`` and now has ``new``."""
        before, after = set(old), set(new)
        for value in before - after:
            rows = self._rows[value]
            rows.discard(row)
            if not rows:
                del self._rows[value]
        for value in after - before:
            self._rows.setdefault(value, set()).add(row)

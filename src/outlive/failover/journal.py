"""Changes that can be undone: each change notes how it is undone while a savepoint is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Journal:
    """What has to be undone, the latest change first."""

    def __init__(self) -> None:
        self._journal: list[Callable[[], object]] | None = None
        self._savepoints = 0

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Everything that is changed inside is undone at the end."""
        mark = self.savepoint()
        try:
            yield
        finally:
            self.rollback(mark)

    def savepoint(self) -> int:
        """From now on changes can be undone, until ``rollback`` or ``release`` is called with the answer."""
        if self._journal is None:
            self._journal = []
        self._savepoints += 1
        return len(self._journal)

    @property
    def mark(self) -> int:
        """Where ``undo`` may return to, while a savepoint is open."""
        return len(self._journal or ())

    def undo(self, mark: int) -> None:
        """Undo what changed since the mark."""
        undo = self._journal or []
        changes = undo[mark:]
        self._journal = None
        for change in reversed(changes):
            change()
        del undo[mark:]
        self._journal = undo

    def rollback(self, mark: int) -> None:
        """Undo what changed since the savepoint, and end it."""
        self.undo(mark)
        self.release(mark)

    def release(self, mark: int) -> None:
        """End the savepoint; what changed stays, unless an earlier savepoint is rolled back."""
        self._savepoints -= 1
        if not self._savepoints:
            self._journal = None

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Call this where what happens now is undone."""
        self._note(undo)

    def _note(self, undo: Callable[[], object]) -> None:
        if self._journal is not None:
            self._journal.append(undo)

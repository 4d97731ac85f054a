"""Progress on standard error for whatever takes longer than a second, and only where somebody looks.

Nothing is drawn during the first second, nor where standard error is no terminal, so that scripts see only results. A
bar that is never told how far it is shows that something goes on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_SECONDS = 1.0
"""How long an operation may take before it is worth a bar."""


class Bar:
    """One operation with a known or unknown number of steps."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._done = 0
        self._total = total
        self._progress: Progress | None = None
        self._closed = False
        self._lock = threading.Lock()

    def at(self, done: int, total: int | None = None) -> None:
        """So many steps are done, of so many if that is known by now."""
        self._done, self._total = done, total or self._total
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=self._total)

    def show(self) -> None:
        """Draw it from now on."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._closed:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task(self._title, completed=self._done, total=self._total)
            self._progress.start()

    def close(self) -> None:
        """Take it away."""
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Bar]:
    """A bar for the time of the block."""
    bar = Bar(title, total)
    timer = threading.Timer(QUIET_SECONDS, bar.show)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.close()

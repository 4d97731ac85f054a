"""Progress on standard error for whatever takes longer than a second, and only where somebody looks.

Nothing is drawn during the first second, nor where standard error is no terminal, so that scripts see only results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_SECONDS = 1.0
"""How long an operation may take before it is worth a bar."""


class Bar:
    """One operation with a known or unknown number of steps."""

    def __init__(self, title: str, total: int | None, shown: bool) -> None:
        self._title = title
        self._total = total
        self._shown = shown
        self._started = time.monotonic()
        self._progress: object | None = None

    def at(self, done: int, total: int | None = None) -> None:
        """So many steps are done."""
        if not self._shown or time.monotonic() - self._started < QUIET_SECONDS:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._progress.add_task(self._title, total=total or self._total)
        assert isinstance(self._progress, Progress)
        self._progress.update(self._progress.task_ids[0], completed=done, total=total or self._total)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()  # type: ignore[attr-defined]


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Bar]:
    """A bar for the time of the block."""
    bar = Bar(title, total, sys.stderr.isatty())
    try:
        yield bar
    finally:
        bar.close()

"""The guard's log: events with fields on standard error, and never a wait for whoever reads it.

A log that is full or stalled must not keep the guard from feeding or killing. A line that cannot be written at once is
dropped and counted, and the next one that gets through says how many are missing.
"""

from __future__ import annotations

import json
import os
import select
from typing import Final

LINE_BYTES: Final = 2048
"""What a line is cut to; a pipe takes as much at once without waiting."""


class Journal:
    """Writes events to a file descriptor."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._dropped = 0
        self._ready = select.poll()
        self._ready.register(fd, select.POLLOUT)

    def write(self, event: str, **fields: object) -> None:
        """One event, as ``event=… name=value …``; text is quoted like JSON."""
        if self._dropped:
            fields["dropped_lines"] = self._dropped
        words = [f"event={event}", *(f"{name}={_shown(value)}" for name, value in fields.items())]
        line = " ".join(words).encode("utf-8", "replace")[: LINE_BYTES - 1] + b"\n"
        self._dropped = 0 if self._written(line) else self._dropped + 1

    def _written(self, line: bytes) -> bool:
        try:
            if not any(flags & select.POLLOUT for _, flags in self._ready.poll(0)):
                return False
            return os.write(self._fd, line) == len(line)
        except OSError:
            return False


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, bool | int):
        return str(value).lower()
    text = str(value)
    plain = text and all(char.isalnum() or char in "-_./:@" for char in text)
    return text if plain else json.dumps(text, ensure_ascii=True)

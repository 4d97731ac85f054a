"""How the guard ends when it cannot begin, and what a device or a tree that is not as it must be is called.

The exit codes are those of docs/reference/exit-codes.md, repeated here because the guard imports nothing else.
"""

from __future__ import annotations

from typing import Final

YES: Final = 0
USAGE: Final = 2
BAD_INPUT: Final = 3
NOT_FOUND: Final = 4
IN_USE: Final = 5
UNAVAILABLE: Final = 6
FORBIDDEN: Final = 7
INTERRUPTED: Final = 130


class GuardError(Exception):
    """Something outside is not as the guard needs it; the message says what to do."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT, code: str = "refused") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code
        """Stable word for programs."""

"""The one tree of errors, each with the exit code that the command line returns for it.

::

    OutliveError
    ├── Refused            1  the answer is no
    │   └── IllegalTransition (states) a state that must not follow the present one
    ├── Usage              2  the command line was wrong
    ├── BadInput           3  a file, a resource, a request or a setting is wrong
    │   └── Invalid           (store) an object that no store takes
    ├── NotFound           4  (store) no such object
    ├── InUse              5  somebody else holds it: a state directory, a port
    │   ├── AlreadyExists     (store) the name is taken
    │   └── Conflict          (store) the object changed since it was read
    ├── Unavailable        6  (store) certainly not applied
    │   ├── NotUnderstood     (store) it answers as another version does
    │   └── Throttled   it asks to wait, or forbids it for now
    ├── Unknown            6  (store) may have been applied: the answer was lost
    ├── Forbidden          7  the token does not allow it
    └── LimitExceeded      8  a named limit was reached

A message says what was wrong, with which value; ``remedy`` says what to do. A user sees both on one
line and never a traceback.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import TypeVar


class ExitCode(enum.IntEnum):
    """What a command returns to the shell (docs/reference/exit-codes.md)."""

    YES = 0
    NO = 1
    USAGE = 2
    BAD_INPUT = 3
    NOT_FOUND = 4
    IN_USE = 5
    UNAVAILABLE = 6
    FORBIDDEN = 7
    LIMIT = 8
    INTERRUPTED = 130


class OutliveError(Exception):
    """Anything that Outlive reports to a user: what was wrong, where, and what to do about it."""

    exit_code: ExitCode = ExitCode.NO
    code: str = "error"
    """Stable word for programs: it does not change when the wording of the message does."""

    def __init__(self, message: str, *, place: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        """File and line, object and field, or flag; empty where the message names it."""
        self.remedy = remedy

    def __str__(self) -> str:
        """One line: place, message, remedy."""
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text} ({self.remedy})" if self.remedy else text


class Refused(OutliveError):
    """The answer is no."""

    exit_code = ExitCode.NO
    code = "refused"


class IllegalTransition(Refused):
    """A state was to follow another one that it must not follow."""

    code = "illegal-transition"


class Usage(OutliveError):
    """The command line was wrong."""

    exit_code = ExitCode.USAGE
    code = "usage"


class BadInput(OutliveError):
    """A file, a resource, a request or a setting is wrong."""

    exit_code = ExitCode.BAD_INPUT
    code = "bad-input"


class Invalid(BadInput):
    """An object that no store takes: against its schema, or too large."""

    code = "invalid"


class NotFound(OutliveError):
    """There is no such object."""

    exit_code = ExitCode.NOT_FOUND
    code = "not-found"


class InUse(OutliveError):
    """Somebody else holds it."""

    exit_code = ExitCode.IN_USE
    code = "in-use"


class AlreadyExists(InUse):
    """An object of that name exists."""

    code = "already-exists"


class Conflict(InUse):
    """The object changed since it was read, or is another one of the same name; nothing was written."""

    code = "conflict"


class Unavailable(OutliveError):
    """The store cannot be reached or refused the write: certainly not applied."""

    exit_code = ExitCode.UNAVAILABLE
    code = "unavailable"


class NotUnderstood(Unavailable):
    """What was read is not what this version knows: that of another one."""

    code = "not-understood"


class Throttled(Unavailable):
    """Not now: the server has too much to do, or something else has to happen before."""

    code = "too-many-requests"

    def __init__(self, message: str, *, place: str = "", remedy: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, place=place, remedy=remedy)
        self.retry_after_s = retry_after_s
        """In how many seconds it may be tried again; absent: it is not known."""


class Unknown(OutliveError):
    """The answer was lost: the write may or may not have been applied. Read fresh before going on."""

    exit_code = ExitCode.UNAVAILABLE
    code = "unknown-outcome"


class Forbidden(OutliveError):
    """The caller may not do this."""

    exit_code = ExitCode.FORBIDDEN
    code = "forbidden"


class LimitExceeded(OutliveError):
    """A named limit was reached."""

    exit_code = ExitCode.LIMIT
    code = "limit"


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group is made of, however deep; an error that is no group is its own."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaf_errors(part)
    else:
        yield error


S = TypeVar("S", bound=enum.StrEnum)

Transitions = Mapping[S, frozenset[S]]
"""Which state may follow which. An illegal transition raises and is written nowhere."""


def follow(table: Transitions[S], before: S, after: S, *, what: str) -> S:
    """``after``, if it may follow ``before``; to stay in a state is always legal."""
    if after is not before and after not in table[before]:
        raise IllegalTransition(f"{what} cannot go from {before} to {after}")
    return after

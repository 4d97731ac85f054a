"""By which storage schema a store is written, and how far a change of it has come: one value, written as a whole.

While the tree changes it says which paths nobody may write. Every write of the store carries the condition that this
value has not changed since the writer read it, so that nobody writes to a path that was moved.

    idle 1 ── begin ──► copy 1→2 ── all is copied ──► clean 2 ── the old is gone ──► idle 2
                          └ takes too long ──► undo 1 ── the copies are gone ──► idle 1
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from outlive.base import Refused, Unavailable

_MARK: Final = b"@"
COPY_S: Final = 60.0
"""How long copying may take: writes of what is copied wait for it. After it all is undone."""
LAST_S: Final = 2.0
"""How long copying what hosts renew may take."""
OVERDUE_S: Final = COPY_S + 5.0
"""After how long without a change writers give copying up, and so undo it."""
OVERDUE_LAST_S: Final = LAST_S + 1.0
"""The same, where hosts wait: in profile ``fast`` a guard ends its VMs five seconds after the last renewal."""
LAST_KINDS: Final = frozenset({"memberships", "elections"})
"""Kinds that are copied last: their writers act when they cannot write."""


def is_last(path: str) -> bool:
    """Whether a path of the tree is copied last."""
    return path.rpartition("/")[2] in LAST_KINDS


class MoveUndone(Unavailable):
    """Copying took longer than writers may wait, so that all of it was undone."""


class SchemaMove(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A change of the tree that is under way."""

    to: int
    """The schema of this step: the one above or below."""
    target: int
    """The schema that is wanted in the end."""
    by: str
    """Who carries it out. Another one that goes on with it writes its own name first, which ends what this one does."""
    since: datetime
    """When the step began."""
    phase: Literal["copy", "clean", "undo"] = "copy"
    """``copy``: the old paths count, ``clean``: the new ones count and the old ones are removed, ``undo``: the old ones
    count and what was copied is removed."""
    frozen: tuple[str, ...] = ()
    """Paths below which nobody writes now."""

    @property
    def patience_s(self) -> float:
        """How long nothing of this may change until others give it up."""
        return OVERDUE_LAST_S if any(map(is_last, self.frozen)) else OVERDUE_S

    def undo(self) -> SchemaMove:
        """The step undone: the old paths may be written again."""
        return msgspec.structs.replace(self, phase="undo", frozen=())


class SchemaState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The value."""

    version: int
    """The schema whose paths count."""
    moving: SchemaMove | None = None
    """Absent: nothing is under way."""

    def is_frozen(self, path: str) -> bool:
        """Whether nobody may write this path now."""
        frozen = () if self.moving is None else self.moving.frozen
        return any(path == one or path.startswith(f"{one}/") for one in frozen)


def encode_state(state: SchemaState) -> bytes:
    """The value as it is stored: a plain number while nothing is under way."""
    return str(state.version).encode() if state.moving is None else msgspec.json.encode(state)


def decode_state(raw: bytes, place: str) -> SchemaState:
    """The value that was stored; ``Refused`` for what is none."""
    text = raw.decode("utf-8", "replace").strip()
    if text.isascii() and text.isdecimal():
        return SchemaState(version=int(text))
    try:
        return msgspec.json.decode(raw, type=SchemaState)
    except msgspec.DecodeError:
        raise Refused(f"{place} says {text[:40]!r}, which is no schema", remedy="restore a backup") from None


def mark_moved(raw: bytes, version: str) -> bytes:
    """An object that was copied with the version that it had: a client that read it before can still replace it."""
    return raw if raw.startswith(_MARK) else _MARK + version.encode() + b"\n" + raw


def split_moved(raw: bytes) -> tuple[bytes, str]:
    """An object as it was written, and the version that it had where it came from; empty: it was written here."""
    if not raw.startswith(_MARK):
        return raw, ""
    version, _, rest = raw[len(_MARK) :].partition(b"\n")
    return rest, version.decode("ascii", "replace")

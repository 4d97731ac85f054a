"""The note in a state directory whose objects were moved to another store: nothing is decided on it any more.

It is written before the first object is moved, so that no two servers decide for one cluster, and goes when the
directory is restored (docs/how-to/kubernetes.md#back).
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import BadInput, Refused, write_whole

MOVED_FILE: Final = "moved.json"


class MovedStore(msgspec.Struct, frozen=True, kw_only=True):
    """To where."""

    server: str
    """Address of the API server, or the ensemble in words."""
    namespace: str = ""
    """Of the Secret with the keys; empty: it is an ensemble of ZooKeeper."""
    source: str
    """Incarnation of the store in the directory."""
    at: datetime

    @property
    def place(self) -> str:
        """Where it is now, in words."""
        return f"{self.server}, namespace {self.namespace}" if self.namespace else self.server


def read_moved(directory: Path) -> MovedStore | None:
    """To where the store of the directory was moved; ``None``: it was not. ``BadInput`` for a note that is broken."""
    path = directory / MOVED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=MovedStore)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise BadInput(f"is broken: {error}", place=str(path), remedy=_BACK) from None


def write_moved(directory: Path, moved: MovedStore) -> None:
    """Say that the store of the directory is moved from now on. ``OSError``."""
    write_whole(directory / MOVED_FILE, msgspec.json.encode(moved))


def check_not_moved(directory: Path) -> None:
    """``Refused`` names the store that took the place of the one in the directory."""
    if (moved := read_moved(directory)) is not None:
        raise Refused(
            f"this cluster was moved to {moved.place}, on {moved.at:%Y-%m-%d %H:%M}",
            place=str(directory),
            remedy=f"outlive controller runs it there; outlive migrate-store ends a move that was interrupted; {_BACK}",
        )


_BACK: Final = "the way back: docs/how-to/kubernetes.md#back"

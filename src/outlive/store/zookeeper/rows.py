"""Objects as they are stored, and what is remembered of them between a read and the write that rests on it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, cast

import msgspec

from outlive.base import Invalid, NotUnderstood
from outlive.resources import ObjectRef, R, Resource, decode
from outlive.store.contract import MALFORMED, Malformed
from outlive.store.schema.state import split_moved
from outlive.store.selectors import Selector
from outlive.store.tables import Tables, WriteBatch, labels_of
from outlive.store.zookeeper.client import Found

CACHED: Final = 4096
CACHED_BYTES: Final = 32 * 2**20
"""Objects, and bytes of them, that are remembered as they were read or written last."""


class Row(msgspec.Struct, frozen=True):
    """An object as it is stored."""

    uid: str
    raw: bytes
    znode_version: int
    """What a transaction compares: counts the writes of this znode."""
    transaction: int
    """Which wrote it last; the version that others see."""


class OneObject(WriteBatch):
    """A batch for one write of one object, which was decoded already."""

    def __init__(self, kind: type[Resource], key: str, row: Row | None, found: Resource | None) -> None:
        super().__init__(Tables({kind.kind(): kind}, revision=0))
        self._place = (kind.kind(), key)
        self._row = row
        self._found = found
        self.taken: set[str] = set()
        """Names that other objects have."""

    def find_raw(self, kind: type[Resource], key: str) -> bytes | None:
        """The object as it is stored; empty for another one that has the name."""
        if key in self.taken:
            return b""
        return self._row.raw if self._row is not None and (kind.kind(), key) == self._place else None

    def find(self, kind: type[R], key: str) -> R | None:
        """The same, decoded."""
        return cast("R | None", self._found) if (kind.kind(), key) == self._place else None


class RowCache:
    """The objects that were read or written last; what is in it may be old."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], Row] = OrderedDict()
        self._bytes = 0

    def get(self, kind: type[Resource], name: str) -> Row | None:
        """The object of that name as it was seen last."""
        return self._rows.get((kind.kind(), name))

    def keep(self, kind: type[Resource], name: str, row: Row) -> Row:
        """Remember it; others are forgotten for it if need be."""
        self.forget(kind, name)
        self._rows[kind.kind(), name] = row
        self._bytes += len(row.raw)
        while len(self._rows) > CACHED or self._bytes > CACHED_BYTES:
            _, old = self._rows.popitem(last=False)
            self._bytes -= len(old.raw)
        return row

    def forget(self, kind: type[Resource], name: str) -> None:
        """Nothing is known of it any more."""
        old = self._rows.pop((kind.kind(), name), None)
        if old is not None:
            self._bytes -= len(old.raw)

    def clear(self) -> None:
        """Forget all."""
        self._rows.clear()
        self._bytes = 0


def row_of(uid: str, found: Found) -> Row:
    """An object as it was read."""
    raw, transaction = state_of(found)
    return Row(uid, raw, found[1].version, transaction)


def state_of(found: Found) -> tuple[bytes, int]:
    """JSON and version of an object; one that was moved keeps the version that it had."""
    raw, moved = split_moved(found[0])
    return raw, int(moved) if moved.isdecimal() else found[1].mzxid


def set_version(obj: R, transaction: int) -> R:
    """The object with the version that others see."""
    meta = msgspec.structs.replace(obj.metadata, resource_version=str(transaction))
    return msgspec.structs.replace(obj, metadata=meta)


def decode_row(kind: type[R], row: Row | None) -> R | None:
    """The object that a write is judged on; ``NotUnderstood`` for one that is not."""
    if row is None:
        return None
    try:
        return set_version(decode(kind, row.raw), row.transaction)
    except Invalid as error:
        raise NotUnderstood(f"the stored {kind.kind()} is not understood: {error}", remedy=MALFORMED) from None


def decode_selected(
    kind: type[R], name: str, uid: str, raw: bytes, version: int, selector: Selector | None
) -> R | Malformed | None:
    """The object, or what is wrong with it; ``None`` for one that the selector does not choose."""
    try:
        if selector is not None and not selector.matches(labels_of(raw)):
            return None
        found = decode(kind, raw)
        if found.metadata.name != name or found.metadata.uid != uid:
            raise Invalid(f"it says that it is {found.metadata.name[:80]!r} of uid {found.metadata.uid[:80]!r}")
    except (Invalid, msgspec.DecodeError) as error:
        ref = ObjectRef(kind=kind.kind(), name=name, uid=uid, api_version=kind.info.api_version)
        return Malformed(ref, str(error))
    return set_version(found, version)

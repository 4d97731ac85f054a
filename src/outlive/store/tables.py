"""Objects as the local stores keep them: encoded, by kind and key, in name order.

Encoded, because a caller that wrote or read an object cannot change bytes behind the store's back, and
because a hundred thousand objects take a fifth of the memory. A ``WriteBatch`` is a set of writes that become
visible together: what it holds is seen by the later writes of the same batch and by nobody else until
``Tables.apply``. Nothing here is durable, and nothing waits.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from outlive.base import Invalid
from outlive.resources import ObjectRef, R, Resource, decode
from outlive.store.contract import Malformed


class Write(msgspec.Struct, frozen=True):
    """What one accepted write does to one object."""

    kind: type[Resource]
    key: str
    before: Resource | None
    """The object before; ``None`` if it is created."""
    after: Resource | None
    """The object after; ``None`` if it is removed."""
    raw: bytes | None
    """``after``, encoded."""
    answer: Resource
    """What the writer gets: ``after``, or the last state of what was removed."""

    @property
    def changes(self) -> bool:
        """Whether anything is different afterwards; a write that changes nothing leaves the version alone."""
        return self.before is not self.after


class StoreUsage:
    """How many objects there are, and how many bytes they have."""

    __slots__ = ("objects", "size_bytes")

    def __init__(self, objects: int = 0, size_bytes: int = 0) -> None:
        self.objects = objects
        self.size_bytes = size_bytes

    def change(self, before: bytes | None, after: bytes | None) -> None:
        """Count an object that was ``before`` and is ``after``; ``None``: it is not there."""
        self.objects += (after is not None) - (before is not None)
        self.size_bytes += len(after or b"") - len(before or b"")


class Table:
    """All objects of one kind. ``owners``: what says whose an object is (``Quota.list_owners``)."""

    def __init__(self, rows: Mapping[str, bytes] | None = None, *, owners: tuple[str, ...] = ()) -> None:
        self._raws: dict[str, bytes] = dict(rows or {})
        self._keys: list[str] = sorted(self._raws)
        self._owners = owners
        self.use = StoreUsage()
        """Of all objects."""
        self._use_of: dict[str, StoreUsage] = {}
        """By owner."""
        for raw in self._raws.values():
            self._update_usage(None, raw)
        self._by_label: dict[str, _ByValue] = {}
        """Label → the objects by its value; kept from the first time that somebody asks."""

    def __len__(self) -> int:
        return len(self._raws)

    def get(self, key: str) -> bytes | None:
        """The encoded object."""
        return self._raws.get(key)

    def usage_of_owner(self, owner: str) -> StoreUsage:
        """Of the objects of one owner."""
        return self._use_of.get(owner) or StoreUsage()

    def list_owners(self) -> Iterator[tuple[str, StoreUsage]]:
        """All owners, with what they have."""
        return iter(self._use_of.items())

    def _update_usage(self, before: bytes | None, after: bytes | None) -> None:
        self.use.change(before, after)
        if not self._owners:
            return
        for old, new in ((before, None), (None, after)):
            raw = old or new
            if raw is not None and (owner := owner_of(raw, self._owners)):
                use = self._use_of.setdefault(owner, StoreUsage())
                use.change(old, new)
                if not use.objects:
                    del self._use_of[owner]

    def put(self, key: str, raw: bytes) -> None:
        """Add or replace."""
        self._update_usage(self._raws.get(key), raw)
        if key not in self._raws:
            bisect.insort(self._keys, key)
        self._raws[key] = raw
        if self._by_label:
            labels = labels_of(raw)
            for label, kept in self._by_label.items():
                kept.put(key, labels.get(label))

    def remove(self, key: str) -> None:
        """Take out; nothing happens if it is not there."""
        if (raw := self._raws.pop(key, None)) is not None:
            self._update_usage(raw, None)
            del self._keys[bisect.bisect_left(self._keys, key)]
            for kept in self._by_label.values():
                kept.put(key, None)

    def list_after(self, key: str, count: int, label: tuple[str, str] | None = None) -> list[tuple[str, bytes]]:
        """Up to ``count`` objects whose keys follow ``key``, in key order; only those with that label and value."""
        keys = self._keys if label is None else self._labelled_keys(*label)
        start = bisect.bisect_right(keys, key)
        return [(name, self._raws[name]) for name in keys[start : start + count]]

    def list_all(self) -> Iterator[tuple[str, bytes]]:
        """The objects of this moment in key order: kept at once, handed out one by one."""
        raws, keys = self._raws.copy(), self._keys.copy()
        return ((key, raws[key]) for key in keys)

    def list_labelled(self, label: str, value: str) -> Iterator[tuple[str, bytes]]:
        """As ``list_all``, of the objects with that label alone: what is asked for costs only what it finds."""
        return iter([(key, self._raws[key]) for key in self._labelled_keys(label, value)])

    def _labelled_keys(self, label: str, value: str) -> list[str]:
        kept = self._by_label.get(label)
        if kept is None:
            kept = self._by_label[label] = _ByValue()
            for key, raw in self._raws.items():
                kept.put(key, labels_of(raw).get(label))
        return kept.list_keys(value)


class _ByValue:
    """The keys of a table by the value of one label."""

    def __init__(self) -> None:
        self._value_of: dict[str, str] = {}
        self._keys_of: dict[str, dict[str, None]] = {}

    def list_keys(self, value: str) -> list[str]:
        """In key order."""
        return sorted(self._keys_of.get(value, ()))

    def put(self, key: str, value: str | None) -> None:
        """The object of that key has that value now; ``None``: it has no such label, or is gone."""
        before = self._value_of.get(key)
        if before == value:
            return
        if before is not None:
            there = self._keys_of[before]
            del there[key]
            if not there:
                del self._keys_of[before]
        if value is None:
            del self._value_of[key]
        else:
            self._value_of[key] = value
            self._keys_of.setdefault(value, {})[key] = None


class Tables:
    """All objects of all kinds, and the counter that versions come from."""

    def __init__(self, kinds: Mapping[str, type[Resource]], *, revision: int = 0) -> None:
        self.kinds = dict(kinds)
        self.revision = revision
        """The highest version ever given; it never goes back, also when a write comes to nothing."""
        self._tables: dict[str, Table] = {kind: Table(owners=its.info.quota.owners) for kind, its in kinds.items()}

    def load(self, kind: str, rows: Mapping[str, bytes]) -> None:
        """Set all objects of one kind at once."""
        self._tables[kind] = Table(rows, owners=self.kinds[kind].info.quota.owners)

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables.values())

    def __iter__(self) -> Iterator[tuple[str, Table]]:
        return iter(self._tables.items())

    @property
    def size_bytes(self) -> int:
        """Of all objects."""
        return sum(table.use.size_bytes for table in self._tables.values())

    def check_kind(self, kind: type[Resource]) -> None:
        """``Invalid`` unless this store keeps objects of that kind."""
        if self.kinds.get(kind.kind()) is not kind:
            raise Invalid(f"kind {kind.kind()} is not kept here", remedy=f"one of {', '.join(sorted(self.kinds))}")

    def kind_of(self, ref: ObjectRef) -> type[Resource]:
        """The kind of the reference, or ``Invalid``."""
        kind = self.kinds.get(ref.kind)
        if kind is None or kind.info.api_version != ref.api_version:
            raise Invalid(
                f"kind {ref.kind!r} of {ref.api_version} is not known", remedy=f"one of {', '.join(sorted(self.kinds))}"
            )
        return kind

    def table_of(self, kind: type[Resource]) -> Table:
        """The objects of one kind; ``Invalid`` if it is not kept here."""
        self.check_kind(kind)
        return self._tables[kind.kind()]

    def apply(self, batch: WriteBatch) -> None:
        """Make the batch visible."""
        for (kind, key), raw in batch.final.items():
            if raw is None:
                self._tables[kind].remove(key)
            else:
                self._tables[kind].put(key, raw)


class WriteBatch:
    """Writes that become visible together, each judged on top of those before it."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.final: dict[tuple[str, str], bytes | None] = {}
        """What each touched object comes to be; ``None`` where it is removed."""
        self.writes: list[Write] = []
        """Writes that change something, in order."""
        self._more: dict[tuple[str, str], StoreUsage] = {}
        """What these writes add, by kind and owner (empty: all of the kind)."""

    def find_raw(self, kind: type[Resource], key: str) -> bytes | None:
        """The object as a write of this batch sees it."""
        place = (kind.kind(), key)
        if place in self.final:
            return self.final[place]
        return self.tables.table_of(kind).get(key)

    def find(self, kind: type[R], key: str) -> R | None:
        """The same, decoded."""
        raw = self.find_raw(kind, key)
        return None if raw is None else decode(kind, raw)

    def next_version(self) -> str:
        """A version that no object has had."""
        self.tables.revision += 1
        return str(self.tables.revision)

    def add(self, write: Write) -> None:
        """Take an accepted write in."""
        if write.changes:
            kind = write.kind
            before = self.find_raw(kind, write.key)
            owned = kind.info.quota.owners
            for raw, is_there in ((before, False), (write.raw, True)):
                for owner in dict.fromkeys(("", owner_of(raw, owned))) if raw is not None else ():
                    use = self._more.setdefault((kind.kind(), owner), StoreUsage())
                    use.change(*((None, raw) if is_there else (raw, None)))
            self.final[(write.kind.kind(), write.key)] = write.raw
            self.writes.append(write)

    def usage_of(self, kind: type[Resource], owner: str = "") -> StoreUsage:
        """What the store holds of the kind (of one owner) once these writes count."""
        table, more = self.tables.table_of(kind), self._more.get((kind.kind(), owner), StoreUsage())
        held = table.usage_of_owner(owner) if owner else table.use
        return StoreUsage(held.objects + more.objects, held.size_bytes + more.size_bytes)


class _Labelled(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class _ObjectHead(msgspec.Struct, frozen=True):
    metadata: _Labelled = _Labelled()
    by: Any = ""
    source: Any = ""
    host: Any = ""
    device: Any = None


class _NamedMeta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _UnreadObject(msgspec.Struct, frozen=True):
    """What is read of an object that is not understood."""

    metadata: _NamedMeta = _NamedMeta()


_heads = msgspec.json.Decoder(_ObjectHead)
_names = msgspec.json.Decoder(_UnreadObject)


def decode_stored(kind: type[R], raw: bytes | msgspec.Raw) -> R | Malformed:
    """The object of that JSON, or what is wrong with it."""
    try:
        return decode(kind, bytes(raw))
    except Invalid as error:
        try:
            named = _names.decode(bytes(raw)).metadata
        except msgspec.DecodeError:
            named = _NamedMeta()
        api_version = kind.info.api_version
        ref = ObjectRef(
            kind=kind.kind(), name=named.name, uid=named.uid, api_version=api_version, namespace=named.namespace
        )
        return Malformed(ref, error.message)


def labels_of(raw: bytes) -> dict[str, str]:
    """The labels of an encoded object, without decoding the rest of it."""
    return _heads.decode(raw).metadata.labels


def owner_of(raw: bytes, owners: tuple[str, ...]) -> str:
    """Whose an encoded object is, by ``Quota.list_owners``; empty where nothing says so."""
    if not owners:
        return ""
    head = _heads.decode(raw)
    return next((found for owner in owners if (found := _read_owner(head, owner))), "")


def _read_owner(head: _ObjectHead, owner: str) -> str:
    if owner == "device.host":
        return str(head.device.get("host", "")) if isinstance(head.device, dict) else ""
    return str(getattr(head, owner) if owner in ("by", "source", "host") else head.metadata.labels.get(owner, ""))

"""Values of OVSDB's columns: as the protocol writes them (RFC 7047), and as rows have them.

Rows have text, number, truth, lists, maps of texts, and sets of uuids for references. They leave out what is empty, and
what is zero or false where a column must have a value: that is how the server sends them, too.

Keys of ``external_ids`` begin with ``k8s.ovn.org/`` in rows. A database may have another prefix there: the two change
places on the way, in both directions, so that keys of somebody else with the usual prefix are not taken for ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from outlive.network import PREFIX

EMPTY: Final[tuple[object, ...]] = (None, "", [], {})


class ColumnType(msgspec.Struct, frozen=True):
    """What a column has: exactly one value, at most one, several, or a map."""

    form: Literal["one", "optional", "set", "map"]
    atom: str
    """``string``, ``integer``, ``boolean``, ``real``, ``uuid``; of a map, that of its keys."""
    prefix: str = PREFIX
    """Of a map: what the database has in place of the prefix of our keys."""

    @property
    def is_reference(self) -> bool:
        """True for a set of references to other rows."""
        return self.form == "set" and self.atom == "uuid"


def column_type(document: Any) -> ColumnType:
    """The type of a column, as a schema has it."""
    if isinstance(document, str):
        return ColumnType("one", document)
    key = document["key"]
    atom = str(key if isinstance(key, str) else key["type"])
    if "value" in document:
        return ColumnType("map", atom)
    if document.get("max", 1) != 1:
        return ColumnType("set", atom)
    return ColumnType("optional" if document.get("min", 1) == 0 else "one", atom)


def decode(kind: ColumnType, value: Any) -> Any:
    """The value of a column as rows have it."""
    if kind.form == "map":
        return {_decode_atom(swap_prefix(kind, key)): _decode_atom(one) for key, one in value[1]}
    if kind.form == "one":
        return _decode_atom(value)
    atoms = (
        [_decode_atom(one) for one in value[1]]
        if isinstance(value, list) and value[0] == "set"
        else [_decode_atom(value)]
    )
    if kind.form == "optional":
        return atoms[0] if atoms else None
    return frozenset(atoms) if kind.is_reference else sorted(atoms)


def apply_change(kind: ColumnType, old: Any, value: Any) -> Any:
    """The value after a change as the server tells it: of sets and maps only what became different."""
    if kind.form in ("one", "optional"):
        return decode(kind, value)
    change = decode(kind, value)
    if kind.form == "map":
        after = dict(old or {})
        for key, one in change.items():
            if after.get(key) == one:
                del after[key]
            else:
                after[key] = one
        return after
    after_set = frozenset(old or ()) ^ frozenset(change)
    return after_set if kind.is_reference else sorted(after_set)


def is_empty(kind: ColumnType, value: Any) -> bool:
    """True for a value that rows leave out."""
    return value in EMPTY or value == frozenset() or (kind.form == "one" and not value)


def encode(kind: ColumnType, value: Any) -> Any:
    """The value of a column as the protocol writes it. References are uuids; ``@name``: of a row that is inserted."""
    if kind.form == "map":
        return ["map", [[swap_prefix(kind, key), one] for key, one in sorted((value or {}).items())]]
    if kind.form == "one":
        defaults: dict[str, Any] = {"string": "", "integer": 0, "boolean": False, "real": 0.0}
        return defaults[kind.atom] if value is None else _encode_atom(kind, value)
    if kind.form == "optional":
        return ["set", []] if value in (None, "") else _encode_atom(kind, value)
    return ["set", [_encode_atom(kind, one) for one in sorted(value or ())]]


def encode_keys(kind: ColumnType, keys: Iterable[str]) -> Any:
    """Keys of a map, as the protocol writes them."""
    return ["set", sorted(swap_prefix(kind, key) for key in keys)]


def swap_prefix(kind: ColumnType, key: Any) -> Any:
    """The key of a map as rows have it, from that of the database; and the other way round."""
    if kind.prefix == PREFIX or not isinstance(key, str):
        return key
    prefix, slash, name = key.partition("/")
    other = {PREFIX: kind.prefix, kind.prefix: PREFIX}.get(prefix)
    return f"{other}/{name}" if slash and other else key


def _encode_atom(kind: ColumnType, value: Any) -> Any:
    if kind.atom != "uuid":
        return value
    return ["named-uuid", value[1:]] if value.startswith("@") else ["uuid", value]


def _decode_atom(value: Any) -> Any:
    if isinstance(value, list):
        value = value[1]
    return sys.intern(value) if isinstance(value, str) else value

"""Who may write what: the names that each kind's fields belong to, and the fields in which two objects differ.

``KindInfo.writers`` says which names own a field; here is who writes under which names. The server's roles, the judge
of the simulation and the check of the tests ask the same functions (docs/reference/store.md#writers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from outlive.resources.meta import Resource

HUMANS: Final = ("users", "import")
ADMIN: Final = "admin"
"""Under which only administrators write; they write everything else as well."""
DAEMON: Final = ("daemon", "events", "trail")
FENCER: Final = ("fencer", "events", "trail")
CANDIDATE: Final = ("candidate",)
PRIMARY: Final = ("primary",)
"""Under which a coordinator writes while it holds ``Election/primary``."""
CONTROLLER: Final = (
    "failover",
    "commitments",
    "recovery",
    "controller",
    "candidate",
    "events",
    "trail",
    "placement",
    "defaults",
)
"""Names under which people and each program write."""
OWNED_METADATA: Final = ("labels", "annotations", "finalizers")
"""What of metadata belongs to somebody; the store itself writes the rest."""
_PLAIN: Final = frozenset({str, int, float, bool, tuple, datetime, type(None)})
"""Types of values that have no parts with owners of their own."""


def changed_fields(before: Resource, after: Resource) -> list[str]:
    """The fields in wire form, such as ``status.host``, in which two objects of a kind differ; a list is one field."""
    paths: list[str] = []
    for name in OWNED_METADATA:
        old, new = getattr(before.metadata, name), getattr(after.metadata, name)
        if old != new:
            _differ(old, new, f"metadata.{name}", paths)
    wires, values = _fields(type(before))
    for wire, old, new in zip(wires, values(before), values(after), strict=True):
        if old is not new and wire != "metadata":
            _differ(old, new, wire, paths)
    return paths


def _differ(before: Any, after: Any, path: str, paths: list[str]) -> None:
    """Add the paths in wire form of what differs; a list counts as one field."""
    if before is after or before == after:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        wires, values = _fields(type(before))
        for wire, old, new in zip(wires, values(before), values(after), strict=True):
            if old is not new:
                _differ(old, new, f"{path}.{wire}", paths)
    elif type(before) not in _PLAIN and isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                paths.append(f"{path}.{key}")
    else:
        paths.append(path)


@lru_cache(maxsize=256)
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of a struct's fields in wire form, and what reads all their values at once."""
    fields = msgspec.structs.fields(kind)
    read = attrgetter(*(field.name for field in fields))
    return tuple(field.encode_name for field in fields), read if len(fields) > 1 else lambda one: (read(one),)


def owners_of(kind: type[Resource], path: str) -> tuple[str, ...]:
    """Who may write a field.

    Where a kind declares nothing for metadata, labels and annotations belong to the owners of the spec (of
    the whole document, for kinds without halves), and finalizers to everybody who owns anything.
    """
    fields = kind.info.writers.fields
    declared = [prefix for prefix in fields if prefix == "" or path == prefix or path.startswith(f"{prefix}.")]
    if declared:
        return fields[max(declared, key=len)]
    if path.startswith("metadata.") and not path.startswith("metadata.finalizers"):
        return fields.get("spec", ()) if "spec" in kind.__struct_fields__ else everybody(kind)
    return everybody(kind) if path.startswith("metadata.") else ()


def everybody(kind: type[Resource]) -> tuple[str, ...]:
    """Who may write any field of the kind."""
    return tuple(dict.fromkeys(owner for owners in kind.info.writers.fields.values() for owner in owners))

"""Who may write what: the names that each kind's fields belong to, and what one write changes.

``KindInfo.writers`` is the table; here is who writes under which names, and ``table_refusal``, which judges a creation,
change or deletion by it. The server asks it for every token, the store of the simulation for every process, and the
manual prints it (docs/reference/permissions.md#table). What a line cannot say is in ``outlive.node.permissions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from outlive.resources.meta import Resource

HUMANS: Final = ("users", "import")
ADMIN: Final = "admin"
"""Under which only administrators write; they write everything else as well."""
DAEMON: Final = ("daemon", "trail")
FENCER: Final = ("fencer", "trail")
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
    "network",
)
"""Names under which people and each program write."""
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "operator": HUMANS,
    "controller": CONTROLLER,
    "host": DAEMON,
    "coordinator": DAEMON + FENCER + CANDIDATE + PRIMARY,
}
"""Roles of tokens that write, but for admins, who write everything, and the names under which they do."""
OWNED_METADATA: Final = ("labels", "annotations", "finalizers")
"""What of metadata belongs to somebody; the store itself writes the rest."""
_PLAIN: Final = frozenset({str, int, float, bool, tuple, datetime, type(None)})
"""Types of values that have no parts with owners of their own."""


def table_refusal(names: tuple[str, ...], before: Resource | None, after: Resource | None) -> str:
    """Why who writes under these names may not write that, as the end of a sentence; empty where the table allows it.

    ``before`` is ``None`` for a creation, which the store gives no status half, and ``after`` for a deletion.
    """
    obj = after if after is not None else before
    assert obj is not None
    kind = type(obj)
    what = f"{obj.kind()}/{obj.name}" if obj.name else obj.kind()
    for verb, owners, happens in (
        ("delete", kind.info.writers.deletes, after is None),
        ("create", kind.info.writers.creates, before is None),
    ):
        if happens and not any(name in owners for name in names):
            return f"may not {verb} {what}: {_owners_text(owners)}"
    if after is None:
        return ""
    for path in changed_fields(before, after) if before is not None else created_fields(after):
        if not (is_owned(kind, path, names) or (before is None and _may_be_given(kind, path, names))):
            return f"may not write {path} of {what}: {_owners_text(owners_of(kind, path))}"
    return ""


def may_write_some(kind: type[Resource], names: tuple[str, ...], verb: str, *, status: bool = False) -> bool:
    """Whether who writes under these names may create or delete objects of the kind, or change any field of the half
    (``status``, or all the rest; a kind without halves is one)."""
    writers = kind.info.writers
    if verb == "deletecollection":  # nobody serves it
        return False
    if verb == "delete":
        return any(name in writers.deletes for name in names)
    if verb == "create":
        return any(name in writers.creates for name in names)
    in_half = [path for path in writers.fields if not kind.has_status() or path.startswith("status") == status]
    return any(name in writers.fields[path] for path in in_half for name in names)


def changed_fields(before: Resource, after: Resource) -> list[str]:
    """The fields in wire form, such as ``status.host``, in which two objects of a kind differ; a list is one field."""
    paths: list[str] = []
    for name in OWNED_METADATA:
        old, new = getattr(before.metadata, name), getattr(after.metadata, name)
        if old != new:
            _add_differences(old, new, f"metadata.{name}", paths)
    wires, values = _wire_fields(type(before))
    for wire, old, new in zip(wires, values(before), values(after), strict=True):
        if old is not new and wire != "metadata":
            _add_differences(old, new, wire, paths)
    return paths


def _add_differences(before: Any, after: Any, path: str, paths: list[str]) -> None:
    """Add the paths in wire form of what differs; a list counts as one field."""
    if before is after or before == after:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        wires, values = _wire_fields(type(before))
        for wire, old, new in zip(wires, values(before), values(after), strict=True):
            if old is not new:
                _add_differences(old, new, f"{path}.{wire}", paths)
    elif type(before) not in _PLAIN and isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                paths.append(f"{path}.{key}")
    else:
        paths.append(path)


@lru_cache(maxsize=256)
def _wire_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of a struct's fields in wire form, and what reads all their values at once."""
    fields = msgspec.structs.fields(kind)
    read = attrgetter(*(field.name for field in fields))
    return tuple(field.encode_name for field in fields), read if len(fields) > 1 else lambda one: (read(one),)


def created_fields(obj: Resource) -> list[str]:
    """The fields that a creation of the object writes: those that are not as they are by default."""
    given: list[str] = []
    for name in OWNED_METADATA:
        value = getattr(obj.metadata, name)
        given += [f"metadata.{name}.{key}" for key in value] if isinstance(value, Mapping) else []
        given += [f"metadata.{name}"] if isinstance(value, tuple) and value else []
    for field in msgspec.structs.fields(type(obj)):
        if field.name in ("metadata", "api_version") or (field.name == "status" and obj.has_status()):
            continue
        value = getattr(obj, field.name)
        if isinstance(value, msgspec.Struct) and field.default is not None:
            given += [f"{field.encode_name}.{name}" for name in _non_default(value)]
        elif value != field.default:
            given.append(field.encode_name)
    return given


def _non_default(value: msgspec.Struct, usual: msgspec.Struct | None = None) -> Iterable[str]:
    """The fields that are not as in ``usual``, by default as their type has them; parts are looked into."""
    for field in msgspec.structs.fields(type(value)):
        default = field.default_factory() if callable(field.default_factory) else field.default
        expected = default if usual is None else getattr(usual, field.name)
        found = getattr(value, field.name)
        if found == expected:
            continue
        if isinstance(found, msgspec.Struct) and type(expected) is type(found):
            yield from (f"{field.encode_name}.{name}" for name in _non_default(found, expected))
        else:
            yield field.encode_name


def owners_of(kind: type[Resource], path: str) -> tuple[str, ...]:
    """Who may write a field; empty: only administrators.

    Where a kind declares nothing for metadata, it belongs to the owners of the spec, and for kinds without one to those
    who create its objects.
    """
    writers = kind.info.writers
    declared = _longest_prefix(writers.fields, path)
    if path.startswith("metadata.") and not declared:
        return writers.fields.get("spec", ()) if "spec" in kind.__struct_fields__ else writers.creates
    return writers.fields.get(declared, ()) if declared is not None else ()


def _longest_prefix(paths: Iterable[str], path: str) -> str | None:
    """The longest of these that the path is, or lies under."""
    fitting = [prefix for prefix in paths if prefix == "" or path == prefix or path.startswith(f"{prefix}.")]
    return max(fitting, key=len, default=None)


def _may_be_given(kind: type[Resource], path: str, names: tuple[str, ...]) -> bool:
    given = kind.info.writers.given
    declared = _longest_prefix(given, path)
    return declared is not None and any(name in given[declared] for name in names)


@lru_cache(maxsize=16_384)
def is_owned(kind: type[Resource], path: str, names: tuple[str, ...]) -> bool:
    """Whether the field belongs to one of the names."""
    owners = owners_of(kind, path)
    return any(name in owners for name in names)


def _owners_text(owners: tuple[str, ...]) -> str:
    if owners in ((), (ADMIN,)):
        return "that belongs to administrators"
    return f"that belongs to {' or '.join(owners)}"

"""One writer per field; what was acknowledged is kept (S5); nothing grows beyond its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from outlive.resources import Membership, Resource, VirtualMachine
from outlive.resources.vms import RECOVERY_STEPS
from outlive.simulation.judges.truth import Truth
from outlive.simulation.stores import Author
from outlive.store.tables import Write

HOLDERS_LIMIT: Final = 8
"""Two in a move, and those that are fenced and not yet dropped."""
FINDINGS_LIMIT: Final = 6
"""One of each kind of proof."""
OWNED_METADATA: Final = ("labels", "annotations", "finalizers")
"""What of metadata belongs to somebody; the store itself writes the rest."""
PLAIN: Final = frozenset({str, int, float, bool, tuple, datetime, type(None)})
"""Types of values that have no parts with owners of their own."""


def written_by_its_owner(write: Write, author: Author) -> str:
    """Every field that differs belongs to one of the names under which the process wrote."""
    kind, before, after = write.kind, write.before, write.after
    if before is None or after is None:
        return ""
    paths: list[str] = []
    for name in OWNED_METADATA:
        old, new = getattr(before.metadata, name), getattr(after.metadata, name)
        if old != new:
            _differ(old, new, f"metadata.{name}", paths)
    wires, values = _fields(kind)
    for wire, old, new in zip(wires, values(before), values(after), strict=True):
        if old is not new and wire != "metadata":
            _differ(old, new, wire, paths)
    for path in paths:
        if not _may_write(kind, path, author.writers):
            names, owners = "/".join(author.writers), " or ".join(owners_of(kind, path))
            return f"{author.process} as {names} writes {path}, of {owners or 'nobody'}"
    return ""


def _differ(before: Any, after: Any, path: str, paths: list[str]) -> None:
    """Add the paths in wire form of what differs; a list counts as one field."""
    if before is after or before == after:
        return
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        wires, values = _fields(type(before))
        for wire, old, new in zip(wires, values(before), values(after), strict=True):
            if old is not new:
                _differ(old, new, f"{path}.{wire}", paths)
    elif type(before) not in PLAIN and isinstance(before, Mapping) and isinstance(after, Mapping):
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


@lru_cache(maxsize=16_384)
def _may_write(kind: type[Resource], path: str, names: tuple[str, ...]) -> bool:
    owners = owners_of(kind, path)
    return any(name in owners for name in names)


def acknowledged_is_kept(truth: Truth, answer: object) -> str:
    """S5: the object that a writer got as an answer is what the store has, or something later, or was deleted since."""
    if not isinstance(answer, Resource):
        return ""
    kept = truth.store.look(type(answer), answer.name)
    if kept is None or kept.metadata.uid != answer.metadata.uid:
        return ""
    if int(kept.metadata.resource_version) < int(answer.metadata.resource_version):
        version = answer.metadata.resource_version
        return f"version {version} was acknowledged, and the store has {kept.metadata.resource_version}"
    return ""


def within_limits(after: Resource) -> str:
    """Lists in documents stay short."""
    if isinstance(after, VirtualMachine):
        if len(after.status.holders) > HOLDERS_LIMIT:
            return f"{len(after.status.holders)} holders"
        if after.status.recovery is not None and len(after.status.recovery.steps) > RECOVERY_STEPS:
            return f"{len(after.status.recovery.steps)} steps of one recovery"
    if isinstance(after, Membership) and len(after.record.fence.findings) > FINDINGS_LIMIT:
        return f"{len(after.record.fence.findings)} findings of one fence"
    return ""


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

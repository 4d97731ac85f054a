"""One writer per field; what was acknowledged is kept (S5); nothing grows beyond its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from outlive.resources import Membership, ObjectMeta, Resource, VirtualMachine
from outlive.resources.vms import RECOVERY_STEPS
from outlive.simulation.invariants.truth import Truth
from outlive.simulation.stores import Author
from outlive.store.tables import Write
from outlive.store.writers import owners_of

HOLDERS_LIMIT: Final = 8
"""Two in a move, and those that are mute and not yet dropped."""
FINDINGS_LIMIT: Final = 6
"""One of each kind of proof."""
OWNED_METADATA: Final = ("labels", "annotations", "finalizers")
"""What of metadata belongs to somebody; the store itself writes the rest."""


def written_by_its_owner(write: Write, author: Author) -> str:
    """Every field that differs belongs to one of the names under which the process wrote."""
    kind = write.kind
    if write.before is None or write.after is None:
        return ""
    names = author.writers
    for field, wire in _fields(kind):
        old, new = getattr(write.before, field), getattr(write.after, field)
        if old is new or old == new:
            continue
        for path in _of_metadata(old, new) if field == "metadata" else _changed(old, new, wire):
            owners = _owners(kind, path)
            if not any(name in owners for name in names):
                return f"{author.process} as {'/'.join(names)} writes {path}, of {' or '.join(owners) or 'nobody'}"
    return ""


def _of_metadata(before: ObjectMeta, after: ObjectMeta) -> Iterator[str]:
    for name in OWNED_METADATA:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield from _changed(old, new, f"metadata.{name}")


def _changed(before: Any, after: Any, path: str) -> Iterator[str]:
    """Paths in wire form of what differs between two that are not equal; a list counts as one field."""
    if isinstance(before, msgspec.Struct) and type(before) is type(after):
        for name, wire in _fields(type(before)):
            old, new = getattr(before, name), getattr(after, name)
            if old is not new and old != new:
                yield from _changed(old, new, f"{path}.{wire}")
    elif isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield f"{path}.{key}"
    else:
        yield path


@lru_cache(maxsize=256)
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


@lru_cache(maxsize=4096)
def _owners(kind: type[Resource], path: str) -> tuple[str, ...]:
    return owners_of(kind, path)


def acknowledged_is_kept(truth: Truth, answer: object) -> str:
    """S5: the object that a writer was told of is what the store has, or something later, or was deleted since."""
    if not isinstance(answer, Resource):
        return ""
    kept = truth.store.look(type(answer), answer.name)
    if kept is None or kept.metadata.uid != answer.metadata.uid:
        return ""
    if int(kept.metadata.resource_version) < int(answer.metadata.resource_version):
        told = answer.metadata.resource_version
        return f"version {told} was acknowledged, and the store has {kept.metadata.resource_version}"
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

"""What each write does to one object: the rules that every backend enforces, as functions of data.

Each function judges one write on top of a ``WriteBatch`` and returns what it would do, or raises; nothing is
changed. The rules are those of docs/reference/store.md#writes. What is not here: durability, observers,
and who the writer is (``outlive.api.auth``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from outlive.base import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Ids,
    Instant,
    Invalid,
    LimitExceeded,
    NotFound,
    as_datetime,
    limits,
)
from outlive.resources import (
    GROUP,
    HOST_LABEL,
    SHARES_LABEL,
    ObjectMeta,
    ObjectRef,
    R,
    Resource,
    check_lists,
    check_name,
    check_numbers,
    check_object,
    check_size,
    check_version,
    decode,
    encode,
    find_kind,
)
from outlive.store.tables import Write, WriteBatch, owner_of

_replace = msgspec.structs.replace
_SUFFIX_LENGTH = 5
_NAME_BASE_LIMIT = 253 - _SUFFIX_LENGTH


def status_of(obj: Resource) -> Any:
    """The status half of an object whose kind has one."""
    return cast("Any", obj).status


def create(batch: WriteBatch, obj: R, *, ids: Ids, now: Instant) -> Write:
    """A new object of generation 1; what the caller says of the status half is dropped."""
    kind = type(obj)
    batch.tables.check_kind(kind)
    meta = obj.metadata
    if meta.resource_version:
        raise Invalid(
            f"{_display_name(obj)} has resourceVersion {meta.resource_version!r}",
            place="metadata.resourceVersion",
            remedy="leave it out when creating",
        )
    name = meta.name or _generate_name(batch, kind, meta, ids)
    draft = _replace(
        obj,
        metadata=_replace(
            meta,
            name=name,
            uid=ids.new_uuid(),
            generation=1,
            creation_timestamp=as_datetime(now),
            deletion_timestamp=None,
        ),
    )
    if kind.has_status():
        draft = _replace_status(draft, _default_status(kind))
    if batch.find_raw(kind, name) is not None:
        raise AlreadyExists(f"{kind.kind()}/{name} exists already", remedy="choose another name, or replace it")
    return _accept(batch, name, None, draft)


def replace(batch: WriteBatch, obj: R) -> Write:
    """Compare-and-swap of labels, annotations, finalizers and spec, or of the whole document."""
    current, key = _find_swapped(batch, obj)
    old, wanted = current.metadata, obj.metadata
    meta = _replace(old, labels=wanted.labels, annotations=wanted.annotations, finalizers=wanted.finalizers)
    draft = _replace(obj, metadata=meta)
    if type(obj).has_status():
        draft = _replace_status(draft, status_of(current))
    if _replace(draft, metadata=old) != current:
        draft = _replace(draft, metadata=_replace(meta, generation=old.generation + 1))
    write = _accept(batch, key, current, draft)
    after = write.answer.metadata
    if old.deletion_timestamp is None or not write.changes:
        return write
    added = sorted(set(after.finalizers) - set(old.finalizers))
    if added:
        raise Invalid(
            f"{_display_name(current)} is being deleted; finalizers {added} cannot be added",
            place="metadata.finalizers",
            remedy="only remove finalizers",
        )
    return write if after.finalizers else Write(write.kind, key, current, None, None, write.answer)


def replace_status(batch: WriteBatch, obj: R) -> Write:
    """Compare-and-swap of the status half."""
    check_has_status(type(obj))
    current, key = _find_swapped(batch, obj)
    return _accept(batch, key, current, _replace_status(current, status_of(obj)))


def delete(batch: WriteBatch, ref: ObjectRef, *, uid: str, version: str, now: Instant) -> Write:
    """Remove, or mark where there are finalizers. Deleting what is marked already changes nothing."""
    current, key = _resolve_reference(batch, ref, uid)
    if version and current.metadata.resource_version != version:
        raise _conflict_error(current, f"has version {current.metadata.resource_version}, not {version}")
    meta = current.metadata
    if not meta.finalizers:
        return Write(type(current), key, current, None, None, current)
    if meta.deletion_timestamp is not None:
        return Write(type(current), key, current, current, None, current)
    marked = _replace(meta, deletion_timestamp=as_datetime(now), generation=meta.generation + 1)
    return _accept(batch, key, current, _replace(current, metadata=marked))


def patch_metadata(
    batch: WriteBatch,
    ref: ObjectRef,
    *,
    labels: Mapping[str, str | None],
    annotations: Mapping[str, str | None],
) -> Write:
    """Set or (with ``None``) remove labels and annotations, where the kind allows that without a version."""
    kind = batch.tables.kind_of(ref)
    check_metadata_patch(kind, ref, labels)
    current, key = _resolve_reference(batch, ref, "")
    meta = _replace(
        current.metadata,
        labels=_merge_patch(current.metadata.labels, labels),
        annotations=_merge_patch(current.metadata.annotations, annotations),
    )
    return _accept(batch, key, current, _replace(current, metadata=meta))


def rewrite(batch: WriteBatch, kind: type[Resource], key: str) -> Write:
    """The object as it is, stored in the version of this release."""
    before = batch.find(kind, key)
    if before is None:
        raise build_not_found_error(kind, key)
    after = _replace(before, metadata=_replace(before.metadata, resource_version=batch.next_version()))
    return Write(kind, key, before, after, encode(after), after)


def check_metadata_patch(kind: type[Resource], ref: ObjectRef, labels: Mapping[str, str | None]) -> None:
    """``Forbidden`` where the kind lets nobody change these labels without a version."""
    policy = kind.info.writers.labels
    if policy == "refused":
        raise Forbidden(
            f"metadata of {ref.kind}/{ref.name} is not patched without a version", remedy="read it, then replace it"
        )
    if policy == "except-host" and HOST_LABEL in labels:
        raise Forbidden(
            f"label {HOST_LABEL} of {ref.kind}/{ref.name} belongs to the assigning controller",
            remedy="read the object, then replace it",
        )
    if policy == "except-host" and SHARES_LABEL in labels:
        raise Forbidden(
            f"label {SHARES_LABEL} of {ref.kind}/{ref.name} says whether spec.sharedDisks names disks",
            remedy="change spec.sharedDisks instead",
        )


def _merge_patch(old: dict[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    merged = {key: value for key, value in old.items() if patch.get(key, value) is not None}
    return merged | {key: value for key, value in patch.items() if value is not None}


def _generate_name(batch: WriteBatch, kind: type[Resource], meta: ObjectMeta, ids: Ids) -> str:
    if not meta.generate_name:
        raise _nameless_error(kind)
    name = ""
    for _ in range(limits.GENERATE_NAME_TRIES):
        name = meta.generate_name[:_NAME_BASE_LIMIT] + ids.new_suffix(_SUFFIX_LENGTH)
        check_name(name)
        if batch.find_raw(kind, name) is None:
            return name
    raise AlreadyExists(f"{kind.kind()}/{name} exists already", remedy="try again, or choose another generateName")


def _find_swapped(batch: WriteBatch, obj: R) -> tuple[R, str]:
    """The current object that a compare-and-swap replaces, and its key."""
    meta = obj.metadata
    batch.tables.check_kind(type(obj))
    check_version(obj)
    check_replaceable(obj)
    key = meta.name
    current = _require_object(batch, type(obj), key)
    if current.metadata.uid != meta.uid:
        raise _conflict_error(current, "is another object of the same name")
    if current.metadata.resource_version != meta.resource_version:
        raise _conflict_error(current, f"has version {current.metadata.resource_version}, not {meta.resource_version}")
    return current, key


def check_replaceable(obj: Resource) -> None:
    """``Invalid`` for an object that does not say which version of which object it replaces."""
    meta = obj.metadata
    if not meta.uid or not meta.resource_version:
        raise Invalid(
            f"{_display_name(obj)} is replaced without {'uid' if not meta.uid else 'resourceVersion'}",
            place="metadata",
            remedy="read the object first and send back its uid and resourceVersion",
        )


def check_has_status(kind: type[Resource]) -> None:
    """``Invalid`` for a kind that is one document."""
    if not kind.has_status():
        raise Invalid(f"{kind.kind()} has no status of its own", remedy="use replace: it is one document")


def _resolve_reference(batch: WriteBatch, ref: ObjectRef, uid: str) -> tuple[Resource, str]:
    """The current object that a reference names. A uid in the reference counts like one given beside it."""
    kind = batch.tables.kind_of(ref)
    if ref.cluster:
        raise Invalid(f"{ref.kind}/{ref.name} is in cluster {ref.cluster!r}, not here", place="cluster")
    key = ref.key
    current = _require_object(batch, kind, key)
    if any(wanted and wanted != current.metadata.uid for wanted in (uid, ref.uid)):
        raise _conflict_error(current, "is another object of the same name")
    return current, key


def _require_object(batch: WriteBatch, kind: type[R], key: str) -> R:
    found = batch.find(kind, key)
    if found is None:
        raise build_not_found_error(kind, key)
    return found


def build_not_found_error(kind: type[Resource], key: str) -> NotFound:
    """The error for an object that is not there."""
    info = kind.info
    if info.group == GROUP:
        return NotFound(f"{kind.kind()}/{key} is not there", remedy=f"see outlive get {info.plural}")
    return NotFound(f"{kind.kind()}/{key} of {info.api_version} is not there", remedy=f"see kubectl get {info.plural}")


def _conflict_error(current: Resource, how: str) -> Conflict:
    return Conflict(f"{_display_name(current)} {how}", remedy="read it again and repeat")


def _display_name(obj: Resource) -> str:
    return f"{obj.kind()}/{obj.metadata.name or obj.metadata.generate_name}"


@lru_cache(maxsize=256)
def _default_status(kind: type[Resource]) -> Any:
    return next(field.default for field in msgspec.structs.fields(kind) if field.name == "status")


def _replace_status(obj: R, status: Any) -> R:
    return _replace(obj, status=status)


def _accept(batch: WriteBatch, key: str, before: R | None, draft: R) -> Write:
    """The draft as a write: checked, of the right types throughout, and with a new version unless nothing changed."""
    kind = type(draft)
    meta = draft.metadata
    draft = _replace(draft, metadata=_replace(meta, resource_version=batch.next_version()))
    raw = encode_checked(draft)
    _check_quota(batch, kind, key, raw, goes_on=before is not None and _is_no_change(before, draft))
    after = decode(kind, raw)
    check_lists(before, after)
    if before is not None and _is_same(before, after):
        return Write(kind, key, before, before, None, before)
    if before is None or not _is_same_metadata(before.metadata, after.metadata):
        check_object(after)
    return Write(kind, key, before, after, raw, after)


def encode_object(obj: Resource) -> bytes:
    """Its JSON; ``Invalid`` where it has none."""
    try:
        return encode(obj)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(
            f"{_display_name(obj)} has no JSON form: {error}", remedy="see docs/reference/resources.md"
        ) from None


def encode_checked(obj: Resource) -> bytes:
    """Its JSON; ``Invalid`` for one that is too large, or has a number that others do not read."""
    raw = encode_object(obj)
    check_size(raw, obj.metadata.name)
    check_numbers(raw, _display_name(obj))
    return raw


def check_document(obj: Resource) -> None:
    """``Invalid`` unless every store could keep the object, which has its name or ``generate_name``; what was read of
    its JSON, so that its types are right."""
    meta = obj.metadata
    if not meta.name:
        if not meta.generate_name:
            raise _nameless_error(type(obj))
        obj = _replace(obj, metadata=_replace(meta, name=meta.generate_name[:_NAME_BASE_LIMIT] + "x" * _SUFFIX_LENGTH))
    check_lists(None, obj)
    check_object(obj)


def kind_of(ref: ObjectRef) -> type[Resource]:
    """The kind of a reference to an object of this cluster; ``Invalid``."""
    kind = find_kind(ref.api_version, ref.kind)
    if kind is None:
        raise Invalid(
            f"kind {ref.kind!r} of {ref.api_version} is not known",
            place="kind",
            remedy="use one of the kinds of this store",
        )
    if ref.cluster:
        raise Invalid(f"{ref.kind}/{ref.name} is in cluster {ref.cluster!r}, not here", place="cluster")
    return kind


def _nameless_error(kind: type[Resource]) -> Invalid:
    return Invalid(f"{kind.kind()} has no name", place="metadata.name", remedy="give name or generateName")


def _check_quota(batch: WriteBatch, kind: type[Resource], key: str, raw: bytes, *, goes_on: bool) -> None:
    """``LimitExceeded`` for a write that makes a kind, or what one owner has of it, more than its quota.

    ``goes_on``: such a write may take ``QUOTA_RESERVE`` more bytes, so that who fills a kind with new objects does not
    stop the safety protocol, which says of those that are there where they run.
    """
    quota, before = kind.info.quota, batch.find_raw(kind, key)
    objects, size_bytes = int(before is None), len(raw) - len(before or b"")
    if not objects and size_bytes <= 0:
        return
    if objects and not quota.protocol and batch.tables.size_bytes + size_bytes > limits.STORED_BYTES:
        raise LimitExceeded(f"the store has {limits.STORED_BYTES} bytes", remedy="see docs/reference/store.md#quotas")
    owned = owner_of(raw, quota.owners)
    for owner in ("", owned) if owned else ("",):
        use, (most, most_bytes) = batch.usage_of(kind, owner), quota.get_limits(shared=bool(owner))
        most_bytes += int(most_bytes * limits.QUOTA_RESERVE) if goes_on else 0
        if (objects and use.objects >= most) or use.size_bytes + size_bytes > most_bytes:
            whose = f" of {owner[:80]}" if owner else ""
            raise LimitExceeded(
                f"the store has {use.objects} {kind.info.plural}{whose} with {use.size_bytes} bytes, "
                f"and keeps at most {most} with {most_bytes} bytes",
                remedy=f"delete some: outlive get {kind.info.plural}; see docs/reference/store.md#quotas",
            )


def _is_no_change(before: Resource, after: Resource) -> bool:
    """Whether nothing differs that people write: of a kind with a status neither spec nor metadata, but for the labels
    that hosts write and finalizers; of a kind that the safety protocol writes anything."""
    if not before.has_status():
        return before.info.quota.protocol
    old, new = before.metadata, after.metadata
    return (
        getattr(before, "spec", None) == getattr(after, "spec", None)
        and old.annotations == new.annotations
        and {**old.labels, HOST_LABEL: "", SHARES_LABEL: ""} == {**new.labels, HOST_LABEL: "", SHARES_LABEL: ""}
    )


def _is_same(before: R, after: R) -> bool:
    """Whether they differ in nothing but what every write changes."""
    old = before.metadata
    meta = _replace(after.metadata, resource_version=old.resource_version, generation=old.generation)
    return meta == old and _replace(after, metadata=old) == before


def _is_same_metadata(old: ObjectMeta, new: ObjectMeta) -> bool:
    """Whether what is checked of metadata is as it was, and so was checked before."""
    return old.labels == new.labels and old.annotations == new.annotations and old.finalizers == new.finalizers

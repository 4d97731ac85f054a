"""One writer per field, checked: each write is compared with what is kept, and with who may change that.

Every kind declares its writers (``KindInfo.writers``, docs/reference/permissions.md#table). ``WriterStore`` is put
between a controller and its store in tests. It is a check, not a permission: it reads before it writes, and between
processes it proves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from outlive.base import Forbidden, NotFound
from outlive.resources import KINDS, ObjectRef, R, Resource, is_owned, table_refusal
from outlive.store import Change, Selector, Store, StoreProxy

T = TypeVar("T")


class Violation(msgspec.Struct, frozen=True):
    """A write of something by somebody who does not own it."""

    ref: ObjectRef
    writer: str
    why: str

    def __str__(self) -> str:
        return f"{self.writer} {self.why}"


class WriterViolation(Forbidden):
    """A controller wrote a field that another one owns."""

    code = "writer"

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation), remedy="one of the two is wrong: the controller, or the kind's writers")
        self.violation = violation


class WriterStore(StoreProxy):
    """A store as one writer may use it. Violations are raised, or reported where ``report`` is given."""

    def __init__(
        self,
        inner: Store,
        *,
        writer: str,
        report: Callable[[Violation], None] | None = None,
        kinds: Mapping[str, type[Resource]] = KINDS,
    ) -> None:
        self._inner = inner
        self._kinds = kinds
        self._writer = writer
        self._report = report

    @property
    def embedded(self) -> bool:
        """As the inner store."""
        return self._inner.embedded

    @property
    def incarnation(self) -> str:
        """That of the inner store; empty where it has none."""
        return str(getattr(self._inner, "incarnation", ""))

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        """Reading is free."""
        return self._inner.observe(kind, selector=selector)

    async def create(self, obj: R) -> R:
        """Writes every field that it gives."""
        self._check(obj.ref, None, obj)
        return await super().create(obj)

    async def replace(self, obj: R) -> R:
        """Writes what differs from the object of that version."""
        before = await self._current(obj)
        if before is not None:
            wanted = msgspec.structs.replace(obj, status=before.status) if obj.has_status() else obj  # type: ignore[attr-defined]
            self._check(obj.ref, before, wanted)
        return await super().replace(obj)

    async def replace_status(self, obj: R) -> R:
        """Writes what differs in the status half."""
        before = await self._current(obj)
        if before is not None:
            self._check(obj.ref, before, msgspec.structs.replace(before, status=obj.status))  # type: ignore[attr-defined]
        return await super().replace_status(obj)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """Deletes an object of the kind."""
        kind = self._kinds.get(ref.kind)
        if kind is not None:
            self._check(ref, await self._inner.get(kind, ref.name, fresh=True), None)
        await super().delete(ref, uid=uid, version=version)

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Writes the labels and annotations that it names."""
        kind = self._kinds.get(ref.kind)
        if kind is not None:
            paths = [f"metadata.labels.{key}" for key in labels or {}]
            paths += [f"metadata.annotations.{key}" for key in annotations or {}]
            for path in paths:
                if not is_owned(kind, path, (self._writer,)):
                    self._violated(Violation(ref, self._writer, f"may not write {path}"))
        return await super().patch_metadata(ref, labels=labels, annotations=annotations)

    async def close(self) -> None:
        """As the inner store."""
        await self._inner.close()

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._inner)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._inner)

    async def _current(self, obj: R) -> R | None:
        """What is kept, if the swap can succeed at all; if not, the store says why."""
        meta = obj.metadata
        try:
            current = await self._inner.get(type(obj), meta.name, fresh=True)
        except NotFound:
            return None
        same = (meta.uid, meta.resource_version) == (current.metadata.uid, current.metadata.resource_version)
        return current if same else None

    def _check(self, ref: ObjectRef, before: Resource | None, after: Resource | None) -> None:
        if why := table_refusal((self._writer,), before, after):
            self._violated(Violation(ref, self._writer, why))

    def _violated(self, violation: Violation) -> None:
        if self._report is None:
            raise WriterViolation(violation)
        self._report(violation)


def changed_paths(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The fields that differ between two documents in wire form; a list counts as one field."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        inner = f"{path}.{key}" if path else key
        if isinstance(old or {}, dict) and isinstance(new or {}, dict) and (old or new):
            yield from changed_paths(old or {}, new or {}, inner)
        else:
            yield inner

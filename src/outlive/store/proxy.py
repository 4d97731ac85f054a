"""A store that passes every call on: what stands between a program and its store says only what happens on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from outlive.resources import ObjectRef, R, Resource
from outlive.store.contract import Page, Store
from outlive.store.selectors import Selector

T = TypeVar("T")


class StoreProxy(ABC):
    """Calls of ``Store`` but ``observe``, each through ``_read`` or ``_write``, which give it the store behind."""

    @abstractmethod
    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T: ...

    @abstractmethod
    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T: ...

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """As the store behind."""
        return await self._read(lambda store: store.get(kind, name, fresh=fresh))

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """As the store behind."""
        return await self._read(lambda store: store.list(kind, selector=selector, limit=limit, token=token))

    async def create(self, obj: R) -> R:
        """As the store behind."""
        return await self._write(lambda store: store.create(obj))

    async def replace(self, obj: R) -> R:
        """As the store behind."""
        return await self._write(lambda store: store.replace(obj))

    async def replace_status(self, obj: R) -> R:
        """As the store behind."""
        return await self._write(lambda store: store.replace_status(obj))

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """As the store behind."""
        await self._write(lambda store: store.delete(ref, uid=uid, version=version))

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """As the store behind."""
        return await self._write(lambda store: store.patch_metadata(ref, labels=labels, annotations=annotations))

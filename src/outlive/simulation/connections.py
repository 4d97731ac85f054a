"""How one process of a virtual cluster reaches a real store, and what it is shown of it.

Every call is a task of its own, which nobody's death or halt touches: what was sent arrives. Nothing is shown, by an
answer, a reading or a stream, before ``outlive.simulation.live`` knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from outlive.base.errors import NotFound, Unavailable, Unknown
from outlive.resources import KINDS, ObjectRef, R, Resource
from outlive.runtime.hastened import outside
from outlive.simulation.process import go
from outlive.store import Store
from outlive.store.contract import Change, Delete, Page, Upsert
from outlive.store.selectors import Selector
from outlive.store.tables import key_of

if TYPE_CHECKING:
    from outlive.simulation.live import LiveStore

T = TypeVar("T")


class Connection:
    """The real store as one process reaches it: ``Store``. What was sent goes on without whoever sent it."""

    embedded: bool = False
    """As the memory store of a simulation, it stands for one that is away only when all of it is."""

    def __init__(self, kept: LiveStore, inner: Store) -> None:
        self._kept = kept
        self.inner = inner

    @property
    def incarnation(self) -> str:
        """As the world's."""
        return self._kept.incarnation

    async def get(self, kind: type[R], name: str, *, namespace: str = "", fresh: bool = False) -> R:
        """As the real store."""

        async def sent() -> R:
            return await self._kept.shown(await self.inner.get(kind, name, namespace=namespace, fresh=fresh))

        return await self._sent(sent)

    async def list(
        self, kind: type[R], *, namespace: str = "", selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """As the real store."""

        async def sent() -> Page[R]:
            page = await self.inner.list(kind, namespace=namespace, selector=selector, limit=limit, token=token)
            for one in page.items:
                await self._kept.shown(one)
            return page

        return await self._sent(sent)

    def observe(self, kind: type[R], *, namespace: str = "", selector: Selector | None = None) -> Following[R]:
        """As the real store; what it shows was heard of before."""
        return Following(self._kept, self.inner.observe(kind, namespace=namespace, selector=selector))

    async def create(self, obj: R) -> R:
        """As the real store."""
        return await self._write(obj, None, lambda: self.inner.create(obj))

    async def replace(self, obj: R) -> R:
        """As the real store."""
        return await self._write(obj, obj, lambda: self.inner.replace(obj))

    async def replace_status(self, obj: R) -> R:
        """As the real store."""
        return await self._write(obj, obj, lambda: self.inner.replace_status(obj))

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """As the real store."""

        async def sent() -> None:
            with self._kept.writing(ref.kind, key_of(ref.namespace, ref.name)):
                await self.inner.delete(ref, uid=uid, version=version)
                try:
                    left = await self.inner.get(KINDS[ref.kind], ref.name, namespace=ref.namespace, fresh=True)
                except NotFound:
                    self._kept.heard_delete(ref)
                else:
                    self._kept.heard(self._kept.look_at(left), left)

        await self._sent(sent)

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """As the real store."""

        async def sent() -> Resource:
            with self._kept.writing(ref.kind, key_of(ref.namespace, ref.name)):
                answer = await self.inner.patch_metadata(ref, labels=labels, annotations=annotations)
                self._kept.heard(self._kept.look_at(answer), answer)
                return answer

        return await self._sent(sent)

    async def close(self) -> None:
        """Whoever made the connection closes it."""

    async def _sent(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer to what is sent in a task of its own, which ends with its sender or without."""

        async def under_way() -> T:
            try:
                with outside():
                    return await call()
            except (Unavailable, Unknown):
                self._kept.failed_s = asyncio.get_running_loop().time()
                raise

        return await asyncio.shield(go(under_way(), name="live-store"))

    async def _write(self, obj: R, base: R | None, call: Callable[[], Awaitable[R]]) -> R:
        async def sent() -> R:
            with self._kept.writing(obj.kind(), key_of(obj.metadata.namespace, obj.metadata.name)):
                answer = await call()
                self._kept.heard(base, answer)
                return answer

        return await self._sent(sent)


class Following(Generic[R]):
    """One observer's stream. For one task at a time; a cancelled wait loses nothing."""

    def __init__(self, kept: LiveStore, inner: Any) -> None:
        self._kept = kept
        self._inner = inner
        self._next: Change[R] | None = None

    def __aiter__(self) -> Following[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change, once the copy knows of it."""
        change: Change[R] = self._next if self._next is not None else await anext(self._inner)
        self._next = change
        match change:
            case Upsert(obj):
                await self._kept.shown(obj)
            case Delete(ref, _):
                await self._kept.shown_delete(ref)
        self._next = None
        return change

    async def aclose(self) -> None:
        """Stop."""
        await self._inner.aclose()

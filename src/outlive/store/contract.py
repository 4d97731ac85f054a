"""What every store promises, whatever keeps the objects.

The strictest backend sets the rule and all enforce it, so that what works on one works on every other
(docs/design/store.md). Versions are opaque: outside a backend they are only compared for equality.
A compare-and-swap is never retried by the store; after ``Unknown`` the caller reads fresh and looks for
its own nonce. What is *not* promised: a listing is complete over its pages but no snapshot, and nothing
spans two objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Generic, Protocol

import msgspec

from outlive.resources import ObjectRef, R, Resource
from outlive.store.selectors import Selector


class Upsert(msgspec.Struct, Generic[R], frozen=True):
    """The object exists, and looks like this now."""

    object: R


class Delete(msgspec.Struct, Generic[R], frozen=True):
    """The object is gone; ``last`` is its last known state, absent if it went unseen."""

    ref: ObjectRef
    last: R | None = None


class Synced(msgspec.Struct, frozen=True):
    """Everything that existed when the listing began has been delivered."""


class Reset(msgspec.Struct, frozen=True):
    """What was delivered may be out of date: forget what the following listing does not name, once ``Synced``."""


Change = Upsert[R] | Delete[R] | Synced | Reset


class Page(msgspec.Struct, Generic[R], frozen=True):
    """One page of a listing; an empty ``token`` means that it was the last."""

    items: tuple[R, ...]
    token: str = ""


class Store(Protocol):
    """Where resources live.

    Errors are those of ``outlive.base.errors``: ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Invalid``,
    ``Forbidden``, ``Unavailable`` (certainly not applied) and ``Unknown`` (may have been applied).
    """

    @property
    def embedded(self) -> bool:
        """Whether it lives in one process on one machine, so that it is away whenever that is."""
        ...

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. With ``fresh`` the read is linearizable."""
        ...

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """One page of the objects in name order; complete over its pages, yields while decoding."""
        ...

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        """Lists, says ``Synced``, then follows, for ever; after any doubt ``Reset``, a listing and ``Synced`` again.

        An object that stops matching the selector is delivered as ``Delete``. Close the iterator
        (``aclose``) to stop.
        """
        ...

    async def create(self, obj: R) -> R:
        """Write a new object and return it with ``uid`` and version. The status half is dropped.

        ``metadata.generate_name`` gets a random suffix. ``AlreadyExists`` if the name is taken.
        """
        ...

    async def replace(self, obj: R) -> R:
        """Compare-and-swap of metadata and spec (or of the whole document, for kinds without halves).

        ``Conflict`` if version or uid differ from what is kept. Both must be given.
        """
        ...

    async def replace_status(self, obj: R) -> R:
        """Compare-and-swap of the status half; the rest of ``obj`` is ignored."""
        ...

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """Delete, if uid and version match where given; an object with finalizers is only marked."""
        ...

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Set (or with ``None`` remove) labels and annotations unconditionally; refused as each kind declares."""
        ...

    async def close(self) -> None:
        """Let go of everything; further calls raise ``Unavailable``."""
        ...


async def list_all(store: Store, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[R]:
    """Every object over all pages."""
    token = ""
    while True:
        page = await store.list(kind, selector=selector, token=token)
        for item in page.items:
            yield item
        if not page.token:
            return
        token = page.token

"""What every store promises, whatever keeps the objects.

The strictest backend sets the rule and all enforce it, so that what works on one works on every other
(docs/design/store.md). Versions are opaque: outside a backend they are only compared for equality.
A compare-and-swap is never retried by the store; after ``Unknown`` the caller reads fresh and looks for
its own nonce. What is *not* promised: a listing is complete over its pages but no snapshot, and nothing
spans two objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, Generic, Protocol

import msgspec

from outlive.base import NotUnderstood, get_logger
from outlive.resources import ObjectRef, R, Resource
from outlive.store.selectors import Selector

MALFORMED: Final = "mend it or delete it; kubectl explain and outlive describe show what belongs there"
"""What helps against an object that is not understood."""
_log = get_logger("store")


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


class Malformed(msgspec.Struct, frozen=True):
    """The object exists and cannot be understood; what was last understood of it counts on.

    It holds up nobody else: neither the listing that it is part of, nor the changes that follow.
    """

    ref: ObjectRef
    why: str


Change = Upsert[R] | Delete[R] | Malformed | Synced | Reset


class Page(msgspec.Struct, Generic[R], frozen=True):
    """One page of a listing; an empty ``token`` means that it was the last."""

    items: tuple[R, ...]
    token: str = ""
    malformed: tuple[Malformed, ...] = ()
    """What is on it and cannot be understood."""


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


async def list_all(
    store: Store, kind: type[R], *, selector: Selector | None = None, whole: bool = False
) -> AsyncIterator[R]:
    """Every object over all pages that can be understood.

    ``whole``: ``NotUnderstood`` names one that cannot, for those to whom an object that is left out means that there is
    none.
    """
    token = ""
    while True:
        page = await store.list(kind, selector=selector, token=token)
        for one in page.malformed:
            if whole:
                raise NotUnderstood(f"{one.ref.kind}/{one.ref.name} is not understood: {one.why}", remedy=MALFORMED)
            _log.warning("store.malformed", kind=one.ref.kind, name=one.ref.name, why=one.why)
        for item in page.items:
            yield item
        if not page.token:
            return
        token = page.token

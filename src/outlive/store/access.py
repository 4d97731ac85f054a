"""Calls of a store with a deadline, and the one compare-and-swap with read-back that everybody uses.

A store never retries a write. ``compare_and_swap`` does what a caller has to do about that: it reads fresh, computes
the change, writes, and after a conflict or a lost answer reads again and computes the change anew. So ``change`` is
called any number of times and returns ``None`` once nothing (more) has to be written: a write whose answer was lost
needs no rule of its own. ``change_status`` and ``change_spec`` are the same for objects that must exist already.
``swap`` writes exactly one version that the caller has read.

What is not promised: after ``Unavailable`` a write that was sent may still be applied later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec

from outlive.base import AlreadyExists, Clock, Conflict, NotFound, Unavailable, Unknown, deadline
from outlive.resources import R
from outlive.store.contract import Store

CALL_S: Final = 5.0
"""The deadline of one call, unless the caller says otherwise."""
LIST_S: Final = 20.0
"""The deadline for reading all objects of a kind."""
TRIES: Final = 6
"""Writes of one change before the caller has to come again."""
RETRY_S: Final = 0.2
"""The pause after the second write that failed; it doubles."""

Half = Literal["spec", "status"]
"""Which half of the object is written; kinds without halves are always written whole."""


@contextmanager
def require_answer(what: str, limit_s: float = CALL_S) -> Iterator[None]:
    """``Unavailable`` if the block, which asks about ``what``, takes longer."""
    try:
        with deadline(limit_s):
            yield
    except TimeoutError:
        raise Unavailable(f"the store did not answer about {what} within {limit_s:g} s") from None


async def read(store: Store, kind: type[R], name: str, *, limit_s: float = CALL_S) -> R | None:
    """The object, read fresh; ``None`` if there is none. ``Unavailable`` if the store does not answer."""
    try:
        with deadline(limit_s):
            return await store.get(kind, name, fresh=True)
    except NotFound:
        return None
    except (TimeoutError, Unknown):
        raise Unavailable(f"the store did not answer about {kind.kind()}/{name} within {limit_s:g} s") from None


async def swap(store: Store, wanted: R, half: Half = "status") -> R:
    """Write ``wanted`` over exactly the version that it carries; after a lost answer a fresh read settles it.

    ``Conflict``: the object changed, nothing was written. ``NotFound``. ``Unknown``: the answer was lost and the object
    does not hold what was written; the write may still be applied.
    """
    try:
        with deadline(CALL_S):
            return await _replace(store, wanted, half)
    except (Unknown, TimeoutError):
        found = await read(store, type(wanted), wanted.name)
        if found is None or found.metadata.uid != wanted.metadata.uid or not _holds(found, wanted, half):
            raise Unknown(f"the answer to a write of {wanted.ref} was lost", remedy="read it again") from None
        return found


async def compare_and_swap(
    store: Store,
    kind: type[R],
    name: str,
    change: Callable[[R | None], R | None],
    *,
    clock: Clock,
    half: Half = "status",
    tries: int = TRIES,
    cache: Callable[[str], R | None] | None = None,
    note: Callable[..., None] | None = None,
) -> R | None:
    """The object as it is after the change, or as it was read where there was nothing to write.

    ``change`` gets the object, or ``None`` if there is none, and returns what to write, or ``None`` for nothing; an
    object without a version is created. ``cache`` says what the first try starts from, instead of a read: for objects
    of which nobody else writes what ``change`` looks at. ``note`` gets what was written, and ``replaced``, the version
    before it: ``Informer.note``, so that a cache shows the write at once. ``Unavailable`` if the store does not answer,
    or if others kept changing the object for ``tries`` writes.
    """
    for attempt in range(tries):
        if attempt > 1:
            await clock.sleep(RETRY_S * 2.0 ** (attempt - 2))
        found = cache(name) if cache is not None and attempt == 0 else await read(store, kind, name)
        wanted = change(found)
        if wanted is None or wanted == found:
            return found
        try:
            with deadline(CALL_S):
                written = await (store.create(wanted) if found is None else _replace(store, wanted, half))
        except (AlreadyExists, Conflict, NotFound, Unknown, TimeoutError):
            continue
        replaced = found.metadata.resource_version if found is not None else ""
        if note is not None and written.metadata.resource_version != replaced:
            note(written, replaced=replaced)
        return written
    raise Unavailable(
        f"{kind.kind()}/{name} could not be changed in {tries} tries", remedy="others keep changing it; try again later"
    )


async def change_status(
    store: Store,
    kind: type[R],
    name: str,
    change: Callable[[R], Any],
    *,
    clock: Clock,
    tries: int = TRIES,
    cache: Callable[[str], R | None] | None = None,
) -> R | None:
    """The object with the status that ``change`` returns for it, or as it was read if that is ``None``; ``None`` if
    there is no such object. See ``compare_and_swap``."""

    def apply_change(found: R | None) -> R | None:
        status = change(found) if found is not None else None
        return None if found is None or status is None else msgspec.structs.replace(found, status=status)

    return await compare_and_swap(store, kind, name, apply_change, clock=clock, tries=tries, cache=cache)


async def change_spec(store: Store, kind: type[R], name: str, change: Callable[[R], Any], *, clock: Clock) -> R | None:
    """The same for the object's spec."""

    def apply_change(found: R | None) -> R | None:
        spec = change(found) if found is not None else None
        return None if found is None or spec is None else msgspec.structs.replace(found, spec=spec)

    return await compare_and_swap(store, kind, name, apply_change, clock=clock, half="spec")


async def _replace(store: Store, wanted: R, half: Half) -> R:
    if half == "status" and wanted.has_status():
        return await store.replace_status(wanted)
    return await store.replace(wanted)


def _holds(found: R, wanted: R, half: Half) -> bool:
    """Whether ``found`` holds the half of ``wanted`` that was written, whatever its version and server-set metadata."""
    if not wanted.info.halves:  # one document
        return msgspec.structs.replace(found, metadata=wanted.metadata) == wanted
    if half == "status":
        return bool(getattr(found, "status", None) == getattr(wanted, "status", None))
    mine, theirs = wanted.metadata, found.metadata
    same = (mine.labels, mine.annotations, mine.finalizers) == (theirs.labels, theirs.annotations, theirs.finalizers)
    return same and bool(getattr(found, "spec", None) == getattr(wanted, "spec", None))

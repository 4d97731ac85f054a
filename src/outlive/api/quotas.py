"""Quotas of what hosts write, where the store itself keeps none: on a Kubernetes API server.

Embedded stores count every object (docs/reference/store.md#quotas). An API server does not, since its own quotas are of
namespaces and our kinds have none. So a server counts what hosts have of a kind by a listing, adds what it has allowed
since, and lists again before it refuses. Kinds of the safety protocol are never refused.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from outlive.api.auth import HOSTS, Identity
from outlive.base import Clock, LimitExceeded
from outlive.resources import Resource, encode
from outlive.store import Store, StoreUsage, list_all, owner_of

COUNTED_S: Final = 120.0
"""How long a listing counts, with what was allowed since."""
COUNTED_AGAIN_S: Final = 10.0
"""A write is refused by a listing that is no older than this."""


class KindUsage:
    """What there is of a kind, as of a listing and the writes that were allowed since."""

    def __init__(self, read_s: float) -> None:
        self.read_s = read_s
        self.of: dict[str, StoreUsage] = defaultdict(StoreUsage)
        """By owner; of all objects under the empty name."""

    def count(self, owner: str, before: bytes | None, after: bytes | None) -> None:
        """Count an object that was ``before`` and is ``after``."""
        for name in ("", owner) if owner else ("",):
            self.of[name].change(before, after)


class HostQuotas:
    """Judges creations by hosts, and growth of kinds of which each host has a share."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._usages: dict[type[Resource], KindUsage] = {}
        self._readings: dict[type[Resource], asyncio.Task[KindUsage]] = {}

    async def check(self, identity: Identity, before: Resource | None, after: Resource | None) -> None:
        """``LimitExceeded`` for a write of a host that makes a kind, or its own part of it, more than its quota."""
        if after is None or identity.role not in HOSTS or self._store.embedded:
            return
        kind = type(after)
        quota = kind.info.quota
        if quota.protocol or (before is not None and not quota.owners):
            return
        old, new = encode(before) if before is not None else None, encode(after)
        if old is not None and len(new) <= len(old):
            return
        owner = owner_of(new, quota.owners)
        usage = await self._read(kind, COUNTED_S)
        if _explain_excess(kind, usage, owner, old, new):
            usage = await self._read(kind, COUNTED_AGAIN_S)
        if why := _explain_excess(kind, usage, owner, old, new):
            raise LimitExceeded(why, remedy=f"delete some: outlive get {kind.info.plural}; see {PAGE}")
        usage.count(owner, old, new)

    async def _read(self, kind: type[Resource], most_s: float) -> KindUsage:
        """As of a listing that is no older; all who wait for one share it."""
        usage = self._usages.get(kind)
        if usage is not None and self._clock.monotonic() - usage.read_s <= most_s:
            return usage
        running = self._readings.get(kind)
        if running is None or running.done():
            running = self._readings[kind] = asyncio.create_task(self._list(kind), name=f"usage of {kind.info.plural}")
            running.add_done_callback(_retrieve)
        return await asyncio.shield(running)

    async def _list(self, kind: type[Resource]) -> KindUsage:
        usage, owners = KindUsage(self._clock.monotonic()), kind.info.quota.owners
        async for one in list_all(self._store, kind):
            raw = encode(one)
            usage.count(owner_of(raw, owners), None, raw)
        self._usages[kind] = usage
        return usage


PAGE: Final = "docs/reference/store.md#quotas"


def _explain_excess(kind: type[Resource], usage: KindUsage, owner: str, old: bytes | None, new: bytes) -> str:
    """Why the write is one too many; empty: it is not."""
    for name in ("", owner) if owner else ("",):
        use, (most, most_bytes) = usage.of[name], kind.info.quota.get_limits(shared=bool(name))
        added = len(new) - len(old or b"")
        if (old is None and use.objects >= most) or use.size_bytes + added > most_bytes:
            whose = f" of {name[:80]}" if name else ""
            return (
                f"the store has {use.objects} {kind.info.plural}{whose} with {use.size_bytes} bytes, "
                f"and keeps at most {most} with {most_bytes} bytes"
            )
    return ""


def _retrieve(task: asyncio.Task[KindUsage]) -> None:
    """Nobody may wait any more for a listing that failed."""
    _ = task.cancelled() or task.exception()

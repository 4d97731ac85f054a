"""A store that misbehaves as real ones do, within the contract, and the same way for the same seed.

Wraps any store. Writes are delayed, refused (``Unavailable``, not applied), or lose their answer
(``Unknown``: applied, not applied, or applied later, after the caller was told). Observers are delayed,
dropped (``Reset``, a listing, ``Synced``), shown listings that are older than the present, and spared
states in between. What stays true is the contract: nothing acknowledged is lost, and per object an
observer never goes back (docs/reference/store.md#faults).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.base.random import Random
from outlive.resources import ObjectRef, R, Resource
from outlive.store.contract import Page, Store
from outlive.store.faults.observation import FaultObservation, FaultRates, Network
from outlive.store.selectors import Selector

T = TypeVar("T")
_log = get_logger("store.faults")
LATE_WRITES = 1_000
"""Writes that may be on their way after their caller was told ``Unknown``; beyond it they are dropped."""


class FaultStore:
    """Any store, at the far end of a ``Network``."""

    def __init__(self, inner: Store, *, clock: Clock, random: Random, rates: FaultRates | None = None) -> None:
        self._inner = inner
        self._clock = clock
        self._random = random.fork("calls")
        self._observer_random = random.fork("observers")
        self._observers = 0
        self._late: list[asyncio.Task[None]] = []
        self.network = Network(rates or FaultRates())
        """Set ``network.rates``; call ``network.cut()`` and ``network.heal()``."""

    @property
    def embedded(self) -> bool:
        """As the inner store."""
        return self._inner.embedded

    @property
    def incarnation(self) -> str:
        """That of the inner store; empty where it has none."""
        return str(getattr(self._inner, "incarnation", ""))

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """As the inner store, delayed or refused."""
        return await self._read(lambda: self._inner.get(kind, name, fresh=fresh))

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """As the inner store, delayed or refused."""
        return await self._read(lambda: self._inner.list(kind, selector=selector, limit=limit, token=token))

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> FaultObservation[R]:
        """The inner stream with faults, each observer with a random stream of its own."""
        self._observers += 1
        return FaultObservation(
            self._inner.observe(kind, selector=selector),
            clock=self._clock,
            random=self._observer_random.fork(str(self._observers)),
            network=self.network,
        )

    async def create(self, obj: R) -> R:
        """As the inner store, with all that can happen to a write."""
        return await self._write(lambda: self._inner.create(obj))

    async def replace(self, obj: R) -> R:
        """As the inner store, with all that can happen to a write."""
        return await self._write(lambda: self._inner.replace(obj))

    async def replace_status(self, obj: R) -> R:
        """As the inner store, with all that can happen to a write."""
        return await self._write(lambda: self._inner.replace_status(obj))

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "") -> None:
        """As the inner store, with all that can happen to a write."""
        await self._write(lambda: self._inner.delete(ref, uid=uid, version=version))

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """As the inner store, with all that can happen to a write."""
        return await self._write(lambda: self._inner.patch_metadata(ref, labels=labels, annotations=annotations))

    async def close(self) -> None:
        """Writes that are still on their way are lost; then as the inner store."""
        for task in self._late:
            task.cancel()
        if self._late:
            await asyncio.wait(self._late)
        await self._inner.close()

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        answer = await call()
        await self._delayed()
        if not self.network.reachable:
            raise Unavailable("the network to the store is cut")
        return answer

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        rates, draw = self.network.rates, self._random.random()
        if draw < rates.lose_dropped:
            await self._delayed()
            raise Unknown("the answer was lost")
        if draw < rates.lose_dropped + rates.lose_late:
            self._later(call)
            raise Unknown("the answer was lost")
        answer = await call()
        await self._delayed()
        if draw < rates.lose_dropped + rates.lose_late + rates.lose_applied or not self.network.reachable:
            raise Unknown("the answer was lost")
        return answer

    async def _travel(self) -> None:
        """The way to the store."""
        await self._delayed()
        if not self.network.reachable:
            raise Unavailable("the network to the store is cut")
        if self._hits(self.network.rates.refuse):
            raise Unavailable("the store refused the call")

    async def _delayed(self) -> None:
        if self._hits(self.network.rates.delay):
            await self._clock.sleep(self._random.uniform(0.0, self.network.rates.delay_max_s))

    def _hits(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate

    def _later(self, call: Callable[[], Awaitable[object]]) -> None:
        """Apply after the caller was told that nobody knows."""
        self._late = [task for task in self._late if not task.done()]
        if len(self._late) < LATE_WRITES:
            wait_s = self._random.uniform(0.0, self.network.rates.late_max_s)
            self._late.append(asyncio.create_task(self._arrive(call, wait_s), name="store.faults.late"))

    async def _arrive(self, call: Callable[[], Awaitable[object]], wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        try:
            await call()
        except OutliveError as error:
            _log.debug("store.late_write_refused", error=str(error))

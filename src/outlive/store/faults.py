"""A store that misbehaves as real ones do, within the contract, and the same way for the same seed.

Wraps any store. Writes are delayed, refused (``Unavailable``, not applied), or lose their answer
(``Unknown``: applied, not applied, or applied later, after the caller was answered). Observers are delayed,
dropped (``Reset``, a listing, ``Synced``), shown listings that are older than the present, and spared
states in between. What stays true is the contract: nothing acknowledged is lost, and per object an
observer never goes back (docs/reference/store.md#faults).

Of an observer's stream a pump moves what the inner one says into an inbox as fast as it comes; what is delivered from
the inbox, and when, is drawn from the seed. The stream remembers what it has delivered, because a stale listing may
show nothing older than that: it is that view plus some first part of what waits in the inbox.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from outlive.base import Clock, OutliveError, Random, Unavailable, Unknown, get_logger, limits
from outlive.resources import ObjectRef, R, Resource
from outlive.store.contract import Change, Delete, Malformed, Page, Reset, Store, Synced, Upsert
from outlive.store.selectors import Selector


class FaultRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often what goes wrong; each rate is a probability from 0 to 1, delays are seconds."""

    delay: float = 0.0
    """Of a call, on its way and again on the way back."""
    delay_max_s: float = 1.0
    """Delays are uniform between 0 and this."""
    refuse: float = 0.0
    """Of a call to be answered ``Unavailable``."""
    lose_applied: float = 0.0
    """Of a write to be applied and answered ``Unknown``."""
    lose_dropped: float = 0.0
    """Of a write to be dropped and answered ``Unknown``."""
    lose_late: float = 0.0
    """Of a write to be answered ``Unknown`` and applied up to ``late_max_s`` later, if it still can be."""
    late_max_s: float = 30.0
    observer_delay: float = 0.0
    """Of a change to be held up, with all that follow it."""
    observer_delay_max_s: float = 1.0
    drop: float = 0.0
    """Of an observer to be dropped before a change."""
    stale_relist: float = 0.0
    """Of a dropped observer to be given a listing that is older than the present."""
    coalesce: float = 0.0
    """Of a state to be left out when a later one of the same object waits already."""

    def __post_init__(self) -> None:
        """``ValueError`` names a rate that is no probability or a delay that is negative."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value < 0 or (value > 1 and not name.endswith("_s")):
                raise ValueError(f"{name} is {value}")


class Network:
    """The way to the store, shared by a ``FaultStore`` and its observers."""

    def __init__(self, rates: FaultRates) -> None:
        self._rates = rates
        self.cuts = 0
        """How often it was cut; who had a connection then has lost it."""
        self._healed = asyncio.Event()
        self._healed.set()
        self.streams_disturbed = False
        """Whether anything at all happens to observers' streams."""
        self._judge()

    @property
    def rates(self) -> FaultRates:
        """What goes wrong; may be exchanged at any time."""
        return self._rates

    @rates.setter
    def rates(self, rates: FaultRates) -> None:
        self._rates = rates
        self._judge()

    def _judge(self) -> None:
        rates = self._rates
        self.streams_disturbed = not self.reachable or bool(rates.observer_delay or rates.drop or rates.coalesce)

    @property
    def reachable(self) -> bool:
        """Whether it works at the moment."""
        return self._healed.is_set()

    def cut(self) -> None:
        """Nothing comes through from now on."""
        self.cuts += 1
        self._healed.clear()
        self._judge()

    def heal(self) -> None:
        """It works again."""
        self._healed.set()
        self._judge()

    async def wait_healed(self) -> None:
        """Wait until it works."""
        await self._healed.wait()


COALESCE_REACH = 100
"""Changes that are looked through for a later state of the same object."""


class _Inbox(Generic[R]):
    """What the inner stream has said and nobody was given yet."""

    def __init__(self) -> None:
        self.changes: deque[Change[R]] = deque()
        self.end: BaseException | None = None
        self.moved = asyncio.Event()
        """Set when a change came in, was taken out, or the stream ended."""

    async def pump(self, inner: AsyncIterator[Change[R]]) -> None:
        """Take in what comes; wait while the inbox is full, so that the inner store sees a slow observer."""
        try:
            async for change in inner:
                self.changes.append(change)
                self.moved.set()
                while len(self.changes) >= limits.OBSERVER_QUEUE:
                    self.moved.clear()
                    await self.moved.wait()
            self.end = StopAsyncIteration()
        except Exception as error:  # noqa: BLE001 - handed on to the observer, whose error it is
            self.end = error
        self.moved.set()

    def take(self) -> Change[R]:
        """The oldest change."""
        change = self.changes.popleft()
        self.moved.set()
        return change


class _View(Generic[R]):
    """What an observer believes after the changes it was given."""

    def __init__(self) -> None:
        self.objects: dict[str, R] = {}
        self._listed: set[str] | None = set()

    @property
    def listing(self) -> bool:
        """Whether a listing has begun and not ended."""
        return self._listed is not None

    def absorb(self, change: Change[R]) -> None:
        """Take one change in."""
        match change:
            case Upsert(obj):
                key = obj.metadata.key
                self.objects[key] = obj
                if self._listed is not None:
                    self._listed.add(key)
            case Malformed(ref):
                if self._listed is not None:
                    self._listed.add(ref.key)
            case Delete(ref, _):
                self.objects.pop(ref.key, None)
            case Reset():
                self._listed = set()
            case Synced():
                if self._listed is not None:
                    self.objects = {key: obj for key, obj in self.objects.items() if key in self._listed}
                self._listed = None


class FaultObservation(Generic[R]):
    """One observer's stream. For one task at a time; a cancelled wait loses nothing."""

    def __init__(self, inner: AsyncIterator[Change[R]], *, clock: Clock, random: Random, network: Network) -> None:
        self._inner = inner
        self._clock = clock
        self._random = random
        self._network = network
        self._cuts = network.cuts
        self._inbox: _Inbox[R] = _Inbox()
        self._view: _View[R] = _View()
        self._relist: deque[Change[R]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    def __aiter__(self) -> FaultObservation[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change that gets through."""
        if self._pump is None:
            if not self._closed and self._is_undisturbed():
                change = await anext(self._inner)
                if self._is_undisturbed():
                    self._view.absorb(change)
                    return change
                self._inbox.changes.append(change)
            self._pump = asyncio.create_task(self._inbox.pump(self._inner), name="store.faults.observer")
        while not self._closed:
            if self._relist:
                return self._relist.popleft()
            if not self._inbox.changes:
                if self._inbox.end is not None:
                    raise self._inbox.end
                self._inbox.moved.clear()
                await self._inbox.moved.wait()
                continue
            rates = self._network.rates
            if self._is_drawn(rates.observer_delay):
                await self._clock.sleep(self._random.uniform(0.0, rates.observer_delay_max_s))
            if not self._network.reachable:
                await self._network.wait_healed()
            if self._drop_connection():
                continue
            change = self._inbox.take()
            if self._is_drawn(self._network.rates.coalesce) and self._is_superseded(change):
                continue
            self._view.absorb(change)
            return change
        raise StopAsyncIteration

    def _is_undisturbed(self) -> bool:
        """Whether nothing at all goes wrong, so that the inner stream can be read as it is."""
        network = self._network
        return not network.streams_disturbed and self._cuts == network.cuts

    async def aclose(self) -> None:
        """Stop, here and at the inner store."""
        self._closed = True
        self._inbox.moved.set()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])
        close = getattr(self._inner, "aclose", None)
        if close is not None:
            await close()

    def __del__(self) -> None:
        """A caller that drops the stream without closing it leaves no task behind."""
        if self._pump is not None and not self._pump.done() and not self._pump.get_loop().is_closed():
            self._pump.cancel()

    def _drop_connection(self) -> bool:
        """Drop the connection if that is drawn, or if it was cut: a listing replaces part of what waits."""
        cut = self._cuts != self._network.cuts
        if not (cut or self._is_drawn(self._network.rates.drop)):
            return False
        # after how many of the waiting changes the view would be whole, and not in the middle of a listing
        listing = self._view.listing
        moments = [] if listing else [0]
        for count, change in enumerate(self._inbox.changes, start=1):
            listing = not isinstance(change, Synced) and (listing or isinstance(change, Reset))
            if not listing:
                moments.append(count)
        if not moments:
            return False
        self._cuts = self._network.cuts
        stale = self._is_drawn(self._network.rates.stale_relist)
        for _ in range(self._random.choice(moments) if stale else moments[-1]):
            self._view.absorb(self._inbox.take())
        objects = sorted(self._view.objects.items())
        self._relist = deque([Reset(), *(Upsert(obj) for _, obj in objects), Synced()])
        return True

    def _is_superseded(self, change: Change[R]) -> bool:
        """Whether a later state of the same object waits, within the same listing."""
        name = _object_name(change)
        if name is None:
            return False
        for later in islice(self._inbox.changes, COALESCE_REACH):
            if isinstance(later, Synced | Reset):
                return False
            if _object_name(later) == name:
                return True
        return False

    def _is_drawn(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate


def _object_name(change: Change[R]) -> str | None:
    match change:
        case Upsert(obj):
            return obj.metadata.key
        case Delete(ref, _) | Malformed(ref):
            return ref.key
        case _:
            return None


T = TypeVar("T")
_log = get_logger("store.faults")
LATE_TASK = "store.faults.late"
"""Name of the task of a write that arrives after its caller was answered ``Unknown``."""
LATE_WRITES = 1_000
"""Writes that may be on their way after their caller was answered ``Unknown``; beyond it they are dropped."""


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


class FaultStore(StoreProxy):
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

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> FaultObservation[R]:
        """The inner stream with faults, each observer with a random stream of its own."""
        self._observers += 1
        return FaultObservation(
            self._inner.observe(kind, selector=selector),
            clock=self._clock,
            random=self._observer_random.fork(str(self._observers)),
            network=self.network,
        )

    async def close(self) -> None:
        """Writes that are still on their way are lost; then as the inner store."""
        for task in self._late:
            task.cancel()
        if self._late:
            await asyncio.wait(self._late)
        await self._inner.close()

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        await self._travel()
        answer = await call(self._inner)
        await self._delay_call()
        if not self.network.reachable:
            raise Unavailable("the network to the store is cut")
        return answer

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        await self._travel()
        rates, draw = self.network.rates, self._random.random()
        if draw < rates.lose_dropped:
            await self._delay_call()
            raise Unknown("the answer was lost")
        if draw < rates.lose_dropped + rates.lose_late:
            self._late = [task for task in self._late if not task.done()]
            if len(self._late) < LATE_WRITES:
                wait_s = self._random.uniform(0.0, rates.late_max_s)
                self._late.append(asyncio.create_task(self._arrive(call, wait_s), name=LATE_TASK))
            raise Unknown("the answer was lost")
        answer = await call(self._inner)
        await self._delay_call()
        if draw < rates.lose_dropped + rates.lose_late + rates.lose_applied or not self.network.reachable:
            raise Unknown("the answer was lost")
        return answer

    async def _travel(self) -> None:
        """The way to the store."""
        await self._delay_call()
        if not self.network.reachable:
            raise Unavailable("the network to the store is cut")
        if self._is_drawn(self.network.rates.refuse):
            raise Unavailable("the store refused the call")

    async def _delay_call(self) -> None:
        if self._is_drawn(self.network.rates.delay):
            await self._clock.sleep(self._random.uniform(0.0, self.network.rates.delay_max_s))

    def _is_drawn(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate

    async def _arrive(self, call: Callable[[Store], Awaitable[object]], wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        try:
            await call(self._inner)
        except OutliveError as error:
            _log.debug("store.late_write_refused", error=str(error))

"""Who is served first: levels of requests with seats, queues that are fair between tokens, turns of long computations.

All requests are served by one event loop, which also runs the controllers. A request takes a seat of its level before
its handler runs, and gives it back when its answer is sent; so few requests are at work at once, whatever comes. Those
that find no seat wait, one queue for each token, and the tokens are served in turn. One token has at most a share of
the seats and of the places to wait; what is beyond is answered 429 after a pause, so that it is cheap also where the
client obeys nothing. The level ``protocol`` has seats of its own for leases and probes: nobody else's requests delay
them.

Computations that are long for one step of the loop are cut into slices, and of those one runs in each round of the loop
(``Turns``), however many requests compute (docs/reference/http-api.md#levels).
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import Request

from outlive.api.auth import HOSTS, LEASES_PATH, AccessLevel, Identity, Role
from outlive.api.errors import TooManyRequests
from outlive.base import Clock, OutliveError
from outlive.resources import Election, Membership, VirtualMachine

QUEUE_SECONDS: Final = 15.0
"""How long a request waits for a seat."""
REFUSED_SECONDS: Final = 1.0
"""How long an answer 429 is kept back, which is what its ``Retry-After`` says."""
SUSPICIOUS_SECONDS: Final = 0.1
"""How long a request with a wrong token or for a path that is not there keeps its seat before it is refused."""


class PriorityLevel(enum.StrEnum):
    """What a request is to the server."""

    PROTOCOL = "protocol"
    """What hosts stay alive by: leases, the election, the states of VMs; and probes of health."""
    WORK = "work"
    """Everything else of hosts, coordinators, controllers, Nova and Limes."""
    PEOPLE = "people"
    """Of users, operators, viewers and admins."""
    ADMISSION_LEASES = "admission-leases"
    """Reviews of leases for a Kubernetes API server, which hosts write there directly."""
    ADMISSION = "admission"
    """Reviews of all other writes for it."""
    ANONYMOUS = "anonymous"
    """Without a token: pages, descriptions, and tokens that are not known."""


class SeatLimits(NamedTuple):
    """How many requests of a level are served at once, and how many of one token wait."""

    seats: int
    share: int
    """Seats of one token at most."""
    queue: int


SEAT_LIMITS: Final[Mapping[PriorityLevel, SeatLimits]] = {
    PriorityLevel.PROTOCOL: SeatLimits(seats=256, share=8, queue=64),
    PriorityLevel.WORK: SeatLimits(seats=128, share=64, queue=256),
    PriorityLevel.PEOPLE: SeatLimits(seats=32, share=16, queue=128),
    PriorityLevel.ADMISSION_LEASES: SeatLimits(seats=256, share=256, queue=1024),
    PriorityLevel.ADMISSION: SeatLimits(seats=64, share=64, queue=1024),
    PriorityLevel.ANONYMOUS: SeatLimits(seats=32, share=16, queue=64),
}
PROBES: Final = frozenset({"/healthz", "/livez", "/readyz"})
_LEASES: Final = frozenset({Membership.info.plural, Election.info.plural})


def level_of(identity: Identity, access: AccessLevel, route: str, request: Request) -> PriorityLevel:
    """The level of a request for the endpoint with that route and access."""
    if route in PROBES:
        return PriorityLevel.PROTOCOL
    if access is AccessLevel.OPEN:
        return PriorityLevel.ANONYMOUS
    if access is AccessLevel.ADMIT:
        return PriorityLevel.ADMISSION_LEASES if route.endswith(LEASES_PATH) else PriorityLevel.ADMISSION
    if identity.role in HOSTS:
        plural, write = request.path_params.get("plural", ""), request.method not in ("GET", "HEAD")
        lease = plural in _LEASES and (write or "name" in request.path_params)
        status = plural == VirtualMachine.info.plural and write and route.endswith("/status")
        return PriorityLevel.PROTOCOL if lease or status else PriorityLevel.WORK
    return PriorityLevel.PEOPLE if identity.role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER) else PriorityLevel.WORK


class Seats:
    """The seats of one level. ``flow``: whose request it is, a token or (anonymous) a client.

    Invariant: a request waits only while all seats are taken, or its flow has its share.
    """

    def __init__(self, level: PriorityLevel, limits: SeatLimits, clock: Clock) -> None:
        self.level = level
        self.limits = limits
        self._clock = clock
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Flow → who waits, in the order in which the flows are served."""
        self.taken = self.waiting = self.refused = 0

    async def take(self, flow: str) -> None:
        """Take a seat, and wait for one; ``TooManyRequests`` after a pause where too many of the flow wait."""
        queue = self._waiting.get(flow)
        if queue is None and self._has_free_seat(flow):
            self._assign_seat(flow)
            return
        if queue is not None and len(queue) >= self.limits.queue:
            await self._refuse(f"{len(queue)} requests wait")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(flow, deque()).append(place)
        self.waiting += 1
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await place
        except BaseException as error:
            queue = self._waiting.get(flow, deque())
            if place in queue:
                queue.remove(place)
                self._remove_waiter(flow, queue)
            elif not place.cancelled():
                self.give(flow)
            if not isinstance(error, TimeoutError):
                raise
            await self._refuse(f"no seat was free within {QUEUE_SECONDS:g} s")

    def give(self, flow: str) -> None:
        """Give a seat back: to the flow whose turn it is."""
        self.taken -= 1
        self._taken[flow] -= 1
        if not self._taken[flow]:
            del self._taken[flow]
        for other in list(self._waiting):
            queue = self._waiting[other]
            while queue and self._has_free_seat(other):
                place = queue.popleft()
                self._waiting.move_to_end(other)
                self._remove_waiter(other, queue)
                if not place.done():  # else its request has just been cancelled
                    self._assign_seat(other)
                    place.set_result(None)
                    break
            if self.taken >= self.limits.seats:
                return

    def _has_free_seat(self, flow: str) -> bool:
        return self.taken < self.limits.seats and self._taken[flow] < self.limits.share

    def _assign_seat(self, flow: str) -> None:
        self.taken += 1
        self._taken[flow] += 1

    def _remove_waiter(self, flow: str, queue: deque[asyncio.Future[None]]) -> None:
        """Count one request less that waits, and forget the queue of the flow if it is empty."""
        self.waiting -= 1
        if not queue:
            del self._waiting[flow]

    async def _refuse(self, why: str) -> None:
        self.refused += 1
        await self._clock.sleep(REFUSED_SECONDS)
        raise TooManyRequests(
            f"too many requests at once: {why} (level {self.level}, {self.limits.share} at work at a time)",
            remedy="send fewer at a time, and wait as Retry-After says",
        )


class Levels:
    """The seats of all levels."""

    def __init__(self, clock: Clock, limits_by_level: Mapping[PriorityLevel, SeatLimits] = SEAT_LIMITS) -> None:
        self._clock = clock
        self.seats = {level: Seats(level, limits, clock) for level, limits in limits_by_level.items()}

    async def take(self, level: PriorityLevel, flow: str) -> Callable[[], None]:
        """Take a seat; what gives it back, once, however often it is called."""
        seats = self.seats[level]
        await seats.take(flow)
        given = False

        def give() -> None:
            nonlocal given
            if not given:
                given = True
                seats.give(flow)

        return give

    @asynccontextmanager
    async def suspicious_seat(self, client: str) -> AsyncIterator[None]:
        """An anonymous seat of a client that will probably be refused, which is then kept for a moment."""
        give = await self.take(PriorityLevel.ANONYMOUS, client)
        try:
            yield
        except OutliveError:
            await self._clock.sleep(SUSPICIOUS_SECONDS)
            raise
        finally:
            give()

    def collect(self) -> Iterable[Metric]:
        """What is served, what waits, and what was refused, for Prometheus."""
        taken = GaugeMetricFamily("http_seats_taken", "Requests that are being served", labels=["level"])
        waiting = GaugeMetricFamily("http_requests_waiting", "Requests that wait for a seat", labels=["level"])
        refused = CounterMetricFamily("http_requests_refused", "Requests that found no place to wait", labels=["level"])
        for level, seats in self.seats.items():
            taken.add_metric([level], seats.taken)
            waiting.add_metric([level], seats.waiting)
            refused.add_metric([level], seats.refused)
        return (taken, waiting, refused)


class Turns:
    """Slices of long computations: one in each round of the event loop, in the order in which they ask."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._called = False

    async def wait(self) -> None:
        """Return in a round of the loop in which no other slice runs; compute for a few milliseconds then."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        if not self._called:
            self._called = True
            loop.call_soon(self._start_next)
        await place

    def _start_next(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                break
        self._called = bool(self._waiting)
        if self._called:
            asyncio.get_running_loop().call_soon(self._start_next)


class Bodies:
    """Bytes of request bodies that are in memory at once, those of small ones not counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._taken: Counter[str] = Counter()

    def take(self, flow: str, size: int) -> None:
        """Take room for a body; ``TooManyRequests`` where there is none, or the flow has half of it."""
        if size > self._left or self._taken[flow] + size > self._limit // 2:
            raise TooManyRequests(
                f"large bodies are being read: a body of {size} bytes must wait", remedy="send fewer at a time"
            )
        self._left -= size
        self._taken[flow] += size

    def give(self, flow: str, size: int) -> None:
        """Give the room back."""
        self._left += size
        self._taken[flow] -= size
        if not self._taken[flow]:
            del self._taken[flow]

"""How one program reaches the API server: over a connection that can be cut, slow, or lose answers, and that counts.

Each program has its own: reads and streams (``store``), verbs (``verbs``), events (``events``). What was sent before
its program was killed takes effect all the same; a cut shows as silence, after which the call is given up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from outlive.base import Clock, OutliveError, Random, Unavailable, stable_hash
from outlive.resources import ObjectRef, R
from outlive.resources.foreign import ForeignResource, KubernetesEvent
from outlive.runtime import F, PatchOperation, ServedResource
from outlive.simulation.kubernetes.server import ApiServer
from outlive.simulation.process import Process, go
from outlive.store import FaultObservation, FaultRates, FaultStore, Selector, Store, StoreProxy

T = TypeVar("T")
GIVEN_UP_S: Final = 5.0
"""After so long without an answer a client gives a call up."""
LATENCY_S: Final = 0.005
"""Of a call, one way, where nothing is slow."""
EVENTS_WAITING: Final = 1_000
"""Events of one client that wait to be written; older ones are dropped."""
EVENT_RETRY_S: Final = 5.0
"""After so long an event that could not be written is tried again."""


class ApiConnection:
    """See the module. ``calls`` counts what was sent, by verb and kind, such as ``evict pods``."""

    def __init__(self, server: ApiServer, client: str, process: Process, *, clock: Clock, random: Random) -> None:
        self.server = server
        self.client = client
        self.calls: Counter[str] = Counter()
        self.latency_s = LATENCY_S
        self.faults = FaultStore(server, clock=clock, random=random)
        self.store = ClientStore(self)
        self.verbs = ClientVerbs(self)
        self.events = ClientEvents(self, clock)
        self._process = process

    @property
    def reachable(self) -> bool:
        """Whether calls come through."""
        return self.faults.network.reachable

    def set(self, *, reachable: bool, latency_s: float, rates: FaultRates) -> None:
        """How calls and streams fare from now on."""
        network = self.faults.network
        if network.reachable and not reachable:
            network.cut()
        elif reachable and not network.reachable:
            network.heal()
        network.rates, self.latency_s = rates, latency_s

    async def send(self, what: str, call: Callable[[], Awaitable[T]], *, write: bool) -> T:
        """One call: there, its effect, and back. ``Unavailable`` (certainly not applied), ``Unknown``."""
        self._process.check()
        self.calls[what] += 1

        async def travel() -> T:
            await asyncio.sleep(self.latency_s)
            if not self.reachable:
                await asyncio.sleep(GIVEN_UP_S)
                raise Unavailable(f"{what}: the API server does not answer", remedy="see the network to it")
            through = self.faults._write if write else self.faults._read
            answer = await through(lambda _: call())
            await asyncio.sleep(self.latency_s)
            return answer

        return await self._process.call(go(travel(), name=f"{self.client}/api"))


class ClientStore(StoreProxy):
    """The read half of ``Store`` over a connection; nothing is written whole."""

    embedded = False

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> FaultObservation[R]:
        """A stream of its own."""
        self._connection.calls[f"watch {kind.info.plural}"] += 1
        return self._connection.faults.observe(kind, selector=selector)

    async def close(self) -> None:
        """The server is everybody's."""

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await self._connection.send("read", lambda: call(self._connection.server), write=False)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await self._connection.send("write", lambda: call(self._connection.server), write=True)


class ClientVerbs:
    """``ClusterVerbs`` over a connection."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._server, self._client = connection.server, connection.client

    async def list_served(self, api_version: str) -> tuple[ServedResource, ...]:
        """See ``ClusterVerbs``."""
        return await self._connection.send("discover", lambda: self._server.list_served(api_version), write=False)

    async def evict(self, key: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """See ``ClusterVerbs``."""
        call = lambda: self._server.evict(key, uid=uid, grace_s=grace_s, client=self._client)  # noqa: E731
        await self._connection.send("evict pods", call, write=True)

    async def delete(
        self, kind: type[ForeignResource], key: str, *, uid: str = "", version: str = "", grace_s: int | None = None
    ) -> None:
        """See ``ClusterVerbs``."""

        async def call() -> None:
            await self._server.delete_object(kind, key, uid=uid, version=version, grace_s=grace_s, client=self._client)

        await self._connection.send(f"delete {kind.info.plural}", call, write=True)

    async def patch(
        self,
        kind: type[F],
        key: str,
        operations: Sequence[PatchOperation],
        *,
        version: str = "",
        subresource: str = "",
    ) -> F:
        """See ``ClusterVerbs``."""

        async def call() -> F:
            return await self._server.patch(kind, key, operations, version=version, subresource=subresource)

        return await self._connection.send(f"patch {kind.info.plural}", call, write=True)

    async def post(
        self, kind: type[ForeignResource], key: str, subresource: str, document: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See ``ClusterVerbs``."""
        what = f"post {kind.info.plural}/{subresource}"
        return await self._connection.send(
            what, lambda: self._server.post(kind, key, subresource, document), write=True
        )

    async def create(self, kind: type[F], document: Mapping[str, Any]) -> F:
        """See ``ClusterVerbs``."""
        what = f"create {kind.info.plural}"
        return await self._connection.send(what, lambda: self._server.create_object(kind, document), write=True)


class ClientEvents:
    """``ClusterEvents`` over a connection: ``run`` writes what waits; one that repeats is written once."""

    def __init__(self, connection: ApiConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._waiting: deque[dict[str, Any]] = deque(maxlen=EVENTS_WAITING)
        self._emitted: dict[str, None] = {}
        self._more = asyncio.Event()

    def emit(
        self,
        regarding: ObjectRef,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "",
        related: ObjectRef | None = None,
    ) -> None:
        """See ``ClusterEvents``."""
        digest = f"{stable_hash(self._connection.client, regarding.kind, regarding.uid, reason, action, note):016x}"
        name = f"{regarding.name}.{digest}"
        if name in self._emitted:
            return
        self._emitted[name] = None
        self._waiting.append(event_document(self._connection.server, name, regarding, reason, note, type, action))
        self._more.set()

    async def run(self) -> None:
        """Write what waits, until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                document = self._waiting[0]
                try:
                    await self._connection.verbs.create(KubernetesEvent, document)
                except OutliveError as error:
                    if isinstance(error, Unavailable):
                        await self._clock.sleep(EVENT_RETRY_S)
                        continue
                if self._waiting and self._waiting[0] is document:
                    self._waiting.popleft()


def event_document(
    server: ApiServer, name: str, regarding: ObjectRef, reason: str, note: str, type: str, action: str
) -> dict[str, Any]:
    """An event as Kubernetes keeps it; those about objects without a namespace lie in ``default``."""
    return {
        "metadata": {"name": name, "namespace": regarding.namespace or "default"},
        "type": type,
        "reason": reason,
        "action": action,
        "note": note,
        "eventTime": server.format_now(),
        "regarding": {
            "kind": regarding.kind,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
        },
    }

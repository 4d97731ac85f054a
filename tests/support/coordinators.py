"""Coordinators in one process, over one store in memory: the role of the primary goes from one to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.node import ROLE, Primary, PrimaryElector
from outlive.resources import Cluster, Election, ElectionRecord, MemberRecord, Membership, ObjectMeta, PrimaryRequest
from outlive.runtime import FaultRecorder, FaultSet
from outlive.store import MemoryStore

_replace = msgspec.structs.replace


class SilentStore:
    """A store that is away."""

    def __getattr__(self, _name: str) -> Any:
        async def fail(*_args: object, **_options: object) -> None:
            raise Unavailable("it is away")

        return fail


class Coordinators:
    """Their primaries, faults and tasks, by host."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.faults: dict[str, FaultSet] = {}
        self.primaries: dict[str, Primary] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, host: str, duties: Sequence[Any], **how: Any) -> None:
        ids = SeededIds(Random(len(self.primaries) + 7))
        faults = self.faults[host] = FaultSet(FaultRecorder(self.store, self.clock, "daemon", host), self.clock)
        elector = PrimaryElector(self.store, host, clock=self.clock, ids=ids)
        self.primaries[host] = Primary(
            self.store, host, duties, elector=elector, faults=faults, clock=self.clock, **how
        )

    async def join(self, host: str) -> None:
        record = MemberRecord(machine_id=host, boot_id="1", nonce="first")
        await self.store.create(Membership(metadata=ObjectMeta(name=host), record=record))

    async def start(self) -> None:
        await self.store.create(Cluster(metadata=ObjectMeta(name="default")))
        for host, primary in self.primaries.items():
            self.tasks[host] = asyncio.create_task(primary.run())
            await asyncio.sleep(0.1)
        await self.clock.sleep(5)

    async def record(self) -> ElectionRecord:
        return (await self.store.get(Election, ROLE, fresh=True)).record

    async def ask(self, host: str, number: str = "1") -> None:
        cluster = await self.store.get(Cluster, "default", fresh=True)
        request = PrimaryRequest(id=number, verb="primary", host=host)
        await self.store.replace(_replace(cluster, spec=_replace(cluster.spec, primary=request)))

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

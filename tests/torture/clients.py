"""Concurrent clients that use a store as badly as they may, and write down what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.objects import change
from tests.torture.linearizability import NEVER, Call

from outlive.base.errors import AlreadyExists, Conflict, NotFound, Unavailable, Unknown
from outlive.base.random import Random
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.store import Store


@dataclass
class Histories:
    """What was called on each object, by whom and with what answer."""

    clock: Callable[[], float]
    calls: dict[str, list[Call]] = field(default_factory=dict)
    acknowledged: int = 0
    unknown: int = 0
    ticks: int = 0

    def moment(self) -> float:
        """A time that differs from every other and orders calls that share the clock's."""
        self.ticks += 1
        return self.clock() + self.ticks * 1e-9

    def add(self, name: str, call: Call) -> None:
        self.calls.setdefault(name, []).append(call)


class Client:
    """Reads, creates, swaps and deletes objects of a few names, with nonces of its own."""

    def __init__(self, number: int, store: Store, histories: Histories, random: Random, names: Sequence[str]) -> None:
        self._number = number
        self._store = store
        self._histories = histories
        self._random = random
        self._names = names
        self._known: dict[str, VirtualMachine] = {}
        self._written = 0

    async def run(self, calls: int) -> None:
        """Make so many calls."""
        for _ in range(calls):
            name = self._random.choice(self._names)
            known = self._known.get(name)
            draw = self._random.random()
            if draw < 0.25 or (known is None and draw < 0.5):
                await self._read(name)
            elif known is None:
                await self._create(name)
            elif draw < 0.9:
                await self._swap(name, known)
            else:
                await self._delete(name, known)

    def _nonce(self) -> str:
        self._written += 1
        return f"c{self._number}-{self._written}"

    async def _read(self, name: str) -> None:
        began = self._histories.moment()
        try:
            found: VirtualMachine | None = await self._store.get(VirtualMachine, name, fresh=True)
        except NotFound:
            found = None
        except (Unavailable, Unknown):
            return
        if found is None:
            self._known.pop(name, None)
        else:
            self._known[name] = found
        saw = found.spec.project if found else None
        self._histories.add(name, Call("read", began, self._histories.moment(), saw=saw))

    async def _create(self, name: str) -> None:
        nonce = self._nonce()
        obj = VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(project=nonce))
        await self._call(name, Call("create", self._histories.moment(), NEVER, writes=nonce), self._store.create(obj))

    async def _swap(self, name: str, known: VirtualMachine) -> None:
        nonce = self._nonce()
        call = Call("swap", self._histories.moment(), NEVER, expects=known.spec.project, writes=nonce)
        new = change(known, spec=change(known.spec, project=nonce))
        await self._call(name, call, self._store.replace(new))

    async def _delete(self, name: str, known: VirtualMachine) -> None:
        call = Call("delete", self._histories.moment(), NEVER, expects=known.spec.project)
        version = known.metadata.resource_version
        await self._call(name, call, self._store.delete(known.ref, version=version))

    async def _call(self, name: str, call: Call, awaitable: Any) -> None:
        try:
            answer = await awaitable
        except Unknown:
            self._histories.unknown += 1
            self._histories.add(name, change_call(call, answer="unknown"))
            self._known.pop(name, None)
        except Unavailable:
            return
        except (AlreadyExists, Conflict, NotFound):
            self._known.pop(name, None)
            self._histories.add(name, change_call(call, returned=self._histories.moment(), answer="refused"))
        else:
            self._histories.acknowledged += 1
            self._histories.add(name, change_call(call, returned=self._histories.moment()))
            if isinstance(answer, VirtualMachine):
                self._known[name] = answer
            else:
                self._known.pop(name, None)


def change_call(call: Call, **fields: Any) -> Call:
    return Call(**{**call.__dict__, **fields})


async def torment(
    store: Store, histories: Histories, random: Random, *, clients: int, calls: int, names: Sequence[str]
) -> None:
    """Run so many clients at once."""
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            client = Client(number, store, histories, random.fork(f"client {number}"), names)
            group.create_task(client.run(calls))

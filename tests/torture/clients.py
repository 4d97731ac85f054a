"""Concurrent clients that use a store as badly as they may, and write down what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.objects import change, with_meta
from tests.torture.linearizability import NEVER, Call, State

from outlive.base import AlreadyExists, Conflict, NotFound, Random, Unavailable, Unknown
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.store import Store

FINALIZER = "outlive.dev/torture"
LIFE = "life"
"""A label: the nonce with which the object was created, for as long as it is there."""


def state_of(obj: VirtualMachine) -> State:
    """As the judge of histories knows it."""
    meta = obj.metadata
    return State(obj.spec.project, FINALIZER in meta.finalizers, meta.deletion_timestamp is not None)


@dataclass
class Histories:
    """What was called on each object, by whom and with what answer."""

    clock: Callable[[], float]
    calls: dict[str, list[Call]] = field(default_factory=dict)
    acknowledged: int = 0
    unknown: int = 0
    lives: set[tuple[str, str]] = field(default_factory=set)
    """Life and uid of every object that was seen."""
    marked: int = 0
    """Reads of objects that were deleted and have a finalizer left."""
    ticks: int = 0

    def see(self, obj: VirtualMachine) -> State:
        """What the store answered."""
        self.lives.add((obj.metadata.labels[LIFE], obj.metadata.uid))
        state = state_of(obj)
        self.marked += state.marked
        return state

    def moment(self) -> float:
        """A time that differs from every other and orders calls that share the clock's."""
        self.ticks += 1
        return self.clock() + self.ticks * 1e-9

    def add(self, name: str, call: Call) -> None:
        self.calls.setdefault(name, []).append(call)


class Client:
    """Reads, creates, swaps and deletes objects of a few names, with nonces and at times a finalizer of its own."""

    def __init__(
        self,
        number: int,
        store: Store,
        histories: Histories,
        random: Random,
        names: Sequence[str],
        *,
        finalizers: bool = True,
    ) -> None:
        self._number = number
        self._with_finalizers = finalizers
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
            elif draw < 0.85:
                await self._swap(name, known)
            else:
                await self._delete(name, known)

    def _nonce(self) -> str:
        self._written += 1
        return f"c{self._number}-{self._written}"

    def _finalizers(self, before: tuple[str, ...], changes: float) -> tuple[str, ...]:
        """As they are, or with that probability the other way."""
        if not self._with_finalizers or self._random.random() >= changes:
            return before
        return () if before else (FINALIZER,)

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
        saw = self._histories.see(found) if found else None
        self._histories.add(name, Call("read", began, self._histories.moment(), saw=saw))

    async def _create(self, name: str) -> None:
        nonce = self._nonce()
        meta = ObjectMeta(name=name, labels={LIFE: nonce}, finalizers=self._finalizers((), 0.3))
        obj = VirtualMachine(metadata=meta, spec=VirtualMachineSpec(project=nonce))
        call = Call("create", self._histories.moment(), NEVER, writes=state_of(obj))
        await self._call(name, call, self._store.create(obj))

    async def _swap(self, name: str, known: VirtualMachine) -> None:
        nonce = self._nonce()
        changes = 0.5 if known.metadata.deletion_timestamp else 0.2
        new = with_meta(known, finalizers=self._finalizers(known.metadata.finalizers, changes))
        new = change(new, spec=change(new.spec, project=nonce))
        call = Call("swap", self._histories.moment(), NEVER, expects=state_of(known), writes=state_of(new))
        await self._call(name, call, self._store.replace(new))

    async def _delete(self, name: str, known: VirtualMachine) -> None:
        blind = self._random.random() < 0.5
        call = Call("delete", self._histories.moment(), NEVER, expects=None if blind else state_of(known))
        version = "" if blind else known.metadata.resource_version
        ref = change(known.ref, uid="") if blind else known.ref
        await self._call(name, call, self._store.delete(ref, version=version))

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
            self._known.pop(name, None)
            if isinstance(answer, VirtualMachine):
                state = self._histories.see(answer)
                if state.guarded or not state.marked:  # else it has gone with this very write
                    self._known[name] = answer


def change_call(call: Call, **fields: Any) -> Call:
    return Call(**{**call.__dict__, **fields})


async def torment(
    store: Store,
    histories: Histories,
    random: Random,
    *,
    clients: int,
    calls: int,
    names: Sequence[str],
    first: int = 0,
    finalizers: bool = True,
) -> None:
    """Run so many clients at once, numbered from ``first``."""
    async with asyncio.TaskGroup() as group:
        for number in range(first, first + clients):
            forked = random.fork(f"client {number}")
            client = Client(number, store, histories, forked, names, finalizers=finalizers)
            group.create_task(client.run(calls))

"""A process that writes to a store until it is killed, and says on its output what was acknowledged.

Lines are ``<name> <number>``, each written after the store had answered; the parent believes those alone.
Each object carries its number in three places of two halves, so that half a write would show.

Some objects live and die over and over: they are made with a finalizer, changed, deleted, which marks them, and go when
the finalizer is taken away. Of those the lines are ``<name> <step> <uid>``; see ``step_of``.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.conformance.objects import change, with_meta

from outlive.base import SystemClock, SystemIds, Unavailable
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.store.sqlite import SqliteStore

WRITERS = 16
LIVES = 8
MORTAL = "with-finalizer-"
"""What the names of those begin with that live and die."""
FINALIZER = "outlive.dev/torture"


def numbered(obj: VirtualMachine, number: int) -> VirtualMachine:
    """The object with the number in its labels and its spec, and a body whose length follows from it."""
    text = str(number)
    return change(
        obj,
        metadata=change(obj.metadata, labels={"number": text}),
        spec=change(obj.spec, project=text, extra_specs={"body": text * (number % 400)}),
    )


def whole(obj: VirtualMachine) -> int:
    """The object's number; ``AssertionError`` if its places do not agree."""
    number = int(obj.spec.project or 0)
    assert numbered(obj, number) == obj or number == 0, f"half a write: {obj}"
    return number


async def write(store: SqliteStore, name: str) -> None:
    try:
        page = await store.list(VirtualMachine)
        obj = next((one for one in page.items if one.name == name), None)
        if obj is None:
            obj = await store.create(VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec()))
        number = whole(obj)
        while True:
            number += 1
            obj = await store.replace(numbered(obj, number))
            os.write(1, f"{name} {number}\n".encode())
    except Unavailable as error:
        os.write(1, f"full {error.message}\n".encode())


def step_of(obj: VirtualMachine | None) -> int:
    """How often the object was written by then, with all its lives: made, changed, marked, gone, and made again.

    Nothing says how many lives what is gone had; they are counted from there.
    """
    return 0 if obj is None else whole(obj) + (obj.metadata.deletion_timestamp is not None)


async def live(store: SqliteStore, name: str) -> None:
    """Write the object's lives, one step after the other."""
    page = await store.list(VirtualMachine)
    obj = next((one for one in page.items if one.name == name), None)
    step, uid = step_of(obj), obj.metadata.uid if obj is not None else ""
    while True:
        os.write(1, f"{name} {step} {uid}\n".encode())
        step += 1
        match step % 4:
            case 1:
                new = VirtualMachine(metadata=ObjectMeta(name=name, finalizers=(FINALIZER,)), spec=VirtualMachineSpec())
                obj = await store.create(numbered(new, step))
                uid = obj.metadata.uid
            case 2:
                assert obj is not None
                obj = await store.replace(numbered(obj, step))
            case 3:
                assert obj is not None
                await store.delete(obj.ref)
            case _:
                marked = await store.get(VirtualMachine, name)
                await store.replace(with_meta(numbered(marked, step), finalizers=()))


async def main(directory: str, max_bytes: int) -> None:
    store = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds(), max_bytes=max_bytes)
    os.write(1, b"open 0\n")
    lives = [asyncio.ensure_future(live(store, f"{MORTAL}{number}")) for number in range(LIVES)]
    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(write(store, f"vm-{number}"))
    for one in lives:
        one.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    await store.close()
    os.write(1, b"closed 0\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

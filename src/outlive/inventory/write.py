"""Carries out a planned import, in order.

Objects are written in small windows, so that a store can commit several with one sync; the next window begins when the
one before is whole. A store failure midway therefore leaves a prefix of whole windows and at most one that is not, and
raises what the store raised. Repeating the import completes it, because what is already there is not written again.
An unknown outcome is not judged here: the repeated import reads what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from outlive.base import AlreadyExists, Conflict, NotFound, OutliveError
from outlive.inventory.check import Existing
from outlive.inventory.plan import ImportPlan, PlannedWrite
from outlive.node.vm import deletion_of
from outlive.resources import Flavor, Hypervisor, Membership, Resource, VirtualMachine
from outlive.runtime import OrderedTaskGroup
from outlive.store import Store, list_all

REPEAT = "repeat the import: it completes what is missing"
WINDOW = 16
"""Objects that are written at the same time."""


async def read_existing(store: Store) -> Existing:
    """Everything that an import compares with."""
    return Existing(
        hosts={item.name: item async for item in list_all(store, Hypervisor)},
        vms={item.name: item async for item in list_all(store, VirtualMachine)},
        flavors={item.name: item async for item in list_all(store, Flavor)},
        members=frozenset([item.name async for item in list_all(store, Membership)]),
    )


async def apply_import(store: Store, plan: ImportPlan, progress: Callable[[int], None] = lambda done: None) -> int:
    """Write everything; returns the number of objects written. ``progress`` gets that number after each window."""
    done = 0
    for window in _split_windows(plan.writes):
        failures: dict[int, OutliveError] = {}
        async with OrderedTaskGroup() as group:
            for index, write in enumerate(window):
                group.create_task(_attempt(store, write, index, failures), name=f"import {write.object.name}")
        if failures:
            first = min(failures)
            error, item = failures[first], window[first].object
            written = done + len(window) - len(failures)
            message = f"{error.message}; {written} of {len(plan.writes)} objects are written"
            raise type(error)(message, place=f"{item.kind()} {item.name!r}", remedy=REPEAT) from error
        done += len(window)
        progress(done)
    return done


def _split_windows(writes: tuple[PlannedWrite, ...]) -> Iterator[list[PlannedWrite]]:
    """The writes in order, in windows of one kind and verb."""
    window: list[PlannedWrite] = []
    for write in writes:
        sort = (write.verb, type(write.object))
        if window and (len(window) == WINDOW or (window[0].verb, type(window[0].object)) != sort):
            yield window
            window = []
        window.append(write)
    if window:
        yield window


async def _attempt(store: Store, write: PlannedWrite, index: int, failures: dict[int, OutliveError]) -> None:
    try:
        await _apply(store, write)
    except OutliveError as error:
        failures[index] = error


async def _apply(store: Store, write: PlannedWrite) -> None:
    if write.verb == "delete":
        meta = write.object.metadata
        try:
            await store.delete(write.object.ref, uid=meta.uid, version=meta.resource_version)
        except NotFound:
            return
        return
    wanted = write.object
    if isinstance(wanted, VirtualMachine) and wanted.deleting:
        said = deletion_of(wanted)
        raise AlreadyExists(said.text, remedy=said.remedy)
    if write.verb == "create":
        try:
            written = await store.create(wanted)
        except AlreadyExists as error:
            raise Conflict("somebody else created it meanwhile", remedy=REPEAT) from error
        if write.status:
            await store.replace_status(_with_version(wanted, written))
        return
    halves = [half for half, differs in (("spec", write.spec), ("status", write.status)) if differs]
    for half in reversed(halves) if write.status_first else halves:
        replaced = await (store.replace(wanted) if half == "spec" else store.replace_status(wanted))
        wanted = _with_version(wanted, replaced)


def _with_version(wanted: Resource, written: Resource) -> Resource:
    meta = written.metadata
    new = msgspec.structs.replace(wanted.metadata, uid=meta.uid, resource_version=meta.resource_version, name=meta.name)
    return msgspec.structs.replace(wanted, metadata=new)

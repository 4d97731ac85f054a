"""Carries out a planned import, one object after the other.

A store failure midway leaves a prefix of whole objects and raises what the store raised; repeating the import
completes it, because what is already there is not written again. An unknown outcome is not judged here: the
repeated import reads what came of it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlive.base.errors import AlreadyExists, Conflict, NotFound, OutliveError
from outlive.resources import Flavor, Hypervisor, Resource, VirtualMachine
from outlive.roles.importing import ImportPlan, Write
from outlive.roles.inventory import Existing
from outlive.store import Store, list_all

REPEAT = "repeat the import: it completes what is missing"


async def read_existing(store: Store) -> Existing:
    """Everything that an import compares with."""
    return Existing(
        hosts={item.name: item async for item in list_all(store, Hypervisor)},
        vms={item.name: item async for item in list_all(store, VirtualMachine)},
        flavors={item.name: item async for item in list_all(store, Flavor)},
    )


async def apply_import(store: Store, plan: ImportPlan, progress: Callable[[int], None] = lambda done: None) -> int:
    """Write everything; returns the number of objects written. ``progress`` gets that number after each."""
    for done, write in enumerate(plan.writes):
        try:
            await _apply(store, write)
        except OutliveError as error:
            place = f"{write.object.kind()} {write.object.name!r}"
            message = f"{error.message}; {done} of {len(plan.writes)} objects are written"
            raise type(error)(message, place=place, remedy=REPEAT) from error
        progress(done + 1)
    return len(plan.writes)


async def _apply(store: Store, write: Write) -> None:
    if write.verb == "delete":
        meta = write.object.metadata
        try:
            await store.delete(write.object.ref, uid=meta.uid, version=meta.resource_version)
        except NotFound:
            return
        return
    wanted = write.object
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

"""The tree of an ensemble as one value: all znodes below the chroot but those that go with a session.

What ZooKeeper and others keep for themselves at the root is left alone.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import msgspec
from kazoo.security import ACL

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import Refused, Unavailable
from outlive.resources import KINDS
from outlive.store.schema.lock_tries import LockAnswer
from outlive.store.schema.state import SchemaState, decode_state
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH
from outlive.store.zookeeper.locks import StoreLock
from outlive.store.zookeeper.requests import Operation, create, put
from outlive.store.zookeeper.store import ZooKeeperStore

FOREIGN: Final = ("/zookeeper", "/patroni")
"""What others keep at the root."""
OPERATIONS: Final = 500
"""Of one transaction at most."""
TRANSACTION_BYTES: Final = 400_000
"""Data of one transaction at most."""
LEVEL: Final = 256
"""Znodes that are read together."""
LOCK_S: Final = 30.0
"""How long to wait for the end of a change of the schema."""


class TreeFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tree."""

    version: int
    """The storage schema by which it is written."""
    taken_at: datetime
    """When it was read, by the clock of who read it."""
    nodes: dict[str, str]
    """Path → data in base64, parents first."""


async def dump_tree(store: ZooKeeperStore, *, clock: Clock) -> TreeFile:
    """Read the tree. It is no snapshot: what is written meanwhile may be in it or not, object by object."""
    client, layout = store.client, await store.layout()
    locks = layout.base("schema.locks")
    await client.ensure(locks, await client.get_acl(SCHEMA_PATH))
    lock = StoreLock(client, locks, owner=f"backup-{id(store)}-{clock.now()}", shared=True, clock=clock)
    if (await lock.acquire(LOCK_S)).result is not LockAnswer.ACQUIRED:
        raise Unavailable("the storage schema is being changed", remedy="try again when outlive schema status says so")
    try:
        state = await _idle_state(client)
        nodes: dict[str, str] = {}
        acls = {layout.objects(kind) for kind in filter(layout.keeps, KINDS.values())}
        async for path, data in _walk(client):
            # With which ACL a kind's objects are made belongs to the ensemble, whose users have passwords of their own.
            nodes[path] = "" if path in acls else base64.b64encode(data).decode()
        return TreeFile(version=state.version, taken_at=as_datetime(clock.now()), nodes=nodes)
    finally:
        await lock.release()


async def restore_tree(store: ZooKeeperStore, found: TreeFile) -> int:
    """Replace the tree; the number of znodes. ``Refused`` for a file of another schema than the tree's."""
    client = store.client
    state = await _idle_state(client)
    if found.version != state.version:
        raise Refused(
            f"the file is of storage schema {found.version}, and the tree of {state.version}",
            remedy=f"bring the cluster to schema {found.version} first: outlive schema upgrade --to {found.version}",
        )
    layout = await store.layout()
    kept = {layout.objects(kind) for kind in filter(layout.keeps, KINDS.values())}
    there = {path: None async for path, _ in _walk(client)}
    surplus = [path for path in there if path not in found.nodes and path not in kept]
    await client.delete_many(sorted(surplus, key=lambda path: -path.count("/")))
    operations: list[tuple[Operation, int]] = []
    acls: dict[str, list[ACL]] = {}
    for path in sorted(found.nodes, key=lambda one: (one.count("/"), one)):
        data = base64.b64decode(found.nodes[path])
        if path in there and path in kept:
            continue
        if path in there:
            operations.append((put(path, data), len(data)))
            continue
        above = path.rpartition("/")[0] or "/"
        acls[path] = acls.get(above) or await client.get_acl(above)
        operations.append((create(path, data, acls[path]), len(data)))
    part: list[Operation] = []
    size = 0
    for operation, size_bytes in operations:
        if part and (len(part) == OPERATIONS or size + size_bytes > TRANSACTION_BYTES):
            await client.commit(part)
            part, size = [], 0
            await asyncio.sleep(0)
        part.append(operation)
        size += size_bytes
    if part:
        await client.commit(part)
    return len(operations)


async def _idle_state(client: ZooKeeperClient) -> SchemaState:
    found = await client.get(SCHEMA_PATH, fresh=True)
    if found is None:
        raise Unavailable(f"{client.access.place} holds no store of Outlive", remedy="correct chroot")
    state = decode_state(found[0], SCHEMA_PATH)
    if state.moving is not None:
        raise Unavailable("the storage schema is being changed", remedy="try again when outlive schema status says so")
    return state


async def _walk(client: ZooKeeperClient) -> AsyncIterator[tuple[str, bytes]]:
    """Every znode but the root with its data, parents first."""
    level = ["/"]
    while level:
        following: list[str] = []
        for start in range(0, len(level), LEVEL):
            part = level[start : start + LEVEL]
            children = await client.children_many(part)
            for path, found, names in zip(part, await client.get_many(part), children, strict=True):
                if found is None or found[1].ephemeralOwner:
                    continue
                if path != "/":
                    yield path, found[0]
                below = [f"{path.rstrip('/')}/{name}" for name in names or ()]
                following += [one for one in below if one not in FOREIGN]
        level = following

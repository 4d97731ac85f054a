"""The tree of an ensemble as one value: all znodes below the chroot but those that go with a session.

What ZooKeeper and others keep for themselves at the root is left alone. What counts in one ensemble only is left out:
entries of logs, whose numbers the server counts, and the versions that moved objects kept.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import msgspec
from kazoo.security import ACL

from outlive.base import BadInput, Clock, Refused, as_datetime
from outlive.resources import KINDS
from outlive.store.schema.state import SchemaState, decode_state, split_moved
from outlive.store.zookeeper.client import ZooKeeperClient
from outlive.store.zookeeper.layout import SCHEMA_PATH, TreeLayout, is_entry
from outlive.store.zookeeper.locks import hold_schema
from outlive.store.zookeeper.requests import Operation, create, replace_data
from outlive.store.zookeeper.store import ZooKeeperStore

FOREIGN: Final = ("/zookeeper", "/patroni")
"""What others keep at the root."""
OPERATIONS: Final = 500
"""Of one transaction at most."""
TRANSACTION_BYTES: Final = 400_000
"""Data of one transaction at most."""
LEVEL: Final = 256
"""Znodes that are read together."""


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
    async with hold_schema(store.client, store.schema, clock=clock) as layout:
        nodes: dict[str, str] = {}
        acls = {layout.kind_path(kind) for kind in filter(layout.has_kind, KINDS.values())}
        async for path, data in _walk_tree(store.client):
            # With which ACL a kind's objects are made belongs to the ensemble, whose users have passwords of their own.
            if not is_entry(path):
                nodes[path] = "" if path in acls else base64.b64encode(split_moved(data)[0]).decode()
        return TreeFile(version=layout.document.version, taken_at=as_datetime(clock.now()), nodes=nodes)


async def restore_tree(store: ZooKeeperStore, found: TreeFile) -> int:
    """Replace the tree; the number of znodes. ``BadInput`` for a file that is no whole tree, ``Refused`` for one of
    another schema than the tree's: nothing is written then.

    A process that ends in the middle leaves a part of it, which the next one completes.
    """
    wanted = _decode_nodes(found)
    async with hold_schema(store.client, store.schema, clock=store.clock) as layout:
        return await _restore(store.client, layout, found.version, wanted)


def _decode_nodes(found: TreeFile) -> dict[str, bytes]:
    """The znodes that count in every ensemble. ``BadInput`` names one that cannot be."""
    wanted: dict[str, bytes] = {}
    for path, text in found.nodes.items():
        above = path.rpartition("/")[0]
        if not path.startswith("/") or path.endswith("/") or (above and above not in found.nodes):
            raise BadInput("is no path of a znode whose parent is there", place=path[:200], remedy=_NO_TREE)
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise BadInput("its data is no base64", place=path[:200], remedy=_NO_TREE) from None
        if not is_entry(path):
            wanted[path] = split_moved(data)[0]
    if decode_state(wanted.get(SCHEMA_PATH, b""), SCHEMA_PATH) != SchemaState(version=found.version):
        raise BadInput(f"does not say {found.version}, as the file does", place=SCHEMA_PATH, remedy=_NO_TREE)
    return wanted


_NO_TREE: Final = "take a file as outlive schema backup has written it"


async def _restore(client: ZooKeeperClient, layout: TreeLayout, version: int, wanted: dict[str, bytes]) -> int:
    if version != layout.document.version:
        raise Refused(
            f"the file is of storage schema {version}, and the tree of {layout.document.version}",
            remedy=f"bring the cluster to schema {version} first: outlive schema upgrade --to {version}",
        )
    kept = {layout.kind_path(kind) for kind in filter(layout.has_kind, KINDS.values())}
    there = {path async for path, _ in _walk_tree(client)}
    surplus = [path for path in there.difference(wanted) if path not in (*kept, layout.base_path("schema.locks"))]
    await client.delete_many(sorted(surplus, key=lambda path: -path.count("/")))
    operations: list[tuple[Operation, int]] = []
    acls: dict[str, list[ACL]] = {}
    for path in sorted(wanted, key=lambda one: (one.count("/"), one)):
        data = wanted[path]
        if path in there and path in kept:
            continue
        if path in there:
            operations.append((replace_data(path, data), len(data)))
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


async def _walk_tree(client: ZooKeeperClient) -> AsyncIterator[tuple[str, bytes]]:
    """Every znode but the root with its data, parents first."""
    level = ["/"]
    while level:
        following: list[str] = []
        for start in range(0, len(level), LEVEL):
            part = level[start : start + LEVEL]
            children = await client.list_children(part)
            for path, found, names in zip(part, await client.get_many(part), children, strict=True):
                if found is None or found[1].ephemeralOwner:
                    continue
                if path != "/":
                    yield path, found[0]
                below = [f"{path.rstrip('/')}/{name}" for name in names or ()]
                following += [one for one in below if one not in FOREIGN]
        level = following

"""A storage schema that no release has, and clients that end at any write: for tests of changes between schemas."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from outlive.resources import codec
from outlive.store.schema import SchemaDocument, load_document
from outlive.store.zookeeper import Found, Operation, ZooKeeperClient

MOVED = ("memberships", "virtualmachines", "elections")
NEXT_VERSION = "v1alpha2"


def next_document() -> SchemaDocument:
    """Schema 2: three kinds lie elsewhere, a path is new, one is gone, and flavors are stored in another version."""
    raw = copy.deepcopy(msgspec.to_builtins(load_document(1)))
    base = raw["zookeeper"]["base"]
    for section in ("objects", "names", "bumps"):
        for plural in MOVED:
            base[f"{section}.{plural}"] = f"/moved/{section}/{plural}"
    base |= {"extra": "/extra", "moved": "/moved"}
    base |= {f"moved.{section}": f"/moved/{section}" for section in ("objects", "names", "bumps")}
    for section in ("objects", "names", "bumps"):
        del base[f"{section}.knowledges"]
    raw["version"], raw["kinds"]["flavors"] = 2, NEXT_VERSION
    return msgspec.convert(raw, SchemaDocument, strict=False)


DOCUMENTS = {1: load_document(1), 2: next_document()}


def document(version: int) -> SchemaDocument:
    """As ``load_document``, with schema 2."""
    return DOCUMENTS[version]


@contextmanager
def flavor_conversions() -> Iterator[None]:
    """Flavors of the next version have a colour."""

    def forth(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "colour": "red"}

    def back(found: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in found.items() if name != "colour"}

    ways = {("flavors", "v1alpha1", NEXT_VERSION): forth, ("flavors", NEXT_VERSION, "v1alpha1"): back}
    codec.CONVERSIONS.update(ways)
    try:
        yield
    finally:
        for way in ways:
            del codec.CONVERSIONS[way]


class Cut(Exception):
    """The process ended here."""


class CutClient(ZooKeeperClient):
    """Ends before the write of that number is sent, or waits there for ``resumed``."""

    cut_at = 0
    writes = 0
    resumed: asyncio.Event | None = None

    async def commit(self, operations: Sequence[Operation]) -> list[Any]:
        self.writes += 1
        if self.writes == self.cut_at and self.resumed is not None:
            await self.resumed.wait()
            return await super().commit(operations)
        if self.writes == self.cut_at:
            raise Cut
        return await super().commit(operations)


async def dump(client: ZooKeeperClient) -> dict[str, bytes]:
    """All znodes with their data."""
    found: dict[str, bytes] = {}
    level = ["/"]
    while level:
        nodes: list[Found | None] = await client.get_many(level)
        found |= {path: node[0] for path, node in zip(level, nodes, strict=True) if node is not None}
        children = await client.list_children(level)
        level = [
            f"{path.rstrip('/')}/{name}" for path, names in zip(level, children, strict=True) for name in names or ()
        ]
    return found

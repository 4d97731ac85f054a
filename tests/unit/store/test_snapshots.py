"""A store is read as it is at one moment, without anybody being kept from it."""

from __future__ import annotations

from pathlib import Path

from outlive.base import SystemClock, SystemIds
from outlive.resources import Cluster, ObjectMeta
from outlive.store import list_all
from outlive.store.sqlite import SqliteStore, read_snapshot


def cluster(name: str) -> Cluster:
    return Cluster(metadata=ObjectMeta(name=name))


async def names(directory: Path) -> list[str]:
    found = await read_snapshot(directory, clock=SystemClock(), ids=SystemIds())
    return [one.name async for one in list_all(found, Cluster)]


async def test_a_store_is_read_while_a_server_has_it_and_after_it_has_gone(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds())
    await store.create(cluster("a"))
    assert await names(tmp_path) == ["a"]
    await store.create(cluster("b"))
    assert await names(tmp_path) == ["a", "b"]
    await store.close()
    assert await names(tmp_path) == ["a", "b"]


async def test_who_reads_keeps_no_server_from_starting(tmp_path: Path) -> None:
    first = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds())
    await first.close()
    read = await read_snapshot(tmp_path, clock=SystemClock(), ids=SystemIds())
    server = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds())
    assert read.incarnation == server.incarnation
    await server.close()

"""One object that is not understood holds up nobody: no listing, no observer, no cache."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.conformance.objects import vm, with_meta, with_project

from outlive.base import LoopClock, NotUnderstood, Random, SeededIds
from outlive.resources import VirtualMachine, encode
from outlive.runtime import Informer
from outlive.store import Malformed, MemoryStore, Synced, Upsert, list_all


async def with_nonsense() -> MemoryStore:
    """Three VMs, of which the one in the middle is of a newer version."""
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    for name in ("a", "b", "c"):
        await store.create(vm(name))
    spoil(store, "b")
    return store


def spoil(store: MemoryStore, name: str) -> None:
    table = store._tables.table_of(VirtualMachine)
    document = json.loads(table.get(name) or b"")
    document["spec"]["migrationMultifd"] = 999
    table.put(name, json.dumps(document, separators=(",", ":")).encode())


async def test_a_listing_has_the_others_and_names_what_is_wrong() -> None:
    store = await with_nonsense()
    page = await store.list(VirtualMachine)
    assert [one.name for one in page.items] == ["a", "c"]
    assert [(one.ref.kind, one.ref.name) for one in page.malformed] == [("VirtualMachine", "b")]
    assert "spec.migrationMultifd" in page.malformed[0].why
    assert [one.name async for one in list_all(store, VirtualMachine)] == ["a", "c"]
    with pytest.raises(NotUnderstood, match=r"VirtualMachine/b is not understood.*migrationMultifd"):
        [one async for one in list_all(store, VirtualMachine, whole=True)]
    with pytest.raises(NotUnderstood, match="VirtualMachine/b"):
        await store.get(VirtualMachine, "b")


async def test_pages_count_what_is_malformed_and_leave_out_nobody() -> None:
    store, token, found = await with_nonsense(), "", list[str]()
    for _ in range(3):
        page = await store.list(VirtualMachine, limit=1, token=token)
        found += [*(one.name for one in page.items), *(f"!{one.ref.name}" for one in page.malformed)]
        token = page.token
    assert found == ["a", "!b", "c"]


async def test_an_observer_gets_the_others_and_every_change_of_theirs() -> None:
    store = await with_nonsense()
    stream = store.observe(VirtualMachine)
    seen = [await anext(stream) for _ in range(4)]
    assert [type(one) for one in seen] == [Upsert, Malformed, Upsert, Synced]
    changed = await store.replace(with_project(await store.get(VirtualMachine, "c"), "q"))
    assert await anext(stream) == Upsert(changed)
    await stream.aclose()


async def test_a_cache_keeps_what_it_understood_last_and_says_what_is_wrong() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    good = {name: await store.create(vm(name)) for name in ("a", "b")}
    informer = Informer(store, VirtualMachine, clock=LoopClock(), random=Random(1))
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    spoil(store, "b")
    store._observers.relist()
    await asyncio.sleep(1.0)
    assert informer.get("b") == good["b"], "its last good state"
    assert "migrationMultifd" in informer.malformed["b"]
    changed = await store.replace(with_project(good["a"], "q"))
    await asyncio.sleep(0.1)
    assert informer.get("a") == changed
    mended = encode(with_meta(with_project(good["b"], "mended"), resource_version="900"))
    store._tables.table_of(VirtualMachine).put("b", mended)
    store._observers.relist()
    await asyncio.sleep(1.0)
    assert informer.get("b").spec.project == "mended"
    assert informer.malformed == {}
    running.cancel()

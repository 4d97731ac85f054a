"""Real daemons on an ensemble whose data is put back to an earlier time, and nobody says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.support.hosts import Host
from tests.support.loops import run_real
from tests.support.zookeeper import TestEnsemble, access_file, running_controller, zookeeper_store

from outlive.base import Unavailable
from outlive.resources import CLUSTER, Cluster, MemberRecord, Membership
from outlive.store import list_all
from outlive.store.zookeeper import ZooKeeperAccess, ZooKeeperStore

pytestmark = [pytest.mark.component("zookeeper"), pytest.mark.slow]
T = TypeVar("T")
HOSTS = ("co-1", "co-2")
LIMIT_S = 110.0


def coordinator(folder: Path, name: str, file: Path) -> Host:
    host = Host(folder / name, name, "http://127.0.0.1:1", folder / "none")
    host.sections["server"] = {"store": "zookeeper", "zookeeper": str(file)}
    host.sections["host"]["mode"] = "coordinator"
    host.configure()
    return host


def test_hosts_find_that_their_ensemble_went_back_and_the_cluster_is_paused_until_all_have_registered(
    tmp_path: Path,
) -> None:
    ensemble = TestEnsemble(1)
    with ExitStack() as stack:
        stack.callback(ensemble.remove)
        ensemble.start()
        access = replace(ensemble.access("/restored"), session_s=1.0)
        file = access_file(tmp_path / "zookeeper.yaml", access)
        run_real(prepared(access))
        stack.enter_context(running_controller(tmp_path / "controller", file))
        hosts = [stack.enter_context(closing(coordinator(tmp_path, name, file))).start() for name in HOSTS]
        for host in hosts:
            host.ready()
        run_real(story(ensemble, access))
        # who joins first finds that out; a host that joins once the cluster is paused knows it from there
        assert any(host.events("membership.store_went_back") for host in hosts)
        for host in hosts:
            assert len(host.events("membership.entered")) > 1, host.name


async def prepared(access: ZooKeeperAccess) -> None:
    store = zookeeper_store(access)
    await store.prepare()
    await store.close()


async def story(ensemble: TestEnsemble, access: ZooKeeperAccess) -> None:
    store = zookeeper_store(access)
    try:
        async with asyncio.timeout(LIMIT_S):
            before = (await store.get(Cluster, CLUSTER)).status
            copy = await asyncio.to_thread(ensemble.take_snapshot)
            renewed = await until(lambda: members(store), lambda found: all(one.seq > 3 for one in found.values()))
            await asyncio.to_thread(ensemble.go_back, copy)
            paused = (
                await until(
                    lambda: store.get(Cluster, CLUSTER, fresh=True),
                    lambda found: found.status.store_incarnation != before.store_incarnation,
                )
            ).status
            assert paused.former_incarnations == (before.store_incarnation,)
            assert paused.pause is not None
            await until(lambda: store.get(Cluster, CLUSTER), lambda found: found.status.pause is None)
            after = await members(store)
            assert {name: one.state for name, one in after.items()} == dict.fromkeys(HOSTS, "Held")
            assert {one.incarnation for one in after.values()} == {paused.store_incarnation}
            assert all(after[name].epoch > renewed[name].epoch for name in HOSTS), after
    finally:
        await store.close()


async def until(read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
    """What is read once it is so; while the ensemble is away nothing is."""
    while True:
        with suppress(Unavailable):
            found = await read()
            if is_so(found):
                return found
        await asyncio.sleep(0.05)


async def members(store: ZooKeeperStore) -> dict[str, MemberRecord]:
    return {one.name: one.record async for one in list_all(store, Membership)}

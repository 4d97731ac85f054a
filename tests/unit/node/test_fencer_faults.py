"""Faults are raised once, refreshed, ended, and never in maintenance; health is what they leave."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import site
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import Unavailable
from outlive.node.faults import REFRESH_S, FaultRecorder
from outlive.resources import Fault, ObjectRef
from outlive.simulation.field_writers import WriterStore

HOST = ObjectRef(kind="Hypervisor", name="a")


def _recorder(s) -> FaultRecorder:
    return FaultRecorder(WriterStore(s.store, writer="fencer"), LoopClock(), "fencer")


def test_fault_is_written_once_and_refreshed_after_a_minute():
    async def story():
        async with site() as s:
            faults = _recorder(s)
            await faults.raise_("host-dead", HOST, "a is dead", remedy="look", delta=50)
            first = await s.store.get(Fault, "host-dead.a")
            await asyncio.sleep(10)
            await faults.raise_("host-dead", HOST, "a is dead", remedy="look", delta=50)
            assert await s.store.get(Fault, "host-dead.a") == first
            await asyncio.sleep(REFRESH_S)
            await faults.raise_("host-dead", HOST, "a is dead", remedy="look", delta=50)
            again = await s.store.get(Fault, "host-dead.a")
            assert again.last_seen > first.last_seen
            assert again.first_seen == first.first_seen

    run(story())


def test_fault_that_comes_again_after_its_end_is_not_acknowledged_any_more():
    async def story():
        async with site() as s:
            faults = _recorder(s)
            await faults.raise_("host-dead", HOST, "a is dead", delta=50)
            kept = await s.store.get(Fault, "host-dead.a")
            await s.store.replace(msgspec.structs.replace(kept, acknowledged=True))
            await faults.end("host-dead", HOST)
            ended = await s.store.get(Fault, "host-dead.a")
            assert (ended.ended, ended.acknowledged) == (True, True)
            await faults.raise_("host-dead", HOST, "a is dead", delta=50)
            again = await s.store.get(Fault, "host-dead.a")
            assert (again.ended, again.acknowledged) == (False, False)

    run(story())


def test_acknowledgement_survives_a_refresh():
    async def story():
        async with site() as s:
            faults = _recorder(s)
            await faults.raise_("host-dead", HOST, "a is dead", delta=50)
            kept = await s.store.get(Fault, "host-dead.a")
            await s.store.replace(msgspec.structs.replace(kept, acknowledged=True))
            await faults.raise_("host-dead", HOST, "a is quite dead", delta=50)
            again = await s.store.get(Fault, "host-dead.a")
            assert (again.message, again.acknowledged) == ("a is quite dead", True)

    run(story())


def test_ending_a_fault_that_never_was_changes_nothing():
    async def story():
        async with site() as s:
            await _recorder(s).end("host-dead", HOST)
            assert await s.faults() == {}

    run(story())


def test_nothing_is_raised_in_maintenance_of_the_cluster_or_the_host():
    async def story():
        async with site() as s:
            await s.host("a")
            await s.host("b")
            faults = _recorder(s)
            await s.wish("a", maintenance=True)
            await faults.raise_("host-dead", HOST, "a is dead")
            assert await s.faults() == {}
            await s.policy(cluster={"maintenance": True})
            await faults.raise_("host-dead", ObjectRef(kind="Hypervisor", name="b"), "b is dead")
            assert await s.faults() == {}
            await s.policy()
            await faults.raise_("host-dead", ObjectRef(kind="Hypervisor", name="b"), "b is dead")
            assert list(await s.faults()) == ["host-dead.b"]

    run(story())


class _Away:
    async def get(self, *_args, **_options):
        raise Unavailable("the store is away")


def test_store_that_is_away_loses_a_fault_and_stops_nobody():
    async def story():
        faults = FaultRecorder(_Away(), LoopClock(), "fencer")
        await faults.raise_("host-dead", HOST, "a is dead")
        await faults.end("host-dead", HOST)

    run(story())


@pytest.mark.slow
def test_that_a_host_is_dead_is_told_although_the_fencer_that_proved_it_dies_right_then():
    async def story():
        async with site() as s:
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            s.watch("a")
            s.watch("b")
            await asyncio.sleep(20)
            s.power.controllers["d"].mode = "dead"
            s.silence("d")
            await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            await asyncio.sleep(3)
            assert "fence-unconfirmed.d" in await s.faults()
            s.power.controllers["d"].mode = "ok"
            while (await s.record("d")).dead_through == 0:
                await LoopClock().sleep(0.001)
            by = (await s.record("d")).fence.by
            s.kill(by)
            s.silence(by)
            await asyncio.sleep(30)
            found = await s.faults()
            assert "power" in found["host-dead.d"].message
            assert "fence-unconfirmed.d" not in found

    run(story())

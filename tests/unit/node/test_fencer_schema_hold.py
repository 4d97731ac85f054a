"""While the storage schema changes nobody is condemned, for five minutes at most; a fence under way goes on."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest
from msgspec.structs import replace
from tests.support.fencing import Site, site

from outlive.base import LoopClock, as_datetime
from outlive.node.fencing import HostSettings
from outlive.resources import Cluster, ClusterSchema, ClusterStatus, SchemaHold

BEFORE_S = 20.0
HOSTS = ("a", "b", "c", "d")


async def hold(s: Site, since: datetime | None) -> None:
    """Write a hold, or take it back."""
    found = await s.store.get(Cluster, "default")
    held = None if since is None else SchemaHold(to=2, since=since, by="me")
    status = replace(found.status, schema=ClusterSchema(version=1, hold=held))
    await s.store.replace_status(replace(found, status=status))


def now() -> datetime:
    return as_datetime(LoopClock().now())


async def watched(s: Site) -> None:
    for name in HOSTS:
        await s.host(name)
    await s.policy()
    s.watch("a")
    s.watch("b")
    await asyncio.sleep(BEFORE_S)


@pytest.mark.slow
async def test_a_silent_host_is_not_condemned_before_the_hold_is_taken_back() -> None:
    async with site() as s:
        await watched(s)
        await hold(s, now())
        s.silence("d")
        await asyncio.sleep(200)
        assert (await s.record("d")).state == "Held"
        await hold(s, None)
        await s.until("d", lambda record: record.state == "Revoked")


@pytest.mark.slow
async def test_a_hold_that_nobody_takes_back_ends_after_five_minutes() -> None:
    async with site() as s:
        await watched(s)
        await hold(s, now())
        s.silence("d")
        await asyncio.sleep(299)
        assert (await s.record("d")).state == "Held"
        await s.until("d", lambda record: record.state == "Revoked")


@pytest.mark.slow
async def test_a_fence_under_way_goes_on_to_its_end() -> None:
    async with site() as s:
        await watched(s)
        s.silence("d")
        await s.until("d", lambda record: record.state == "Revoked")
        await hold(s, now())
        began = LoopClock().monotonic()
        await s.until("d", lambda record: record.dead_through == record.epoch)
        assert LoopClock().monotonic() - began < 120.0


def test_the_hold_is_one_reason_among_those_that_spare_a_host_and_no_maintenance() -> None:
    at = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
    cluster = Cluster(status=ClusterStatus(schema=ClusterSchema(hold=SchemaHold(to=2, since=at))))
    settings = HostSettings(cluster, None)
    assert settings.explain_spared(at.timestamp() + 10) == "the storage schema changes to 2"
    assert settings.active_maintenance(at.timestamp() + 10) == "", "so what was condemned is powered off"
    assert settings.explain_spared(at.timestamp() + 300) == ""

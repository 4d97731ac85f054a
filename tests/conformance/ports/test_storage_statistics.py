"""What every driver keeps that says how a storage cluster does (``StorageStatisticsPort``)."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.conformance.claims import claims_of
from tests.conformance.ports.harness import StatisticsHarness
from tests.conformance.ports.real_ceph import STATISTICS

from outlive.base.errors import Unavailable
from outlive.node.ports import StorageReport, StorageStatisticsPort
from outlive.resources import check_name
from outlive.resources.meta import object_name

claim = claims_of([STATISTICS])
TRIES = 20


async def whole(port: StorageStatisticsPort) -> StorageReport:
    """A round in which everything was answered; on a busy machine some are not."""
    for _ in range(TRIES):
        report = await port.collect()
        if not report.cluster.missing:
            return report
    raise AssertionError(report.cluster.missing)


@claim
async def test_a_round_says_how_the_cluster_its_daemons_and_its_pools_do(h: StatisticsHarness) -> None:
    port = h.driver()
    check_name(port.cluster())
    report = await whole(port)
    cluster = report.cluster
    assert cluster.id
    assert cluster.health != "unknown"
    assert cluster.text
    assert cluster.total_bytes >= cluster.used_bytes >= 0
    assert cluster.daemons == cluster.daemons_up == cluster.daemons_in == len(report.daemons) > 0
    assert set(report.daemons) == report.all_daemons
    for number, daemon in report.daemons.items():
        check_name(number)
        assert (daemon.cluster, daemon.up, daemon.in_) == (port.cluster(), True, True)
        assert daemon.size_bytes >= daemon.used_bytes >= 0
    assert set(report.pools) == report.all_pools == set(h.pools)
    for name, pool in report.pools.items():
        check_name(object_name(name))
        assert (pool.cluster, pool.pool) == (port.cluster(), name)
    assert report.out == frozenset()


@claim
async def test_only_pools_that_are_asked_for_are_reported(h: StatisticsHarness) -> None:
    report = await whole(h.driver((h.pools[0],)))
    assert set(report.pools) == report.all_pools == {h.pools[0]}


@claim
async def test_a_daemon_that_no_data_is_placed_on_is_out_and_still_there(h: StatisticsHarness) -> None:
    port = h.driver()
    number = min((await whole(port)).daemons)
    h.place(number, False)
    report = await whole(port)
    assert report.out == {number}
    assert report.all_daemons is not None
    assert number in report.all_daemons
    h.place(number, True)
    assert (await whole(port)).out == frozenset()


@claim
async def test_servers_that_hang_end_a_round_in_time_and_leave_no_process(h: StatisticsHarness) -> None:
    """Nor do they block anything else: the loop goes on meanwhile."""
    port = h.driver()
    h.hang(True)
    began, turns = time.monotonic(), 0
    asked = asyncio.ensure_future(port.collect())
    while not asked.done():
        turns += 1
        await asyncio.sleep(0.05)
    with pytest.raises(Unavailable) as raised:
        await asked
    assert raised.value.remedy
    assert time.monotonic() - began < h.limit_s + 3.0
    assert turns > h.limit_s
    assert h.children() == 0
    h.hang(False)
    await whole(port)


@claim
async def test_a_round_that_is_given_up_leaves_no_process(h: StatisticsHarness) -> None:
    h.hang(True)
    asked = asyncio.ensure_future(h.driver().collect())
    for _ in range(100):
        await asyncio.sleep(0.05)
        if h.children():
            break
    h.kill()
    with pytest.raises(asyncio.CancelledError):
        await asked
    for _ in range(100):  # a process that was killed is there until the kernel has ended it
        if not h.children():
            break
        await asyncio.sleep(0.05)
    assert h.children() == 0


@claim
async def test_a_host_without_storage_daemons_has_no_devices(h: StatisticsHarness) -> None:
    assert await h.driver().devices() == {}

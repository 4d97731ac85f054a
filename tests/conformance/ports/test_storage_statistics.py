"""What every driver keeps that says how a storage cluster does (``StorageStatisticsPort``)."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.claims import claims_of, until
from tests.conformance.ports.harness import StatisticsHarness
from tests.conformance.ports.real_ceph import STATISTICS

from outlive.base import Unavailable
from outlive.node.ports import StorageReport, StorageStatisticsPort
from outlive.resources import check_name, object_name

claim = claims_of([STATISTICS])
TRIES = 20
TURN_S = 0.05


async def whole(port: StorageStatisticsPort) -> StorageReport:
    """A round in which everything was answered; on a busy machine some are not."""
    missing: object = None
    for _ in range(TRIES):
        try:
            report = await port.collect()
        except Unavailable as error:
            missing = error
            continue
        if not report.cluster.missing:
            return report
        missing = report.cluster.missing
    raise AssertionError(missing)


@claim
async def test_a_round_says_how_the_cluster_its_daemons_and_its_pools_do(h: StatisticsHarness) -> None:
    port = h.driver()
    check_name(port.find_cluster())
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
        assert (daemon.cluster, daemon.up, daemon.in_) == (port.find_cluster(), True, True)
        assert daemon.size_bytes >= daemon.used_bytes >= 0
    assert set(report.pools) == report.all_pools == set(h.pools)
    for name, pool in report.pools.items():
        check_name(object_name(name))
        assert (pool.cluster, pool.pool) == (port.find_cluster(), name)
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
    turns = 0
    asked = asyncio.ensure_future(port.collect())
    while not asked.done():
        turns += 1
        await asyncio.sleep(TURN_S)
    with pytest.raises(Unavailable) as raised:
        await asked
    assert raised.value.remedy
    # in turns of the loop, so that time in which the machine stood still counts for nobody
    assert h.limit_s < turns < (h.limit_s + 3.0) / TURN_S
    await until(lambda: not h.children(), "they have ended")
    h.hang(False)
    await whole(port)


@claim
async def test_a_round_that_is_given_up_leaves_no_process(h: StatisticsHarness) -> None:
    h.hang(True)
    asked = asyncio.ensure_future(h.driver().collect())
    await until(h.children, "it asks")
    h.kill()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: not h.children(), "they have ended")


@claim
async def test_a_host_without_storage_daemons_has_no_devices(h: StatisticsHarness) -> None:
    assert await h.driver().list_devices() == {}

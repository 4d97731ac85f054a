"""Rules under which a silent host is left alone, and how operators lift them."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import BEFORE_S, build_racks, list_revoked, site

from outlive.node.fencing import RateRule
from outlive.resources import Condition, Instance, Timing


async def test_nobody_is_condemned_while_more_than_half_of_the_domains_are_silent():
    async with site() as s:
        names = await build_racks(s, 8)
        s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        s.silence(*names[2:])
        await asyncio.sleep(60)
        assert await list_revoked(s, names) == []
        assert "outlive fence release" in (await s.faults())["storm-hold.default"].remedy
        for name in names[2:6]:
            s.renew(name)
        await s.until_dead("h6", limit_s=30)
        await s.until_dead("h7", limit_s=30)
        await asyncio.sleep(4)
        assert await list_revoked(s, names) == ["h6", "h7"]
        assert "storm-hold.default" not in await s.faults()


async def test_release_lets_fencing_go_on_in_a_storm():
    async with site() as s:
        await s.policy(fences_limit=10)
        names = await build_racks(s, 8)
        s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        s.silence(*names[2:])
        await asyncio.sleep(30)
        await s.policy(fences_limit=10, release="it was the feed")
        for name in names[2:]:
            await s.until_dead(name, limit_s=15)
        await asyncio.sleep(4)
        assert "storm-hold.default" not in await s.faults()


@pytest.mark.slow
async def test_third_domain_within_ten_minutes_waits_for_a_release():
    async with site() as s:
        names = await build_racks(s, 20)
        s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        s.silence("h4", "h6")
        await s.until_dead("h4")
        await s.until_dead("h6")
        s.silence("h8", "h5")
        await s.until_dead("h5", limit_s=15)
        await asyncio.sleep(60)
        assert await list_revoked(s, names) == ["h4", "h5", "h6"]
        assert "h8" in (await s.faults())["rate-hold.default"].message
        await s.policy(release="seen")
        await s.until_dead("h8", limit_s=15)
        await asyncio.sleep(4)
        assert "rate-hold.default" not in await s.faults()


@pytest.mark.slow
async def test_third_domain_is_fenced_by_itself_once_the_window_is_over():
    async with site() as s:
        await build_racks(s, 20)
        s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        s.silence("h4", "h6", "h8")
        await asyncio.sleep(500)
        states = [(await s.record(name)).state for name in ("h4", "h6", "h8")]
        assert sorted(states) == ["Held", "Revoked", "Revoked"]
        for name in ("h4", "h6", "h8"):
            await s.until_dead(name, limit_s=150)


async def test_fences_of_other_fencers_count_as_well():
    async with site() as s:
        await build_racks(s, 20)
        s.watch("h0")
        s.watch("h2")
        await asyncio.sleep(BEFORE_S)
        s.silence("h4", "h6")
        await s.until_dead("h4")
        await s.until_dead("h6")
        by = {(await s.record(name)).proof.by for name in ("h4", "h6")}
        for name in by:
            s.kill(name)
        if len(by) == 1:
            s.silence("h8")
            await asyncio.sleep(30)
            assert (await s.record("h8")).state == "Held"


def test_rate_counts_units_within_the_window_and_known_ones_go_free():
    rate = RateRule()
    assert rate.reserve("r1", 0, limit=1, window_s=10)
    assert not rate.reserve("r2", 0, limit=1, window_s=10)
    assert rate.reserve("r1", 0, limit=1, window_s=10)
    rate.release("r1")
    assert not rate.reserve("r2", 0, limit=1, window_s=10)
    rate.release("r1")
    assert rate.reserve("r2", 0, limit=1, window_s=10)
    rate.release("r2")
    rate.count("r1", 0)
    assert not rate.reserve("r2", 9, limit=1, window_s=10)
    assert rate.reserve("r2", 10, limit=1, window_s=10)


async def test_new_fencer_gives_everybody_a_whole_silence_limit():
    async with site() as s:
        await build_racks(s, 8)
        s.silence("h7")
        await asyncio.sleep(100)
        s.watch("h0")
        began = s.now()
        condemned = await s.until("h7", lambda record: record.state == "Revoked")
        assert condemned - began >= 7.0


async def test_fencer_whose_own_renewals_are_not_acknowledged_condemns_nobody():
    async with site() as s:
        names = await build_racks(s, 8)
        watch = s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        watch.eyes.own_age_s = 2.0
        s.silence("h7")
        await asyncio.sleep(60)
        assert await list_revoked(s, names) == []
        watch.eyes.own_age_s = 0.1
        began = s.now()
        condemned = await s.until("h7", lambda record: record.state == "Revoked")
        assert condemned - began >= 5.0


@pytest.mark.slow
async def test_fencer_that_was_cut_off_waits_a_whole_silence_limit_after_it_sees_again():
    async with site() as s:
        names = await build_racks(s, 8)
        watch = s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        watch.eyes.connected = False
        s.silence(*names[6:])
        await asyncio.sleep(600)
        watch.eyes.connected = True
        await asyncio.sleep(4.5)
        s.renew("h6")
        s.renew("h7")
        await asyncio.sleep(60)
        assert await list_revoked(s, names) == []


@pytest.mark.slow
async def test_maintenance_stops_a_fence_before_the_power_is_cut_and_the_host_joins_again():
    async with site() as s:
        await build_racks(s, 8)
        s.power.controllers["h7"].delay_s = 4.0
        s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        s.silence("h7")
        await s.until("h7", lambda record: record.fence.attempt == 1)
        await s.policy(cluster={"maintenance": True})
        await asyncio.sleep(300)
        record = await s.record("h7")
        assert (record.state, record.dead_through) == ("Revoked", 0)
        assert s.power.controllers["h7"].offs == []
        await s.come_back("h7", boot="b1")
        await s.policy()
        await asyncio.sleep(60)
        assert (await s.record("h7")).state == "Held"
        assert s.power.controllers["h7"].offs == []


async def test_host_that_stops_with_vms_has_its_grace():
    async with site() as s:
        await build_racks(s, 8)
        s.watch("h0")
        stopping = Condition(type="Ready", status="False", reason="Stopping")
        await s.report("h7", instances=(Instance(id="vm1"),), conditions=(stopping,))
        await asyncio.sleep(BEFORE_S)
        s.silence("h7")
        began = s.now()
        condemned = await s.until("h7", lambda record: record.state == "Revoked", limit_s=400) - began
        assert 45 <= condemned <= 50


@pytest.mark.slow
async def test_host_that_stopped_and_still_holds_its_membership_is_condemned_after_the_grace():
    async with site() as s:
        names = await build_racks(s, 8)
        s.watch("h0")
        stopping = Condition(type="Ready", status="False", reason="Stopping")
        await s.report("h7", conditions=(stopping,))
        await asyncio.sleep(BEFORE_S)
        s.silence("h7")
        await asyncio.sleep(40)
        assert await list_revoked(s, names) == []
        await asyncio.sleep(15)
        assert await list_revoked(s, names) == ["h7"]


async def test_shorter_profile_counts_only_when_the_hosts_had_time_to_hear_of_it():
    async with site() as s:
        await s.policy(profile="steady")
        await s.hosts("a", "b", "c", "d", renews=5.0)
        watch = s.watch("a")
        watch.eyes.own_age_s = 0.5
        await asyncio.sleep(60)
        await s.policy(profile="fast")
        for name in ("a", "b", "c", "d"):
            s.silence(name)
        await asyncio.sleep(20)
        for name in ("a", "b", "c", "d"):
            s.renew(name)
        await asyncio.sleep(30)
        assert await list_revoked(s, ["a", "b", "c", "d"]) == []


async def test_timings_that_become_shorter_count_once_the_hosts_had_time_to_hear_of_them():
    async with site() as s:
        await s.policy(timings={"fast": Timing(silence_s=60.0)})
        await s.hosts("a", "b", "c", "d")
        s.watch("a")
        await asyncio.sleep(90)
        await s.policy(timings={"fast": Timing(silence_s=10.0)})
        await asyncio.sleep(90)
        s.silence("d")
        assert await s.until_dead("d", limit_s=30) > 0


@pytest.mark.slow
async def test_fencer_that_crashes_forgets_nothing_that_it_has_seen(monkeypatch: pytest.MonkeyPatch):
    async with site() as s:
        await build_racks(s, 4)
        watch = s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        s.silence("h3")

        def crash(*_said, **_how) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(watch.fencer._rules, "observe", crash)
        await asyncio.sleep(60)
        assert (await s.record("h3")).state == "Held"
        monkeypatch.undo()
        await s.until_dead("h3", limit_s=20)

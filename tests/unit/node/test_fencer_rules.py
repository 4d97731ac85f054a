"""Rules under which a silent host is left alone, and how operators lift them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import Interposed, Site, site
from tests.support.loops import run

from outlive.base.clock import LoopClock, as_datetime
from outlive.base.errors import Unavailable
from outlive.node.fencing.fence import Opening
from outlive.node.fencing.rules import RateRule
from outlive.resources import Condition, FencePhase, GuardRecord, Hypervisor, Instance, Membership
from outlive.resources.cluster import Timing

BEFORE_S = 20.0


async def _racks(s: Site, count: int, *, per_rack: int = 2, **options) -> list[str]:
    """``h0`` to ``h<count - 1>``, so many in a rack."""
    names = [f"h{number}" for number in range(count)]
    for number, name in enumerate(names):
        await s.host(name, rack=f"r{number // per_rack}", **options)
    return names


async def _revoked(s: Site, names) -> list[str]:
    return [name for name in names if (await s.record(name)).state == "Revoked"]


def test_nobody_is_condemned_while_more_than_half_of_the_domains_are_silent():
    async def story():
        async with site() as s:
            names = await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.silence(*names[2:])
            await asyncio.sleep(60)
            assert await _revoked(s, names) == []
            assert "spec.fencing.release" in (await s.faults())["storm-hold.default"].remedy
            for name in names[2:6]:
                s.renew(name)
            await s.until_dead("h6", limit_s=30)
            await s.until_dead("h7", limit_s=30)
            await asyncio.sleep(4)
            assert await _revoked(s, names) == ["h6", "h7"]
            assert "storm-hold.default" not in await s.faults()

    run(story())


def test_large_rack_that_dies_is_one_failure_and_no_storm():
    async def story():
        async with site() as s:
            for name in ("a", "b", "c"):
                await s.host(name)
            for number in range(6):
                await s.host(f"r{number}", rack="r1")
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            lost = [f"r{number}" for number in range(6)]
            s.silence(*lost)
            for name in lost:
                await s.until_dead(name, limit_s=15)

    run(story())


def test_release_lets_fencing_go_on_in_a_storm():
    async def story():
        async with site() as s:
            await s.policy(fences_limit=10)
            names = await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.silence(*names[2:])
            await asyncio.sleep(30)
            await s.policy(fences_limit=10, release="it was the feed")
            for name in names[2:]:
                await s.until_dead(name, limit_s=15)
            await asyncio.sleep(4)
            assert "storm-hold.default" not in await s.faults()

    run(story())


def test_third_domain_within_ten_minutes_waits_for_a_release():
    async def story():
        async with site() as s:
            names = await _racks(s, 20)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.silence("h4", "h6")
            await s.until_dead("h4")
            await s.until_dead("h6")
            s.silence("h8", "h5")
            await s.until_dead("h5", limit_s=15)
            await asyncio.sleep(60)
            assert await _revoked(s, names) == ["h4", "h5", "h6"]
            assert "h8" in (await s.faults())["rate-hold.default"].message
            await s.policy(release="seen")
            await s.until_dead("h8", limit_s=15)
            await asyncio.sleep(4)
            assert "rate-hold.default" not in await s.faults()

    run(story())


@pytest.mark.slow
def test_third_domain_is_fenced_by_itself_once_the_window_is_over():
    async def story():
        async with site() as s:
            await _racks(s, 20)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.silence("h4", "h6", "h8")
            await asyncio.sleep(500)
            states = [(await s.record(name)).state for name in ("h4", "h6", "h8")]
            assert sorted(states) == ["Held", "Revoked", "Revoked"]
            for name in ("h4", "h6", "h8"):
                await s.until_dead(name, limit_s=150)

    run(story())


def test_fences_of_other_fencers_count_as_well():
    async def story():
        async with site() as s:
            await _racks(s, 20)
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

    run(story())


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


def test_new_fencer_gives_everybody_a_whole_silence_limit():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.silence("h7")
            await asyncio.sleep(100)
            s.watch("h0")
            began = s.now()
            condemned = await s.until("h7", lambda record: record.state == "Revoked")
            assert condemned - began >= 7.0

    run(story())


def test_fencer_whose_own_renewals_are_not_acknowledged_condemns_nobody():
    async def story():
        async with site() as s:
            names = await _racks(s, 8)
            watch = s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            watch.eyes.own_age_s = 2.0
            s.silence("h7")
            await asyncio.sleep(60)
            assert await _revoked(s, names) == []
            watch.eyes.own_age_s = 0.1
            began = s.now()
            condemned = await s.until("h7", lambda record: record.state == "Revoked")
            assert condemned - began >= 5.0

    run(story())


@pytest.mark.slow
def test_fencer_that_was_cut_off_waits_a_whole_silence_limit_after_it_sees_again():
    async def story():
        async with site() as s:
            names = await _racks(s, 8)
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
            assert await _revoked(s, names) == []

    run(story())


@pytest.mark.slow
def test_nobody_is_condemned_in_maintenance_and_no_fault_is_raised():
    async def story():
        async with site() as s:
            names = await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            await s.policy(cluster={"maintenance": True})
            s.silence("h7")
            await asyncio.sleep(300)
            assert await _revoked(s, names) == []
            assert await s.faults() == {}
            await s.policy()
            await s.until_dead("h7", limit_s=15)

    run(story())


def test_maintenance_ends_by_itself_where_an_end_was_set():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            until = as_datetime(LoopClock().now() + 100)
            await s.policy(cluster={"maintenance": True, "maintenance_until": until})
            s.silence("h7")
            await asyncio.sleep(95)
            assert (await s.record("h7")).state == "Held"
            await s.until_dead("h7", limit_s=20)

    run(story())


def test_host_in_maintenance_is_left_alone_and_counts_in_no_storm():
    async def story():
        async with site() as s:
            names = await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            for name in ("h4", "h5", "h6"):
                await s.change_fencing(name, maintenance=True)
            s.silence("h4", "h5", "h6", "h7")
            await s.until_dead("h7", limit_s=15)
            await asyncio.sleep(60)
            assert await _revoked(s, names) == ["h7"]

    run(story())


def test_maintenance_stops_a_fence_before_the_power_is_cut_and_the_host_joins_again():
    async def story():
        async with site() as s:
            await _racks(s, 8)
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

    run(story())


def test_fence_goes_on_when_maintenance_ends_and_the_host_is_still_away():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.power.controllers["h7"].mode = "dead"
            s.silence("h7")
            await s.until("h7", lambda record: record.fence.phase == "unconfirmed")
            await s.policy(cluster={"maintenance": True})
            await asyncio.sleep(300)
            s.power.controllers["h7"].mode = "ok"
            await s.policy()
            await s.until_dead("h7", limit_s=10)

    run(story())


def test_host_that_stops_with_vms_has_its_grace():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            stopping = Condition(type="Ready", status="False", reason="Stopping")
            await s.report("h7", instances=(Instance(id="vm1"),), conditions=(stopping,))
            await asyncio.sleep(BEFORE_S)
            s.silence("h7")
            began = s.now()
            condemned = await s.until("h7", lambda record: record.state == "Revoked", limit_s=400) - began
            assert 45 <= condemned <= 50

    run(story())


def test_host_that_goes_down_with_vms_is_condemned_as_soon_as_one_that_died():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            going = Condition(type="Ready", status="False", reason="GoingDown")
            await s.report("h7", instances=(Instance(id="vm1"),), conditions=(going,))
            await asyncio.sleep(BEFORE_S)
            s.silence("h7")
            began = s.now()
            assert await s.until("h7", lambda record: record.state == "Revoked", limit_s=400) - began <= 10

    run(story())


@pytest.mark.slow
def test_host_that_stopped_and_still_holds_its_membership_is_condemned_after_the_grace():
    async def story():
        async with site() as s:
            names = await _racks(s, 8)
            s.watch("h0")
            stopping = Condition(type="Ready", status="False", reason="Stopping")
            await s.report("h7", conditions=(stopping,))
            await asyncio.sleep(BEFORE_S)
            s.silence("h7")
            await asyncio.sleep(40)
            assert await _revoked(s, names) == []
            await asyncio.sleep(15)
            assert await _revoked(s, names) == ["h7"]

    run(story())


def test_armed_host_has_the_steady_profile():
    async def story():
        async with site() as s:
            for name in ("a", "b", "c"):
                await s.host(name)
            await s.host("d", guard=GuardRecord(armed=True, timeout_s=25, watchdog_s=15), renews=5.0)
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            s.silence("d")
            began = s.now()
            condemned = await s.until("d", lambda record: record.state == "Revoked") - began
            assert 55 <= condemned <= 61

    run(story())


def test_shorter_profile_counts_only_when_the_hosts_had_time_to_hear_of_it():
    async def story():
        async with site() as s:
            await s.policy(profile="steady")
            for name in ("a", "b", "c", "d"):
                await s.host(name, renews=5.0)
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
            assert await _revoked(s, ["a", "b", "c", "d"]) == []

    run(story())


def test_timings_that_become_shorter_count_once_the_hosts_had_time_to_hear_of_them():
    async def story():
        async with site() as s:
            await s.policy(timings={"fast": Timing(silence_s=60.0)})
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            s.watch("a")
            await asyncio.sleep(90)
            await s.policy(timings={"fast": Timing(silence_s=10.0)})
            await asyncio.sleep(90)
            s.silence("d")
            assert await s.until_dead("d", limit_s=30) > 0

    run(story())


def test_operator_fences_a_host_that_lives():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            await s.change_fencing("h7", requested="1|ann|its disk hangs")
            await s.until_dead("h7", limit_s=6)
            record = await s.record("h7")
            assert record.fence.reason == "ann: its disk hangs"
            await s.come_back("h7")
            await asyncio.sleep(60)
            assert (await s.record("h7")).state == "Held"

    run(story())


def test_coordinators_that_are_to_be_fenced_do_not_switch_each_other_off():
    async def story():
        async with site() as s:
            for name in ("a", "b"):
                await s.host(name)
            await s.host("c", mode="hypervisor")
            s.watch("a")
            s.watch("b")
            await asyncio.sleep(BEFORE_S)
            for name in ("a", "b", "c"):
                await s.change_fencing(name, requested="1|ann|all of this goes")
            await s.until_dead("b", limit_s=6)
            await s.until_dead("c", limit_s=6)
            await asyncio.sleep(10)
            assert (await s.record("a")).state == "Held"
            assert s.power.controllers["a"].offs == []
            assert "no other coordinator lives" in (await s.faults())["fence-waits.a"].message
            await s.come_back("b")
            s.kill("b")
            s.watch("b")
            await s.until_dead("a", limit_s=8)
            await asyncio.sleep(70)
            assert (await s.faults()).get("fence-waits.a") is None

    run(story())


def test_condemned_coordinator_leaves_orders_to_others():
    async def story():
        async with site() as s:
            await s.host("a", bmc="")
            for name in ("b", "c"):
                await s.host(name)
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            await s.write(await s.store.get(Membership, "a"), state="Revoked")
            await s.change_fencing("c", requested="1|ann|its disk hangs")
            await asyncio.sleep(10)
            assert await _revoked(s, ["c"]) == []
            s.watch("b")
            await s.until_dead("c", limit_s=8)

    run(story())


def test_request_for_another_epoch_is_not_heeded():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            await s.change_fencing("h7", requested="2|ann|its disk hangs")
            await s.change_fencing("h6", requested="1||nobody said so")
            await asyncio.sleep(30)
            assert await _revoked(s, ["h6", "h7"]) == []

    run(story())


@pytest.mark.parametrize("order", ["1|ann|its disk hangs", ""], ids=["of the epoch before", "called off"])
def test_order_to_fence_counts_as_it_is_when_the_host_is_condemned(order: str):
    """Between the look at the order and the write the host may have joined again, or somebody called it off."""

    async def story():
        async with site() as s:
            await _racks(s, 8)
            watch = s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            await s.write(await s.store.get(Membership, "h7"), epoch=2)
            await s.change_fencing("h7", requested=order)
            await asyncio.sleep(1)
            seen = watch.fencer.context.watcher.get("h7")
            assert seen is not None
            assert seen.record.epoch == 2
            assert await Opening(watch.fencer.context).condemn("h7", seen, ordered=True) is None
            assert (await s.record("h7")).state == "Held"
            await s.change_fencing("h7", requested="2|ann|its disk hangs")
            await s.until("h7", lambda record: record.state == "Revoked", limit_s=6)

    run(story())


@pytest.mark.parametrize("found", [True, False], ids=["after its proof", "before its proof"])
def test_what_proved_nothing_is_written_again_where_the_store_went_back(found: bool):
    async def story():
        async with site() as s:
            await _racks(s, 8)
            await s.change_fencing("h7", proofs=2)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.silence("h7")
            await s.until("h7", lambda record: record.fence.phase == "unconfirmed")
            now = await s.store.get(Membership, "h7", fresh=True)
            fence = now.record.fence
            assert [one.kind for one in fence.findings] == ["power"]
            before = msgspec.structs.replace(
                fence, phase=FencePhase.CONDEMNED, unproven=(), findings=fence.findings if found else ()
            )
            await s.write(now, fence=before)
            await s.until("h7", lambda record: record.fence.phase == "unconfirmed", limit_s=15)
            assert (await s.record("h7")).fence.unproven

    run(story())


def test_distrusted_kind_is_not_used_until_an_operator_says_so():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            await s.write(await s.store.get(Membership, "h7"), distrusted=("power",))
            await asyncio.sleep(2)
            s.silence("h7")
            await s.until("h7", lambda record: record.fence.phase == "unconfirmed")
            assert "contradicted" in (await s.record("h7")).fence.unproven_why
            assert s.power.controllers["h7"].offs == []
            await s.change_fencing("h7", trust_again="new controller")
            await s.until("h7", lambda record: record.distrusted == (), limit_s=7)
            await s.until_dead("h7", limit_s=40)

    run(story())


def test_word_of_trust_that_was_said_while_no_fencer_ran_is_heeded_by_the_next_one():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            await s.write(await s.store.get(Membership, "h7"), distrusted=("power",), trust_word="once")
            await s.change_fencing("h7", trust_again="new controller")
            s.watch("h0")
            await s.until("h7", lambda record: record.distrusted == (), limit_s=BEFORE_S)
            assert (await s.record("h7")).trust_word == "new controller"

    run(story())


def test_host_whose_settings_cannot_be_read_does_not_keep_the_next_one_distrusted():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            store = Interposed(s.store)
            for name in ("h6", "h7"):
                await s.write(await s.store.get(Membership, name), distrusted=("power",))
                await s.change_fencing(name, trust_again="new controller")
            store.fail("h6", Unavailable("no answer"))
            s.watch("h0", store=store)
            await s.until("h7", lambda record: record.distrusted == (), limit_s=BEFORE_S)
            assert (await s.record("h6")).distrusted == ("power",)
            store.reading = None
            await s.until("h6", lambda record: record.distrusted == (), limit_s=BEFORE_S)

    run(story())


def test_word_of_trust_that_stood_before_a_proof_turned_out_wrong_counts_no_more():
    async def story():
        async with site() as s:
            await _racks(s, 8)
            await s.change_fencing("h7", trust_again="new controller")
            await s.write(await s.store.get(Membership, "h7"), distrusted=("power",), trust_word="new controller")
            s.watch("h0")
            await asyncio.sleep(60)
            assert (await s.record("h7")).distrusted == ("power",)

    run(story())


def test_rehearsals_are_written_by_the_first_coordinator():
    async def story():
        async with site() as s:
            await _racks(s, 4)
            s.power.controllers["h3"].system = "uuid-other"
            s.power.controllers["h2"].mode = "dead"
            s.watch("h1")
            s.watch("h0")
            await asyncio.sleep(30)
            said = {}
            for name in ("h0", "h1", "h2", "h3"):
                said[name] = (await s.store.get(Hypervisor, name)).status.rehearsed
            assert (said["h0"], said["h1"]) == ("ok", "ok")
            assert "does not answer" in said["h2"]
            assert "speaks of system uuid-other" in said["h3"]

    run(story())


def test_fencer_that_crashes_forgets_nothing_that_it_has_seen(monkeypatch: pytest.MonkeyPatch):
    async def story():
        async with site() as s:
            await _racks(s, 4)
            watch = s.watch("h0")
            await asyncio.sleep(BEFORE_S)
            s.silence("h3")

            def crash(*_said, **_how) -> None:
                raise RuntimeError("a bug")

            monkeypatch.setattr(watch.fencer._rules, "look", crash)
            await asyncio.sleep(60)
            assert (await s.record("h3")).state == "Held"
            monkeypatch.undo()
            await s.until_dead("h3", limit_s=20)

    run(story())

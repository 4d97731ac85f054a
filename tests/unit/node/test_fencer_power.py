"""Silent hosts are condemned on exactly the version that was seen, and proven dead by their power controllers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import Interposed, Site, SleepyClock, site
from tests.support.loops import run

from outlive.resources import Hypervisor, Membership, ObjectRef, VirtualMachine

BEFORE_S = 20.0
"""Long enough for every fencer's grace and first rehearsals."""


async def _four(s: Site, *fencers: str, **last) -> None:
    """Hosts ``a`` to ``d``; ``last`` is of the last one."""
    for name in ("a", "b", "c"):
        await s.host(name)
    await s.host("d", **last)
    for name in fencers or ("a",):
        s.watch(name)
    await asyncio.sleep(BEFORE_S)


def test_silent_host_is_condemned_after_seven_seconds_and_dead_three_seconds_later():
    async def story():
        async with site() as s:
            await _four(s)
            s.silence("d")
            began = s.now()
            condemned = await s.until("d", lambda record: record.state == "Revoked") - began
            dead = await s.until_dead("d") - began
            record = await s.record("d")
            assert 6.0 <= condemned <= 7.5
            assert dead - condemned <= 3.0
            assert (record.fence.phase, record.fence.attempt, record.proof.kind) == ("proven", 1, "power")
            assert "uuid-d" in record.proof.evidence
            assert not s.power.controllers["d"].on
            assert (await s.record("c")).state == "Held"

    run(story())


class _Renewing:
    """A store in which a host renews right before somebody condemns it."""

    def __init__(self, inner, host: str) -> None:
        self._inner = inner
        self._host = host
        self.lost = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def replace(self, obj):
        if isinstance(obj, Membership) and obj.name == self._host and not self.lost.is_set():
            self.lost.set()
            current = await self._inner.get(Membership, self._host, fresh=True)
            await site_write(self._inner, current)
        return await self._inner.replace(obj)


async def site_write(store, current: Membership) -> None:
    await Site(store).write(current, seq=current.record.seq + 1)


def test_host_that_renews_right_before_it_is_condemned_lives():
    async def story():
        async with site() as s:
            store = _Renewing(s.store, "d")
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            s.watch("a", store=store)
            await asyncio.sleep(BEFORE_S)
            s.silence("d")
            await store.lost.wait()
            s.renew("d")
            await asyncio.sleep(60)
            record = await s.record("d")
            assert (record.state, record.fence.id) == ("Held", "")
            assert s.power.controllers["d"].offs == []

    run(story())


def test_host_that_renews_between_suspicion_and_its_last_look_lives():
    async def story():
        async with site() as s:
            await _four(s)
            s.silence("d")
            await asyncio.sleep(6.0)
            await site_write(s.store, await s.store.get(Membership, "d"))
            await asyncio.sleep(4.5)
            assert (await s.record("d")).state == "Held"
            await s.until("d", lambda record: record.state == "Revoked", limit_s=10)

    run(story())


def test_of_two_fencers_that_race_one_condemns_and_only_it_sends_commands():
    async def story():
        async with site() as s:
            await _four(s, "a", "b", "c")
            s.silence("d")
            await s.until_dead("d")
            await asyncio.sleep(30)
            record = await s.record("d")
            assert record.fence.by in ("a", "b", "c")
            assert record.fence.attempt == len(s.power.controllers["d"].offs) == 1

    run(story())


@pytest.mark.parametrize("after_s", [5.5, 6.5, 7.05, 7.2, 7.3, 7.5, 8.0, 9.0, 9.3])
def test_another_fencer_carries_on_wherever_the_first_died(after_s: float):
    async def story():
        async with site() as s:
            await _four(s, "a")
            s.silence("d")
            await asyncio.sleep(after_s)
            s.silence("a")
            s.kill("a")
            s.watch("b")
            s.watch("c")
            await s.until_dead("d", limit_s=40)
            await s.until_dead("a", limit_s=40)
            assert (await s.record("d")).proof.by in ("a", "b", "c")

    run(story())


def test_fence_whose_fencer_lives_but_does_nothing_is_taken_over_after_a_minute():
    async def story():
        async with site() as s:
            await _four(s, "a")
            s.silence("d")
            await s.until("d", lambda record: record.state == "Revoked")
            s.kill("a")
            s.watch("b")
            took = s.now()
            await s.until("d", lambda record: record.fence.by == "b", limit_s=80)
            assert s.now() - took >= 60
            await s.until_dead("d", limit_s=10)

    run(story())


def test_restarted_fencer_goes_on_with_its_own_fence_at_once():
    async def story():
        async with site() as s:
            await _four(s, "a")
            s.silence("d")
            await s.until("d", lambda record: record.state == "Revoked")
            s.kill("a")
            await asyncio.sleep(1)
            s.watch("a")
            await s.until_dead("d", limit_s=6)

    run(story())


@pytest.mark.slow
def test_dead_controller_proves_nothing_and_is_tried_again_after_30_60_120_and_300_seconds():
    async def story():
        async with site() as s:
            await _four(s, "a", bmc="dead")
            s.silence("d")
            first = await s.until("d", lambda record: record.fence.attempt == 1)
            record = await s.record("d")
            pauses = []
            for number in (2, 3, 4, 5, 6):
                again = await s.until("d", lambda record, n=number: record.fence.attempt == n, limit_s=400)
                pauses.append(round(again - first))
                first = again
            assert pauses == [30, 60, 120, 300, 300]
            record = await s.until("d", lambda record: record.fence.phase == "unconfirmed") and await s.record("d")
            assert "does not answer" in record.fence.unproven_why
            assert "not armed" in record.fence.unproven_why
            assert "not renewed for" in record.fence.reason
            faults = await s.faults()
            assert "--confirm-off" in faults["fence-unconfirmed.d"].remedy
            assert "power-unreachable.d" in faults
            assert record.dead_through == 0

    run(story())


def test_controller_that_comes_back_proves_at_the_next_attempt_and_the_fault_ends():
    async def story():
        async with site() as s:
            await _four(s, "a")
            s.silence("d")
            s.power.controllers["d"].mode = "dead"
            await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            await asyncio.sleep(3)
            assert "fence-unconfirmed.d" in await s.faults()
            s.power.controllers["d"].mode = "ok"
            await s.until_dead("d", limit_s=40)
            await asyncio.sleep(10)
            faults = await s.faults()
            assert "fence-unconfirmed.d" not in faults
            assert faults["host-dead.d"].delta == 50
            await s.come_back("d")
            await asyncio.sleep(10)
            assert await s.faults() == {}

    run(story())


def test_controller_wired_to_another_host_is_never_told_to_switch_off():
    async def story():
        async with site() as s:
            await _four(s)
            s.power.controllers["d"].system = "uuid-c"
            s.silence("d")
            record = await s.until("d", lambda record: record.fence.phase == "unconfirmed") and await s.record("d")
            assert "speaks of system uuid-c" in record.fence.unproven_why
            assert s.power.controllers["d"].offs == []

    run(story())


def test_host_without_a_recorded_system_uuid_is_not_proven_by_power():
    async def story():
        async with site() as s:
            await _four(s, system_uuid="")
            s.silence("d")
            await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            assert "no system uuid" in (await s.record("d")).fence.unproven_why

    run(story())


def test_controller_that_says_on_for_ever_proves_nothing():
    async def story():
        async with site() as s:
            await _four(s, bmc="stuck")
            s.silence("d")
            condemned = await s.until("d", lambda record: record.state == "Revoked")
            unconfirmed = await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            assert 10 <= unconfirmed - condemned <= 13
            assert "still said on" in (await s.record("d")).fence.unproven_why

    run(story())


def test_slow_controller_proves_later_but_proves():
    async def story():
        async with site() as s:
            await _four(s)
            s.power.controllers["d"].delay_s = 4.0
            s.silence("d")
            await s.until_dead("d", limit_s=40)

    run(story())


def test_controller_that_does_not_answer_the_command_ends_the_attempt_at_once():
    async def story():
        async with site() as s:
            await _four(s)
            controller = s.power.controllers["d"]
            s.silence("d")
            await s.until("d", lambda record: record.fence.attempt == 1)
            controller.delay_s = 21.0
            began = s.now()
            await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            assert s.now() - began <= 21.0

    run(story())


def test_controller_that_was_never_rehearsed_before_the_host_fell_silent_proves_nothing():
    async def story():
        async with site() as s:
            await _four(s, bmc="dead")
            s.silence("d")
            s.power.controllers["d"].mode = "ok"
            record = await s.until("d", lambda record: record.fence.phase == "unconfirmed") and await s.record("d")
            assert "rehearse" in record.fence.unproven_why
            assert s.power.controllers["d"].offs == []

    run(story())


@pytest.mark.parametrize("from_the_beginning", [True, False])
def test_controller_that_says_off_while_its_host_lives_proves_nothing(from_the_beginning: bool):
    async def story():
        async with site() as s:
            await _four(s, bmc="always-off" if from_the_beginning else "ok")
            s.power.controllers["d"].mode = "always-off"
            await asyncio.sleep(65)
            host = await s.store.get(Hypervisor, "d")
            assert "says off although it renews" in host.status.rehearsed
            assert host.status.rehearsed_seq == 0
            s.silence("d")
            await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            record = await s.record("d")
            assert record.dead_through == 0
            assert "says off although it renews" in record.fence.unproven_why
            assert s.power.controllers["d"].offs == []

    run(story())


def test_new_controller_is_rehearsed_at_once():
    async def story():
        async with site() as s:
            await _four(s, bmc="dead")
            s.power.controllers["d"].mode = "ok"
            host = await s.store.get(Hypervisor, "d")
            fencing = msgspec.structs.replace(host.spec.fencing, address="elsewhere")
            await s.store.replace(
                msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, fencing=fencing))
            )
            await asyncio.sleep(5)
            assert (await s.store.get(Hypervisor, "d")).status.rehearsed == "ok"

    run(story())


def test_host_that_is_off_has_a_good_controller():
    async def story():
        async with site() as s:
            await _four(s)
            s.silence("d")
            await s.until_dead("d")
            await asyncio.sleep(120)
            assert (await s.store.get(Hypervisor, "d")).status.rehearsed == "ok"

    run(story())


@pytest.mark.parametrize(("slept_s", "written", "counts"), [(0, 0, True), (700, 0, False), (700, 1, True)])
def test_rehearsal_from_before_its_fencer_slept_is_as_old_as_it_is(slept_s: float, written: int, counts: bool):
    """The controller does not answer between the sleep and the silence, so that it is not rehearsed anew.

    What was written counts in the host's own renewals, whatever this fencer's clocks say.
    """

    async def story():
        async with site() as s:
            clock = SleepyClock()
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            s.watch("a", clock=clock)
            await asyncio.sleep(BEFORE_S)
            s.power.controllers["d"].mode = "dead"
            clock.slept_s = slept_s
            await s.report("d", rehearsed="ok", rehearsed_seq=written and (await s.record("d")).seq)
            await asyncio.sleep(5)
            s.silence("d")
            s.power.controllers["d"].mode = "ok"
            await s.until("d", lambda record: record.fence.attempt > 0, limit_s=120)
            await asyncio.sleep(30)
            record = await s.record("d")
            assert (record.dead_through == 1) is counts
            if not counts:
                assert "failed its rehearsals for 7" in record.fence.unproven_why

    run(story())


def test_rack_is_fenced_in_the_time_of_one_host():
    async def story():
        async with site() as s:
            for number in range(30):
                await s.host(f"h{number:02}", rack=f"r{number // 10}")
            s.watch("h00")
            await asyncio.sleep(BEFORE_S)
            lost = [f"h{number}" for number in range(20, 30)]
            s.silence(*lost)
            began = s.now()
            for name in lost:
                await s.until_dead(name)
            assert s.now() - began <= 11.0

    run(story())


def test_two_kinds_of_proof_are_demanded_and_one_is_not_enough():
    async def story():
        async with site() as s:
            await _four(s, proofs=2)
            s.silence("d")
            record = await s.until("d", lambda record: record.fence.phase == "unconfirmed") and await s.record("d")
            assert [one.kind for one in record.fence.findings] == ["power"]
            assert record.dead_through == 0
            assert "2 kinds of proof" in record.fence.unproven_why
            await s.change_fencing("d", operator_proof=f"{record.fence.id}|ann|seen dark")
            await s.until_dead("d", limit_s=7)
            proof = (await s.record("d")).proof
            assert "ann: seen dark" in proof.evidence
            assert "uuid-d" in proof.evidence

    run(story())


def test_host_is_switched_on_again_only_when_nothing_is_held_there():
    async def story():
        async with site() as s:
            await s.policy(power_on_after=True)
            await _four(s)
            vm = await s.vm("vm1", holder="d")
            s.silence("d")
            await s.until_dead("d")
            await asyncio.sleep(30)
            assert s.power.controllers["d"].ons == []
            await s.release(vm)
            await asyncio.sleep(10)
            assert len(s.power.controllers["d"].ons) == 1

    run(story())


async def _off_and_held(s):
    """Host d is proven dead, and something is still held there."""
    await s.policy(power_on_after=True)
    await _four(s)
    vm = await s.vm("vm1", holder="d")
    s.silence("d")
    await s.until_dead("d")
    await asyncio.sleep(10)
    assert s.power.controllers["d"].ons == []
    return vm


def test_host_is_switched_on_again_by_the_next_fencer_where_the_first_one_died():
    async def story():
        async with site() as s:
            vm = await _off_and_held(s)
            s.watch("b")
            await asyncio.sleep(10)
            s.silence("a")
            s.kill("a")
            await s.release(vm)
            await s.until("d", lambda record: record.fence.power_on.result == "ok", limit_s=60)
            assert len(s.power.controllers["d"].ons) == 1
            assert (await s.record("d")).fence.power_on.tries == 1

    run(story())


@pytest.mark.slow
def test_host_that_was_switched_on_once_and_off_by_hand_is_left_alone():
    async def story():
        async with site() as s:
            await s.release(await _off_and_held(s))
            await s.until("d", lambda record: record.fence.power_on.result == "ok")
            s.power.controllers["d"].on = False
            s.kill("a")
            s.watch("a")
            await asyncio.sleep(900)
            assert len(s.power.controllers["d"].ons) == 1

    run(story())


@pytest.mark.slow
def test_switching_on_is_tried_a_few_times_whoever_tries_and_then_told():
    async def story():
        async with site() as s:
            vm = await _off_and_held(s)
            s.power.controllers["d"].mode = "dead"
            await s.release(vm)
            await s.until("d", lambda record: record.fence.power_on.tries == 2, limit_s=120)
            assert "power-unreachable.d" not in await s.faults()
            s.kill("a")
            s.watch("a")
            await s.until("d", lambda record: record.fence.power_on.tries == 3, limit_s=400)
            await asyncio.sleep(900)
            record = await s.record("d")
            assert record.fence.power_on.tries == 3
            assert "does not answer" in record.fence.power_on.result
            assert "3 tries" in (await s.faults())["power-unreachable.d"].message

    run(story())


def test_host_is_not_switched_on_again_in_maintenance():
    async def story():
        async with site() as s:
            vm = await _off_and_held(s)
            await s.policy(cluster={"maintenance": True}, power_on_after=True)
            await s.release(vm)
            await asyncio.sleep(60)
            assert s.power.controllers["d"].ons == []
            await s.policy(power_on_after=True)
            await asyncio.sleep(10)
            assert len(s.power.controllers["d"].ons) == 1

    run(story())


def test_switching_on_does_not_count_as_one_more_fence():
    async def story():
        async with site() as s:
            vm = await _off_and_held(s)
            before = dict(s.fencers["a"].fencer.context.rules.rate._at)
            await s.release(vm)
            await s.until("d", lambda record: record.fence.power_on.result == "ok")
            await asyncio.sleep(1)
            assert s.fencers["a"].fencer.context.rules.rate._at == before != {}

    run(story())


def _written(seq: int) -> dict:
    return {"rehearsed": "ok", "rehearsed_seq": seq}


@pytest.mark.parametrize(("lived_s", "counts"), [(500, True), (700, False)])
def test_written_rehearsal_counts_for_ten_minutes_of_the_hosts_own_life_and_however_long_it_lies_dead(
    lived_s: int, counts: bool
):
    """Nobody rehearses while no fencer runs; this one was started long after the host fell silent."""

    async def story():
        async with site() as s:
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            await s.report("d", **_written(1))
            await asyncio.sleep(lived_s)
            s.silence("d")
            await asyncio.sleep(3600)
            s.watch("a")
            await s.until("d", lambda record: record.fence.attempt > 0, limit_s=120)
            await asyncio.sleep(30)
            record = await s.record("d")
            assert (record.dead_through == 1) is counts
            if not counts:
                assert "before it fell silent, and not since" in record.fence.unproven_why

    run(story())


def test_good_rehearsals_are_written_again_while_their_host_lives():
    async def story():
        async with site() as s:
            await _four(s)
            await asyncio.sleep(1200)
            host = await s.store.get(Hypervisor, "d")
            assert host.status.rehearsed == "ok"
            assert (await s.record("d")).seq - host.status.rehearsed_seq <= 400

    run(story())


async def _two_off(s: Site) -> Interposed:
    """Hosts d and e are proven dead; the store of the fencer, which looks for hosts to be switched on only later."""
    for name in ("a", "b", "c", "f", "g", "d", "e"):
        await s.host(name)
    store = Interposed(s.store)
    s.watch("a", store=store)
    await asyncio.sleep(BEFORE_S)
    for name in ("d", "e"):
        s.silence(name)
        await s.until_dead(name)
    await asyncio.sleep(10)
    return store


def test_error_in_switching_one_host_on_ends_neither_that_of_another_nor_the_fencer():
    async def story():
        async with site() as s:
            store = await _two_off(s)
            store.fail("d", RuntimeError("nobody foresaw this"))
            await s.policy(power_on_after=True)
            await asyncio.sleep(10)
            assert len(s.power.controllers["e"].ons) == 1
            store.reading = None
            await asyncio.sleep(10)
            assert len(s.power.controllers["d"].ons) == 1

    run(story())


def test_slow_controller_does_not_keep_another_host_off():
    async def story():
        async with site() as s:
            await _two_off(s)
            vm = await s.vm("vm1", holder="e")
            s.power.controllers["d"].delay_s = 9.5
            await s.policy(power_on_after=True)
            await s.until("d", lambda record: record.fence.power_on.tries == 1)
            await s.release(vm)
            await s.until("e", lambda record: record.fence.power_on.result == "ok", limit_s=7)
            assert s.power.controllers["d"].ons == []
            await s.until("d", lambda record: record.fence.power_on.result == "ok", limit_s=20)
            assert (await s.record("d")).fence.power_on.tries == 1

    run(story())


def test_host_that_is_found_to_be_held_right_before_it_is_switched_on_stays_off():
    async def story():
        async with site() as s:
            store = await _two_off(s)
            held = []

            async def listed(kind) -> None:
                if kind is VirtualMachine and not held:
                    held.append(await s.vm("vm1", holder="d"))

            store.listed = listed
            await s.policy(power_on_after=True)
            await asyncio.sleep(30)
            assert s.power.controllers["d"].ons == []
            assert (await s.record("d")).fence.power_on.tries == 0
            await s.release(held[0])
            await asyncio.sleep(10)
            assert len(s.power.controllers["d"].ons) == 1

    run(story())


def test_dead_host_that_is_registered_no_more_is_not_looked_after():
    async def story():
        async with site() as s:
            store = await _two_off(s)
            listed = []

            async def count(kind) -> None:
                listed.append(kind)

            for name in ("d", "e"):
                await s.store.delete(ObjectRef(kind="Hypervisor", name=name))
            await s.policy(power_on_after=True)
            await asyncio.sleep(10)
            store.listed = count
            await asyncio.sleep(60)
            assert VirtualMachine not in listed

    run(story())

"""Silent hosts are condemned on exactly the version that was seen, and proven dead by their BMCs."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import BEFORE_S, Site, four_hosts, site

from outlive.resources import Membership


async def test_silent_host_is_condemned_after_seven_seconds_and_dead_three_seconds_later():
    async with site() as s:
        await four_hosts(s)
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


async def test_host_that_renews_right_before_it_is_condemned_lives():
    async with site() as s:
        store = _Renewing(s.store, "d")
        await s.hosts("a", "b", "c", "d")
        s.watch("a", store=store)
        await asyncio.sleep(BEFORE_S)
        s.silence("d")
        await store.lost.wait()
        s.renew("d")
        await asyncio.sleep(60)
        record = await s.record("d")
        assert (record.state, record.fence.id) == ("Held", "")
        assert s.power.controllers["d"].offs == []


async def test_host_that_renews_between_suspicion_and_its_last_look_lives():
    async with site() as s:
        await four_hosts(s)
        s.silence("d")
        await asyncio.sleep(6.0)
        await site_write(s.store, await s.store.get(Membership, "d"))
        await asyncio.sleep(4.5)
        assert (await s.record("d")).state == "Held"
        await s.until("d", lambda record: record.state == "Revoked", limit_s=10)


async def test_fence_whose_fencer_lives_but_does_nothing_is_taken_over_after_a_minute():
    async with site() as s:
        await four_hosts(s, "a")
        s.silence("d")
        await s.until("d", lambda record: record.state == "Revoked")
        s.kill("a")
        s.watch("b")
        took = s.now()
        await s.until("d", lambda record: record.fence.by == "b", limit_s=80)
        assert s.now() - took >= 60
        await s.until_dead("d", limit_s=10)


async def test_restarted_fencer_goes_on_with_its_own_fence_at_once():
    async with site() as s:
        await four_hosts(s, "a")
        s.silence("d")
        await s.until("d", lambda record: record.state == "Revoked")
        s.kill("a")
        await asyncio.sleep(1)
        s.watch("a")
        await s.until_dead("d", limit_s=6)


@pytest.mark.slow
async def test_dead_controller_proves_nothing_and_is_tried_again_after_30_60_120_and_300_seconds():
    async with site() as s:
        await four_hosts(s, "a", bmc="dead")
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


async def test_controller_that_comes_back_proves_at_the_next_attempt_and_the_fault_ends():
    async with site() as s:
        await four_hosts(s, "a")
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


async def test_host_without_a_recorded_system_uuid_is_not_proven_by_power():
    async with site() as s:
        await four_hosts(s, system_uuid="")
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        assert "no system uuid" in (await s.record("d")).fence.unproven_why


async def test_controller_that_says_on_for_ever_proves_nothing():
    async with site() as s:
        await four_hosts(s, bmc="stuck")
        s.silence("d")
        condemned = await s.until("d", lambda record: record.state == "Revoked")
        unconfirmed = await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        assert 10 <= unconfirmed - condemned <= 13
        assert "still said on" in (await s.record("d")).fence.unproven_why


async def test_controller_that_does_not_answer_the_command_ends_the_attempt_at_once():
    async with site() as s:
        await four_hosts(s)
        controller = s.power.controllers["d"]
        s.silence("d")
        await s.until("d", lambda record: record.fence.attempt == 1)
        controller.delay_s = 21.0
        began = s.now()
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        assert s.now() - began <= 21.0


async def test_two_kinds_of_proof_are_demanded_and_one_is_not_enough():
    async with site() as s:
        await four_hosts(s, proofs=2)
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

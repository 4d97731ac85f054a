"""Orders of operators to a fencer: which hosts to fence, and which kind of proof to trust again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import BEFORE_S, Interposed, build_racks, list_revoked, site

from outlive.base import Unavailable
from outlive.node.fencing import Opening
from outlive.resources import FencePhase, Hypervisor, Membership


async def test_coordinators_that_are_to_be_fenced_do_not_switch_each_other_off():
    async with site() as s:
        await s.hosts("a", "b")
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


async def test_condemned_coordinator_leaves_orders_to_others():
    async with site() as s:
        await s.host("a", bmc="")
        await s.hosts("b", "c")
        s.watch("a")
        await asyncio.sleep(BEFORE_S)
        await s.write(await s.store.get(Membership, "a"), state="Revoked")
        await s.change_fencing("c", requested="1|ann|its disk hangs")
        await asyncio.sleep(10)
        assert await list_revoked(s, ["c"]) == []
        s.watch("b")
        await s.until_dead("c", limit_s=8)


async def test_request_for_another_epoch_is_not_heeded():
    async with site() as s:
        await build_racks(s, 8)
        s.watch("h0")
        await asyncio.sleep(BEFORE_S)
        await s.change_fencing("h7", requested="2|ann|its disk hangs")
        await s.change_fencing("h6", requested="1||nobody said so")
        await asyncio.sleep(30)
        assert await list_revoked(s, ["h6", "h7"]) == []


@pytest.mark.parametrize("order", ["1|ann|its disk hangs", ""], ids=["of the epoch before", "called off"])
async def test_order_to_fence_counts_as_it_is_when_the_host_is_condemned(order: str):
    """Between the look at the order and the write the host may have joined again, or somebody called it off."""
    async with site() as s:
        await build_racks(s, 8)
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


@pytest.mark.parametrize("found", [True, False], ids=["after its proof", "before its proof"])
async def test_what_proved_nothing_is_written_again_where_the_store_went_back(found: bool):
    async with site() as s:
        await build_racks(s, 8)
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


async def test_distrusted_kind_is_not_used_until_an_operator_says_so():
    async with site() as s:
        await build_racks(s, 8)
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


async def test_word_of_trust_that_was_said_while_no_fencer_ran_is_heeded_by_the_next_one():
    async with site() as s:
        await build_racks(s, 8)
        await s.write(await s.store.get(Membership, "h7"), distrusted=("power",), trust_word="once")
        await s.change_fencing("h7", trust_again="new controller")
        s.watch("h0")
        await s.until("h7", lambda record: record.distrusted == (), limit_s=BEFORE_S)
        assert (await s.record("h7")).trust_word == "new controller"


async def test_host_whose_settings_cannot_be_read_does_not_keep_the_next_one_distrusted():
    async with site() as s:
        await build_racks(s, 8)
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


async def test_word_of_trust_that_stood_before_a_proof_turned_out_wrong_counts_no_more():
    async with site() as s:
        await build_racks(s, 8)
        await s.change_fencing("h7", trust_again="new controller")
        await s.write(await s.store.get(Membership, "h7"), distrusted=("power",), trust_word="new controller")
        s.watch("h0")
        await asyncio.sleep(60)
        assert (await s.record("h7")).distrusted == ("power",)


async def test_rehearsals_are_written_by_the_first_coordinator():
    async with site() as s:
        await build_racks(s, 4)
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

"""Machines that are replaced, and cuts that are renewed while they are lifted."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import Site, four_hosts, site
from tests.support.field_writers import WriterStore
from tests.unit.node.test_fencer_cut import Cuts, _site

from outlive.base import LoopClock
from outlive.node import request_fence
from outlive.resources import MemberRecord, Membership, ObjectMeta, ObjectRef
from outlive.resources.reasons import FaultCode
from outlive.runtime import LIST_AGAIN_S, ActiveFault, FaultRecorder


async def _replaced(s: Site, name: str) -> None:
    """Another machine is put up in its place: the Membership of the old one is deleted, and the new one registers."""
    old = await s.store.get(Membership, name, fresh=True)
    await s.store.delete(old.ref)
    await asyncio.sleep(20)
    record = MemberRecord(machine_id=f"new-{name}", boot_id="b9", nonce=f"new-{name}", seq=1)
    await s.store.create(Membership(metadata=ObjectMeta(name=name), record=record))
    s.renew(name)


@pytest.mark.slow
async def test_that_nobody_is_condemned_in_a_storm_is_not_told_any_more_once_the_coordinator_that_said_so_has_died():
    async with site() as s:
        await four_hosts(s, "a", "b")
        before = FaultRecorder(WriterStore(s.store, writer="fencer"), LoopClock(), "fencer")
        await before.record([ActiveFault(FaultCode.STORM_HOLD, ObjectRef(kind="Cluster", name="default"))])
        await asyncio.sleep(LIST_AGAIN_S + 10)
        assert await s.faults() == {}


async def test_order_to_fence_a_host_is_not_carried_out_on_the_machine_that_replaces_it():
    async with site() as s:
        await four_hosts(s)
        await request_fence(s.store, LoopClock(), "d", name="ann", reason="its disk hangs")
        await s.until_dead("d", limit_s=6)
        await _replaced(s, "d")
        await asyncio.sleep(10)
        await s.change_fencing("d", system_uuid="uuid-d", address="the controller of the new one")
        await asyncio.sleep(30)
        assert (await s.record("d")).state == "Held"
        assert len(s.power.controllers["d"].offs) == 1


async def test_that_a_host_is_dead_is_not_told_any_more_though_the_fencer_that_leads_dies_as_it_comes_back():
    async with site() as s:
        await four_hosts(s, "a", "b")
        s.silence("d")
        await s.until_dead("d")
        await asyncio.sleep(5)
        assert "host-dead.d" in await s.faults()
        s.kill("a")
        s.silence("a")
        await s.come_back("d")
        await asyncio.sleep(120)
        assert "host-dead.d" not in await s.faults()


class SlowToCut(Cuts):
    """Takes its time until an order to shut a host out is carried out."""

    slow_s = 0.0
    under_way = 0

    async def cut(self, host, epoch, scope):
        self.under_way += 1
        await asyncio.sleep(self.slow_s)
        await super().cut(host, epoch, scope)
        self.under_way -= 1


@pytest.mark.slow
async def test_cut_that_is_renewed_at_the_moment_in_which_its_host_becomes_clean_does_not_stay():
    async with site() as s:
        cuts = SlowToCut()
        await _site(s, cuts)
        s.silence("d")
        await s.until("d", lambda record: record.cut.through == 1)
        await s.write(await s.store.get(Membership, "d", fresh=True), state="Held", epoch=2)
        s.renew("d")
        await asyncio.sleep(90)
        cuts.slow_s = 5.0
        for _ in range(3000):
            if cuts.under_way:
                break
            await asyncio.sleep(0.1)
        current = await s.store.get(Membership, "d", fresh=True)
        await s.write(current, dead_through=1, seq=current.record.seq + 1)
        await asyncio.sleep(300)
        assert (await s.record("d")).cut.through == 0
        assert "d" not in cuts.out

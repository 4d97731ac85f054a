"""BMCs are rehearsed while their hosts live; without that they prove nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import BEFORE_S, SleepyClock, SlowClock, four_hosts, site

from outlive.node.fencing import CHECKED_EVERY_S, EVERY_S
from outlive.resources import Hypervisor


async def test_controller_that_was_never_rehearsed_before_the_host_fell_silent_proves_nothing():
    async with site() as s:
        await four_hosts(s, bmc="dead")
        s.silence("d")
        s.power.controllers["d"].mode = "ok"
        record = await s.until("d", lambda record: record.fence.phase == "unconfirmed") and await s.record("d")
        assert "rehearse" in record.fence.unproven_why
        assert s.power.controllers["d"].offs == []


@pytest.mark.parametrize("from_the_beginning", [True, False])
async def test_controller_that_says_off_while_its_host_lives_proves_nothing(from_the_beginning: bool):
    async with site() as s:
        await four_hosts(s, bmc="always-off" if from_the_beginning else "ok")
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


async def test_new_controller_is_rehearsed_at_once():
    async with site() as s:
        await four_hosts(s, bmc="dead")
        s.power.controllers["d"].mode = "ok"
        host = await s.store.get(Hypervisor, "d")
        fencing = msgspec.structs.replace(host.spec.fencing, address="elsewhere")
        await s.store.replace(msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, fencing=fencing)))
        await asyncio.sleep(5)
        assert (await s.store.get(Hypervisor, "d")).status.rehearsed == "ok"


@pytest.mark.slow
async def test_rehearsals_of_a_fencer_with_a_slow_clock_come_round():
    """Each wait is over somewhat early by such a clock; what is left at the end is less than time can be told apart."""
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        s.watch("a", clock=SlowClock())
        await asyncio.sleep(600)
        assert (await s.store.get(Hypervisor, "d")).status.rehearsed == "ok"


async def test_host_that_is_off_has_a_good_controller():
    async with site() as s:
        await four_hosts(s)
        s.silence("d")
        await s.until_dead("d")
        await asyncio.sleep(120)
        assert (await s.store.get(Hypervisor, "d")).status.rehearsed == "ok"


@pytest.mark.parametrize(("slept_s", "written", "counts"), [(0, 0, True), (700, 0, False), (700, 1, True)])
async def test_rehearsal_from_before_its_fencer_slept_is_as_old_as_it_is(slept_s: float, written: int, counts: bool):
    """The controller does not answer between the sleep and the silence, so that it is not rehearsed anew.

    What was written counts in the host's own renewals, whatever this fencer's clocks say.
    """
    async with site() as s:
        clock = SleepyClock()
        await s.hosts("a", "b", "c", "d")
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


def _written(seq: int) -> dict:
    return {"rehearsed": "ok", "rehearsed_seq": seq}


@pytest.mark.slow
@pytest.mark.parametrize(("lived_s", "counts"), [(500, True), (700, False)])
async def test_written_rehearsal_counts_for_ten_minutes_of_the_hosts_own_life_and_however_long_it_lies_dead(
    lived_s: int, counts: bool
):
    """Nobody rehearses while no fencer runs; this one was started long after the host fell silent."""
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
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


@pytest.mark.slow
async def test_good_rehearsals_are_written_again_while_their_host_lives():
    async with site() as s:
        await four_hosts(s)
        await asyncio.sleep(1200)
        host = await s.store.get(Hypervisor, "d")
        assert host.status.rehearsed == "ok"
        assert (await s.record("d")).seq - host.status.rehearsed_seq <= 400


async def test_a_controller_that_would_refuse_the_order_is_told_before_it_is_needed_and_again_when_it_is_mended():
    """What it says of itself takes nothing away: an order that it carries out all the same is proven by readings."""
    async with site() as s:
        await four_hosts(s)
        s.power.controllers["d"].obstacle = "its user op may not switch it off (role ReadOnly)"
        await asyncio.sleep(CHECKED_EVERY_S + EVERY_S)
        assert "role ReadOnly" in (await s.store.get(Hypervisor, "d")).status.rehearsed
        s.power.controllers["d"].obstacle = ""
        await asyncio.sleep(EVERY_S + 5)
        assert (await s.store.get(Hypervisor, "d")).status.rehearsed == "ok"
        s.power.controllers["d"].obstacle = "its user op may not switch it off (role ReadOnly)"
        await asyncio.sleep(CHECKED_EVERY_S + EVERY_S)
        s.silence("d")
        await s.until_dead("d")
        assert (await s.record("d")).proof.kind == "power"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("refuses", "its BMC refused the command to switch off: user op may not do that: the account is"),
        ("unsure", "after the command (never_off); it may or may not switch off: ForceOff is not supported for Reset"),
    ],
)
async def test_why_a_host_is_not_proven_dead_is_what_its_controller_said(mode: str, why: str):
    async with site() as s:
        await four_hosts(s)
        s.power.controllers["d"].mode = mode
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed")
        record = await s.record("d")
        assert why in record.fence.unproven_why
        assert record.dead_through == 0

"""What maintenance is on, and what it hid, in words."""

from __future__ import annotations

from datetime import timedelta

from outlive.base import LoopClock, Random, SeededIds, as_datetime
from outlive.node import NOTHING, list_spared, maintenance_status
from outlive.resources import FencingSpec, Hypervisor, HypervisorSpec, HypervisorStatus, ObjectMeta, Spared
from outlive.store import MemoryStore


async def test_status_tells_who_is_in_maintenance_and_what_it_hid_within_a_day() -> None:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    assert await maintenance_status(store, clock) == f"nothing is in maintenance\n{NOTHING}"
    now = as_datetime(clock.now())
    days = [Spared(at=now - timedelta(hours=hours), why="silent", under="work") for hours in (30, 2)]
    resting = HypervisorSpec(fencing=FencingSpec(maintenance=True))
    store.load([Hypervisor(metadata=ObjectMeta(name="h1"), spec=resting, status=HypervisorStatus(spared=tuple(days)))])
    on, told = (await maintenance_status(store, clock)).splitlines()
    assert on == "h1: in maintenance until somebody ends it"
    assert told == f"{days[1].at:%Y-%m-%d %H:%M:%S} UTC: h1 would have been condemned but for work: silent"
    assert await list_spared(store, clock, ("h2",)) == NOTHING

"""A VM that has ended is no longer in its host's allocation; what it used is its slot's again from that moment on, for
everybody who adds up, before the slot's status says so."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.placement import commitment, fleet_of, host, instances, slot
from tests.support.plain_placement import host_free_capacity
from tests.support.sales import GIB, SETTINGS, Market, in_market, vm
from tests.support.sales import host as sold_host

from outlive.base import LoopClock, Random, SeededIds
from outlive.commitments import from_spec
from outlive.failover import without_room
from outlive.failover.report import host_metrics
from outlive.failover.verify import StateFleet
from outlive.node.vm import survey_hosts
from outlive.resources import Amounts, Hypervisor, Reservation, state_facts
from outlive.store import MemoryStore

SOLD = commitment("c", meant={"a": ("4", "16Gi")}, seen=("a",))
RUNS = host(allocation={"cpu": "4", "memory": "16Gi"}, instances=instances("a"))
REST = slot("f", cpu="12", memory="56Gi")
"""8 GiB more than the host has beside the commitment."""


@pytest.mark.parametrize(("given", "held"), [(RUNS, 0), (host(), 16)])
def test_everybody_who_adds_up_says_the_same(given: Hypervisor, held: int) -> None:
    reservations: list[Reservation] = [SOLD, REST]
    assert dict(fleet_of(given, *reservations).overbooked_amounts("h1")) == {"memory": 8 * GIB}
    assert host_free_capacity(reservations, given) == Amounts(cpu=0, memory=-8 * GIB)
    assert without_room([given], reservations, ()) == {
        "h1": "lacks 0 cpu and 8Gi memory for its VMs and all that is reserved there"
    }
    assert StateFleet(state_facts([given, *reservations])).compute_room() == {"h1": (0, -8 * GIB)}
    _, usage = host_metrics([given], [replace(SOLD, spec=replace(SOLD.spec, scheduling_domain="nova"))])
    reserved = {
        one.value for one in usage.samples if one.labels["resource"] == "ram" and one.labels["type"] == "reserved"
    }
    assert reserved == {held * GIB}
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    store.load([given, *reservations])
    (node,) = asyncio.run(survey_hosts(store)).nodes
    assert (node.memory.allocated, node.memory.reserved) == ((16 - held) * 1024, (56 + held) * 1024)


def test_nobody_else_gets_its_room_while_nobody_has_looked_after_the_slot() -> None:
    mine = vm("v", "h1", vcpus=2)

    async def story(market: Market) -> None:
        await market.sell("aaaaaa", 8)
        assert market.free("h1") == 0
        commitments = market.role.commitments
        commitments.slots.reconcile = _nothing  # type: ignore[method-assign]
        cr = (await market.commitments())["aaaaaa"]
        cores = commitments.view.occupied_cores(from_spec(cr.spec), [cr])
        await market.end("v")
        found = await market.store.get(Hypervisor, "h1")
        await market.store.replace_status(replace(found, status=sold_host("h1").status))
        await asyncio.sleep(1)
        (kept,) = [one for one in (await market.slots()).values() if "v" in _confirmed(one)]
        assert market.free("h1") == 0, f"the room of a VM that ended is free, and {kept.name} holds it"
        assert commitments.view.occupied_cores(from_spec(cr.spec), [cr]) == cores

    in_market([sold_host("h1", vms=[mine]), mine], story, settings=SETTINGS)


def _confirmed(one: Reservation) -> dict[str, str]:
    seen = one.status.committed_resource_reservation
    return seen.allocations if seen is not None else {}


async def _nothing(_key: str) -> None:
    """The controller of slots stands still."""

"""A slot that was evicted, and is wanted nowhere until placement finds another host, holds nothing anywhere, though its
status still names the host that it left."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from tests.support.commitments import GIB, GROUP
from tests.support.loops import run_by
from tests.support.placement import commitment, fleet_of, host, request
from tests.support.sales import SETTINGS, Market, in_market
from tests.support.sales import host as sold_host

from outlive.commitments import Commitment, ConsistencyInput, Overview, SlotsOutcome, compare, evaluate, slot_kept
from outlive.failover.report import host_metrics, reservation_metrics
from outlive.placement import Engine, PipelineTable, blocked_hosts, placed_on, unused_amounts
from outlive.resources import Amounts, ObjectMeta, Pipeline, PipelineSpec, Reservation, StepSpec

HOST = host(
    "h1",
    capacity={"cpu": "10", "memory": "64Gi"},
    effectiveCapacity={"cpu": "10", "memory": "64Gi"},
    allocation={"cpu": "0", "memory": "0"},
)
STAYS = commitment("c-0", "h1", cpu="8", memory="16Gi")
EVICTED = commitment("c-1", "h1", target="", cpu="8", memory="16Gi")


def test_it_holds_nothing_and_is_nowhere() -> None:
    assert (blocked_hosts(EVICTED), unused_amounts(EVICTED), placed_on(EVICTED)) == ((), Amounts(), "")
    assert (blocked_hosts(STAYS), placed_on(STAYS)) == (("h1",), "h1")


def test_the_ledger_counts_it_nowhere_from_the_moment_of_its_eviction() -> None:
    fleet = fleet_of(HOST, STAYS, commitment("c-1", "h1", cpu="8", memory="16Gi"))
    assert dict(fleet.overbooked_amounts("h1")) == {"cpu": 6000}
    fleet.upsert_reservation(EVICTED)
    assert dict(fleet.overbooked_amounts("h1")) == {}
    assert fleet.free_amounts().tolist() == [[2000, 48 * 2**30]]


def test_it_draws_no_vm_of_its_project_to_the_host_that_it_left() -> None:
    table = PipelineTable()
    weigher = StepSpec(name="kvm_committed_resource_reservation")
    table.put(Pipeline(metadata=ObjectMeta(name="one"), spec=PipelineSpec(weighers=(weigher,))))
    engine = Engine(fleet_of(HOST, host("h2"), EVICTED), table)
    ranking = engine.rank(request(pipeline="one", zone="z1", extraSpecs={"quota:hw_version": "g"}))
    assert len(set(ranking.scores)) == 1


def test_metrics_and_overviews_name_no_host_for_it() -> None:
    samples = [sample for family in reservation_metrics([EVICTED]) for sample in family.samples]
    assert [one for one in samples if one.labels.get("host")] == []
    assert [one for one in samples if one.name == "reservations_allocated_resources"] == []
    usage = [one for family in host_metrics([HOST], [EVICTED]) for one in family.samples]
    assert {one.value for one in usage if one.labels.get("type") == "reserved"} == {0.0}
    overview = Overview([GROUP], {"h1": "z1"})
    overview.add(EVICTED)
    assert overview.list_rows(()) == ()


def test_a_commitment_with_it_is_not_there_and_a_batch_looks_for_a_host_for_it() -> None:
    slots = [_echoed(one) for one in (STAYS, EVICTED)]
    wanted = Commitment(
        uuid="", project="p", group="g", zone="z1", memory_bytes=32 * GIB, state="confirmed", generation=1
    )
    assert evaluate(wanted, slots, 2).outcome is SlotsOutcome.PENDING
    assert slot_kept(EVICTED).host == ""


def test_it_is_on_no_unknown_host() -> None:
    found = compare(ConsistencyInput(slots=(EVICTED,), now=1e9, grace_s=60.0))
    assert "slot-on-unknown-host" not in {str(one.kind) for one in found.disagreements}


@run_by(in_market, [sold_host("h1")], settings=SETTINGS)
async def test_what_it_held_is_sold_again_while_nobody_has_looked_after_it(market: Market) -> None:
    await market.sell("aaaaaa", 8)
    market.role.commitments.slots.reconcile = _nothing  # type: ignore[method-assign]
    slot = next(iter((await market.slots()).values()))
    await market.store.replace(replace(slot, spec=replace(slot.spec, target_host="")))
    await asyncio.sleep(1)
    assert market.free("h1") == 32
    assert (await market.slots())[slot.name].status.host == "h1"


async def _nothing(_key: str) -> None:
    """The controller of slots stands still."""


def _echoed(slot: Reservation) -> Reservation:
    seen = slot.status.committed_resource_reservation
    assert seen is not None
    return replace(
        slot, status=replace(slot.status, committed_resource_reservation=replace(seen, observed_parent_generation=1))
    )

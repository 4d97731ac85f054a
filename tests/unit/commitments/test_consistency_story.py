"""What is said differently of commitments is shown, is a fault if it lasts, and is repaired if that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from tests.support.loops import run, run_by
from tests.support.sales import (
    SETTINGS,
    Listing,
    Market,
    asked,
    batch,
    host,
    hosting,
    in_market,
    live,
    project,
    store_with,
    vm,
)

from outlive.base import LoopClock, as_datetime
from outlive.commitments import DisagreementKind, confirmed_allocations, slot_allocations
from outlive.resources import Amounts, CommittedResource, CommittedStatus, Fault, Reservation, SpecAllocation
from outlive.roles import RoleSettings
from outlive.store import Store, list_all

REPAIRS = replace(SETTINGS, commitments=replace(SETTINGS.commitments, enable_consistency_repair=True))


async def give(market: Market, uuid: str, vm_id: str) -> None:
    """Somebody writes a VM into the slot of a commitment, long ago."""
    slot = next(iter((await market.slots(uuid)).values()))
    await write(market.store, slot, {vm_id: SpecAllocation(resources=Amounts(cpu=2000, memory=8 * 2**30))})


async def write(store: Store, slot: Reservation, allocations: Mapping[str, SpecAllocation], *, host: str = "") -> None:
    """Somebody writes what is in a slot; with a host: as confirmed there."""
    details = slot.spec.committed_resource_reservation
    assert details is not None
    spec = replace(slot.spec, committed_resource_reservation=replace(details, allocations=dict(allocations)))
    written = await store.replace(replace(slot, spec=spec))
    if host:
        seen = CommittedStatus(allocations=dict.fromkeys(allocations, host))
        status = replace(written.status, committed_resource_reservation=seen)
        await store.replace_status(replace(written, status=status))


async def listed(market: Market, uuid: str) -> list[str]:
    """The VMs in the slots of a commitment."""
    details = [one.spec.committed_resource_reservation for one in (await market.slots(uuid)).values()]
    return [vm_id for one in details if one is not None for vm_id in one.allocations]


async def faults(market: Market) -> list[str]:
    return [one.name async for one in list_all(market.store, Fault) if not one.ended]


def charge_twice(settings: RoleSettings) -> list[str]:
    """A commitment is charged a VM that there is not; the faults after an hour, and what is charged then."""
    found: list[str] = []

    async def story(market: Market) -> None:
        await market.sell("aaaaaa", 1, then_s=10)
        cr = (await market.commitments())["aaaaaa"]
        status = replace(cr.status, assigned_instances=("nowhere",), used_resources=None)
        await market.store.replace_status(replace(cr, status=replace(status, last_usage_reconcile_at=None)))
        await asyncio.sleep(3600)
        found.extend((*await faults(market), *(await market.commitments())["aaaaaa"].status.assigned_instances))

    in_market([host("h1")], story, settings=settings)
    return found


@pytest.mark.slow
def test_what_controllers_repair_by_themselves_is_no_fault() -> None:
    assert charge_twice(SETTINGS) == []


@pytest.mark.slow
@run_by(in_market, [*hosting("h1", vm("v1", "h2")), host("h2")])
async def test_a_disagreement_is_shown_and_is_a_fault_once_it_lasts(market: Market) -> None:
    assert 'committed_resource_disagreements{class="vm-on-other-host",owner="vm-source"} 1.0' in market.metrics(
        "committed_resource_disagreements"
    )
    assert await faults(market) == []
    await asyncio.sleep(1300)
    assert [name for name in await faults(market) if name.startswith("commitments")] == [
        "commitments-disagree.vm-on-other-host"
    ]
    fault = await market.store.get(Fault, "commitments-disagree.vm-on-other-host")
    assert fault.message.startswith("1 times what is said") or "v1" in fault.message
    await market.end("v1")
    await market.start(vm("v1", "h1"))
    await asyncio.sleep(310)
    assert [name for name in await faults(market) if name.startswith("commitments")] == []


def test_repairs_that_are_asked_for_take_what_is_safe_and_leave_the_rest() -> None:
    listing, stranger = Listing("aaaaaa", "bbbbbb"), vm("v9", "h1", project="p9")
    lost = vm("v1", "h2")

    async def story(market: Market) -> None:
        audit = market.role.commitments.consistency
        audit.listing = listing
        await market.sell("aaaaaa", 1, then_s=10)
        await give(market, "aaaaaa", "v9")
        await asyncio.sleep(1)
        repaired = await audit.repair(
            {DisagreementKind.FOREIGN_VM, DisagreementKind.NOT_SYNCED, DisagreementKind.VM_ON_OTHER_HOST}
        )
        assert [(one.kind, one.subject) for one in repaired] == [
            ("foreign-vm", "commitment-aaaaaa-0"),
            ("not-synced", "bbbbbb"),
        ]
        assert listing.asked == 1
        assert await listed(market, "aaaaaa") == []
        assert (await audit.find_disagreements()).counts[DisagreementKind.VM_ON_OTHER_HOST] == 1

    in_market([host("h1", vms=[stranger, lost]), host("h2", gib=1), stranger, lost], story)


@pytest.mark.slow
@run_by(in_market, [host("h1")])
async def test_a_list_of_limes_says_nothing_of_a_commitment_that_changed_since(market: Market) -> None:
    listing = Listing("aaaaaa", "cccccc")
    audit = market.role.commitments.consistency
    for uuid in ("aaaaaa", "cccccc"):
        assert await market.change(batch(project("p1", asked(uuid, 1)))) == ""
    await asyncio.sleep(600)
    audit.listing, listing.asked_at = listing, LoopClock().now()
    assert (await audit.find_disagreements()).disagreements == ()
    await asyncio.sleep(60)
    assert await market.change(batch(project("p1", asked("aaaaaa", 2, old="confirmed")))) == ""  # it grows,
    assert await market.change(batch(project("p1", asked("bbbbbb", 1)))) == ""  # one is new,
    assert await market.change(batch(project("p1", asked("cccccc", 1, old="confirmed", new=None)))) == ""  # one goes
    await asyncio.sleep(3000)
    assert (await audit.find_disagreements()).disagreements == ()
    assert await faults(market) == []
    listing.asked_at = LoopClock().now()
    found = (await audit.find_disagreements()).disagreements
    assert [(one.kind, one.subject) for one in found] == [
        (DisagreementKind.DIFFERS, "aaaaaa"),
        (DisagreementKind.NOT_LISTED, "bbbbbb"),
        (DisagreementKind.NOT_SYNCED, "cccccc"),
    ]


@pytest.mark.slow
@run_by(in_market, hosting("h1", vm("v9", "h1", project="p9")), settings=REPAIRS)
async def test_with_the_setting_what_lasts_is_repaired_without_being_asked(market: Market) -> None:
    await market.sell("aaaaaa", 1, then_s=10)
    await give(market, "aaaaaa", "v9")
    await asyncio.sleep(600)
    assert await listed(market, "aaaaaa") == ["v9"]
    await asyncio.sleep(900)
    assert await listed(market, "aaaaaa") == []
    await asyncio.sleep(310)
    assert await faults(market) == []


@pytest.mark.slow
@pytest.mark.parametrize("over", [False, True])
def test_a_vm_that_two_slots_have_stays_in_the_first_of_them_whose_commitment_is_not_over(over: bool) -> None:
    """The store went back to a backup in which another slot had it."""
    mine = vm("v1", "h1", project="p1")

    async def sell(market: Market) -> None:
        for uuid in ("aaaaaa", "bbbbbb"):
            await market.sell(uuid, 1, then_s=10)
        assert (await listed(market, "aaaaaa"), await listed(market, "bbbbbb")) == (["v1"], [])

    async def look(market: Market) -> None:
        await asyncio.sleep(600)
        assert (await listed(market, "aaaaaa"), await listed(market, "bbbbbb")) == (
            ([], ["v1"]) if over else (["v1"], [])
        )
        slots = await market.slots("bbbbbb")
        assert [list(confirmed_allocations(one)) for one in slots.values()] == [["v1"] if over else []]

    async def scene() -> None:
        store = store_with(host("h1", vms=[mine]), mine)
        await live(store, sell, whole=False)
        first = await store.get(Reservation, "commitment-aaaaaa-0")
        other = await store.get(Reservation, "commitment-bbbbbb-0")
        await write(store, other, slot_allocations(first), host="h1")
        if over:
            ended = await store.get(CommittedResource, "commitment-aaaaaa")
            spec = replace(ended.spec, end_time=as_datetime(LoopClock().now() - 5))
            await store.replace(replace(ended, spec=spec))
        await live(store, look, whole=False)

    run(scene())

"""Each class of disagreement is made in a running cloud, found, and repaired where that is safe.

What is spoiled is seen by the comparison before any controller can mend it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.sales import GIB, SETTINGS, Listing, Market, host, in_market, vm

from outlive.commitments import DisagreementKind
from outlive.resources import (
    Amounts,
    CommittedResource,
    CommittedStatus,
    Instance,
    ObjectMeta,
    Reservation,
    Resource,
    SpecAllocation,
    VirtualMachine,
)

NEVER = replace(SETTINGS, commitments=replace(SETTINGS.commitments, usage_cooldown_interval=86_400.0))
"""Usage is counted when it is asked for, and else once a day."""
Spoil = Callable[[Market], Awaitable[None]]


async def sell(market: Market, uuid: str = "aaaaaa", units: int = 1) -> Reservation:
    """An accepted commitment; its first slot."""
    await market.sell(uuid, units, then_s=10)
    return next(iter((await market.slots(uuid)).values()))


async def write_slot(market: Market, slot: Reservation, *vms: str, confirmed: tuple[str, ...] = ()) -> Reservation:
    """The slot reads like this, with these VMs in it since long ago, some of them confirmed; all caches show it."""
    cache, details = market.role.informers.reservations, slot.spec.committed_resource_reservation
    assert details is not None
    meant = {one: SpecAllocation(resources=Amounts(cpu=2000, memory=8 * GIB)) for one in vms}
    slot = replace(slot, spec=replace(slot.spec, committed_resource_reservation=replace(details, allocations=meant)))
    seen = CommittedStatus(allocations=dict.fromkeys(confirmed, slot.status.host))
    status = replace(slot.status, committed_resource_reservation=seen)
    known = cache.get(slot.name)
    written = await (market.store.create(slot) if known is None else market.store.replace(slot))
    written = await market.store.replace_status(replace(written, status=status))
    cache.note(written, replaced=known.metadata.resource_version if known is not None else "")
    return written


async def write_commitment(market: Market, uuid: str, half: str, **fields: Any) -> None:
    """The spec or status of a commitment reads like this, and all caches show it."""
    found = (await market.commitments())[uuid]
    changed = replace(found, **{half: replace(getattr(found, half), **fields)})
    write = market.store.replace if half == "spec" else market.store.replace_status
    written: CommittedResource = await write(changed)
    market.role.commitments.informers.commitments.note(written, replaced=found.metadata.resource_version)


def story_of(
    kind: DisagreementKind, spoil: Spoil, objects: Iterable[Resource], *, listing: Listing | None = None
) -> list[int]:
    """How many of the class are found once it is spoiled, how many of them are repaired, and how many are left."""
    counts: list[int] = []

    async def story(market: Market) -> None:
        audit = market.role.commitments.consistency
        await asyncio.sleep(2000)  # everything that is there already is not new
        await spoil(market)
        audit.listing = listing
        counts.append((await audit.find_disagreements()).counts[kind])
        counts.append(len(await audit.repair({kind})))
        await asyncio.sleep(60)
        counts.append((await audit.find_disagreements()).counts[kind])

    in_market(objects, story, settings=NEVER)
    return counts


async def slot_is_gone(market: Market) -> None:
    slot = await sell(market)
    await market.store.delete(slot.ref, uid=slot.metadata.uid)
    market.role.informers.reservations.note_deleted(slot.ref)


async def one_slot_too_many(market: Market) -> None:
    slot = await sell(market)
    await write_slot(
        market, replace(slot, metadata=ObjectMeta(name="commitment-aaaaaa-7", labels=slot.metadata.labels))
    )


async def slot_of_nobody(market: Market) -> None:
    slot = await sell(market)
    details = slot.spec.committed_resource_reservation
    assert details is not None
    spec = replace(slot.spec, committed_resource_reservation=replace(details, commitment_uuid=""))
    meta = ObjectMeta(name="commitment-gone-0", labels=slot.metadata.labels)
    await write_slot(market, replace(slot, metadata=meta, spec=spec))
    await asyncio.sleep(1000)


async def slot_of_nobody_with_a_vm(market: Market) -> None:
    await slot_of_nobody(market)
    found = market.role.informers.reservations.get("commitment-gone-0")
    assert found is not None
    await write_slot(market, found, "v1")


async def over_with_slots(market: Market) -> None:
    await sell(market)
    await write_commitment(market, "aaaaaa", "spec", state="expired")


async def slot_of_another_project(market: Market) -> None:
    slot = await sell(market)
    details = slot.spec.committed_resource_reservation
    assert details is not None
    spec = replace(slot.spec, committed_resource_reservation=replace(details, project_id="p9"))
    await write_slot(market, replace(slot, spec=spec))


async def slot_on_no_host(market: Market) -> None:
    slot = await sell(market)
    written = await market.store.replace_status(replace(slot, status=replace(slot.status, host="h9")))
    market.role.informers.reservations.note(written, replaced=slot.metadata.resource_version)


async def in_two_slots(market: Market) -> None:
    first, second = await sell(market), await sell(market, "bbbbbb")
    await write_slot(market, first, "v1")
    await asyncio.sleep(10)
    await write_slot(market, second, "v1", confirmed=("v1",))


async def vm_of_nowhere(market: Market) -> None:
    await write_slot(market, await sell(market), "v7")


async def vm_of_another_project(market: Market) -> None:
    await write_slot(market, await sell(market), "v9", confirmed=("v9",))


async def confirmed_where_it_is_not(market: Market) -> None:
    await write_slot(market, await sell(market), "v1")
    await asyncio.sleep(1000)
    cache = market.role.informers.hypervisors
    found = cache.get("h1")
    assert found is not None
    status = replace(found.status, instances=(Instance(id="v9"),))
    written = await market.store.replace_status(replace(found, status=status))
    cache.note(written, replaced=found.metadata.resource_version)


async def charged_with_nothing(market: Market) -> None:
    await sell(market)
    await write_commitment(market, "aaaaaa", "status", assigned_instances=("v7",))


async def charged_twice(market: Market) -> None:
    await sell(market)
    await sell(market, "bbbbbb")
    for uuid in ("aaaaaa", "bbbbbb"):
        await write_commitment(market, uuid, "status", assigned_instances=("v1",))


async def charged_too_much(market: Market) -> None:
    await sell(market)
    await write_commitment(market, "aaaaaa", "status", used_resources=Amounts(cpu=2000, memory=9 * GIB))


async def charged_and_not_accepted(market: Market) -> None:
    """What was accepted has ended, its renewal is not accepted yet, and it is charged a VM that there is not."""
    await sell(market)
    found = (await market.commitments())["aaaaaa"]
    accepted = found.status.accepted_spec
    assert accepted is not None
    ended = replace(accepted, end_time=accepted.start_time)
    await write_commitment(market, "aaaaaa", "status", accepted_spec=ended, assigned_instances=("v7",))


MINE, OTHERS, STRAY = vm("v1", "h1"), vm("v9", "h1", project="p9"), vm("v2", "h2")
CLOUD = [host("h1", gib=128, vms=[MINE, OTHERS]), host("h2", vms=[STRAY], zone="zone-b"), MINE, OTHERS, STRAY]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (DisagreementKind.SLOTS_SHORT, slot_is_gone),
        (DisagreementKind.SLOTS_EXCESS, one_slot_too_many),
        (DisagreementKind.OVER_WITH_SLOTS, over_with_slots),
        (DisagreementKind.ORPHAN_SLOT, slot_of_nobody),
        (DisagreementKind.SLOT_DIFFERS, slot_of_another_project),
        (DisagreementKind.SLOT_ON_UNKNOWN_HOST, slot_on_no_host),
        (DisagreementKind.ALLOCATED_TWICE, in_two_slots),
        (DisagreementKind.UNKNOWN_VM, vm_of_nowhere),
        (DisagreementKind.FOREIGN_VM, vm_of_another_project),
        (DisagreementKind.CONFIRMED_ELSEWHERE, confirmed_where_it_is_not),
        (DisagreementKind.CHARGED_UNKNOWN, charged_with_nothing),
        (DisagreementKind.CHARGED_UNKNOWN, charged_and_not_accepted),
        (DisagreementKind.CHARGED_TWICE, charged_twice),
        (DisagreementKind.OVERCHARGED, charged_too_much),
    ],
)
def test_a_disagreement_with_a_safe_repair_is_found_and_repaired(kind: DisagreementKind, spoil: Spoil) -> None:
    found, repaired, left = story_of(kind, spoil, CLOUD, listing=Listing("aaaaaa", "bbbbbb"))
    assert (found, repaired, left) == (1, 1, 0)


@pytest.mark.slow
def test_an_orphaned_slot_with_a_vm_is_shown_and_left() -> None:
    assert story_of(DisagreementKind.ORPHAN_SLOT, slot_of_nobody_with_a_vm, CLOUD, listing=Listing("aaaaaa")) == [
        1,
        0,
        1,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "listed", "asked_again"),
    [
        (DisagreementKind.NOT_SYNCED, {"aaaaaa": {}, "cccccc": {}}, 1),
        (DisagreementKind.DIFFERS, {"aaaaaa": {"memory_bytes": 16 * GIB}}, 1),
        (DisagreementKind.ZONE_DIFFERS, {"aaaaaa": {"zone": "zone-b"}}, 1),
        (DisagreementKind.NOT_LISTED, {}, 0),
    ],
)
def test_what_limes_says_otherwise_is_left_to_the_next_run_of_the_syncer(
    kind: DisagreementKind, listed: dict[str, dict[str, Any]], asked_again: int
) -> None:
    listing = Listing()
    for uuid, fields in listed.items():
        listing.commitments |= Listing(uuid, **fields).commitments

    async def sold_long_ago(market: Market) -> None:
        await sell(market)
        await asyncio.sleep(1000)

    assert story_of(kind, sold_long_ago, CLOUD, listing=listing) == [1, asked_again, 1]
    assert listing.asked == asked_again


@pytest.mark.slow
def test_what_is_wrong_with_the_list_of_vms_is_left_to_people() -> None:
    async def unlisted(market: Market) -> None:
        await market.end("v1")
        await asyncio.sleep(1)

    async def elsewhere(market: Market) -> None:
        found = await market.store.get(VirtualMachine, "v1")
        await market.store.replace_status(replace(found, status=replace(found.status, assigned=STRAY.status.assigned)))
        await asyncio.sleep(1)

    assert story_of(DisagreementKind.VM_NOT_LISTED, unlisted, CLOUD) == [1, 0, 1]
    assert story_of(DisagreementKind.VM_ON_OTHER_HOST, elsewhere, CLOUD) == [1, 0, 1]

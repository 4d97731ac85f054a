"""Commitments on a copy of a cluster: decided as the server decides them, and nothing is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from msgspec.structs import replace
from tests.support.loops import run, run_by
from tests.support.sales import (
    FLAVORS,
    GIB,
    SETTINGS,
    ZONE,
    Market,
    asked,
    batch,
    host,
    hosting,
    in_market,
    later,
    project,
    vm,
)

from outlive.base import LoopClock, Random, SeededIds, as_instant
from outlive.commitments import Commitment, CommitmentExplanation, CommitmentSettings, Trial, explain, open_trial
from outlive.failover import Documents, snapshot_of
from outlive.placement import VmView
from outlive.placement.flavor_groups import flavor_groups
from outlive.resources import (
    CommittedResource,
    FlavorGroup,
    Hypervisor,
    ObjectMeta,
    Reservation,
    Resource,
    VirtualMachine,
)
from outlive.store import list_all

GROUPS = tuple(FlavorGroup(metadata=ObjectMeta(name=group.group_name), spec=group) for group in flavor_groups(FLAVORS))


def in_trial(
    objects: Iterable[Resource],
    story: Callable[[Trial], Awaitable[None]],
    settings: CommitmentSettings = SETTINGS.commitments,
) -> None:
    async def scene() -> None:
        everything = [*GROUPS, *objects]
        seen = snapshot_of(
            Documents(
                hypervisors=tuple(one for one in everything if isinstance(one, Hypervisor)),
                reservations=tuple(one for one in everything if isinstance(one, Reservation)),
                vms=tuple(one for one in everything if isinstance(one, VirtualMachine)),
            ),
            SETTINGS,
        )
        vms: tuple[VmView, ...] = seen.observation.listing.vms
        clock, ids = LoopClock(), SeededIds(Random(1))
        async with open_trial(everything, engine=seen.engine, vms=vms, settings=settings, clock=clock, ids=ids) as made:
            await story(made)

    run(scene())


def wanted(gib: int, uuid: str = "mine-1", **more: object) -> Commitment:
    return Commitment(
        uuid=uuid,
        project="p9",
        group="g",
        zone=ZONE,
        memory_bytes=gib * GIB,
        state="confirmed",
        **more,  # type: ignore[arg-type]
    )


def why(made: Trial, commitment: Commitment) -> CommitmentExplanation:
    return explain(made.collect_facts(commitment))


@run_by(in_trial, [host("h1", gib=64)])
async def test_a_batch_is_accepted_and_the_next_one_finds_its_slots_there(made: Trial) -> None:
    assert await made.change(batch(project("p1", asked("first-1", 6)))) == ""
    refused = await made.change(batch(project("p1", asked("second-1", 3))))
    assert "insufficient capacity: 2/3 reservation slots" in refused or "insufficient capacity" in refused
    assert await made.change(batch(project("p1", asked("second-1", 2)))) == ""


def test_a_commitment_that_lost_its_host_is_kept_where_there_is_room() -> None:
    kept: list[str] = []

    async def sell(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("first-1", 4)), project("p2", asked("second-1", 4)))) == ""
        await asyncio.sleep(1)  # until the batch is applied
        everything = [one for kind in (CommittedResource, Reservation) async for one in list_all(market.store, kind)]
        remaining = [one for one in everything if not isinstance(one, Reservation)]

        async def story(made: Trial) -> None:
            for cr in made.view.informers.commitments.items():
                kept.append(await made.keep(cr))

        sold.extend(remaining)
        stories.append(story)

    sold: list[Resource] = []
    stories: list[Callable[[Trial], Awaitable[None]]] = []
    in_market([host("h1", gib=64), host("h2", gib=64)], sell)
    in_trial([host("h2", gib=40), *sold], stories[0])
    assert kept[0] == ""
    assert "insufficient capacity" in kept[1]


@run_by(
    in_trial,
    [
        *hosting("h1", vm("vm-low", "h1", gib=28), gib=32),
        *hosting("h2", vm("vm-high", "h2", gib=26), gib=32),
        host("h3", gib=64, zone="zone-b"),
    ],
)
async def test_an_explanation_names_the_shortfall_of_the_nearest_host(made: Trial) -> None:
    found = why(made, wanted(16))
    assert not found.possible
    assert found.slots[0].nearest is not None
    assert found.slots[0].nearest.host == "h2"
    assert [(one.step, one.hosts) for one in found.slots[0].steps] == [
        ("filter_has_enough_capacity", 2),
        ("filter_correct_az", 1),
    ]


@run_by(in_trial, [host("h1", gib=64)])
async def test_an_explanation_leaves_nothing_held(made: Trial) -> None:
    assert why(made, wanted(64)).possible
    assert why(made, wanted(64, uuid="mine-2")).possible
    assert not why(made, wanted(72)).possible
    assert why(made, wanted(64)).possible


def test_a_host_that_is_being_emptied_is_named_if_it_would_do_in_service() -> None:
    away = host("h2", gib=64)
    away = replace(away, spec=replace(away.spec, drain=True))
    other = host("h3", gib=64, zone="zone-b")
    other = replace(other, spec=replace(other.spec, drain=True))

    async def story(made: Trial) -> None:
        found = why(made, wanted(16))
        assert [(one.host, one.why) for one in found.slots[0].closed] == [("h2", "is to be emptied")]

    full = vm("vm-full", "h1", gib=60)
    in_trial([host("h1", gib=64, vms=[full]), full, away, other], story)


def test_a_commitment_that_ends_is_named_with_its_time() -> None:
    sold: list[Resource] = []

    async def sell(market: Market) -> None:
        ends = later(86_400)
        assert await market.change(batch(project("p1", asked("first-1", 8, expires=ends)))) == ""
        await asyncio.sleep(1)  # until the batch is applied
        sold.extend([one for kind in (CommittedResource, Reservation) async for one in list_all(market.store, kind)])

    async def story(made: Trial) -> None:
        found = why(made, wanted(64))
        assert [one.commitment for one in found.ends] == ["first-1"]
        assert found.retry_at is not None

    in_market([host("h1", gib=64)], sell)
    in_trial([host("h1", gib=64), *sold], story)


def test_what_is_not_sold_or_not_known_is_refused_with_the_words_of_a_batch() -> None:
    async def unsold(made: Trial) -> None:
        assert why(made, wanted(8)).text == 'flavor group "g" is not configured to handle memory commitments'

    async def unknown(made: Trial) -> None:
        assert why(made, replace(wanted(8), group="nope")).text == "flavor group not found: nope"

    in_trial([host("h1")], unsold, settings=CommitmentSettings())
    in_trial([host("h1")], unknown)


@run_by(in_trial, [host("h1", gib=64, cpu=64)])
async def test_cores_are_counted_from_capacity_that_the_trial_computes_itself(made: Trial) -> None:
    cores = Commitment(uuid="mine-1", project="p9", group="g", zone=ZONE, type="cores", cores=17, state="confirmed")
    assert why(made, cores).text == "insufficient CPU cores: 16 available, 17 requested"
    assert why(made, replace(cores, cores=16)).possible


@run_by(in_trial, hosting("h1", vm("vm-1", "h1"), gib=64))
async def test_capacity_has_what_runs_what_is_free_and_what_is_committed(made: Trial) -> None:
    assert await made.change(batch(project("p2", asked("first-1", 3)))) == ""
    (one,) = made.compute_capacities()
    assert (one.status.running_instances, one.status.committed_capacity) == (1, 3)
    assert one.status.smallest_flavor_name == "m8"


@run_by(in_trial, hosting("h1", vm("vm-1", "h1"), gib=64))
async def test_capacity_at_another_time_has_what_commitments_hold_that_end_until_then(made: Trial) -> None:
    ending = (asked("first-1", 3, expires=later(1000)), asked("second-1", 2, expires=later(2000)))
    assert await made.change(batch(project("p1", *ending))) == ""
    assert [one.status.exclusively_free_slots for one in made.compute_capacities()] == [8 - 3 - 2]
    await made.end_until(as_instant(later(1000)))
    (one,) = made.compute_capacities()
    assert (one.status.exclusively_free_slots, one.status.committed_capacity) == (8 - 2 - 1, 2)

"""How often the server plans slots anew: seldom while that changes nothing, at once when more is asked for."""

from __future__ import annotations

import itertools

import pytest
from tests.support.failover import Cloud

from outlive.failover.reconciler import MOST_TICKS, Attempts, PlanBasis

GROUND = PlanBasis(revision=1, missing=5, hosts=frozenset({"h1", "h2"}), free=(4_000, 100))


def tried(attempts: Attempts, ticks: range) -> list[int]:
    """The ticks that try, all of them in vain, on a fleet that changes at every tick and offers no more."""
    found = []
    for tick in ticks:
        ground = GROUND._replace(revision=tick)
        if attempts.is_due(tick, ground):
            attempts.record_failure(tick, ground)
            found.append(tick)
    return found


def test_each_try_in_vain_is_followed_by_a_wait_twice_as_long() -> None:
    attempts = Attempts()
    found = tried(attempts, range(200))
    waits = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert waits[:6] == [2, 4, 8, 16, 32, MOST_TICKS]
    assert max(waits) == MOST_TICKS


def test_more_need_a_host_that_is_there_again_or_more_room_end_the_wait() -> None:
    more = [
        GROUND._replace(missing=6),
        GROUND._replace(hosts=frozenset({"h1", "h2", "h3"})),
        GROUND._replace(free=(3_000, 101)),
    ]
    for ground in more:
        attempts = Attempts()
        tried(attempts, range(40))
        assert not attempts.is_due(41, GROUND._replace(revision=41, missing=4, free=(4_000, 50)))
        assert attempts.is_due(41, ground)
        attempts.record_failure(41, ground)
        assert next(tick for tick in range(42, 48) if attempts.is_due(tick, ground._replace(revision=tick))) == 43


def test_on_the_same_ground_nothing_is_tried_again_and_success_forgets_all() -> None:
    attempts = Attempts()
    attempts.record_failure(0, GROUND)
    assert not any(attempts.is_due(tick, GROUND) for tick in range(1, 100))
    attempts.forget()
    assert attempts.is_due(1, GROUND)


def plans(cloud: Cloud) -> int:
    return len(cloud.decisions.uses("failover.replan"))


@pytest.mark.slow
async def test_a_cloud_without_room_is_not_planned_anew_at_every_tick() -> None:
    cloud = Cloud({"flavorFailoverRequirements": {"std": 1}})
    await cloud.hosts("h1", "h2", "h3", cpu=4_000)
    for vm in ("a", "b", "c"):
        await cloud.vm(vm, "h1", cpu=4_000)
    await cloud.vm("unprotected", "h2", flavor="test")
    await cloud.slot("s1", "h2", {"a": "h1"}, cpu=4_000)
    await cloud.cycle()
    await cloud.cycle()
    assert not (await cloud.covered())["c"]
    before = plans(cloud)
    for number in range(20):
        await cloud.move("unprotected", "h2" if number % 2 else "h3")
        await cloud.cycle()
    assert 1 <= plans(cloud) - before <= 5
    before = plans(cloud)
    await cloud.vm("d", "h1", cpu=4_000)
    await cloud.cycle()
    assert plans(cloud) == before + 1


async def test_nothing_is_planned_anew_for_more_slots_than_there_are_other_units_of_failure() -> None:
    cloud = Cloud({"flavorFailoverRequirements": {"std": 2}})
    await cloud.hosts("h1", "h2")
    await cloud.vm("a", "h1")
    for _ in range(3):
        await cloud.cycle()
    assert len(await cloud.slots()) == 1
    assert plans(cloud) == 0

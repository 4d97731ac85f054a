"""When flavor groups last changed: the version of what is sold, which rises with every change and never otherwise."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.unit.placement.test_pipelines import World, flavor, groups_controller, reported

from outlive.base import Unavailable
from outlive.placement import ALL_GROUPS, FLAVOR_GROUPS, NEVER, digest_of, version_of, with_records
from outlive.placement.flavor_groups import flavor_groups
from outlive.resources import Condition, FlavorGroup, Knowledge, ObjectMeta


def test_the_version_has_three_outcomes() -> None:
    with pytest.raises(Unavailable, match="flavor groups are not known yet"):
        version_of(None)
    unready = Knowledge(metadata=ObjectMeta(name=FLAVOR_GROUPS))
    assert version_of(unready) is None
    failed = Condition(type="Ready", status="False", reason="Failed")
    assert version_of(replace(unready, status=replace(unready.status, conditions=(failed,)))) is None
    assert version_of(with_records(None, FLAVOR_GROUPS, [], 1_000.0)) == NEVER
    assert version_of(with_records(None, FLAVOR_GROUPS, ["g"], 1_000.9)) == 1_000


@given(st.lists(st.tuples(st.sets(st.integers(0, 2)), st.integers(-5_000, 5_000)), max_size=12))
def test_the_version_rises_with_every_change_and_never_otherwise(looks: list[tuple[set[int], int]]) -> None:
    kept: Knowledge | None = None
    last: list[int] | None = None
    for records, at in looks:
        listed, before = sorted(records), kept
        found = with_records(kept, FLAVOR_GROUPS, listed, 1_000_000.0 + at)
        assert (found is None) == (last == listed)
        kept = found or kept
        assert kept is not None
        now, then = version_of(kept), version_of(before) if before is not None else NEVER
        assert now is not None
        assert then is not None
        if last == listed or (last is None and not listed):
            assert now == then
        else:
            assert now > then
        assert kept.status.raw_length == len(listed)
        last = listed


def test_what_was_not_ready_becomes_ready_without_a_change_of_content() -> None:
    known = with_records(None, FLAVOR_GROUPS, ["g"], 1_000.0)
    assert known is not None
    failed = Condition(type="Ready", status="False", reason="Failed")
    broken = replace(known, status=replace(known.status, conditions=(failed,)))
    again = with_records(broken, FLAVOR_GROUPS, ["g"], 2_000.0)
    assert version_of(again) == 1_000
    assert again is not None
    assert again.status.conditions[0].last_transition_time == datetime.fromtimestamp(2_000, UTC)


def test_equal_records_have_equal_digests() -> None:
    first, second = flavor_groups([flavor("a", 2)]), flavor_groups([flavor("a", 2), flavor("b", 4, "s5")])
    assert digest_of(first) == digest_of(flavor_groups([flavor("a", 2)])) != digest_of(second)


@run_by(reported)
async def test_the_controller_records_changes_of_all_groups(world: World) -> None:
    controller = groups_controller(world)

    async def version() -> int | None:
        await world.clock.sleep(10)
        await controller.reconcile(ALL_GROUPS)
        return version_of(await world.store.get(Knowledge, FLAVOR_GROUPS))

    assert await version() == NEVER
    await world.store.create(flavor("small", 2))
    first = await version()
    assert first is not None
    assert first > 0
    assert await version() == first
    foreign = flavor_groups([flavor("x", 4, "theirs")])[0]
    await world.store.create(FlavorGroup(metadata=ObjectMeta(name="theirs"), spec=foreign))
    second = await version()
    assert second is not None
    assert second > first
    await world.store.delete((await world.store.get(FlavorGroup, "theirs")).ref)
    third = await version()
    assert third is not None
    assert third > second

"""Why a commitment has no capacity, and what would help."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.commitments import (
    ClosedRoom,
    Commitment,
    CommitmentExplanation,
    Ending,
    ExplanationInput,
    HostRoom,
    MissingCores,
    MissingSlots,
    StepCount,
    explain,
)

GIB = 2**30
NOW = 1_800_000_000.0
HOUR = 3600.0


def room(host: str, gib: int, cores: int = 64) -> HostRoom:
    return HostRoom(host=host, cpu_milli=cores * 1000, memory_bytes=gib * GIB)


def closed(host: str, gib: int, why: str = "is in maintenance (manual)") -> ClosedRoom:
    return ClosedRoom(host=host, cpu_milli=64_000, memory_bytes=gib * GIB, why=why)


def missing(count: int, *candidates: HostRoom, closed: tuple[ClosedRoom, ...] = (), gib: int = 8) -> MissingSlots:
    return MissingSlots(
        flavor="m8",
        cpu_milli=2000,
        memory_bytes=gib * GIB,
        count=count,
        hosts=10,
        steps=(StepCount(step="filter_correct_az", hosts=4), StepCount(step="filter_has_enough_capacity", hosts=6)),
        candidates=candidates,
        closed=closed,
    )


def ending(commitment: str, host: str, gib: int, hours: float, cores: int = 64) -> Ending:
    return Ending(
        commitment=commitment,
        project="other",
        host=host,
        cpu_milli=cores * 1000,
        memory_bytes=gib * GIB,
        end=NOW + hours * HOUR,
    )


def asked(*sizes: MissingSlots, endings: tuple[Ending, ...] = (), placed: int = 1) -> CommitmentExplanation:
    wanted = Commitment(uuid="mine-1", project="p", group="g", zone="z", memory_bytes=64 * GIB, state="confirmed")
    total = placed + sum(one.count for one in sizes)
    return explain(
        ExplanationInput(commitment=wanted, expected=total, placed=placed, missing=sizes, endings=endings, now=NOW)
    )


def test_a_commitment_without_missing_slots_is_possible() -> None:
    found = asked(placed=3)
    assert found.possible
    assert found.text == "there is a host for each of 3 slots"


def test_a_refusal_is_told_as_it_is() -> None:
    wanted = Commitment(uuid="mine-1", project="p", group="g", zone="z", state="confirmed")
    found = explain(ExplanationInput(commitment=wanted, refusal="flavor group not found: g", now=NOW))
    assert (found.possible, found.text) == (False, "flavor group not found: g")


def test_steps_are_counted_the_most_first_and_the_nearest_host_says_what_it_lacks() -> None:
    found = asked(missing(2, room("h1", 5), room("h2", 7, cores=1)))
    (slots,) = found.slots
    assert [(one.step, one.hosts) for one in slots.steps] == [
        ("filter_has_enough_capacity", 6),
        ("filter_correct_az", 4),
    ]
    assert slots.nearest is not None
    assert (slots.nearest.host, slots.nearest.memory_bytes, slots.nearest.cpu_milli) == ("h1", 3 * GIB, 0)
    assert found.text == "insufficient capacity: 1/3 reservation slots could be placed"
    assert found.helps == ("h1 is nearest to having room for one of m8 (8 GiB and 2 cores): it lacks 3 GiB",)


def test_where_no_host_would_ever_do_only_hosts_help() -> None:
    found = asked(missing(1))
    assert found.slots[0].nearest is None
    assert found.helps == ("no host would take a slot of m8 (8 GiB and 2 cores), however empty: add hosts that do",)


def test_commitments_that_end_are_named_in_the_order_in_which_they_make_room() -> None:
    endings = (ending("late-1", "h1", 8, 5), ending("soon-1", "h2", 8, 2), ending("idle-1", "h2", 8, 9))
    found = asked(missing(2, room("h1", 0), room("h2", 0)), endings=endings)
    assert [one.commitment for one in found.ends] == ["soon-1", "late-1"]
    assert found.fitting == 2
    assert found.retry_at is not None
    assert found.retry_at.timestamp() == NOW + 5 * HOUR


def test_no_time_is_given_where_not_all_fit_however_many_commitments_end() -> None:
    found = asked(missing(3, room("h1", 0)), endings=(ending("soon-1", "h1", 8, 2),))
    assert (found.fitting, found.retry_at) == (1, None)
    assert found.helps[0].startswith("1 of the 3 missing slots fits from ")


def test_hosts_out_of_service_say_for_how_many_slots_they_have_room() -> None:
    found = asked(missing(3, room("h1", 0), closed=(closed("h8", 7), closed("h9", 17))))
    assert [(one.host, one.slots) for one in found.slots[0].closed] == [("h9", 2)]
    assert "h9 is in maintenance (manual); in service it has room for 2 of the 3 slots of m8" in found.helps


def test_cores_wait_for_the_commitments_of_cores_that_end_first() -> None:
    wanted = Commitment(uuid="mine-1", project="p", group="g", zone="z", type="cores", cores=10, state="confirmed")
    given = ExplanationInput(
        commitment=wanted,
        cores=MissingCores(available=4, message="insufficient CPU cores: 4 available, 10 requested"),
        endings=(ending("b-1", "", 0, 3, cores=4), ending("a-1", "", 0, 1, cores=4), ending("c-1", "", 0, 9, cores=4)),
        now=NOW,
    )
    found = explain(given)
    assert [one.commitment for one in found.ends] == ["a-1", "b-1"]
    assert found.retry_at is not None
    assert found.retry_at.timestamp() == NOW + 3 * HOUR


def test_cores_that_nobody_gives_back_need_hosts() -> None:
    wanted = Commitment(uuid="mine-1", project="p", group="g", zone="z", type="cores", cores=10, state="confirmed")
    found = explain(ExplanationInput(commitment=wanted, cores=MissingCores(available=4, message="no"), now=NOW))
    assert found.helps == ("add hosts with 6 free cores",)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    rooms=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    ends=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(1, 5)), max_size=5),
    count=st.integers(1, 4),
)
def test_all_fit_at_the_time_that_is_given_and_not_before(
    rooms: list[int], ends: list[tuple[int, int, int]], count: int
) -> None:
    names = [f"h{number}" for number in range(len(rooms))]
    endings = tuple(
        ending(f"c-{number}", names[host % len(names)], gib, hours) for number, (host, gib, hours) in enumerate(ends)
    )
    found = asked(missing(count, *map(room, names, rooms)), endings=endings)

    def fits(hours: float) -> bool:
        total = 0
        for name, gib in zip(names, rooms, strict=True):
            free = gib + sum(
                one.memory_bytes // GIB for one in endings if one.host == name and one.end <= NOW + hours * HOUR
            )
            total += free // 8
        return total >= count

    first = next((hours for hours in range(6) if fits(hours)), None)
    if first == 0:
        assert found.fitting == count
    elif first is None:
        assert found.retry_at is None
    else:
        assert found.retry_at is not None
        assert found.retry_at.timestamp() == NOW + first * HOUR


@pytest.mark.parametrize(("count", "gib"), [(1, 8), (500, 8), (1, 16), (500, 16)])
def test_thousands_of_hosts_and_hundreds_of_slots_are_answered(count: int, gib: int) -> None:
    hosts = tuple(room(f"h{number}", number % 8) for number in range(5_000))
    endings = tuple(ending(f"c-{number}", f"h{number}", 16, number) for number in range(1_000))
    assert asked(missing(count, *hosts, gib=gib), endings=endings).fitting == count

"""What is free at another time, and when a commitment that is refused would fit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.commitments import (
    ArrivingCapacity,
    Booking,
    CalendarInput,
    Commitment,
    RetryInput,
    count_free_at,
    find_earliest,
    list_bookings,
    retry_at,
)

NOW = 1000.0


def calendar(*booked: Booking, free: int = 10, **fields: Any) -> CalendarInput:
    return CalendarInput(free_bytes=free, bookings=booked, now=NOW, **fields)


def test_a_guaranteed_commitment_books_from_its_start_and_gives_back_at_its_end() -> None:
    given = calendar(Booking(uuid="a", memory_bytes=6, start=2000, end=3000))
    assert [count_free_at(given, at) for at in (NOW, 1999, 2000, 2999, 3000)] == [10, 10, 4, 4, 10]


def test_what_slots_hold_already_is_not_booked_twice_and_comes_back_whole() -> None:
    given = calendar(Booking(uuid="a", memory_bytes=6, start=0, end=3000, held_bytes=6), free=1)
    assert [count_free_at(given, at) for at in (NOW, 3000)] == [1, 7]
    half = calendar(Booking(uuid="a", memory_bytes=6, start=0, end=3000, held_bytes=2), free=5)
    assert [count_free_at(half, at) for at in (NOW, 3000)] == [1, 7]


def test_a_refusal_names_the_time_from_which_enough_is_free_for_good() -> None:
    given = calendar(
        Booking(uuid="ends", memory_bytes=8, start=0, end=2000, held_bytes=8),
        Booking(uuid="begins", memory_bytes=7, start=3000, end=4000),
        free=0,
    )
    assert find_earliest(RetryInput(calendar=given, memory_bytes=8)).at == 4000
    assert find_earliest(RetryInput(calendar=given, memory_bytes=8, until=3000)).at == 2000
    assert retry_at(RetryInput(calendar=given, memory_bytes=1)) == datetime.fromtimestamp(2000, UTC)
    assert retry_at(RetryInput(calendar=given, memory_bytes=9)) is None


def test_capacity_that_is_to_arrive_counts_from_then_on() -> None:
    given = calendar(free=0, arriving=(ArrivingCapacity(at=5000, memory_bytes=4),))
    assert find_earliest(RetryInput(calendar=given, memory_bytes=4)).at == 5000
    assert [count_free_at(given, at) for at in (NOW, 4999, 5000)] == [0, 0, 4]


def test_planned_commitments_and_those_that_are_over_book_nothing() -> None:
    def one(uuid: str, state: Any, **fields: Any) -> Commitment:
        return Commitment(uuid=uuid, project="p", group="g", zone="z", memory_bytes=5, state=state, **fields)

    found = list_bookings(
        [
            one("planned", "planned"),
            one("expired", "expired"),
            one("over", "confirmed", end=datetime.fromtimestamp(NOW, UTC)),
            one("cores", "confirmed", type="cores"),
            one("later", "guaranteed", start=datetime.fromtimestamp(2000, UTC)),
            one("now", "confirmed"),
        ],
        NOW,
        {"now": 4},
    )
    assert [(one.uuid, one.start, one.held_bytes) for one in found] == [("later", 2000, 0), ("now", NOW, 4)]


times = st.integers(900, 1100).map(float)
booked = st.builds(
    lambda uuid, memory, start, length, held: Booking(
        uuid=uuid,
        memory_bytes=memory,
        start=start,
        end=None if length is None else start + length,
        held_bytes=memory if held else 0,
    ),
    st.text(max_size=3),
    st.integers(0, 9),
    times,
    st.one_of(st.none(), st.integers(1, 150)),
    st.booleans(),
)


@pytest.mark.slow
@given(st.lists(booked, max_size=6), st.integers(0, 20), st.integers(0, 25))
def test_the_earliest_time_is_right_at_every_instant(found: list[Booking], free: int, need: int) -> None:
    given = calendar(*found, free=free)
    at = find_earliest(RetryInput(calendar=given, memory_bytes=need)).at
    instants = [NOW + step for step in range(300)]
    fits = [count_free_at(given, one) >= need for one in instants]
    if at is None:
        assert not fits[-1]
    else:
        assert all(fit for one, fit in zip(instants, fits, strict=True) if one >= at)
        if at > NOW:
            assert not fits[instants.index(at) - 1]

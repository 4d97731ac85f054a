"""Who is served first: seats, queues that are fair, turns, and the bytes of bodies."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from tests.support.loops import run

from outlive.api import (
    ANYBODY,
    QUEUE_SECONDS,
    AccessLevel,
    Bodies,
    Identity,
    Levels,
    PriorityLevel,
    Role,
    SeatLimits,
    Seats,
    TooManyRequests,
    Turns,
    level_of,
)
from outlive.base import Forbidden, LoopClock

GROUP = "/apis/outlive.dev/v1alpha1"
HOST = Identity("host-kvm-1", Role.HOST, "kvm-1")


def seats(count: int, share: int, queue: int = 100) -> Seats:
    return Seats(PriorityLevel.PEOPLE, SeatLimits(seats=count, share=share, queue=queue), LoopClock())


def asked(method: str, plural: str = "", *names: str) -> Request:
    parameters = {"plural": plural} | dict(zip(("name",), names, strict=False))
    return Request({"type": "http", "method": method, "path": "/", "headers": [], "path_params": parameters})


@pytest.mark.parametrize(
    ("role", "method", "plural", "name", "route", "level"),
    [
        (Role.HOST, "PUT", "memberships", "kvm-1", "", PriorityLevel.PROTOCOL),
        (Role.HOST, "GET", "memberships", "kvm-1", "", PriorityLevel.PROTOCOL),
        (Role.HOST, "POST", "memberships", "", "", PriorityLevel.PROTOCOL),
        (Role.HOST, "GET", "memberships", "", "", PriorityLevel.WORK),
        (Role.COORDINATOR, "PUT", "elections", "primary", "", PriorityLevel.PROTOCOL),
        (Role.HOST, "PUT", "virtualmachines", "vm-1", "/status", PriorityLevel.PROTOCOL),
        (Role.HOST, "GET", "virtualmachines", "vm-1", "/status", PriorityLevel.WORK),
        (Role.HOST, "POST", "faults", "", "", PriorityLevel.WORK),
        (Role.CONTROLLER, "PUT", "memberships", "kvm-1", "", PriorityLevel.WORK),
        (Role.OPERATOR, "PUT", "memberships", "kvm-1", "", PriorityLevel.PEOPLE),
        (Role.VIEWER, "GET", "virtualmachines", "", "", PriorityLevel.PEOPLE),
        (Role.LIQUID, "POST", "", "", "", PriorityLevel.WORK),
    ],
)
def test_level_of_a_request(role: Role, method: str, plural: str, name: str, route: str, level: PriorityLevel) -> None:
    request = asked(method, plural, *filter(None, [name]))
    assert level_of(Identity("t", role), AccessLevel.READ, f"{GROUP}/{{plural}}{route}", request) is level


def test_probes_are_served_at_once_and_pages_are_anonymous() -> None:
    assert level_of(ANYBODY, AccessLevel.OPEN, "/healthz", asked("GET")) is PriorityLevel.PROTOCOL
    assert level_of(ANYBODY, AccessLevel.OPEN, "/schema/openapi.json", asked("GET")) is PriorityLevel.ANONYMOUS
    assert level_of(ANYBODY, AccessLevel.PLACE, "/scheduler/nova/external", asked("POST")) is PriorityLevel.WORK


async def test_flows_that_wait_are_served_in_turn() -> None:
    room, served = seats(1, 1), []

    async def work(flow: str) -> None:
        await room.take(flow)
        served.append(flow)
        await asyncio.sleep(1)
        room.give(flow)

    await asyncio.gather(*(work(flow) for flow in "aaaabbc"))
    assert "".join(served) == "aabcaba"
    assert (room.taken, room.waiting) == (0, 0)


async def test_one_flow_has_its_share_of_the_seats_and_no_more() -> None:
    room = seats(4, 2)
    for _ in range(2):
        await room.take("a")
    third = asyncio.create_task(room.take("a"))
    await asyncio.sleep(0)
    assert not third.done()
    await room.take("b")
    room.give("a")
    await third
    assert room.taken == 3


async def test_who_finds_no_place_to_wait_is_refused_after_a_pause_and_the_rest_is_served() -> None:
    room, clock = seats(1, 1, queue=2), LoopClock()
    await room.take("a")
    waiting = [asyncio.create_task(room.take("a")) for _ in range(2)]
    await asyncio.sleep(0)
    began = clock.monotonic()
    with pytest.raises(TooManyRequests, match="level people"):
        await room.take("a")
    assert clock.monotonic() - began >= 1.0
    assert room.refused == 1
    for task in waiting:
        room.give("a")
        await task


async def test_who_waits_too_long_or_goes_away_leaves_no_trace() -> None:
    room, clock = seats(1, 1), LoopClock()
    await room.take("a")
    gone = asyncio.create_task(room.take("b"))
    slow = asyncio.create_task(room.take("c"))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    with pytest.raises(TooManyRequests):
        await slow
    assert clock.monotonic() >= QUEUE_SECONDS
    assert room.waiting == 0
    last = asyncio.create_task(room.take("d"))
    await asyncio.sleep(0)
    room.give("a")
    await last
    room.give("d")
    assert room.taken == 0


async def test_a_seat_that_was_given_to_a_request_that_was_cancelled_meanwhile_is_not_lost() -> None:
    room = seats(1, 1)
    await room.take("a")
    waiting = asyncio.create_task(room.take("b"))
    await asyncio.sleep(0)
    room.give("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert room.taken == 0


async def test_a_client_without_a_token_keeps_its_seat_for_a_moment_when_it_is_refused() -> None:
    levels, clock = Levels(LoopClock()), LoopClock()
    began = clock.monotonic()
    with pytest.raises(Forbidden):
        async with levels.suspicious_seat("192.0.2.1"):
            raise Forbidden("no")
    assert clock.monotonic() - began == pytest.approx(0.1)
    assert levels.seats[PriorityLevel.ANONYMOUS].taken == 0


async def test_a_seat_is_given_back_once() -> None:
    levels = Levels(LoopClock())
    give = await levels.take(PriorityLevel.WORK, "a")
    give()
    give()
    assert levels.seats[PriorityLevel.WORK].taken == 0


def test_one_slice_runs_in_each_round_of_the_loop() -> None:
    async def claim() -> None:
        turns, rounds, slices = Turns(), 0, []

        async def count() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        async def compute(name: str) -> None:
            for _ in range(3):
                await turns.wait()
                slices.append((rounds, name))

        counting = asyncio.create_task(count())
        gone = asyncio.create_task(turns.wait())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(*(compute(name) for name in "abc"))
        counting.cancel()
        assert [name for _, name in slices] == list("abcabcabc")
        assert len({when for when, _ in slices}) == 9

    run(claim())


def test_large_bodies_share_what_there_is() -> None:
    bodies = Bodies(100)
    bodies.take("a", 50)
    with pytest.raises(TooManyRequests):
        bodies.take("a", 1)
    bodies.take("b", 30)
    with pytest.raises(TooManyRequests):
        bodies.take("c", 21)
    bodies.give("a", 50)
    bodies.take("c", 50)

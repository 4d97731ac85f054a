"""Sockets that are served in every round of the event loop, and those of which some are."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Iterator

import pytest

from outlive.runtime import LATER_EVENTS, FairLoop, FairSelector, current_selector

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    """Three times as many as are served in a round, and one; each has something to read."""
    with contextlib.ExitStack() as stack:
        made = [socket.socketpair() for _ in range(3 * LATER_EVENTS + 1)]
        for ours, theirs in made:
            stack.enter_context(ours)
            stack.enter_context(theirs)
            theirs.send(b"x")
        yield made


def test_a_few_later_ones_are_served_in_each_round_and_each_once_before_any_again(pairs: list[Pair]) -> None:
    with contextlib.closing(FairSelector()) as selector:
        (first, _), *rest = pairs
        for later, _ in rest:
            selector.mark_later(later)
        for ours, _ in pairs:
            selector.register(ours.fileno(), selectors.EVENT_READ)
        for _ in range(3):  # nobody reads: all stay ready
            served: list[int] = []
            for _ in range(3):
                fds = [key.fd for key, _ in selector.select(0)]
                assert fds[0] == first.fileno()
                assert len(fds) == 1 + LATER_EVENTS
                served += fds[1:]
            assert sorted(served) == sorted(later.fileno() for later, _ in rest)


def test_one_that_moves_up_is_served_in_every_round(pairs: list[Pair]) -> None:
    with contextlib.closing(FairSelector()) as selector:
        for ours, _ in pairs:
            selector.mark_later(ours)
            selector.register(ours.fileno(), selectors.EVENT_READ)
        moved = pairs[-1][0].fileno()
        selector.move(moved, first=True)
        assert all(moved in [key.fd for key, _ in selector.select(0)] for _ in range(5))
        selector.move(moved, first=False)
        assert not all(moved in [key.fd for key, _ in selector.select(0)] for _ in range(5))


def test_what_was_closed_or_changed_meanwhile_is_not_served(pairs: list[Pair]) -> None:
    with contextlib.closing(FairSelector()) as selector:
        for ours, _ in pairs:
            selector.mark_later(ours)
            selector.register(ours.fileno(), selectors.EVENT_READ)
        served = {key.fd for key, _ in selector.select(0)}
        left = [ours for ours, _ in pairs if ours.fileno() not in served]
        selector.unregister(left[0].fileno())
        selector.modify(left[1].fileno(), selectors.EVENT_WRITE)
        rounds = {key.fd: mask for _ in range(3) for key, mask in selector.select(0)}
        assert left[0].fileno() not in rounds
        assert rounds.get(left[1].fileno(), selectors.EVENT_WRITE) == selectors.EVENT_WRITE


def test_the_mark_of_a_closed_socket_counts_for_no_other_one() -> None:
    with contextlib.closing(FairSelector()) as selector:
        old, other = socket.socketpair()
        selector.mark_later(old)
        number = old.fileno()
        old.close()
        new, third = socket.socketpair()
        with other, new, third:
            assert new.fileno() == number
            third.send(b"x")
            selector.register(number, selectors.EVENT_READ)
            assert [key.fd for key, _ in selector.select(0)] == [number]
            selector.move(number, first=False)
            assert selector.get_key(number).fd == number


def test_the_loop_serves_sockets_of_both_kinds() -> None:
    async def main() -> bytes:
        selector = current_selector()
        assert selector is not None
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(sock=marked(selector, here))
            there.send(b"later")
            heard = await reader.read(5)
            writer.close()
            return heard + await asyncio.get_running_loop().run_in_executor(None, lambda: b" and first")

    def marked(selector: FairSelector, opened: socket.socket) -> socket.socket:
        selector.mark_later(opened)
        return opened

    here, there = socket.socketpair()
    with there, asyncio.Runner(loop_factory=FairLoop) as runner:
        assert runner.run(main()) == b"later and first"

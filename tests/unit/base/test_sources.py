"""Time, randomness and identities: repeatable where seeded, the same on every machine where hashed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import uuid

from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import (
    FasterOf,
    Instant,
    LoopClock,
    Random,
    SeededIds,
    SlowerOf,
    SystemClock,
    SystemIds,
    as_datetime,
    as_instant,
    get_logger,
    global_request_id,
    new_global_request_id,
    request_context,
    request_id,
    stable_hash,
    system_random,
)
from outlive.guard import min_elapsed, read_clocks

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_uuids_are_of_version_four() -> None:
    for ids in (SystemIds(), SeededIds(Random(1))):
        made = [ids.new_uuid() for _ in range(50)]
        assert len(set(made)) == 50
        assert all(UUID4.fullmatch(one) and uuid.UUID(one).version == 4 for one in made)


def test_seeded_identities_repeat_and_system_ones_do_not() -> None:
    def draw(seed: int) -> list[str]:
        ids = SeededIds(Random(seed))
        return [ids.new_uuid(), ids.new_suffix(), ids.new_token()]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert SystemIds().new_token() != SystemIds().new_token()


def test_suffixes_have_no_vowels() -> None:
    for ids in (SystemIds(), SeededIds(Random(1))):
        assert not set("".join(ids.new_suffix(20) for _ in range(50))) & set("aeiou013y")
        assert len(ids.new_suffix(7)) == 7


def test_tokens_are_long_and_safe_in_a_url() -> None:
    token = SystemIds().new_token()
    assert len(token) >= 43
    assert re.fullmatch(r"[-\w]+", token)


def test_a_fork_depends_on_seed_and_name_alone() -> None:
    one, two = Random(1), Random(1)
    two.random()
    assert one.fork("x").random() == two.fork("x").random()
    assert one.fork("x").random() != one.fork("y").random()
    assert Random(2).fork("x").random() != one.fork("x").random()


def test_a_random_source_knows_its_seed() -> None:
    source = system_random()
    assert Random(source.start).random() == source.random()


def test_hashes_know_the_borders_of_their_parts() -> None:
    assert stable_hash("ab", "c") != stable_hash("a", "bc") != stable_hash("abc")
    assert stable_hash() != stable_hash("")
    assert 0 <= stable_hash("x") < 2**64


def test_hashes_and_forks_are_the_same_under_every_hash_seed() -> None:
    script = (
        "from outlive.base import stable_hash; from outlive.base import Random; "
        "print(stable_hash('a', 'b'), Random(1).fork('x').random())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{stable_hash('a', 'b')} {Random(1).fork('x').random()}\n".encode()}


async def test_a_loop_clock_runs_on_the_loops_time() -> None:
    clock = LoopClock(start=1000.0)
    before = clock.now()
    await clock.sleep(3600.0)
    await clock.sleep(-5.0)
    assert (before, clock.now() - before) == (1000.0, 3600.0)


def test_the_system_clock_moves() -> None:
    async def scene() -> None:
        clock = SystemClock()
        before, at = clock.monotonic(), clock.now()
        await clock.sleep(0.0)
        assert clock.monotonic() >= before
        assert clock.now() >= at > 1_700_000_000

    asyncio.run(scene())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30))
def test_slower_of_two_clocks_never_runs_ahead_of_either_and_the_faster_never_falls_behind(
    steps: list[tuple[int, int]],
) -> None:
    one, other = [100], [7]
    slower, faster = (kind(lambda: one[0], lambda: other[0]) for kind in (SlowerOf, FasterOf))
    seen = [(one[0], other[0], slower(), faster())]
    for forward, beside in steps:
        one[0] += forward
        other[0] += beside
        now = (one[0], other[0], slower(), faster())
        for before in seen:
            assert 0 <= now[2] - before[2] <= min(now[0] - before[0], now[1] - before[1])
            assert max(now[0] - before[0], now[1] - before[1]) <= now[3] - before[3]
        seen.append(now)


def test_the_system_clock_never_runs_ahead_of_the_kernels_clocks() -> None:
    clock = SystemClock()
    before, at = read_clocks(), clock.monotonic()
    for _ in range(1000):
        clock.monotonic()
    passed_s = clock.monotonic() - at
    assert 0 < passed_s <= min_elapsed(before, read_clocks())


def test_instants_become_whole_seconds_and_come_back() -> None:
    moment = as_datetime(1_767_225_600.9)
    assert moment.isoformat() == "2026-01-01T00:00:00+00:00"
    assert as_instant(moment) == Instant(1_767_225_600.0)


def test_request_ids_nest_and_are_inherited_by_tasks() -> None:
    async def scene() -> tuple[str, str]:
        with request_context(greq="g", req="r"):
            with request_context(req="inner"):
                task = asyncio.ensure_future(asyncio.sleep(0, (global_request_id(), request_id())))
            assert request_id() == "r"
            return await task

    assert run(scene()) == ("g", "inner")
    assert global_request_id() == request_id() == ""


def test_a_run_has_a_request_id_of_its_own() -> None:
    made = new_global_request_id(SeededIds(Random(1)), "failover")
    assert re.fullmatch(r"failover-[-0-9a-f]{36}", made)


def test_a_logger_can_be_made() -> None:
    assert get_logger("x") is not None

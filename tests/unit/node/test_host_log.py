"""The log of a daemon in the store: nobody waits for it, and it has limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run, run_by

from outlive.base import LoopClock, Random, SeededIds, Unavailable, configure_logging, copy_log, get_logger
from outlive.node import EVERY_S, FLUSH_S, LINE_CHARACTERS, HostLogWriter, lines_since, trim_lines
from outlive.resources import LOG_BYTES, LOG_LINES, HostLog
from outlive.store import MemoryStore


class Story:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))

    def writer(self, process: str = "one", lines: int = LOG_LINES, store: Any = None) -> HostLogWriter:
        return HostLogWriter(store or self.store, "h1", clock=self.clock, process=process, lines=lines)

    async def log(self) -> HostLog:
        return await self.store.get(HostLog, "h1")


def told(story: Callable[[Story], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story(Story())

    run(whole())


class Away:
    """A store that does not answer."""

    def __init__(self, clock: LoopClock, store: MemoryStore) -> None:
        self.clock, self.store, self.away = clock, store, True

    def __getattr__(self, name: str) -> Any:
        if not self.away:
            return getattr(self.store, name)

        async def hang(*_args: object, **_options: object) -> None:
            await self.clock.sleep(1e6)
            raise Unavailable("it is away")

        return hang


@run_by(told)
async def test_lines_are_written_together_and_only_where_there_are_new_ones(it: Story) -> None:
    writer = it.writer()
    writer.put("a\n")
    writer.put("b\nc")
    writer.put("\n")
    await writer.write(EVERY_S)
    first = await it.log()
    assert (first.lines, first.last) == (("a", "b", "c"), 3)
    await writer.write(EVERY_S)
    assert (await it.log()).metadata.resource_version == first.metadata.resource_version


@run_by(told)
async def test_a_store_that_is_away_keeps_nobody_waiting_and_loses_no_line_within_the_limit(it: Story) -> None:
    away = Away(it.clock, it.store)
    writer = it.writer(store=away)
    began = it.clock.monotonic()
    for number in range(3 * LOG_LINES):
        writer.put(str(number))
    assert it.clock.monotonic() == began
    await writer.flush()
    assert it.clock.monotonic() - began <= FLUSH_S
    writer.put("last")
    away.away = False
    await writer.write(EVERY_S)
    found = await it.log()
    assert (found.lines[0], found.lines[-1], found.last) == (str(2 * LOG_LINES + 1), "last", 3 * LOG_LINES + 1)


@run_by(told)
async def test_a_line_that_is_no_text_is_written_and_keeps_no_other_from_it(it: Story) -> None:
    writer = it.writer()
    writer.put("a \udcff b\nc")
    await writer.write(EVERY_S)
    assert (await it.log()).lines == ("a ? b", "c")


@run_by(told)
async def test_the_lines_of_the_process_before_stay(it: Story) -> None:
    for process in ("one", "two"):
        writer = it.writer(process, lines=3)
        for number in range(2):
            writer.put(f"{process} {number}")
            await writer.write(EVERY_S)
    found = await it.log()
    assert found.lines == ("one 1", "two 0", "two 1")
    assert (found.process, found.last) == ("two", 2)


@pytest.mark.slow
@given(st.lists(st.text(max_size=LINE_CHARACTERS), max_size=300), st.integers(0, 200))
def test_it_is_the_end_of_what_was_logged_within_its_limits(lines: list[str], most: int) -> None:
    kept = trim_lines(lines, most)
    assert kept == lines[len(lines) - len(kept) :]
    assert len(kept) <= most
    assert sum(len(line.encode()) + 1 for line in kept) <= LOG_BYTES
    if len(kept) < min(most, len(lines)):
        more = lines[len(lines) - len(kept) - 1 :]
        assert sum(len(line.encode()) + 1 for line in more) > LOG_BYTES


@pytest.mark.parametrize(
    ("process", "last", "new"),
    [("p", 5, []), ("p", 3, ["d", "e"]), ("p", 0, ["c", "d", "e"]), ("other", 9, ["c", "d", "e"])],
)
def test_who_follows_it_gets_each_line_once(process: str, last: int, new: list[str]) -> None:
    found = HostLog(process="p", last=5, lines=("c", "d", "e"), written_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert list(lines_since(found, process, last)) == new


def test_what_is_logged_is_copied_line_by_line(tmp_path: Path) -> None:
    before, seen = structlog.get_config(), list[str]()
    try:
        configure_logging(form="json", file=str(tmp_path / "log"))
        copy_log(seen.append)
        get_logger("x").info("one", field="two\nthree")
        assert [text for text in seen if text.strip()] == (tmp_path / "log").read_text().splitlines()
    finally:
        copy_log(None)
        configure_logging()
        structlog.configure(**before)

"""Console logs: what ``console.keep_tail`` keeps, what is read of a file, and what its programs print of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run_real

from outlive.base import BadInput, LoopClock, Random, SeededIds
from outlive.cli import ESCAPES, added_text
from outlive.drivers.libvirt import ConsoleFiles, console_path, make_log, read_end
from outlive.node import DECISIONS
from outlive.node.ports import DomainState
from outlive.node.vm import (
    LOOK_S,
    PAUSE_S,
    ConsoleWatcher,
    LogEnd,
    LogStamp,
    NodeSettings,
    TailInput,
    console_tail,
    keep_tail,
)
from outlive.resources import Console, Vnc
from outlive.runtime import DecisionTable
from outlive.store import MemoryStore

raws = st.lists(st.binary(max_size=12) | st.sampled_from((b"\n", b"\xff\xfe", "ä€😀".encode(), b"\r\n")), max_size=30)


@given(raws, st.integers(0, 8), st.integers(0, 60))
def test_the_tail_is_the_longest_end_of_whole_lines_that_fits(chunks: list[bytes], lines: int, most: int) -> None:
    text = console_tail(TailInput(chunks_hex=tuple(one.hex() for one in chunks), lines=lines, max_bytes=most)).text
    rows = re.findall(r"[^\n]*\n|[^\n]+", b"".join(chunks).decode(errors="replace"))
    ends = ["".join(rows[first:]) for first in range(len(rows) + 1) if len(rows) - first <= lines]
    assert text == max((one for one in ends if len(one.encode()) <= most), key=len)


@given(raws, st.integers(0, 8), st.integers(1, 60))
def test_the_end_of_a_file_has_the_tail_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], lines: int, most: int
) -> None:
    path, raw = tmp_path_factory.mktemp("log") / "vm.log", b"".join(chunks)
    path.write_bytes(raw)
    end = read_end(path, None, most)
    assert end is not None
    assert len(end.raw) <= most + 1
    assert keep_tail(end.raw, lines, most) == keep_tail(raw, lines, most)
    assert read_end(path, end.stamp, most) is None


def test_a_decision_refuses_what_are_no_bytes() -> None:
    raw = DecisionTable(DECISIONS).decide("console.tail", b'{"chunks_hex": ["610a", "62"], "lines": 1, "max_bytes": 9}')
    assert raw == b'{"text":"b"}'
    with pytest.raises(BadInput):
        DecisionTable(DECISIONS).decide("console.tail", b'{"chunks_hex": ["6"], "lines": 1, "max_bytes": 9}')


def test_a_log_is_made_for_root_alone_and_keeps_what_it_has(tmp_path: Path) -> None:
    folder = str(tmp_path / "console")
    make_log(folder, "vm")
    path = console_path(folder, "vm")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.write_text("a\n")
    path.chmod(0o644)
    make_log(folder, "vm")
    assert (path.stat().st_mode & 0o777, path.read_text()) == (0o600, "a\n")


def test_what_is_missing_or_no_file_is_left_out_and_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text("fine\n")
    (tmp_path / "folder.log").mkdir()
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "link.log").symlink_to(tmp_path / "good.log")
    logs = ConsoleFiles(str(tmp_path))
    names = ("missing", "folder", "pipe", "link", "good")

    async def read() -> dict[str, bytes]:
        return {vm: end.raw for vm, end in (await logs.read_changed(dict.fromkeys(names), 100)).items()}

    assert run_real(read()) == {"good": b"fine\n"}


def test_a_rotated_log_is_read_on_from_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "vm.log"
    path.write_text("one\ntwo\n")
    first = read_end(path, None, 100)
    assert first is not None
    path.rename(tmp_path / "vm.log.0")
    path.write_text("three\n")
    later = read_end(path, first.stamp, 100)
    assert later is not None
    assert later.raw == b"one\ntwo\nthree\n"


class Guests:
    """A host with guests that run, and what they wrote; ``written``: each write of a console, when and whose."""

    def __init__(self, count: int) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.names = [f"vm-{number:02}" for number in range(count)]
        self.size = dict.fromkeys(self.names, 0)
        self.written: list[tuple[float, str]] = []
        self.versions: dict[str, str] = {}
        running = {name: SimpleNamespace(state=DomainState.RUNNING) for name in self.names}
        self.domains = SimpleNamespace(by_vm=running)
        shared: Any = SimpleNamespace(
            host="h1",
            store=self.store,
            clock=self.clock,
            lease=SimpleNamespace(held=True),
            domains=self.domains,
            informer=SimpleNamespace(get=lambda _name: SimpleNamespace(host="h1")),
            settings=NodeSettings(),
        )
        self.watcher = ConsoleWatcher(shared, self)

    async def read_changed(self, known: Mapping[str, LogStamp | None], _most: int) -> Mapping[str, LogEnd]:
        stamps = {name: (1, self.size[name], 1) for name in known if self.size[name]}
        return {name: LogEnd(one, b"%d\n" % one[1]) for name, one in stamps.items() if one != known[name]}

    async def look(self, *, last: bool = False) -> None:
        await self.clock.sleep(LOOK_S)
        await self.watcher.inspect(last=last)
        for console in (await self.store.list(Console)).items:
            if self.versions.get(console.name) != console.metadata.resource_version:
                self.written.append((self.clock.monotonic(), console.name))
            self.versions[console.name] = console.metadata.resource_version

    async def print(self, names: list[str], seconds: float) -> None:
        for _ in range(int(seconds / LOOK_S)):
            for name in names:
                self.size[name] += 1
            await self.look()


async def test_guests_that_write_all_the_time_cost_a_host_one_write_a_second_and_each_has_its_turn() -> None:
    it = Guests(30)
    await it.print(it.names, 300)
    assert len(it.written) <= 301
    for name in it.names:
        moments = [at for at, vm in it.written if vm == name]
        assert max(after - before for before, after in pairwise(moments)) <= PAUSE_S + len(it.names) + 1


async def test_a_console_that_goes_on_changing_is_written_more_and_more_rarely_until_it_is_quiet() -> None:
    it = Guests(1)
    await it.print(it.names, 400)
    gaps = [after - before for before, after in pairwise(at for at, _ in it.written)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 60]
    assert set(gaps[6:]) == {60}
    await it.print([], 130)
    before = len(it.written)
    await it.print(it.names, 3.5)
    assert len(it.written) == before + 2


async def test_what_a_guest_wrote_before_its_end_is_written_and_at_the_end_of_the_daemon_all_of_it() -> None:
    it = Guests(5)
    await it.print(it.names, 1)
    it.domains.by_vm.clear()
    await it.print([], 6)
    texts = {one.name: one.text for one in (await it.store.list(Console)).items}
    assert texts == dict.fromkeys(it.names, "2\n")
    late = Guests(5)
    late.size = dict.fromkeys(late.names, 1)
    await late.look(last=True)
    assert [vm for _, vm in late.written] == late.names


def test_what_was_written_between_two_readings_is_printed_once() -> None:
    assert added_text("a\nb", "a\nbc\n") == "c\n"
    assert added_text("a\nb\n", "b\nc\n") == "c\n"
    assert added_text("a\nb\n", "x\nc\n") == "x\nc\n"
    assert added_text("", "b\n") == "b\n"
    ticks = "tick\n" * 2000
    assert added_text(ticks, ticks[5:] + "tock\n") == "tock\n"
    assert added_text(ticks, ticks + "tick\n") == "tick\n"
    long = "".join(f"{number}\n" for number in range(3000))
    assert added_text(long, long[6000:] + "end\n") == "end\n"


def test_what_steers_a_terminal_is_left_out() -> None:
    assert ESCAPES.sub("", "\x1b[1;31mred\x1b[0m \x1b]52;c;AAAA\x07x\x1b(B\x1b7") == "red x"


def test_an_address_of_ipv6_has_brackets() -> None:
    assert [Vnc(listen=one, port=5900).address for one in ("127.0.0.1", "::1")] == ["127.0.0.1:5900", "[::1]:5900"]

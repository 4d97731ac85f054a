"""Console logs: what ``console.tail`` keeps, what is read of a file, and what its programs print of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run_real

from outlive.base.errors import BadInput
from outlive.cli.console import ESCAPES, added
from outlive.drivers.libvirt.consoles import ConsoleFiles, console_path, make_log, read_end
from outlive.node.decisions import DECISIONS
from outlive.node.vm.console import TailInput, console_tail, tail
from outlive.resources.consoles import Vnc
from outlive.runtime.decisions import DecisionTable

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
    assert tail(end.raw, lines, most) == tail(raw, lines, most)
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
        return {vm: end.raw for vm, end in (await logs.changed(dict.fromkeys(names), 100)).items()}

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


def test_what_was_written_between_two_readings_is_printed_once() -> None:
    assert added("a\nb", "a\nbc\n") == "c\n"
    assert added("a\nb\n", "b\nc\n") == "b\nc\n"
    assert added("", "b\n") == "b\n"
    long = "".join(f"{number}\n" for number in range(3000))
    assert added(long, long[6000:] + "end\n") == "end\n"


def test_what_steers_a_terminal_is_left_out() -> None:
    assert ESCAPES.sub("", "\x1b[1;31mred\x1b[0m \x1b]52;c;AAAA\x07x\x1b(B\x1b7") == "red x"


def test_an_address_of_ipv6_has_brackets() -> None:
    assert [Vnc(listen=one, port=5900).address for one in ("127.0.0.1", "::1")] == ["127.0.0.1:5900", "[::1]:5900"]

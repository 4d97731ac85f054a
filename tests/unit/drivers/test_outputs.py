"""A file that was asked for is written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from outlive.base import BadInput, Unavailable
from outlive.drivers import open_output, write_output


def test_what_was_there_stays_unless_everything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(path)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def _interrupted(path: Path) -> None:
    with open_output(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt


def test_a_file_that_is_replaced_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("before")
    path.chmod(0o600)
    link.symlink_to("file")
    write_output(link, b"after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_output(path, b"all of it")
    reader.join()
    assert read == [b"all of it"]
    assert path.is_fifo()


def test_a_full_disk_is_no_wrong_input() -> None:
    with pytest.raises(Unavailable, match="no space"):
        write_output(Path("/dev/full"), b"x")


@pytest.mark.parametrize("name", ["", "none/file", "a\0b", "x" * 300])
def test_a_path_that_cannot_be_a_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput) as caught:
        write_output(tmp_path / name, b"x")
    assert caught.value.remedy

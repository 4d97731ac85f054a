"""A laboratory's watchdog is believed only where nothing but a laboratory can be meant."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from outlive.guard import GuardError, LaboratoryWatchdog, laboratory, options


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The folders of a host of a laboratory: a process namespace of its own, no systemd, no device."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").write_text("")
    for name in ("dev", "run"):
        (tmp_path / name).mkdir()
    return tmp_path


def check(host: Path) -> None:
    laboratory.check_host(str(host / "proc"), str(host / "dev"), str(host / "run"))


def test_a_host_of_a_laboratory_passes(host: Path) -> None:
    check(host)


def test_where_it_cannot_be_told_it_is_a_machine(host: Path) -> None:
    (host / "proc/self/ns/pid").unlink()
    with pytest.raises(GuardError, match="is a machine"):
        check(host)


def test_systemd_is_refused(host: Path) -> None:
    (host / "run/systemd/system").mkdir(parents=True)
    with pytest.raises(GuardError, match="systemd runs here"):
        check(host)


@pytest.mark.parametrize("name", ["watchdog", "watchdog0", "watchdog1"])
def test_a_device_is_refused(host: Path, name: str) -> None:
    (host / "dev" / name).write_text("")
    with pytest.raises(GuardError, match=f"there is a watchdog, .*{name}: name the machine's own"):
        check(host)


def test_a_process_of_the_same_host_is_refused(host: Path) -> None:
    path = str(host / "w.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        folders = {name: str(host / name) for name in ("proc", "dev", "run")}
        watchdog = LaboratoryWatchdog(path, **folders)
        with pytest.raises(GuardError, match="on this host, which it is to reset"):
            watchdog.start(10)
    assert not watchdog.open
    assert not watchdog.hardware


def test_nobody_there_is_said_in_one_line(host: Path) -> None:
    folders = {name: str(host / name) for name in ("proc", "dev", "run")}
    with pytest.raises(GuardError, match=r"w\.sock: No such file or directory; does the laboratory run\?"):
        LaboratoryWatchdog(str(host / "w.sock"), **folders).start(10)


@pytest.mark.parametrize("other", [["--rehearsal"], ["--watchdog", "/dev/watchdog1"]])
def test_it_takes_the_place_of_a_watchdog(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.read(["--laboratory", "/tmp/w", *other])
    assert "leave --watchdog and --rehearsal away" in capsys.readouterr().err

"""``--server`` never sends the token of a state directory to another server than the one that runs on it."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.support.command import outlive, up

from outlive.api import ServerFile
from outlive.base import Forbidden, process_identity, write_whole
from outlive.cli import Access, running_server

URL = "https://ctl.example:8443"
PIN = "a" * 64
TOKEN = "token-of-this-state-directory"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A state directory with a running server."""
    write_whole(tmp_path / "token", TOKEN.encode())
    announce(tmp_path, os.getpid(), process_identity(os.getpid()))
    return tmp_path


def announce(directory: Path, pid: int, process: str) -> None:
    content = ServerFile(url=URL, pid=pid, process=process, fingerprint=PIN)
    write_whole(directory / "server.json", msgspec.json.encode(content))


def token_for(access: Access, address: str) -> str:
    return access._choose_token(address, access.own_server(address))


@pytest.mark.parametrize("address", [URL, f"{URL}/", "https://CTL.example:8443"])
def test_its_own_server_gets_it(directory: Path, address: str) -> None:
    assert token_for(Access(state_dir=directory, server=address), address) == TOKEN
    assert token_for(Access(state_dir=directory, server=address, fingerprint=PIN), address) == TOKEN


@pytest.mark.parametrize(
    ("address", "fingerprint"),
    [
        ("https://evil.example:8443", None),
        ("https://ctl.example:8444", None),
        ("https://ctl.example", None),
        ("http://ctl.example:8443", None),
        ("https://ctl.example:8443@evil.example:8443", None),
        (URL, "b" * 64),
    ],
)
def test_no_other_one_gets_it(directory: Path, address: str, fingerprint: str | None) -> None:
    access = Access(state_dir=directory, server=address, fingerprint=fingerprint)
    with pytest.raises(Forbidden, match="is for its own server alone"):
        token_for(access, address)
    assert token_for(Access(state_dir=directory, server=address, token="given"), address) == "given"


def test_a_server_that_has_ended_gets_it_no_more(directory: Path) -> None:
    """Another server listens at its address now."""
    announce(directory, 2**22 + 1, process_identity(os.getpid()))
    with pytest.raises(Forbidden):
        token_for(Access(state_dir=directory, server=URL), URL)


@pytest.mark.parametrize("process", ["", "another-boot/1"])
def test_another_process_with_the_number_of_a_killed_server_does_not_get_it(directory: Path, process: str) -> None:
    server = process_identity(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as other:
        announce(directory, other.pid, process or server)
        with pytest.raises(Forbidden):
            token_for(Access(state_dir=directory, server=URL), URL)
        assert running_server(directory) == ""
        announce(directory, other.pid, process_identity(other.pid))
        assert running_server(directory) == URL
        other.kill()
    assert process_identity(other.pid) == ""
    assert running_server(directory) == ""


@pytest.mark.slow
def test_no_command_asks_a_stranger_at_the_address_of_a_killed_server(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with up(state) as server:
        address = server.url
        server.process.kill()
        server.process.wait()
        assert (state / "server.json").exists()
    host, port = address.removeprefix("http://").split(":")
    with socket.create_server((host, int(port))) as stranger, subprocess.Popen(["sleep", "60"]) as other:
        stranger.settimeout(1.0)
        written = msgspec.json.decode((state / "server.json").read_bytes(), type=ServerFile)
        write_whole(state / "server.json", msgspec.json.encode(msgspec.structs.replace(written, pid=other.pid)))
        assert outlive("get", "hypervisors", "--state-dir", str(state)).code == 0
        with pytest.raises(TimeoutError):
            stranger.accept()
        other.kill()


def test_the_command_says_what_to_give(directory: Path) -> None:
    result = outlive("get", "hypervisors", "--server", "https://127.0.0.1:1", "--state-dir", directory)
    assert result.code == 7
    assert "give --token TOKEN or OUTLIVE_TOKEN" in result.line

"""``--server`` never sends the token of a state directory to another server than the one that runs on it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.support.command import outlive

from outlive.api.config import ServerFile
from outlive.base.errors import Forbidden
from outlive.base.files import write_whole
from outlive.cli.access import Access

URL = "https://ctl.example:8443"
PIN = "a" * 64
TOKEN = "token-of-this-state-directory"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A state directory with a running server."""
    write_whole(tmp_path / "token", TOKEN.encode())
    write_whole(tmp_path / "server.json", msgspec.json.encode(ServerFile(url=URL, pid=os.getpid(), fingerprint=PIN)))
    return tmp_path


def token_for(access: Access, address: str) -> str:
    return access._token(address, access._own_server(address))


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
    """Whoever listens at its address now is another one."""
    gone = msgspec.json.encode(ServerFile(url=URL, pid=2**22 + 1, fingerprint=PIN))
    write_whole(directory / "server.json", gone)
    with pytest.raises(Forbidden):
        token_for(Access(state_dir=directory, server=URL), URL)


def test_the_command_says_what_to_give(directory: Path) -> None:
    result = outlive("get", "hypervisors", "--server", "https://127.0.0.1:1", "--state-dir", directory)
    assert result.code == 7
    assert "give --token TOKEN or OUTLIVE_TOKEN" in result.line

"""Tokens, roles and files of tokens."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.calendar import Calendar

from outlive.api import (
    HOSTS,
    AccessLevel,
    Identity,
    Role,
    Tokens,
    Unauthenticated,
    allow,
    ensure_token,
    read_tokens,
)
from outlive.base import BadInput, Forbidden, Random, SeededIds

SECRET = "s" * 20
TOKENS = Tokens([(SECRET, Identity("ann", Role.OPERATOR)), ("t" * 20, Identity("bob", Role.VIEWER))])


def test_a_token_is_known_by_its_whole_value() -> None:
    assert TOKENS.identify(b"Bearer " + SECRET.encode()).name == "ann"
    assert TOKENS.identify(b"bearer  " + b"t" * 20).name == "bob"


def test_the_password_of_basic_authentication_counts_as_token() -> None:
    assert TOKENS.identify(b"Basic " + base64.b64encode(f"outlive:{SECRET}".encode())).name == "ann"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        SECRET.encode(),
        b"Bearer " + b"s" * 19,
        b"Bearer " + b"s" * 21,
        b"Basic %%%",
        b"Digest x",
    ],
)
def test_anything_else_is_refused_with_the_way_out(header: bytes) -> None:
    with pytest.raises(Unauthenticated) as caught:
        TOKENS.identify(header)
    assert "--state-dir" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_viewer_reads_and_a_scheduler_only_places() -> None:
    viewer, scheduler = Identity("v", Role.VIEWER), Identity("s", Role.SCHEDULER)
    allow(viewer, AccessLevel.READ)
    allow(viewer, AccessLevel.EXPLAIN)
    allow(scheduler, AccessLevel.PLACE)
    for identity, access in (
        (viewer, AccessLevel.WRITE),
        (viewer, AccessLevel.PLACE),
        (scheduler, AccessLevel.READ),
        (scheduler, AccessLevel.WRITE),
    ):
        with pytest.raises(Forbidden):
            allow(identity, access)


def test_only_admins_and_operators_have_the_server_do_something() -> None:
    for role in Role:
        identity = Identity("x", role, "kvm-1" if role in HOSTS else "")
        if role in (Role.ADMIN, Role.OPERATOR):
            allow(identity, AccessLevel.OPERATE)
        else:
            with pytest.raises(Forbidden):
                allow(identity, AccessLevel.OPERATE)


def test_a_missing_token_is_made_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = ensure_token(path, SeededIds(Random(1)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_token(path, SeededIds(Random(2))) == made


@pytest.mark.parametrize("content", ["", "short\n", "has a space in it and is long\x01\n"])
def test_a_token_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(BadInput, match="token"):
        ensure_token(path, SeededIds(Random(1)))


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"viewer {SECRET}\n")
    path.chmod(0o644)
    with pytest.raises(Forbidden) as caught:
        read_tokens(path)
    assert caught.value.remedy == f"chmod 600 {path}"


def test_a_line_of_a_file_of_tokens_may_have_an_end(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"viewer {SECRET} grafana until=2026-03-01\nviewer {'t' * 20}\n")
    path.chmod(0o600)
    clock = Calendar(datetime(2026, 2, 28, 23, tzinfo=UTC).timestamp())
    known = Tokens(read_tokens(path), clock=clock)
    assert known.identify(b"Bearer " + SECRET.encode()).name == "grafana"
    clock.ahead_s = 3600.0
    with pytest.raises(Unauthenticated, match="the token grafana ended at 2026-03-01 00:00 UTC"):
        known.identify(b"Bearer " + SECRET.encode())
    assert known.identify(b"Bearer " + b"t" * 20).name == "viewer-2"


def test_a_file_of_tokens_names_role_token_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who\nviewer {SECRET} grafana\n\nscheduler {'n' * 30}  # nova\n")
    path.chmod(0o600)
    assert read_tokens(path) == [
        (SECRET, Identity("grafana", Role.VIEWER)),
        ("n" * 30, Identity("scheduler-4", Role.SCHEDULER)),
    ]


@pytest.mark.parametrize(
    "line", ["viewer", "king " + "k" * 20, "viewer short", f"viewer {SECRET} a b", f"viewer {SECRET} until=soon"]
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"admin {'a' * 20}\n{line}\n")
    path.chmod(0o600)
    with pytest.raises(BadInput) as caught:
        read_tokens(path)
    assert caught.value.place == f"{path}:2"

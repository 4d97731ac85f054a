"""What the guard takes for a request, and what it does not."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.guard import (
    Arm,
    Beat,
    CreateBegin,
    CreateEnd,
    Disarm,
    Instants,
    MalformedMessage,
    encode_grant,
    encode_refusal,
    encode_request,
    parse_request,
)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ({"do": "status"}, None),
        ({"do": "beat", "sent": {"bootS": 8, "rawS": 7.5}, "epoch": 3}, Beat(Instants(8.0, 7.5), 3)),
        ({"do": "arm", "timeoutS": 5, "watchdogS": 10.5}, Arm(5.0, 10.5)),
        ({"do": "disarm"}, Disarm()),
        ({"do": "create-begin", "runId": "r"}, CreateBegin("r")),
        ({"do": "create-end", "runId": "r"}, CreateEnd("r")),
    ],
)
def test_every_request_is_read(line: dict, event: object) -> None:
    request = parse_request(json.dumps({"id": 7, **line}).encode())
    assert (request.id, request.event) == (7, event)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"do":"reboot"}',
        b'{"do":["beat"]}',
        b'{"do":"beat"}',
        b'{"do":"beat","sent":{"bootS":NaN,"rawS":1},"epoch":1}',
        b'{"do":"beat","sent":{"bootS":1e999,"rawS":1},"epoch":1}',
        b'{"do":"beat","sent":{"bootS":true,"rawS":1},"epoch":1}',
        b'{"do":"beat","sent":1,"epoch":1}',
        b'{"do":"beat","sent":{"bootS":1},"epoch":1}',
        b'{"do":"beat","sent":{"bootS":1,"rawS":1},"epoch":1.5}',
        b'{"do":"beat","sent":{"bootS":1,"rawS":1},"epoch":99999999999999999999}',
        b'{"do":"beat","sent":{"bootS":"1","rawS":1},"epoch":1}',
        b'{"do":"beat","sent":{"bootS":1,"rawS":1},"epoch":1,"id":"x"}',
        b'{"do":"create-begin","runId":""}',
        b'{"do":"create-begin","runId":5}',
        b"[" * 4000,
        b"9" * 4000,
        b'{"do":"beat","epoch":1,"sent":{"rawS":1,"bootS":' + b"9" * 400 + b"}}",
    ],
)
def test_what_is_no_request_is_said_to_be_none(line: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_request(line)


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "ignore")))
def test_no_bytes_bring_the_parser_down(line: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        assert parse_request(line)


def test_answers_are_one_line() -> None:
    assert json.loads(encode_grant(3, {"gate": "open"})) == {"id": 3, "ok": True, "gate": "open"}
    assert encode_refusal(3, "gate-shut", "a\nb").count(b"\n") == 1


def test_what_is_asked_for_is_read_as_it_was() -> None:
    beat = Beat(Instants(8.25, 7.5), 3)
    assert parse_request(encode_request(4, beat)) == (4, beat)

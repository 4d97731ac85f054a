"""Programs that drivers run: how they end, and what the caller gets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from outlive.base import Unavailable
from outlive.cli import decision_table
from outlive.drivers import FAILED, TIMED_OUT, ProgramExit, run


def decide(**given: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(decision_table().decide_json("command.result", json.dumps(given).encode()))
    return answer


def sh(script: str, limit_s: float = 10.0) -> ProgramExit:
    return asyncio.run(run(["/bin/sh", "-c", script], limit_s=limit_s))


@pytest.mark.parametrize(
    ("given", "code", "stdout"),
    [
        ({"event": "exit", "code": 3, "stdout": "x"}, 3, "x"),
        ({"event": "exit", "code": 0, "stdout": None}, 0, ""),
        ({"event": "timeout", "stdout": "half"}, TIMED_OUT, ""),
        ({"event": "exception", "code": 3, "stdout": "x"}, FAILED, ""),
        ({"event": "exception", "background": True, "stdout": "x"}, 0, None),
        ({"event": "exit", "code": 7, "stdout": "x", "background": True}, 0, None),
    ],
)
def test_code_and_text_follow_from_how_it_ended(given: dict[str, Any], code: int, stdout: str | None) -> None:
    assert decide(**given) == {"code": code, "stdout": stdout}


@pytest.mark.parametrize("given", [{}, {"event": "exit"}, {"event": "other"}, {"event": "exit", "code": "x"}])
def test_what_does_not_say_how_it_ended_is_an_error(given: dict[str, Any]) -> None:
    assert set(decide(**given)) == {"error"}


def test_a_program_that_ends_has_its_code_and_what_it_printed() -> None:
    assert sh("echo out; echo err >&2; exit 4") == ProgramExit(4, "out\n", "err\n")


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_killed_with_its_children() -> None:
    ended = sh("echo half; sleep 1000 & echo $!; wait", limit_s=0.3)
    assert (ended.code, ended.out, ended.killed) == (TIMED_OUT, "", True)
    half, child = ended.partial.split()
    assert half == "half"
    assert sh(f"kill -0 {child} 2>/dev/null && grep -q '^State:.[^Z]' /proc/{child}/status").code != 0


@pytest.mark.parametrize(
    "argv", [["/no/such/program"], ["/etc/hostname"], ["/bin/echo", "a\0b"], ["/bin/echo", "\ud800"]]
)
def test_what_cannot_be_started_is_one_error_that_callers_know(argv: list[str]) -> None:
    with pytest.raises(Unavailable, match=r"started|installed"):
        asyncio.run(run(argv, limit_s=5))

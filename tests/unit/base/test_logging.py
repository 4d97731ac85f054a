"""What of a condition that goes on is logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from outlive.base import GAP_S, REPEAT_S, Instant, Repeats, configure_logging, get_logger


class HandClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def monotonic(self) -> float:
        return self.time

    def latest(self) -> float:
        return self.time

    def now(self) -> Instant:
        return Instant(self.time)

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def logged(repeats: Repeats, level: str = "warning", **fields: Any) -> dict[str, Any] | None:
    try:
        return dict(repeats(None, level, {"event": "store.failed", "level": level, **fields}))
    except structlog.DropEvent:
        return None


def test_a_condition_that_goes_on_is_logged_when_it_begins_and_then_once_an_hour() -> None:
    clock = HandClock()
    repeats = Repeats(clock)
    shown = []
    for _ in range(int(2 * REPEAT_S / 30)):
        shown.append(logged(repeats, error="disk full", retry_s=clock.time))
        clock.time += 30
    found = [one for one in shown if one is not None]
    assert [one.get("repeated") for one in found] == [None, REPEAT_S / 30 - 1]


@pytest.mark.parametrize("change", ["gap", "field", "level"])
def test_another_condition_is_logged_at_once(change: str) -> None:
    clock = HandClock()
    repeats = Repeats(clock)
    assert logged(repeats, error="disk full") is not None
    clock.time += GAP_S + 1 if change == "gap" else 1
    level = "info" if change == "level" else "warning"
    assert logged(repeats, level, error="disk broken" if change == "field" else "disk full") is not None
    assert (logged(repeats, level, error="disk broken" if change == "field" else "disk full") is None) == (
        level != "info"
    )


@pytest.mark.parametrize(
    ("brought", "shown"),
    [
        ("/\x1b]0;owned\x07\x00\u202e\nforged line", r"\x1b]0;owned"),
        # without a space or a line end, which alone would have it written as a literal
        ("/\x1b]0;owned\x07", r"/\x1b]0;owned\x07"),
        ("/a\x00b", r"/a\x00b"),
        ("/\x9b31m", r"/\x9b31m"),
        ("/\u202egpj.exe", r"/\u202egpj.exe"),
    ],
    ids=["line", "escape", "nul", "C1", "bidi"],
)
@pytest.mark.parametrize("event", ["api.request", "exception"])
def test_what_a_request_brings_into_a_line_for_people_steers_no_terminal(
    tmp_path: Path, event: str, brought: str, shown: str
) -> None:
    before = structlog.get_config()
    configure_logging(file=str(tmp_path / "log"))
    try:
        if event == "exception":
            try:
                raise ValueError(brought)
            except ValueError:
                get_logger("api").exception("api.defect")
        else:
            get_logger("api").info(event, path=brought)
    finally:
        configure_logging()
        structlog.configure(**before)
    text = (tmp_path / "log").read_bytes().decode()
    assert shown in text
    assert all(line.isprintable() for line in text.split("\n"))
    if event != "exception":
        assert text.count("\n") == 1

"""Progress bars: only on a terminal, only after a second, gone at the end."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from tests.support.command import environment

from outlive.cli import QUIET_SECONDS, ProgressBar, show_progress

SCRIPT = """
import time
from outlive.cli import show_progress
with show_progress("planning") as bar:
    bar.advance_to(1, 3)
    time.sleep({})
"""


def drawn(seconds: float) -> str:
    """What a process draws on its terminal while it works for so long."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", SCRIPT.format(seconds)]
    process = subprocess.Popen(command, stderr=follower, env=environment(TERM="xterm"))
    os.close(follower)
    text = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(leader)
    assert process.wait() == 0
    return text.decode()


@pytest.mark.slow
def test_what_takes_long_is_drawn_on_a_terminal() -> None:
    text = drawn(QUIET_SECONDS + 1.0)
    assert "planning" in text
    assert "1/3" in text


@pytest.mark.slow
def test_what_is_quick_is_not_drawn() -> None:
    assert drawn(0.05) == ""


def test_nothing_is_drawn_where_nobody_looks(capfd: object) -> None:
    with show_progress("planning", 10) as bar:
        bar.advance_to(5)
        assert isinstance(bar, ProgressBar)

"""``--watch``: a command again and again, printing whenever its answer changes, until interrupted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from outlive.cli.output import Form, Output, write

WATCH_SECONDS = 2.0
"""Pause between two looks."""
_CLEAR = "\x1b[H\x1b[2J"


async def watch(function: Callable[..., Any], values: dict[str, Any], output: Output) -> int | None:
    """Run the command until Ctrl-C; on a terminal each answer replaces the one before."""
    last = ""
    while True:
        output.held = []
        await function(**values)
        text, output.held = "".join(output.held), None
        if text != last:
            clear = sys.stdout.isatty() and output.form in (Form.TABLE, Form.WIDE)
            write((_CLEAR if clear else "---\n" if last and output.form is Form.YAML else "") + text)
            last = text
        await asyncio.sleep(WATCH_SECONDS)

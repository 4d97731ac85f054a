"""What a command that was run for the daemon has come to, always as a code and a text.

Whatever happens to the command, who asked gets a code and never an exception. Code and text are the tool's word, no
proof of anything (docs/reference/node-decisions.md#commandresult).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from outlive.base.errors import BadInput
from outlive.node.numbers import Number

TIMEOUT_CODE: Final = 128
"""The command did not end in time."""
EXCEPTION_CODE: Final = 255
"""The command could not be run, or something else went wrong."""


class CommandInput(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    event: Literal["exit", "timeout", "exception"]
    code: Number | None = None
    """Of an exit."""
    stdout: str | None = None
    background: bool = False


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is told about it; null: nobody waited for a text."""

    code: Number
    stdout: str | None


def command_result(given: CommandInput) -> CommandResult:
    """Code and text; ``BadInput`` for an exit without a code."""
    if given.background:
        return CommandResult(code=0, stdout=None)
    match given.event:
        case "timeout":
            return CommandResult(code=TIMEOUT_CODE, stdout="")
        case "exception":
            return CommandResult(code=EXCEPTION_CODE, stdout="")
        case "exit":
            if given.code is None:
                raise BadInput("a command that exited has no code", remedy="give its code")
            return CommandResult(code=given.code, stdout=given.stdout or "")

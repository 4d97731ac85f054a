"""What the answers of a power controller say about one attempt to switch a host off.

Only a reading counts, never the code of a command: a tool may fail and have switched, or succeed and not. A
controller that lies cannot be seen here; identity, rehearsal and a second reading are asked for where the proof is
accepted (docs/reference/node-decisions.md#fencepower).
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

Answer = Literal["ok", "error", "timeout"]
COMMANDS: Final = 4
"""Off, status, on, status."""


class Power(enum.StrEnum):
    """A reading."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class PowerReason(enum.StrEnum):
    """Why an attempt counts, or does not."""

    UNREACHABLE = "unreachable"
    CONFIRMED_OFF = "confirmed_off"
    OFF_AT_END = "off_at_end"
    NEVER_OFF = "never_off"
    UNCONFIRMED = "unconfirmed"


class PowerInput(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt; texts as the tool printed them."""

    off: Answer
    mid: str | None = None
    """The status after the command to switch off."""
    on: Answer | None = None
    final: str | None = None
    """The status after the command to switch on."""


class PowerResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the host was off, and how many commands that took."""

    fenced: bool
    reason: PowerReason
    commands: int


def power(given: PowerInput) -> PowerResult:
    """Off at any reading is off. A controller that does not answer the first command is not asked again."""
    if given.off == "timeout":
        return PowerResult(fenced=False, reason=PowerReason.UNREACHABLE, commands=1)
    match read_power(given.mid), read_power(given.final):
        case Power.OFF, _:
            return PowerResult(fenced=True, reason=PowerReason.CONFIRMED_OFF, commands=COMMANDS)
        case _, Power.OFF:
            return PowerResult(fenced=True, reason=PowerReason.OFF_AT_END, commands=COMMANDS)
        case Power.ON, Power.ON:
            return PowerResult(fenced=False, reason=PowerReason.NEVER_OFF, commands=COMMANDS)
        case _:
            return PowerResult(fenced=False, reason=PowerReason.UNCONFIRMED, commands=COMMANDS)


def read_power(text: str | None) -> Power:
    """The reading in a tool's text, in any letter case; a text that says both says nothing."""
    said = (text or "").casefold()
    on, off = "power is on" in said, "power is off" in said
    if on == off:
        return Power.UNKNOWN
    return Power.ON if on else Power.OFF

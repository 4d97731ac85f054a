"""One poll of DRBD: which command runs next, and whether what they printed is the new snapshot."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from outlive.runtime.decisions import Decision
from outlive.storage.drbd import (
    BadDocument,
    DrbdResource,
    ResourceConfig,
    ResourceState,
    merge_resources,
    read_show,
    read_status,
)
from outlive.storage.options import Profile

STATUS_COMMAND: Final = ("drbdsetup", "status", "--json")
SHOW_COMMAND: Final = ("drbdsetup", "show", "--json")


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a command of the poll ended."""

    argv: tuple[str, ...] = ()
    exit: int | None = None
    timed_out: bool = False
    stdout: str = ""


class PollInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A poll so far; ``answers`` in the order in which the commands ran."""

    profile: Profile = "hardened"
    loaded: bool = False
    drbd_command_timeout_s: float = 10.0
    answers: tuple[CommandAnswer, ...] = ()


class PollCommand(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A command to be run; ``limit_s`` absent: for as long as it takes."""

    argv: tuple[str, ...]
    limit_s: float | None


class PollResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is done next, or what the poll has found."""

    next: PollCommand | None = None
    resources: tuple[DrbdResource, ...] | None = None
    """The new snapshot; ``None``: the one before stays and ages."""
    failed: Literal["command-failed", "timed-out", "bad-document"] | None = None
    ends: bool = False
    """Whether the process ends with an error."""
    why: str = ""
    """What was not understood, in words."""


def poll_drbd(given: PollInput) -> PollResult:
    """Run ``status`` and ``show`` one after the other; any failure of either is one of the poll."""
    if not given.loaded:
        return PollResult(resources=())
    limit_s = given.drbd_command_timeout_s if given.profile == "hardened" else None
    states: tuple[ResourceState, ...] = ()
    configs: tuple[ResourceConfig, ...] = ()
    for number, argv in enumerate((STATUS_COMMAND, SHOW_COMMAND)):
        if number >= len(given.answers):
            return PollResult(next=PollCommand(argv=argv, limit_s=limit_s))
        answer = given.answers[number]
        ends = given.profile == "compat"
        if answer.timed_out:
            return PollResult(failed="timed-out", ends=ends, why=f"{' '.join(argv)} did not end in time")
        if answer.exit != 0:
            return PollResult(failed="command-failed", ends=ends, why=f"{' '.join(argv)} ended with {answer.exit}")
        try:
            if argv is STATUS_COMMAND:
                states = read_status(answer.stdout)
            else:
                configs = read_show(answer.stdout)
        except BadDocument as error:
            return PollResult(failed="bad-document", ends=ends, why=error.message)
    return PollResult(resources=merge_resources(configs, states))


POLL: Final = Decision(
    "storage.poll",
    poll_drbd,
    PollInput,
    PollResult,
    "Which command of a poll runs next, and the snapshot once both have run",
    nulls_are_absent=True,
)

"""Observes the DRBD of this node: polls its state, and follows its events if the agent is configured so.

The last good state stays until there is a newer one, and ages: how old it is decides whether anything is done. The
events stream only wakes: what is decided on is always a state that was polled after it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final, Literal

import msgspec

from outlive.base import Clock, OutliveError, Random, Unavailable, get_logger
from outlive.runtime import Decision
from outlive.storage.calls import DrbdTool
from outlive.storage.drbd import (
    EVENTS_STREAM,
    BadDocument,
    DrbdResource,
    EventStream,
    ResourceConfig,
    ResourceState,
    find_contradiction,
    merge_resources,
    read_show,
    read_status,
)
from outlive.storage.metrics import AgentMetrics
from outlive.storage.options import AgentFlags, Profile
from outlive.storage.tick import DrbdSnapshot

# One poll of DRBD: which command runs next, and whether what they printed is the new snapshot.

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


SETTLE_S: Final = 0.1
"""After an event so long is waited for others: DRBD changes several things in one step."""
AGAIN_S: Final = (0.5, 30.0)
"""The first and the longest pause before a stream that ended is opened again."""
_log = get_logger("storage.drbd")


class ProcessEnds(Unavailable):
    """The process ends, as the profile ``compat`` has it: the node's kubelet starts it anew."""

    code = "process-ends"


class DrbdObserver:
    """See the module. ``changed`` is set when something may be to be done."""

    def __init__(self, flags: AgentFlags, drbd: DrbdTool, clock: Clock, random: Random, metrics: AgentMetrics) -> None:
        self._flags = flags
        self._drbd = drbd
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._resources: tuple[DrbdResource, ...] = ()
        self._polled_at: float | None = None
        self.failure = ""
        """Why the last poll failed; empty: it did not."""
        self._stream_failure = ""
        self._stream = EventStream()
        self._wake = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def follows_events(self) -> bool:
        """Whether the events stream is a source."""
        return self._flags.options.promotion_source == EVENTS_STREAM

    def list_troubles(self) -> tuple[str, ...]:
        """What is wrong with DRBD's tools, in words."""
        found = (("the last poll of DRBD failed", self.failure), ("drbdsetup events2 is lost", self._stream_failure))
        return tuple(f"{what}: {why}" for what, why in found if why)

    def age_s(self) -> float | None:
        """Seconds since the last good poll began; ``None``: there was none."""
        return None if self._polled_at is None else self._clock.monotonic() - self._polled_at

    def take_snapshot(self) -> DrbdSnapshot | None:
        """The last good state, with what the stream says; ``None``: there was none."""
        age_s = self.age_s()
        if age_s is None:
            return None
        resources = self._resources
        if self.follows_events:
            resources = tuple(
                msgspec.structs.replace(one, stream_may_promote=self._stream.may_promote(one.name)) for one in resources
            )
        return DrbdSnapshot(age_s=age_s, resources=resources)

    async def poll_endlessly(self) -> None:
        """Poll, wait, and again; at once when the stream says that something has changed. ``ProcessEnds``."""
        while True:
            self._wake.clear()
            await self.poll()
            self.changed.set()
            try:
                async with asyncio.timeout(self._flags.get_seconds("drbd-status-interval")):
                    await self._wake.wait()
                await self._clock.sleep(SETTLE_S)
            except TimeoutError:
                pass

    async def poll(self) -> None:
        """One poll; a failure leaves what is known, which ages."""
        began = self._clock.monotonic()
        answers: tuple[CommandAnswer, ...] = ()
        loaded = await self._drbd.is_loaded()
        while True:
            result = poll_drbd(
                PollInput(
                    profile=self._flags.profile,
                    loaded=loaded,
                    drbd_command_timeout_s=self._flags.options.drbd_command_timeout_s,
                    answers=answers,
                )
            )
            if result.next is None:
                break
            answers = (*answers, await self._answer(result.next.argv, result.next.limit_s))
        if result.resources is not None and self._flags.profile == "hardened" and answers:
            status, show = answers
            # documents that contradict themselves: nobody can say which entry is true
            if why := find_contradiction(read_status(status.stdout), read_show(show.stdout)):
                result = PollResult(failed="bad-document", why=why)
        self._metrics.poll(result.failed or "ok")
        if result.resources is not None:
            self._resources, self._polled_at, self.failure = result.resources, began, ""
            return
        self.failure = result.why
        _log.warning("storage.poll_failed", code=result.failed, why=result.why, age_s=self.age_s())
        if result.ends:
            raise ProcessEnds(f"DRBD cannot be read: {result.why}", remedy="see drbdsetup status --json")

    async def _answer(self, argv: tuple[str, ...], limit_s: float | None) -> CommandAnswer:
        try:
            output = await self._drbd.run(argv, limit_s=limit_s)
        except Unavailable as error:
            _log.warning("storage.drbdsetup_not_run", error=str(error))
            return CommandAnswer(argv=argv)
        if output.exit != 0 and not output.timed_out:
            _log.warning("storage.drbdsetup_failed", argv=argv, exit=output.exit, stderr=output.stderr[-400:])
        return CommandAnswer(argv=argv, exit=output.exit, timed_out=output.timed_out, stdout=output.stdout)

    async def follow_for_ever(self) -> None:
        """Follow the events stream; one that ends is opened again after a pause."""
        failures = 0
        while True:
            try:
                async with aclosing(self._drbd.follow_events()) as lines:
                    async for line in lines:
                        failures, self._stream_failure = 0, ""
                        if self._stream.take(line):
                            self._wake.set()
                why = "it ended"
            except OutliveError as error:
                why = str(error)
            self._stream.reset()
            self._stream_failure = why
            self._metrics.count_lost_stream()
            failures += 1
            _log.warning("storage.events_lost", why=why, failures=failures)
            await self._clock.sleep(self._random.backoff_seconds(failures, *AGAIN_S))

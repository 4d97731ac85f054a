"""Observes the DRBD of this node: polls its state, and follows its events where it is told to.

The last good state stays until there is a newer one, and ages: how old it is decides whether anything is done. The
events stream only wakes: what is decided on is always a state that was polled after it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.base.random import Random
from outlive.storage.drbd import EVENTS_STREAM, DrbdResource, find_contradiction, read_show, read_status
from outlive.storage.drbd_events import EventStream
from outlive.storage.metrics import AgentMetrics
from outlive.storage.options import AgentFlags
from outlive.storage.poll import CommandAnswer, PollInput, PollResult, poll_drbd
from outlive.storage.ports import DrbdTool
from outlive.storage.tick import DrbdSnapshot

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
        self._failure = self._stream_failure = ""
        self._stream = EventStream()
        self._wake = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def follows_events(self) -> bool:
        """Whether the events stream is a source."""
        return self._flags.options.promotion_source == EVENTS_STREAM

    @property
    def failure(self) -> str:
        """Why the last poll failed; empty: it did not."""
        return self._failure

    def troubles(self) -> tuple[str, ...]:
        """What is wrong with DRBD's tools, in words."""
        found = (("the last poll of DRBD failed", self._failure), ("drbdsetup events2 is lost", self._stream_failure))
        return tuple(f"{what}: {why}" for what, why in found if why)

    def age_s(self) -> float | None:
        """Seconds since the last good poll began; ``None``: there was none."""
        return None if self._polled_at is None else self._clock.monotonic() - self._polled_at

    def snapshot(self) -> DrbdSnapshot | None:
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

    async def poll_for_ever(self) -> None:
        """Poll, wait, and again; at once when the stream says that something has changed. ``ProcessEnds``."""
        while True:
            self._wake.clear()
            await self.poll()
            self.changed.set()
            try:
                async with asyncio.timeout(self._flags.seconds("drbd-status-interval")):
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
        if result.resources is not None and self._flags.profile == "hardened":
            result = _refuse_contradiction(result, answers)
        self._metrics.poll(result.failed or "ok")
        if result.resources is not None:
            self._resources, self._polled_at, self._failure = result.resources, began, ""
            return
        self._failure = result.why
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
                async with aclosing(self._drbd.events()) as lines:
                    async for line in lines:
                        failures, self._stream_failure = 0, ""
                        if self._stream.take(line):
                            self._wake.set()
                why = "it ended"
            except OutliveError as error:
                why = str(error)
            self._stream.reset()
            self._stream_failure = why
            self._metrics.stream_lost()
            failures += 1
            _log.warning("storage.events_lost", why=why, failures=failures)
            await self._clock.sleep(self._random.backoff(failures, *AGAIN_S))


def _refuse_contradiction(result: PollResult, answers: tuple[CommandAnswer, ...]) -> PollResult:
    """A failed poll if its documents contradict themselves: which entry is true nobody can say."""
    if not answers:
        return result
    status, show = answers
    why = find_contradiction(read_status(status.stdout), read_show(show.stdout))
    return PollResult(failed="bad-document", why=why) if why else result

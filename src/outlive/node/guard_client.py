"""The daemon's connection to the guard of its host, every call with a deadline.

A guard that was armed and cannot be reached any more is the dangerous case: it may have shut the gate. Then no VM may
be started until it answers again. A guard that never was armed, or that is not there at all, stops nobody. What this
does not give: between two calls the gate may shut; the guard's killing covers what was begun before.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from abc import ABC, abstractmethod
from pathlib import PurePosixPath
from typing import Final

import msgspec

from outlive.base import Refused, Unavailable, get_logger
from outlive.guard import (
    Arm,
    Beat,
    CreateBegin,
    CreateEnd,
    Disarm,
    Event,
    GuardRefusal,
    Instants,
    Phase,
    clocks,
    messages,
)
from outlive.node.ports import GuardReport

CALL_LIMIT_S: Final = 1.0
"""For one call, connecting included. The guard answers at once or is in trouble."""
ANSWER_BYTES: Final = 1 << 18
REMEDY: Final = "is it running? systemctl status outlive-guard"

_log = get_logger("node.guard_client")


class _GuardAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What comes back; of a yes to ``status``, all of it."""

    id: int
    ok: bool
    code: str = ""
    message: str = ""
    armed: bool = False
    timeout_s: float = 0.0
    watchdog_s: float = 0.0
    hardware: bool = False
    laboratory: bool = False
    cgroup: str = ""
    """Below which it ends everything; a guard of an older version does not say."""
    gate: str = "open"
    phase: str = ""
    closed_epochs: tuple[int, ...] = ()
    create_runs: tuple[str, ...] = ()

    @property
    def report(self) -> GuardReport:
        """What the guard says of itself; nothing where it was not asked for its status."""
        return GuardReport(
            armed=self.armed,
            timeout_s=self.timeout_s,
            watchdog_s=self.watchdog_s,
            gate_open=self.gate == "open",
            gave_up=self.phase == Phase.LOST,
            hardware=self.hardware,
            laboratory=self.laboratory,
            closed_epochs=self.closed_epochs,
            creates=self.create_runs,
        )


class GuardConnection(ABC):
    """The rules of every connection to a guard; how a request gets there is for subclasses to say."""

    def __init__(self) -> None:
        self.armed = False
        """Whether the guard was armed when it was last heard of."""

    @abstractmethod
    async def ask(self, event: Event | None) -> GuardReport | GuardRefusal:
        """What the guard answers to an event; ``None`` asks for its status. ``Unavailable`` where it does not."""

    async def report(self) -> GuardReport:
        """What it says of itself; of a guard that cannot be reached, that it is not armed."""
        try:
            answer = await self._request_granted(None)
        except (Unavailable, Refused):
            return GuardReport(gate_open=not self.armed)
        self.armed = answer.armed
        return answer

    async def beat(self, sent: Instants, epoch: int) -> None:
        """Report an acknowledged renewal. ``Unavailable`` where the guard did not take it."""
        try:
            await self._request_granted(Beat(sent, epoch))
        except Refused as error:
            raise Unavailable(f"the guard refused a renewal: {error.message}", remedy=error.remedy) from error

    async def arm(self, timeout_s: float, watchdog_s: float) -> None:
        """Enforce from now on. Whatever becomes of the answer, the guard counts as armed until it says otherwise."""
        before, self.armed = self.armed, True
        try:
            await self._request_granted(Arm(timeout_s, watchdog_s))
        except Refused:
            self.armed = before
            raise

    async def disarm(self) -> None:
        """Enforce nothing any more."""
        await self._request_granted(Disarm())
        self.armed = False

    async def begin_create(self, run_id: str) -> bool:
        """Whether this run may be started."""
        try:
            await self._request_granted(CreateBegin(run_id))
        except Refused as error:
            _log.warning("guard.create-refused", run_id=run_id, why=error.message)
            return False
        except Unavailable as error:
            if not self.armed:
                return True
            _log.error("guard.unreachable-while-armed", run_id=run_id, why=error.message, remedy=error.remedy)
            return False
        return True

    async def end_create(self, run_id: str) -> None:
        """That start is over. A guard that is not there need not hear of it, unless it was armed."""
        try:
            await self._request_granted(CreateEnd(run_id))
        except Unavailable:
            if self.armed:
                raise

    async def _request_granted(self, event: Event | None) -> GuardReport:
        answer = await self.ask(event)
        if isinstance(answer, GuardRefusal):
            raise Refused(
                f"the guard refused {messages.name_of(event)}: {answer.message}", remedy="see outlive guard --status"
            )
        return answer


def explain_uncovered(cgroup: str, guests: str) -> str:
    """Why a guard that ends everything below ``cgroup`` would not end guests below ``guests``; empty: it would.

    An empty path is one that nobody has said.
    """
    if not cgroup or not guests or PurePosixPath(posixpath.normpath(guests)).is_relative_to(posixpath.normpath(cgroup)):
        return ""
    return (
        f"the guard ends what is below {cgroup} (its --cgroup), and guests of this host are below {guests} "
        "(libvirt.slice of node.yaml): write into both the group that the guests are in (systemd-cgls shows it)"
    )


class GuardClient(GuardConnection):
    """The guard behind a socket; connects by itself, and again after every failure.

    ``guests``: the cgroup that guests of this host are below; empty: it has none.
    """

    def __init__(self, path: str, *, guests: str = "", limit_s: float = CALL_LIMIT_S) -> None:
        super().__init__()
        self._path = path
        self._guests = guests
        self._limit_s = limit_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._one_call = asyncio.Lock()
        self._calls = 0
        self._reachable = True

    def read_clocks(self) -> Instants:
        """The guard's clocks."""
        return clocks.read_clocks()

    async def close(self) -> None:
        """Let the connection go; the next call makes another one."""
        self._drop()

    async def ask(self, event: Event | None) -> GuardReport | GuardRefusal:
        """One request and its answer; ``Unavailable`` for anything but an answer."""
        do = messages.name_of(event)
        try:
            async with asyncio.timeout(self._limit_s), self._one_call:
                answer: _GuardAnswer | None = None
                if self._streams is not None:  # the guard may have been started anew since; no request minds another
                    with contextlib.suppress(OSError, EOFError):
                        answer = await self._exchange(event)
                if answer is None:
                    answer = await self._exchange(event)
        except TimeoutError:
            raise self._note_unreachable(f"the guard did not answer {do} within {self._limit_s:g} s") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, msgspec.DecodeError) as error:
            raise self._note_unreachable(f"the guard at {self._path} cannot be reached: {error}") from error
        if not self._reachable:
            self._reachable = True
            _log.info("guard.reachable-again", path=self._path)
        if not answer.ok:
            return GuardRefusal(answer.code, answer.message)
        return msgspec.structs.replace(answer.report, misses=explain_uncovered(answer.cgroup, self._guests))

    async def _exchange(self, event: Event | None) -> _GuardAnswer:
        """Whatever goes wrong here ends the connection: a late answer must never be taken for the next one."""
        self._calls += 1
        done = False
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=ANSWER_BYTES)
            reader, writer = self._streams
            writer.write(messages.encode_request(self._calls, event))
            await writer.drain()
            answer = msgspec.json.decode(await reader.readuntil(), type=_GuardAnswer)
            if answer.id != self._calls:
                raise ValueError(f"it answered call {answer.id} instead of {self._calls}")
            done = True
            return answer
        finally:
            if not done:
                self._drop()

    def _drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    def _note_unreachable(self, message: str) -> Unavailable:
        """Said once in the log as long as it lasts."""
        if self._reachable and self.armed:
            _log.error("guard.unreachable", path=self._path, why=message)
        self._reachable = False
        return Unavailable(message, remedy=REMEDY)

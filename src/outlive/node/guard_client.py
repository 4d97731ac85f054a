"""The daemon's connection to the guard of its host, every call with a deadline.

A guard that was armed and cannot be reached any more is the dangerous case: it may have shut the gate. Then no VM may
be started until it answers again. A guard that never was armed, or that is not there at all, stops nobody. What this
does not give: between two calls the gate may shut; the guard's killing covers what was begun before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

import msgspec

from outlive.base.clock import boot_time_s
from outlive.base.errors import Refused, Unavailable
from outlive.base.logging import get_logger
from outlive.node.ports import GuardReport

CALL_LIMIT_S: Final = 1.0
"""For one call, connecting included. The guard answers at once or is in trouble."""
ANSWER_BYTES: Final = 1 << 18
REMEDY: Final = "is it running? systemctl status outlive-guard"


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What comes back; of a yes to ``status``, all of it."""

    id: int
    ok: bool
    code: str = ""
    message: str = ""
    armed: bool = False
    timeout_s: float = 0.0
    watchdog_s: float = 0.0
    hardware: bool = False
    gate: str = "open"
    closed: int = 0
    closed_epochs: tuple[int, ...] = ()
    create_runs: tuple[str, ...] = ()


class GuardClient:
    """The guard behind a socket; connects by itself, and again after every failure."""

    def __init__(self, path: str, *, limit_s: float = CALL_LIMIT_S) -> None:
        self._path = path
        self._limit_s = limit_s
        self._log = get_logger("node.guard_client")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._one_call = asyncio.Lock()
        self._calls = 0
        self._armed = False
        """Whether the guard was armed when it was last heard of."""
        self._reachable = True

    async def report(self) -> GuardReport:
        """How it stands now; of a guard that cannot be reached, that it is not armed."""
        try:
            answer = await self._call("status")
        except (Unavailable, Refused):
            return GuardReport(gate_open=not self._armed)
        self._armed = answer.armed
        return GuardReport(
            armed=answer.armed,
            timeout_s=answer.timeout_s,
            watchdog_s=answer.watchdog_s,
            gate_open=answer.gate == "open",
            hardware=answer.hardware,
            closures=answer.closed,
            closed_epochs=answer.closed_epochs,
            creates=answer.create_runs,
        )

    async def beat(self, sent_at_s: float, epoch: int) -> None:
        """Tell of an acknowledged renewal. ``Unavailable`` where the guard did not take it."""
        try:
            await self._call("beat", sentAtS=sent_at_s, epoch=epoch)
        except Refused as error:
            raise Unavailable(f"the guard refused a renewal: {error.message}", remedy=error.remedy) from error

    def boot_time(self) -> float:
        """The guard's clock."""
        return boot_time_s()

    async def arm(self, timeout_s: float, watchdog_s: float) -> None:
        """Enforce from now on. Whatever becomes of the answer, the guard counts as armed until it says otherwise."""
        before, self._armed = self._armed, True
        try:
            await self._call("arm", timeoutS=timeout_s, watchdogS=watchdog_s)
        except Refused:
            self._armed = before
            raise

    async def disarm(self) -> None:
        """Enforce nothing any more."""
        await self._call("disarm")
        self._armed = False

    async def begin_create(self, run_id: str) -> bool:
        """Whether this run may be started."""
        try:
            await self._call("create-begin", runId=run_id)
        except Refused as error:
            self._log.warning("guard.create-refused", run_id=run_id, why=error.message)
            return False
        except Unavailable as error:
            if not self._armed:
                return True
            self._log.error("guard.unreachable-while-armed", run_id=run_id, why=error.message, remedy=error.remedy)
            return False
        return True

    async def end_create(self, run_id: str) -> None:
        """That start is over. A guard that is not there need not hear of it, unless it was armed."""
        try:
            await self._call("create-end", runId=run_id)
        except Unavailable:
            if self._armed:
                raise

    async def close(self) -> None:
        """Let the connection go; the next call makes another one."""
        self._drop()

    async def _call(self, do: str, **members: Any) -> _Answer:
        """One request and its answer; ``Refused`` for a no, ``Unavailable`` for anything but an answer."""
        try:
            async with asyncio.timeout(self._limit_s), self._one_call:
                answer = await self._asked(do, members)
        except TimeoutError:
            raise self._unreachable(f"the guard did not answer {do} within {self._limit_s:g} s") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, msgspec.DecodeError) as error:
            raise self._unreachable(f"the guard at {self._path} cannot be reached: {error}") from error
        if not self._reachable:
            self._reachable = True
            self._log.info("guard.reachable-again", path=self._path)
        if not answer.ok:
            raise Refused(f"the guard refused {do}: {answer.message}", remedy="see outlive guard --status")
        return answer

    async def _asked(self, do: str, members: dict[str, Any]) -> _Answer:
        """Once more on a fresh connection, where the guard was started anew since the last call; no request minds."""
        if self._streams is not None:
            with contextlib.suppress(OSError, EOFError):
                return await self._exchanged(do, members)
        return await self._exchanged(do, members)

    async def _exchanged(self, do: str, members: dict[str, Any]) -> _Answer:
        """Whatever goes wrong here ends the connection: a late answer must never be taken for the next one."""
        self._calls += 1
        done = False
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=ANSWER_BYTES)
            reader, writer = self._streams
            writer.write(json.dumps({"id": self._calls, "do": do, **members}).encode() + b"\n")
            await writer.drain()
            answer = msgspec.json.decode(await reader.readuntil(), type=_Answer)
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

    def _unreachable(self, message: str) -> Unavailable:
        """Said once in the log as long as it lasts."""
        if self._reachable and self._armed:
            self._log.error("guard.unreachable", path=self._path, why=message)
        self._reachable = False
        return Unavailable(message, remedy=REMEDY)

"""The monitor of one QEMU: questions, orders and events, one JSON document a line."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import msgspec

from outlive.base import Refused, Unavailable, Unknown, deadline

LINE_LIMIT: Final = 1 << 20
EVENTS: Final = 256
"""Events that are kept until somebody takes them; older ones go."""
ANSWER_S: Final = 5.0


class Qmp:
    """One connection; QEMU serves one at a time on each socket, and others wait."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.events: list[dict[str, Any]] = []
        self._reader = reader
        self._writer = writer
        self._calls = 0

    @classmethod
    async def open(cls, path: str, limit_s: float = ANSWER_S) -> Qmp:
        """``Unavailable`` where no QEMU answers there in time."""
        try:
            with deadline(limit_s):
                reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
                made = cls(reader, writer)
                try:
                    await made._read_line()
                    await made("qmp_capabilities")
                except BaseException:
                    made.close()
                    raise
                return made
        except (OSError, TimeoutError, Unknown) as error:
            why = str(error) or "no answer in time"
            raise Unavailable(f"QEMU at {path} does not answer: {why}", remedy="look whether it is there") from None

    async def __call__(self, command: str, limit_s: float = ANSWER_S, /, **arguments: Any) -> Any:
        """Its answer. ``Refused`` with QEMU's words; ``Unknown`` where none came."""
        self._calls += 1
        asked = {"execute": command, "arguments": arguments, "id": self._calls}
        try:
            with deadline(limit_s):
                self._writer.write(msgspec.json.encode(asked) + b"\n")
                await self._writer.drain()
                while True:
                    answer = await self._read_line()
                    if answer.get("id") != self._calls:
                        continue
                    if "error" in answer:
                        why = " ".join(str(answer["error"].get("desc", "")).split())
                        raise Refused(why, remedy="see QEMU's log")
                    return answer.get("return")
        except (OSError, TimeoutError) as error:
            raise Unknown(f"QEMU did not answer {command}: {error or 'no answer in time'}") from None

    async def wait_event(self, limit_s: float) -> bool:
        """Wait for the next event, at most so long; whether one came. ``Unknown`` where QEMU is gone."""
        if self.events:
            return True
        with contextlib.suppress(TimeoutError), deadline(limit_s):
            while not self.events:
                await self._read_line()
        return bool(self.events)

    def close(self) -> None:
        """Let it go."""
        self._writer.close()

    async def _read_line(self) -> dict[str, Any]:
        try:
            line = await self._reader.readline()
            if not line:
                raise Unknown("QEMU has ended")
            found = msgspec.json.decode(line)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise Unknown(f"QEMU answers nothing that is understood: {error}") from None
        if "event" in found:
            self.events = [*self.events[1 - EVENTS :], found]
        return dict(found)

"""The console log watcher: what guests wrote to their serial consoles last, in ``Console/<vm>``.

One loop looks at the logs of all virtual machines that run here; an error in one does not stop the others. Guests do
not decide how much is written to the store, which keeps the memberships as well: a host writes one console every
``HOST_WRITE_S``, the one that has waited longest first. One console is written at once, then after ``WRITE_S``, and as
long as it goes on changing after twice the pause before, up to ``PAUSE_S``. Nothing else depends on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from outlive.base import Clock, OutliveError, as_datetime, get_logger
from outlive.node.ports import DomainState
from outlive.node.vm.context import ConsoleLogs, LogEnd, LogStamp, VmContext
from outlive.resources import CONSOLE_BYTES, Console, ObjectMeta
from outlive.runtime import Count, Decision, Periodic, Sweeper
from outlive.store import Store, compare_and_swap

LOOK_S: Final = 0.5
"""How often logs are looked at."""
HOST_WRITE_S: Final = 1.0
"""The least time between two writes of one host."""
WRITE_S: Final = 2.0
"""The least time between two writes of one console, and until the first that failed is tried again."""
PAUSE_S: Final = 60.0
"""The most time between two writes of a console that changes all the time."""
TRIES: Final = 3
WATCHED: Final = (DomainState.RUNNING, DomainState.PAUSED)
_log = get_logger("node.console")


class TailInput(msgspec.Struct, frozen=True, kw_only=True):
    """A log, or its end, in pieces."""

    chunks_hex: tuple[Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$")], ...]
    """Its bytes in hexadecimal digits, in the order of the file."""
    lines: Count
    max_bytes: Count


class TailResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept."""

    text: str


def console_tail(given: TailInput) -> TailResult:
    """The last lines; a line ends with its newline, and a last one without counts as well.

    Bytes that are no UTF-8 become U+FFFD. Whole lines are left out, the oldest first, until the rest fits.
    """
    return TailResult(text=keep_tail(bytes.fromhex("".join(given.chunks_hex)), given.lines, given.max_bytes))


def keep_tail(raw: bytes, lines: int, max_bytes: int) -> str:
    """The same of bytes."""
    found = [f"{line}\n" for line in raw.decode(errors="replace").split("\n")]
    found[-1] = found[-1][:-1]
    found = found if found[-1] else found[:-1]
    kept = found[-lines:] if lines else []
    left = sum(len(line.encode()) for line in kept)
    first = 0
    while left > max_bytes:
        left -= len(kept[first].encode())
        first += 1
    return "".join(kept[first:])


CONSOLE_TAIL: Final = Decision(
    "console.tail", console_tail, TailInput, TailResult, "What is kept of the log of a console"
)


RETENTION_S: Final = 30 * 86_400.0
"""How long a console is kept to which nothing is written."""
LIMIT: Final = 5_000
"""Consoles in the store at most; what was written to longest ago goes first, and is still in the log on its host."""
SWEEP_S: Final = 3600.0
"""How often they are looked for: a look reads the texts of all."""


def console_sweeper(store: Store, clock: Clock) -> Sweeper[Console]:
    """Deletes consoles that nothing was written to for long, such as those of VMs that are gone."""
    return Sweeper(
        store,
        Console,
        seen=lambda console: console.changed_at,
        keep_s=RETENTION_S,
        keep=LIMIT,
        clock=clock,
        every_s=SWEEP_S,
    )


@dataclass(slots=True)
class _Watched:
    """One console."""

    stamp: LogStamp | None = None
    """Of the log as it was written to the store last."""
    digest: bytes = b""
    """Of the text that was written."""
    not_before_s: float = 0.0
    pause_s: float = WRITE_S
    """From its next write to the one after that."""


class ConsoleWatcher:
    """See the module. Each virtual machine is watched once, however often it starts."""

    def __init__(self, node: VmContext, logs: ConsoleLogs) -> None:
        self._node = node
        self._logs = logs
        self._watched: dict[str, _Watched] = {}
        self._not_before_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        await Periodic(self.inspect, LOOK_S, clock=self._node.clock, wait_first=True).run()

    async def inspect(self, *, last: bool = False) -> None:
        """One look; ``last``: whatever has changed is written, because no other look follows."""
        node, now_s = self._node, self._node.clock.monotonic()
        if not node.lease.held or not node.settings.console_lines or (now_s < self._not_before_s and not last):
            return
        here = {vm for vm, domain in node.domains.by_vm.items() if domain.state in WATCHED}
        ended = {vm for vm in self._watched if vm not in here}
        for vm in sorted(here):
            self._watched.setdefault(vm, _Watched())
        due = {vm: one.stamp for vm, one in self._watched.items() if last or vm in ended or now_s >= one.not_before_s}
        changed: Mapping[str, LogEnd] = {}
        try:
            changed = await self._logs.read_changed(due, CONSOLE_BYTES)
        except OutliveError as error:
            _log.warning("console.not_read", host=node.host, error=str(error))
        for vm in due:
            if vm not in changed:
                self._watched[vm].pause_s = WRITE_S
        waiting = sorted(changed, key=lambda vm: (vm not in ended, self._watched[vm].not_before_s, vm))
        while waiting:
            vm = waiting.pop(0)
            if await self._write(vm, changed[vm]) and not last:
                self._not_before_s = node.clock.monotonic() + HOST_WRITE_S
                break
        for vm in ended.difference(waiting):
            del self._watched[vm]

    async def _write(self, vm: str, end: LogEnd) -> bool:
        """Whether the store was asked to write."""
        node, watched = self._node, self._watched[vm]
        text = keep_tail(end.raw, node.settings.console_lines, CONSOLE_BYTES)
        digest = hashlib.sha256(text.encode()).digest()
        found = node.informer.get(vm)
        watched.not_before_s = node.clock.monotonic() + watched.pause_s
        if found is None or found.host != node.host:
            return False  # deleted, or another host's by now
        if digest == watched.digest:
            watched.stamp = end.stamp
            return False
        watched.pause_s = min(2 * watched.pause_s, PAUSE_S)
        now = as_datetime(node.clock.now())

        def change(console: Console | None) -> Console | None:
            if console is not None and (console.host, console.text) == (node.host, text):
                return None
            meta = ObjectMeta(name=vm) if console is None else console.metadata
            return Console(metadata=meta, host=node.host, text=text, changed_at=now)

        try:
            await compare_and_swap(node.store, Console, vm, change, clock=node.clock, tries=TRIES)
        except OutliveError as error:  # the log is still as it was: another look tries again
            _log.warning("console.not_written", vm=vm, host=node.host, error=str(error))
        else:
            watched.stamp, watched.digest = end.stamp, digest
        return True

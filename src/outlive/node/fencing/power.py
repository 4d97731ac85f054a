"""Power controllers: switching a host off and seeing that it is off, and switching it on; decision ``fence.power``.

A controller is first asked who it is: one that is wired to another machine gets no command. Then ``off``; a controller
that does not answer it ends the attempt at once. Then readings: the first that says off, and another one two seconds
later, both sent after the command was acknowledged. Only a reading counts, never the code of a command: a tool may fail
and have switched, or succeed and not. What the readings are worth is decided by the proof (``proofs``); a controller
that lies cannot be seen here. Every part is bounded.

Hosts that were proven dead are switched on again once nothing is held there any more, where the policy asks for it.
Which hosts are off, what is held there and how often it was tried is read from the store at every look, so that the
next fencer goes on where one stopped. Tries are counted in the Membership before each command, and there are only a
few: whoever leaves a host off after that has a reason, or a fault to see. One command that was taken is enough; nothing
here makes sure that the host comes up.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import msgspec

from outlive.base.clock import Clock
from outlive.base.deadline import deadline
from outlive.base.errors import NotFound, OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.node.fencing.identity import SystemIndex, identity_problem
from outlive.node.fencing.proofs import READINGS_APART_S
from outlive.node.fencing.states import (
    POWER_ON_WAITS_S,
    SWITCH_ON,
    SWITCHED_ON,
    TAKEN,
    SwitchedOnView,
    SwitchOnView,
    is_off,
)
from outlive.node.ports import PowerPort, PowerReading, PowerState
from outlive.resources import Hypervisor, VirtualMachine
from outlive.runtime.decisions import Decision, DecisionLog
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import LIST_S, answered, list_all

if TYPE_CHECKING:
    from outlive.node.fencing.context import FencerContext

OFF_LIMIT_S: Final = 20.0
"""How long the command to switch off may take."""
READ_LIMIT_S: Final = 10.0
"""How long one reading may take."""
FIRST_READ_S: Final = 0.1
"""The first reading follows the command so soon."""
POLL_S: Final = 1.0
"""Between readings, until one says off."""
POLLS_FOR_S: Final = 10.0
"""For how long readings may go on saying that the host is on."""
APART_S: Final = READINGS_APART_S + 0.05
"""Between the first reading that says off and the second: a little more than what is asked for."""

_log = get_logger("fencing.power")

T = TypeVar("T")
Answer = Literal["ok", "error", "timeout"]
COMMANDS: Final = 4
"""Off, status, on, status."""


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
        case PowerState.OFF, _:
            return PowerResult(fenced=True, reason=PowerReason.CONFIRMED_OFF, commands=COMMANDS)
        case _, PowerState.OFF:
            return PowerResult(fenced=True, reason=PowerReason.OFF_AT_END, commands=COMMANDS)
        case PowerState.ON, PowerState.ON:
            return PowerResult(fenced=False, reason=PowerReason.NEVER_OFF, commands=COMMANDS)
        case _:
            return PowerResult(fenced=False, reason=PowerReason.UNCONFIRMED, commands=COMMANDS)


def read_power(text: str | None) -> PowerState:
    """The reading in a tool's text, in any letter case; a text that says both says nothing."""
    said = (text or "").casefold()
    on, off = "power is on" in said, "power is off" in said
    if on == off:
        return PowerState.UNKNOWN
    return PowerState.ON if on else PowerState.OFF


FENCE_POWER: Final = Decision("fence.power", power, PowerInput, PowerResult, "Whether a host's power was seen off")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt came to."""

    fenced: bool
    why: str
    system_uuid: str = ""
    off_after_s: tuple[float, ...] = ()
    """Seconds after the acknowledged command at which readings said off, the last ones in a row."""


async def answer_of(call: Awaitable[T], limit_s: float, host: str) -> T:
    """What the driver of a controller answers for that host. ``NotFound``; ``Unavailable`` for anything else."""
    try:
        with deadline(limit_s):
            return await call
    except (NotFound, Unavailable):
        raise
    except TimeoutError:
        raise Unavailable(f"no answer in {limit_s:g} s") from None
    except OutliveError as error:
        raise Unavailable(error.message) from error
    except Exception as error:
        _log.exception("fence.driver_broke", host=host)
        raise Unavailable(f"its driver failed with {type(error).__name__}: {error}") from error


class PowerSequence:
    """See the module."""

    def __init__(self, port: PowerPort, clock: Clock, decisions: DecisionLog, systems: SystemIndex) -> None:
        self._port = port
        self._clock = clock
        self._decisions = decisions
        self._systems = systems

    async def refusal(self, host: Hypervisor) -> str:
        """Why the host cannot be switched off by its controller now; empty: it answers, and is the host's own."""
        fencing = host.spec.fencing
        if not fencing.driver:
            return "it has no power controller"
        try:
            reading = await answer_of(self._port.read(host), READ_LIMIT_S, host.name)
        except OutliveError as error:
            return f"its power controller at {fencing.address} does not answer: {error.message}"
        return self._of_another(host, reading)

    async def switch_off(self, host: Hypervisor) -> Attempt:
        """One attempt; the caller has looked, and has written down that it tries."""
        answer = await self._off(host)
        if answer == "timeout":
            self._decisions.use(FENCE_POWER, PowerInput(off="timeout"), subject=host.name)
            return Attempt(fenced=False, why="its power controller did not answer the command to switch off")
        readings, off = await self._readings(host, self._clock.monotonic())
        middle, last = (readings[0], readings[-1]) if readings else (None, None)
        given = PowerInput(off=answer, mid=_text(middle), final=_text(last))
        result = self._decisions.use(FENCE_POWER, given, subject=host.name)
        said = last.system_uuid if last is not None else ""
        if result.fenced and len(off) > 1:
            return Attempt(fenced=True, why="", system_uuid=said, off_after_s=off)
        state = "nothing" if last is None else last.state
        why = f"its power controller still said {state} {POLLS_FOR_S:g} s after the command ({result.reason})"
        return Attempt(fenced=False, why=why, system_uuid=said, off_after_s=off)

    async def switch_on(self, host: Hypervisor) -> str:
        """Switch on again; why not, where that failed."""
        if why := await self.refusal(host):
            return why
        try:
            await answer_of(self._port.on(host), OFF_LIMIT_S, host.name)
        except OutliveError as error:
            return error.message
        return ""

    def _of_another(self, host: Hypervisor, reading: PowerReading) -> str:
        """Why a reading says nothing of this host; empty: it does."""
        expected, shared_by = host.spec.fencing.system_uuid, self._systems.shared_by(host)
        return identity_problem(reading.system_uuid, expected, shared_by)

    async def _off(self, host: Hypervisor) -> Answer:
        try:
            async with asyncio.timeout(OFF_LIMIT_S):
                await self._port.off(host)
        except (TimeoutError, Unavailable, NotFound) as error:
            _log.warning("fence.off_unanswered", host=host.name, error=str(error))
            return "timeout"
        except Exception as error:  # noqa: BLE001 - it may have worked all the same: only readings count
            _log.warning("fence.off_failed", host=host.name, error=f"{type(error).__name__}: {error}")
            return "error"
        return "ok"

    async def _readings(self, host: Hypervisor, acknowledged: float) -> tuple[list[PowerReading], tuple[float, ...]]:
        """All readings, and when the last ones in a row said off."""
        readings: list[PowerReading] = []
        off: list[float] = []
        next_at = acknowledged + FIRST_READ_S
        while len(off) < 2:
            await self._clock.sleep(next_at - self._clock.monotonic())
            sent = self._clock.monotonic()
            if sent - acknowledged > POLLS_FOR_S + (APART_S if off else 0.0):
                break
            next_at = sent + POLL_S
            try:
                reading = await answer_of(self._port.read(host), READ_LIMIT_S, host.name)
            except OutliveError as error:
                _log.info("fence.reading_failed", host=host.name, error=str(error))
                off.clear()
                continue
            readings.append(reading)
            if reading.state is not PowerState.OFF or self._of_another(host, reading):
                off.clear()
                continue
            # The first counts from when it was received and the last from when it was sent: the least time between.
            off.append(sent - acknowledged if off else self._clock.monotonic() - acknowledged)
            next_at = self._clock.monotonic() + APART_S
        return readings, tuple(off)


def _text(reading: PowerReading | None) -> str | None:
    return None if reading is None or reading.state is PowerState.UNKNOWN else f"power is {reading.state}"


async def switch_on_hosts(context: FencerContext, group: OrderedTaskGroup) -> None:
    """Begin to switch on, in the group, those whose time has come: no host waits for another one's controller."""
    hosts = [host for host, _ in context.watcher if _is_due(context, host)] if context.leads() else []
    if not hosts:
        return
    held = await _held(context, hosts)
    for host in hosts:
        if not held[host] and _is_due(context, host):
            context.switching_on[host] = None
            group.create_task(_switch_on(context, host), name=f"switch on {host}")


def _is_due(context: FencerContext, host: str) -> bool:
    """Whether the next try's time has come, if there is one."""
    seen = context.watcher.get(host)
    if seen is None or host in context.switching_on or not is_off(seen.record):
        return False
    settings, done = context.rules.settings(host), seen.record.fence.power_on
    if settings.hypervisor is None or not settings.cluster_spec.fencing.power_on_after:
        return False
    if settings.keeps_power(context.clock.now()) or done.result == TAKEN or done.tries >= len(POWER_ON_WAITS_S):
        return False
    return context.clock.monotonic() - seen.since >= POWER_ON_WAITS_S[done.tries]


async def _held(context: FencerContext, hosts: list[str]) -> dict[str, list[str]]:
    """Host → VMs that are held there in its dead epoch or before."""
    epochs = {host: seen.record.fence.epoch for host in hosts if (seen := context.watcher.get(host)) is not None}
    found: dict[str, list[str]] = {host: [] for host in hosts}
    with answered("all virtual machines", LIST_S):
        async for vm in list_all(context.store, VirtualMachine):
            for one in vm.status.holders:
                if one.epoch <= epochs.get(one.hypervisor, -1):
                    found[one.hypervisor].append(vm.name)
    return found


async def _switch_on(context: FencerContext, host: str) -> None:
    try:
        await _try(context, host)
    except OutliveError as error:
        _log.info("fence.switching_on_put_off", host=host, error=str(error))
    except Exception:  # noqa: BLE001 - one host's trouble must not end the others'
        _log.exception("fence.switching_on_crashed", host=host)
    finally:
        del context.switching_on[host]


async def _try(context: FencerContext, host: str) -> None:
    """One try: what matters is read fresh, then written down, then commanded, and what came of it is written down."""
    seen, settings = context.watcher.get(host), await context.settings(host)
    if seen is None or settings.hypervisor is None or settings.keeps_power(context.clock.now()):
        return
    fence, tries = seen.record.fence.id, seen.record.fence.power_on.tries + 1
    holds = tuple((await _held(context, [host]))[host])
    begun = await context.take(
        host,
        SWITCH_ON,
        lambda record: SwitchOnView(host=host, record=record, fence=fence, holds=holds),
        lambda record: record.fence.id == fence and record.fence.power_on.tries == tries,
    )
    if begun.refused is not None or begun.record is None or begun.record.fence.power_on.tries != tries:
        return
    async with context.power_slots:
        why = await context.power.switch_on(settings.hypervisor)
    _log.info("fence.switched_on", host=host, fence=fence, tries=tries, failed=why)
    await context.take(
        host,
        SWITCHED_ON,
        lambda record: SwitchedOnView(host=host, record=record, fence=fence, tries=tries, result=why or TAKEN),
        lambda record: record.fence.power_on.result == (why or TAKEN),
    )

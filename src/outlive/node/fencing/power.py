"""BMCs: switching a host off and seeing that it is off, and switching it on; decision
``fence.power``.

A controller is first asked who it is: one that is wired to another machine gets no command. Then ``power_off``; a
controller that does not answer it ends the attempt at once. Then readings: the first that says off, and another one two
seconds later, both sent after the command was acknowledged. How long an answer may take is a matter of each controller
(``answer_limit_s``): a slow one is waited for, and one that takes longer than that is given more time at the next
attempt. Only a reading counts, never the code of a command: a tool may fail and have switched, or succeed and not. What
the readings are worth is decided by the proof (``proofs``); a controller that lies cannot be seen here. Every part is
bounded.

Hosts that were proven dead are switched on again once nothing is held there any more, where the policy asks for it.
Which hosts are off, what is held there and how often it was tried is read from the store at every look, so that the
next fencer goes on where one stopped. Tries are counted in the Membership before each command, and there are only a
few: an operator who leaves a host off after that has a reason, or sees a fault. One command that was taken is enough;
nothing here makes sure that the host comes up.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import msgspec

from outlive.base import Clock, NotFound, OutliveError, Unavailable, deadline, get_logger
from outlive.node.fencing.identity import SystemIndex, identity_problem
from outlive.node.fencing.policy import HostSettings, Profile
from outlive.node.fencing.proofs import READINGS_APART_S, TimedReading, find_last_off_times
from outlive.node.fencing.states import (
    POWER_ON_WAITS_S,
    SWITCH_ON,
    SWITCHED_ON,
    TAKEN,
    SwitchedOnView,
    SwitchOnView,
    is_off,
)
from outlive.node.ports import PowerPort, PowerReading, PowerRefused, PowerState
from outlive.resources import FencingSpec, Hypervisor, VirtualMachine
from outlive.runtime import Decision, DecisionLog, OrderedTaskGroup
from outlive.store import LIST_S, list_all, require_answer

if TYPE_CHECKING:
    from outlive.node.fencing.context import FencerContext

ANSWER_TIMES: Final = 3
"""An answer may take so many times as long as the slowest that rehearsals measured of this controller,"""
ANSWER_LEAST_S: Final = 10.0
"""but never less than this is waited for it, which is also the limit of a controller that was never measured,"""
ANSWER_MOST_S: Final = 60.0
"""nor more than this."""
COMMAND_LEAST_S: Final = 20.0
"""A command to switch may take at least so long: many controllers take longer for it than for a reading."""
POLL_S: Final = 1.0
"""Between readings, until one says off; the first one follows the acknowledged command at once."""
POLLS_FOR_S: Final = 10.0
"""For how long readings may go on saying that the host is on,"""
POLLS_LEAST: Final = 3
"""and so many there are at least, however long each takes."""
APART_S: Final = READINGS_APART_S + 0.01
"""Between the first reading that says off and the second: a little more than what is asked for."""

_log = get_logger("fencing.power")

T = TypeVar("T")
Answer = Literal["ok", "error", "timeout"]
COMMANDS: Final = 4
"""Off, status, on, status."""
STATES_NAMED: Final = 4
"""Readings that a message names, the last ones."""


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


def decide_power(given: PowerInput) -> PowerResult:
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


FENCE_POWER: Final = Decision(
    "fence.power", decide_power, PowerInput, PowerResult, "Whether a host's power was seen off"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt came to."""

    fenced: bool
    why: str
    system_uuid: str = ""
    off_after_s: tuple[float, ...] = ()
    """Seconds after the acknowledged command at which readings said off, the last ones in a row."""
    answers_s: tuple[float, ...] = ()
    """How long the command and each of these readings took."""
    slow: bool = False
    """Whether it ended because the controller took longer than its limit: with a longer one it may succeed."""


@dataclass(frozen=True, slots=True)
class BmcIdentity:
    """What a controller answered that was asked who it is."""

    refusal: str = ""
    """Why it proves nothing of the host; empty: it answers, and is the host's own."""
    took_s: float = 0.0
    slow: bool = False
    """Whether it took longer than its limit."""
    state: PowerState = PowerState.UNKNOWN
    """What it says of the host; before any command that proves nothing."""


@dataclass(frozen=True, slots=True)
class _Command:
    """What came of the command to switch off."""

    answer: Answer
    """``timeout`` also where it was refused: nothing happened, so that no reading is asked for."""
    said: str = ""
    """Why it was not carried out; after an ``error`` what was said of it, to follow another sentence."""
    slow: bool = False
    """Whether the controller only took longer than its limit."""


class NoAnswer(Unavailable):
    """Nothing came within the limit."""


def answer_limit_s(settings: HostSettings, measured_s: float | None) -> float:
    """How long one answer of a host's controller may take: as somebody says, the host before the cluster, else learned.

    ``measured_s``: the slowest of the last good rehearsals; ``None``: there was none.
    """
    said = settings.fencing.answer_limit_s or settings.cluster_spec.fencing.answer_limit_s
    if said is not None and said > 0:
        return float(said)
    return min(ANSWER_MOST_S, max(ANSWER_LEAST_S, ANSWER_TIMES * (measured_s or 0.0)))


def longer_s(limit_s: float) -> float:
    """The limit of the next try where an answer took longer than this one; the same: it is not made longer."""
    return max(limit_s, ANSWER_MOST_S)


class PowerForecast(NamedTuple):
    """How long a proof by power takes, and of what that is made."""

    total_s: float
    text: str


def power_forecast(profile: Profile, answer_s: float) -> PowerForecast:
    """From the last renewal of a host to the proof that it is off, if each answer of its controller takes so long.

    The controller is asked who it is as soon as the host is silent, so that only what exceeds the checks counts.
    """
    checks_s = float(profile.throws * profile.throw_s)
    identity_s = max(0.0, answer_s - checks_s)
    total_s = float(profile.silence_s) + checks_s + identity_s + 3 * answer_s + READINGS_APART_S
    late = f" + {identity_s:g} s more until it has said what it controls" if identity_s else ""
    text = (
        f"{total_s:g} s = silence {profile.silence_s:g} s + checks {checks_s:g} s{late} + command {answer_s:g} s"
        f" + reading {answer_s:g} s + {READINGS_APART_S:g} s + reading {answer_s:g} s"
    )
    return PowerForecast(total_s, text)


async def answer_of(call: Awaitable[T], limit_s: float, host: str) -> T:
    """What the driver of a controller answers for that host. ``NotFound``; ``Unavailable`` for anything else."""
    try:
        with deadline(limit_s):
            return await call
    except (NotFound, Unavailable):
        raise
    except TimeoutError:
        raise NoAnswer(f"no answer in {limit_s:g} s") from None
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

    async def identify(self, host: Hypervisor, limit_s: float) -> BmcIdentity:
        """Ask the controller which system it controls, and what of; it may take ``limit_s``."""
        host = self._systems.with_system(host)
        fencing = host.spec.fencing
        if not fencing.driver:
            return BmcIdentity("it has no BMC")
        began = self._clock.monotonic()
        try:
            reading = await answer_of(self._port.read(host), limit_s, host.name)
        except PowerRefused as error:
            return BmcIdentity(f"its BMC at {fencing.address} refuses: {error.message}")
        except OutliveError as error:
            why = f"its BMC at {fencing.address} does not answer: {error.message}"
            return BmcIdentity(why, slow=isinstance(error, NoAnswer))
        return BmcIdentity(self._identity_problem(host, reading), self._clock.monotonic() - began, state=reading.state)

    async def switch_off(self, host: Hypervisor, limit_s: float) -> Attempt:
        """One attempt; the caller knows who the controller is, and has written down that it tries.

        Each answer may take ``limit_s``.
        """
        host, sent = self._systems.with_system(host), self._clock.monotonic()
        command = await self._send_off(host, max(limit_s, COMMAND_LEAST_S))
        if command.answer == "timeout":
            self._decisions.use(FENCE_POWER, PowerInput(off="timeout"), subject=host.name)
            return Attempt(fenced=False, why=command.said, slow=command.slow)
        acknowledged = self._clock.monotonic()
        readings, timed, slow = await self._collect_readings(host, acknowledged, limit_s)
        middle, last = (readings[0], readings[-1]) if readings else (None, None)
        given = PowerInput(off=command.answer, mid=_reading_text(middle), final=_reading_text(last))
        result = self._decisions.use(FENCE_POWER, given, subject=host.name)
        said, off = last.system_uuid if last is not None else "", find_last_off_times(timed)
        took_s = (acknowledged - sent, *(one.received_s - one.sent_s for one in timed[len(timed) - len(off) :]))
        if result.fenced and len(off) > 1:
            return Attempt(fenced=True, why="", system_uuid=said, off_after_s=off, answers_s=took_s)
        if slow:
            why = f"its BMC did not say in {limit_s:g} s whether the host is off"
            return Attempt(fenced=False, why=why, slow=True)
        state = "nothing" if last is None else last.state
        if result.fenced:
            states = ", ".join(one.state for one in readings[-STATES_NAMED:])
            why = f"its BMC did not say off twice in a row: {states}"
            return Attempt(fenced=False, why=why, system_uuid=said, off_after_s=off)
        after_s = max(POLLS_FOR_S, timed[-1].received_s if timed else 0.0)
        why = f"its BMC still said {state} {after_s:.0f} s after the command ({result.reason})"
        why += command.said
        return Attempt(fenced=False, why=why, system_uuid=said, off_after_s=off)

    async def switch_on(self, host: Hypervisor, limit_s: float) -> str:
        """Switch on again; why not, where that failed."""
        if why := (await self.identify(host, limit_s)).refusal:
            return why
        try:
            await answer_of(
                self._port.power_on(self._systems.with_system(host)), max(limit_s, COMMAND_LEAST_S), host.name
            )
        except OutliveError as error:
            return error.message
        return ""

    def _identity_problem(self, host: Hypervisor, reading: PowerReading) -> str:
        """Why a reading says nothing of this host; empty: it does."""
        expected, shared_by = host.spec.fencing.system_uuid, self._systems.shared_by(host)
        return identity_problem(reading.system_uuid, expected, shared_by)

    async def check(self, host: Hypervisor, limit_s: float) -> str:
        """Why the controller would refuse to switch off, by what it says of itself; it may take ``limit_s``.

        Empty: nothing that is known, and also where it does not say: only an order shows it then.
        """
        try:
            return await answer_of(self._port.check(self._systems.with_system(host)), limit_s, host.name)
        except OutliveError as error:
            _log.info("fence.check_failed", host=host.name, error=str(error))
            return ""

    async def _send_off(self, host: Hypervisor, limit_s: float) -> _Command:
        """Send the command to switch off."""
        try:
            async with asyncio.timeout(limit_s):
                await self._port.power_off(host)
        except PowerRefused as error:
            _log.warning("fence.off_refused", host=host.name, error=str(error))
            return _Command("timeout", f"its BMC refused the command to switch off: {error.message}")
        except (TimeoutError, Unavailable, NotFound) as error:
            _log.warning("fence.off_unanswered", host=host.name, error=str(error))
            said = f": {error.message}" if isinstance(error, OutliveError) else f" in {limit_s:g} s"
            why = f"its BMC did not answer the command to switch off{said}"
            return _Command("timeout", why, slow=isinstance(error, TimeoutError))
        except Exception as error:  # noqa: BLE001 - it may have worked all the same: only readings count
            _log.warning("fence.off_failed", host=host.name, error=f"{type(error).__name__}: {error}")
            return _Command("error", f"; {error.message}" if isinstance(error, OutliveError) else "")
        return _Command("ok")

    async def _collect_readings(
        self, host: Hypervisor, acknowledged: float, limit_s: float
    ) -> tuple[list[PowerReading], list[TimedReading], bool]:
        """All readings, and whether it ended because the controller was slow.

        One is asked for at a time. They go on until two in a row say off, and while the host may still go off; a first
        reading that says off is always followed by another one.
        """
        readings: list[PowerReading] = []
        timed: list[TimedReading] = []
        asked, next_at = 0, acknowledged
        while len(row := find_last_off_times(timed)) < 2:
            await self._clock.sleep(next_at - self._clock.monotonic())
            sent = self._clock.monotonic()
            if not row and asked >= POLLS_LEAST and sent - acknowledged > POLLS_FOR_S:
                break
            asked, next_at, off = asked + 1, sent + POLL_S, False
            try:
                reading = await answer_of(self._port.read(host), limit_s, host.name)
            except NoAnswer:
                return readings, timed, True
            except OutliveError as error:
                _log.info("fence.reading_failed", host=host.name, error=str(error))
            else:
                readings.append(reading)
                off = reading.state is PowerState.OFF and not self._identity_problem(host, reading)
            received = self._clock.monotonic()
            timed.append(TimedReading(sent_s=sent - acknowledged, received_s=received - acknowledged, off=off))
            if off:
                next_at = received + APART_S
        return readings, timed, False


def _reading_text(reading: PowerReading | None) -> str | None:
    return None if reading is None or reading.state is PowerState.UNKNOWN else f"power is {reading.state}"


EARLY_S: Final = 10.0
"""For how long what a controller said while its host was only suspected counts."""


class EarlyIdentities:
    """Controllers are asked who they are as soon as their hosts are suspected, so that it costs no time later."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._asked: dict[str, tuple[str, FencingSpec, asyncio.Task[tuple[BmcIdentity, float]]]] = {}
        """Host → the version that was silent, what was known of its controller, and what it says and when."""

    def ask(self, host: str, group: OrderedTaskGroup, answered: Callable[[str], None]) -> None:
        """The host is suspected; fine if its controller was asked already. ``answered`` is called once it has
        said.
        """
        seen, settings = self._context.watcher.get(host), self._context.rules.settings_of(host)
        asked = self._asked.get(host)
        if seen is None or settings.hypervisor is None or (asked is not None and asked[0] == seen.version):
            return
        if not settings.fencing.driver or settings.keeps_power(self._context.clock.now()):
            return
        task = group.create_task(self._ask(settings), name=f"ask the controller of {host}")
        task.add_done_callback(lambda _: answered(host))
        self._asked[host] = (seen.version, settings.fencing, task)

    @property
    def awaited(self) -> bool:
        """Whether any controller has not answered yet."""
        return any(not task.done() for _, _, task in self._asked.values())

    def says_off(self, host: str, version: str) -> bool:
        """Whether the controller said that this host is off, since that version of its membership is silent."""
        asked = self._asked.get(host)
        if asked is None or asked[0] != version or not asked[2].done() or asked[2].cancelled():
            return False
        found, _ = asked[2].result()
        return found.state is PowerState.OFF and not found.refusal

    async def take(self, settings: HostSettings, limit_s: float) -> BmcIdentity:
        """What the controller of the host says it is; asked for now, if it has not said yet, or not well."""
        host = settings.hypervisor
        assert host is not None
        asked = self._asked.pop(host.name, None)
        if asked is not None and asked[1] == settings.fencing:
            found, at = await asked[2]
            if found.slow or (not found.refusal and self._context.clock.monotonic() - at <= EARLY_S):
                return found
        return await self._context.power.identify(host, limit_s)

    def forget_except(self, hosts: Container[str]) -> None:
        """The others live."""
        for host in [one for one, asked in self._asked.items() if one not in hosts and asked[2].done()]:
            del self._asked[host]

    async def _ask(self, settings: HostSettings) -> tuple[BmcIdentity, float]:
        assert settings.hypervisor is not None
        limit_s = self._context.answer_limit_s(settings)
        return await self._context.power.identify(settings.hypervisor, limit_s), self._context.clock.monotonic()


async def switch_on_hosts(context: FencerContext, group: OrderedTaskGroup) -> None:
    """Begin to switch on, in the group, those whose time has come: no host waits for another one's controller."""
    hosts = [host for host, _ in context.watcher if _is_due(context, host)] if context.is_leader() else []
    if not hosts:
        return
    held = await _find_held(context, hosts)
    for host in hosts:
        if not held[host] and _is_due(context, host):
            context.switching_on[host] = None
            group.create_task(_switch_on(context, host), name=f"switch on {host}")


def _is_due(context: FencerContext, host: str) -> bool:
    """Whether the next try's time has come, if there is one."""
    seen = context.watcher.get(host)
    if seen is None or host in context.switching_on or not is_off(seen.record):
        return False
    settings, done = context.rules.settings_of(host), seen.record.fence.power_on
    if settings.hypervisor is None or not settings.cluster_spec.fencing.power_on_after:
        return False
    if settings.keeps_power(context.clock.now()) or done.result == TAKEN or done.tries >= len(POWER_ON_WAITS_S):
        return False
    return context.clock.monotonic() - seen.since >= POWER_ON_WAITS_S[done.tries]


async def _find_held(context: FencerContext, hosts: list[str]) -> dict[str, list[str]]:
    """Host → VMs that are held there in its dead epoch or before."""
    epochs = {host: seen.record.fence.epoch for host in hosts if (seen := context.watcher.get(host)) is not None}
    found: dict[str, list[str]] = {host: [] for host in hosts}
    with require_answer("all virtual machines", LIST_S):
        async for vm in list_all(context.store, VirtualMachine):
            for one in vm.status.holders:
                if one.epoch <= epochs.get(one.hypervisor, -1):
                    found[one.hypervisor].append(vm.name)
    return found


async def _switch_on(context: FencerContext, host: str) -> None:
    part = f"its fencer, which switches {host} on"
    try:
        await _try(context, host)
        context.report_success(part)
    except OutliveError as error:
        _log.info("fence.switching_on_put_off", host=host, error=str(error))
    except Exception as error:  # noqa: BLE001 - a fault says so; one host's trouble must not end the others'
        await context.clock.sleep(context.report_crash(part, error))
    finally:
        del context.switching_on[host]


async def _try(context: FencerContext, host: str) -> None:
    """One try: what matters is read fresh, then written down, then commanded, and what came of it is written down."""
    seen, settings = context.watcher.get(host), await context.read_settings(host)
    if seen is None or settings.hypervisor is None or settings.keeps_power(context.clock.now()):
        return
    fence, tries = seen.record.fence.id, seen.record.fence.power_on.tries + 1
    holds = tuple((await _find_held(context, [host]))[host])
    begun = await context.take(
        host,
        SWITCH_ON,
        lambda record: SwitchOnView(host=host, record=record, fence=fence, holds=holds),
        lambda record: record.fence.id == fence and record.fence.power_on.tries == tries,
    )
    if begun.refused is not None or begun.record is None or begun.record.fence.power_on.tries != tries:
        return
    async with context.power_slots:
        why = await context.power.switch_on(settings.hypervisor, context.answer_limit_s(settings))
    _log.info("fence.switched_on", host=host, fence=fence, tries=tries, failed=why)
    await context.take(
        host,
        SWITCHED_ON,
        lambda record: SwitchedOnView(host=host, record=record, fence=fence, tries=tries, result=why or TAKEN),
        lambda record: record.fence.power_on.result == (why or TAKEN),
    )

"""What ticks, events and whole plans share: cache, lock, budget, the ``Decider``, and what writes and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from outlive.base import Clock, Ids, OutliveError, Random, Unavailable, split_batches
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.fleet import FreeAmounts
from outlive.failover.planner.assign import AssignInput, AssignResult, assign
from outlive.failover.planner.cleanup import CleanInput, CleanResult, LeaveInput, clean, leave
from outlive.failover.planner.plan import PlanInput, PlanResult, plan
from outlive.failover.planner.repack import RepackInput, RepackResult, repack
from outlive.failover.planner.replan import replan
from outlive.failover.planner.selection import SelectInput, SelectResult, select
from outlive.failover.ports import Computer, PlacementPort
from outlive.failover.protection import ProtectionSettings
from outlive.failover.reconciler.cache import FleetCache
from outlive.failover.reconciler.coverage import CoverageWriter
from outlive.failover.reconciler.writes import SlotWriter
from outlive.failover.report.forecast import Forecast
from outlive.failover.report.reporter import CycleStep, Reporter
from outlive.placement import VMSource
from outlive.resources import decode_as, encode_canonical
from outlive.runtime import Decision, DecisionLog, FaultRecorder

# Where decisions of the reconciler are computed and recorded: at once, or in a child process when they are large.
#
# A decision is a pure function of plain data, so it gives the same answer in either place. What is small is computed
# on the spot; what would hold the event loop for more than about 50 ms goes through a ``Computer``
# (docs/design/failover.md#cycle). Each use is recorded in the decision log, from which it can be replayed.

INLINE_OBJECTS: Final = 1_500
"""VMs, slots and hosts of an input that is computed on the spot."""
INLINE_NEEDS: Final = 200
"""VMs that miss slots in an assignment that is computed on the spot."""

ENCODED: Final = 100
"""Objects that are encoded together: slots have many members, and offers many hosts."""

I = TypeVar("I", bound=msgspec.Struct)  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output


def _is_clean(result: CleanResult) -> bool:
    return not result.dropped and not result.deleted and result.brake is None


def _is_served(result: SelectResult) -> bool:
    return not result.missing


CLEAN: Final = Decision(
    "failover.clean", clean, CleanInput, CleanResult, "What leaves its slot, and which slots go", _is_clean
)
LEAVE: Final = Decision(
    "failover.leave", leave, LeaveInput, CleanResult, "What a few VMs give reason to leave", _is_clean
)
SELECT: Final = Decision(
    "failover.select", select, SelectInput, SelectResult, "Who misses slots, and who is served", _is_served
)
ASSIGN: Final = Decision(
    "failover.assign", assign, AssignInput, AssignResult, "Which slots VMs join, and which are opened for them"
)
REPACK: Final = Decision("failover.repack", repack, RepackInput, RepackResult, "Which members move so that slots empty")
PLAN: Final = Decision("failover.plan", plan, PlanInput, PlanResult, "Slots for a whole fleet")
REPLAN: Final = Decision("failover.replan", replan, PlanInput, PlanResult, "Slots for a fleet, anew where that helps")
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (CLEAN, LEAVE, SELECT, ASSIGN, REPACK, PLAN, REPLAN)
"""The decisions of cycles and upkeep, by name, for ``outlive decide``."""
SEARCHES: Final = frozenset({REPACK.name, REPLAN.name})
"""Those that take long however small their input is."""


class Aborted(Unavailable):
    """A tick that could not go on, and during which step. If it could not read, nothing was written."""

    code = "cycle-aborted"

    def __init__(self, step: CycleStep, error: OutliveError) -> None:
        super().__init__(f"cycle aborted at step {step.value}: {error}")
        self.step = step


class Decider:
    """Decides for cycles and upkeep."""

    def __init__(self, log: DecisionLog, computer: Computer, *, clock: Clock, inline_needs: int = INLINE_NEEDS) -> None:
        self._log = log
        self._computer = computer
        self._clock = clock
        self._inline_needs = inline_needs

    def decide_now(self, decision: Decision[I, O], given: I) -> O:
        """The answer, computed on the spot."""
        return self._log.use(decision, given)

    async def decide(self, decision: Decision[I, O], given: I) -> O:
        """The answer; searches and large inputs go to the computer. ``Aborted`` where there is none."""
        try:
            objects = sum(len(getattr(given, part, ())) for part in ("vms", "slots", "hosts"))
            few = len(getattr(given, "needs", ())) <= self._inline_needs
            if few and objects <= INLINE_OBJECTS and decision.name not in SEARCHES:
                return self.decide_now(decision, given)
            raw = await encode_large(given, self._clock)
            answer = await self._computer.compute(decision, raw)
            result: O = decode_as(decision.output, answer)
            self._log.keep(decision, raw, answer, empty=decision.is_empty(result))
            return result
        except OutliveError as error:
            raise Aborted(CycleStep.DECIDE, error) from error

    def record_assignment(self, given: AssignInput, result: AssignResult, *, subject: str) -> None:
        """Record an assignment that was decided on the living index; ``given`` is what it rests on."""
        self._log.keep(ASSIGN, encode_canonical(given), encode_canonical(result), empty=False, subject=subject)


async def encode_large(value: msgspec.Struct, clock: Clock) -> bytes:
    """``encode_canonical(value)``; others get their turn while its large tuples and maps are encoded."""
    return b"".join(await encode_parts(value, clock))


async def encode_parts(value: msgspec.Struct, clock: Clock) -> list[bytes]:
    """The same in parts, for a value so large that even to join them would hold others up."""
    parts = [b"{"]
    for name, content in sorted(_shown_fields(value)):
        parts.append((b"," if len(parts) > 1 else b"") + encode_canonical(name) + b":")
        if isinstance(content, tuple):
            parts.append(b"[")
            for number, some in enumerate(split_batches(content, ENCODED)):
                parts.append((b"," if number else b"") + encode_canonical(some)[1:-1])
                await clock.sleep(0)
            parts.append(b"]")
        elif isinstance(content, Mapping):
            parts.append(b"{")
            for number, pairs in enumerate(split_batches(sorted(content.items()), ENCODED)):
                parts.append((b"," if number else b"") + encode_canonical(dict(pairs))[1:-1])
                await clock.sleep(0)
            parts.append(b"}")
        else:
            parts.append(encode_canonical(content))
    parts.append(b"}")
    return parts


def _shown_fields(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Wire name and content of the fields that its encoding has."""
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        # As msgspec judges it: the very default, or an empty collection if that is the default.
        factory = field.default_factory
        is_default = content is field.default
        if field.default is msgspec.NODEFAULT:
            is_default = factory in (list, dict, set) and type(content) is factory and not content
        if not (value.__struct_config__.omit_defaults and is_default):
            yield field.encode_name, content


# The mass-removal brake for whatever removes members one at a time.
#
# A cycle sees all its removals at once and may refuse them together. Upkeep and validation see them one after the
# other; they draw from this budget, which is filled again by every cycle. So a source that loses its VMs piecemeal,
# or a mirror that calls every host dead, dissolves no more than one cycle would have let pass.


class RemovalBudget:
    """Memberships that may still be removed before the next cycle."""

    def __init__(self, *, share: float, number: int) -> None:
        self._share = share
        self._number = number
        self._memberships = 0
        self._spent = 0
        self._held = False

    def refill(self, memberships: int) -> None:
        """A cycle begins, with so many memberships."""
        self._memberships = memberships
        self._spent = 0

    def hold(self, held: bool) -> None:
        """The last cycle braked (or did not): while it does, nobody removes anything."""
        self._held = held

    def take(self, count: int = 1) -> bool:
        """Whether ``count`` memberships may be removed; if so they are spent.

        The first slot after a refill may go whole, however many members it has: a slot on a dead host must not stay
        for ever because it is popular.
        """
        after = self._spent + count
        beyond = after > self._number and after > self._share * self._memberships
        if self._held or (beyond and self._spent > 0):
            return False
        self._spent = after
        return True

    def give_back(self, count: int = 1) -> None:
        """Memberships that were taken from the budget and are still there, because the write failed."""
        self._spent = max(0, self._spent - count)

    @property
    def memberships(self) -> int:
        """How many there were when the last cycle began."""
        return self._memberships


@dataclass(slots=True, kw_only=True)
class Context:
    """See the module."""

    cache: FleetCache
    placement: PlacementPort
    free: Callable[[], FreeAmounts]
    """What hosts have free, as of now."""
    writer: SlotWriter
    decider: Decider
    coverage: CoverageWriter
    reporter: Reporter
    forecast: Forecast
    lock: asyncio.Lock
    """Held around a whole pass, and around each write of a tick and the check before it."""
    budget: RemovalBudget
    clock: Clock
    random: Random
    ids: Ids
    config: FailoverConfig
    """Filled."""
    settings: FailoverUpkeepSettings
    domain_of: Callable[[str], str]
    """Project → name of its domain, where hosts are set aside by it."""
    protection: ProtectionSettings
    faults: FaultRecorder | None
    """Where VMs without a known location are reported as faults."""
    source: VMSource | None
    """Who lists the VMs; ``None``: they are our own objects, which the cache follows."""

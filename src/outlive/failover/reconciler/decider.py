"""Where decisions of the reconciler are computed and recorded: at once, or in a child process when they are large.

A decision is a pure function of plain data, so it gives the same answer in either place. What is small is computed on
the spot; what would hold the event loop for more than about 50 ms goes through a ``Computer``
(docs/reference/failover-operation.md#cycle). Each use is recorded in the decision log, from which it can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from outlive.base.batches import batches
from outlive.base.clock import Clock
from outlive.base.errors import OutliveError, Unavailable
from outlive.failover.planner.assign import AssignInput, AssignResult, assign
from outlive.failover.planner.cleanup import CleanInput, CleanResult, LeaveInput, clean, leave
from outlive.failover.planner.plan import PlanInput, PlanResult, plan
from outlive.failover.planner.repack import RepackInput, RepackResult, repack
from outlive.failover.planner.replan import replan
from outlive.failover.planner.selection import SelectInput, SelectResult, select
from outlive.failover.ports import Computer
from outlive.failover.report.reporter import Step
from outlive.resources.codec import decode_as, encode_canonical
from outlive.runtime.decisions import Decision, DecisionLog

INLINE_OBJECTS: Final = 1_500
"""VMs, slots and hosts of an input that is computed on the spot."""
INLINE_NEEDS: Final = 200
"""VMs that miss slots in an assignment that is computed on the spot."""

ENCODED: Final = 100
"""Objects that are encoded together: slots have many members, and offers many hosts."""

I = TypeVar("I", bound=msgspec.Struct)  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output


def _nothing_cleaned(result: CleanResult) -> bool:
    return not result.dropped and not result.deleted and result.brake is None


def _nobody_misses(result: SelectResult) -> bool:
    return not result.missing


CLEAN: Final = Decision(
    "failover.clean", clean, CleanInput, CleanResult, "What leaves its slot, and which slots go", _nothing_cleaned
)
LEAVE: Final = Decision(
    "failover.leave", leave, LeaveInput, CleanResult, "What a few VMs give reason to leave", _nothing_cleaned
)
SELECT: Final = Decision(
    "failover.select", select, SelectInput, SelectResult, "Who misses slots, and who is served", _nobody_misses
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

    def __init__(self, step: Step, error: OutliveError) -> None:
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
            return await self._decided(decision, given)
        except OutliveError as error:
            raise Aborted(Step.DECIDE, error) from error

    async def _decided(self, decision: Decision[I, O], given: I) -> O:
        objects = sum(len(getattr(given, part, ())) for part in ("vms", "slots", "hosts"))
        few = len(getattr(given, "needs", ())) <= self._inline_needs
        if few and objects <= INLINE_OBJECTS and decision.name not in SEARCHES:
            return self.decide_now(decision, given)
        raw = await encode_large(given, self._clock)
        answer = await self._computer.compute(decision, raw)
        result: O = decode_as(decision.output, answer)
        self._log.keep(decision, raw, answer, empty=decision.is_empty(result))
        return result

    def assigned(self, given: AssignInput, result: AssignResult, *, subject: str) -> None:
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
            for number, some in enumerate(batches(content, ENCODED)):
                parts.append((b"," if number else b"") + encode_canonical(some)[1:-1])
                await clock.sleep(0)
            parts.append(b"]")
        elif isinstance(content, Mapping):
            parts.append(b"{")
            for number, pairs in enumerate(batches(sorted(content.items()), ENCODED)):
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
        if value.__struct_config__.omit_defaults and _is_default(field, content):
            continue
        yield field.encode_name, content


def _is_default(field: msgspec.structs.FieldInfo, content: object) -> bool:
    """As msgspec judges it: the very default, or an empty collection where that is the default."""
    if field.default is not msgspec.NODEFAULT:
        return content is field.default
    factory = field.default_factory
    return factory in (list, dict, set) and type(content) is factory and not content

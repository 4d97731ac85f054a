"""How the primary's addresses go from one coordinator to the next: each side's next step, from the record alone.

The leaver has stopped its other duties and given the role back; it still has the addresses. For each phase the new
holder adds and announces its addresses first, notes it, and then the leaver removes its own and notes that::

    phase      C upstream   D cluster   E metadata   F gateways
    holder     add          add         add          add          then its other duties start
    leaver        remove       remove      remove       remove

An address is on two hosts for the moment between, and on none at no time. Each side waits for the other for a limited
time: the leaver 5 s, then it removes all the same; the holder 15 s, then it goes on alone, which is a fault. For a
leaver that is proven dead meanwhile nobody waits. What outlives both is removed by the guard of the leaver
(docs/reference/runtime.md#primary-coordinator).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from outlive.base import OutliveError, deadline, get_logger
from outlive.resources import AddressHandover, AddressPhase, ElectionRecord, ObjectRef
from outlive.resources.reasons import FaultCode
from outlive.runtime import Decision, FaultSet

PHASES: Final[tuple[AddressPhase, ...]] = ("upstream", "cluster", "metadata", "gateways")
LEAVER_S: Final = 5.0
"""How long the leaver waits for the new holder in one phase."""
HOLDER_S: Final = 15.0
"""How long the new holder waits for the leaver in one phase, and for a leaver that does not give the role back."""
UNTAKEN_S: Final = 15.0
"""How long the leaver keeps addresses while nobody has taken the role: longer than an election lasts."""
POLL_S: Final = 0.02
"""How often either side reads the record meanwhile."""


class HandoverInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one side sees."""

    host: str
    record: ElectionRecord
    waited_s: float = 0.0
    """Since this side saw the record change last in what concerns the hand-over."""
    leaver_dead: bool = False
    """Whether the leaver is proven dead: it has no address any more."""
    going: bool = False
    """Whether the leaver's daemon is about to end, so that it does not wait until somebody takes the role."""


class HandoverStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What this side does next."""

    do: Literal["add", "remove", "wait", "overtake", "done"]
    phase: AddressPhase = ""
    """Of ``add`` and ``remove``; empty with ``remove``: all that is left."""
    why: str = ""


def handover_step(given: HandoverInput) -> HandoverStep:
    """Return the next step of the coordinator ``host``, which is the holder or the leaver."""
    record, handover = given.record, given.record.handover
    if record.holder == given.host:
        return _step_of_holder(given, handover)
    if handover is None or handover.leaver != given.host:
        return HandoverStep(do="remove", why="another coordinator has the role")
    return _step_of_leaver(given, handover)


def _step_of_holder(given: HandoverInput, handover: AddressHandover | None) -> HandoverStep:
    added = _count(handover.added) if handover is not None else 0
    alone = handover is None or handover.overtaken or handover.leaver == given.host
    behind = not alone and handover is not None and _count(handover.removed) < added
    if behind and given.leaver_dead:
        return HandoverStep(do="overtake", why="the leaver is proven dead")
    if behind and given.waited_s < HOLDER_S:
        return HandoverStep(do="wait")
    if behind:
        return HandoverStep(do="overtake", why=f"no answer of the leaver within {HOLDER_S:g} s")
    if added < len(PHASES):
        return HandoverStep(do="add", phase=PHASES[added])
    return HandoverStep(do="done")


def _step_of_leaver(given: HandoverInput, handover: AddressHandover) -> HandoverStep:
    removed = _count(handover.removed)
    if removed == len(PHASES):
        return HandoverStep(do="done")
    if handover.overtaken:
        return HandoverStep(do="remove", why="the new holder waits no more")
    if _count(handover.added) > removed:
        return HandoverStep(do="remove", phase=PHASES[removed])
    limit_s = LEAVER_S if given.record.holder or given.going else UNTAKEN_S
    if given.waited_s < limit_s:
        return HandoverStep(do="wait")
    if not given.record.holder:
        return HandoverStep(do="remove", why=f"nobody has taken the role within {limit_s:g} s")
    return HandoverStep(do="remove", phase=PHASES[removed], why=f"the new holder has not added it within {limit_s:g} s")


def _count(phase: AddressPhase) -> int:
    return PHASES.index(phase) + 1 if phase else 0


def note_added(record: ElectionRecord, phase: AddressPhase) -> AddressHandover | None:
    """Return the hand-over once the holder has added the addresses of this phase."""
    found = record.handover if record.handover is not None else AddressHandover(leaver=record.previous, overtaken=True)
    return msgspec.structs.replace(found, added=phase)


def note_removed(record: ElectionRecord, host: str, phase: AddressPhase) -> AddressHandover | None:
    """Return the hand-over once the leaver ``host`` has removed these addresses; ``None``: it is another one by now."""
    found = record.handover
    if found is None or found.leaver != host or _count(found.removed) >= _count(phase):
        return None
    return msgspec.structs.replace(found, removed=phase)


def begin_handover(record: ElectionRecord, host: str) -> AddressHandover | None:
    """Return the hand-over with which ``host`` takes the role that the record is about.

    A holder that has not given the role back, and one that was silent, is not waited for.
    """
    if record.handover is not None and not record.holder and not record.handover.overtaken:
        return record.handover if record.handover.leaver != host else None
    leaver = record.holder or record.previous
    return AddressHandover(leaver=leaver, overtaken=True) if leaver not in ("", host) else None


HANDOVER_STEP: Final = Decision(
    "primary.handover_step",
    handover_step,
    HandoverInput,
    HandoverStep,
    "Next step of a coordinator while the primary's addresses go from one to another",
    nulls_are_absent=True,
)


# Duties of the primary coordinator: what only it does, started one after the other, and stopped in reverse order.

DUTY_S: Final = 10.0
"""How long one duty may take to start or to stop."""

_log = get_logger("node.primary")


class Duty(Protocol):
    """Something that only the primary coordinator does. Both calls may be repeated."""

    name: str

    async def start(self, term: int) -> None:
        """Begin; ``OutliveError`` where that fails."""
        ...

    async def stop(self) -> None:
        """End; ``OutliveError`` where that fails."""
        ...


class PrimaryDuties:
    """Those of one host. One that fails is a fault, and holds up no other."""

    def __init__(self, host: str, duties: Sequence[Duty], faults: FaultSet) -> None:
        self.all = duties
        self._host = host
        self._faults = faults
        self._started: list[Duty] = []
        """In the order in which they were started."""

    @property
    def running(self) -> tuple[str, ...]:
        """Duties that were started and not stopped."""
        return tuple(duty.name for duty in self._started)

    async def start(self, duty: Duty, term: int) -> None:
        """Start one of them."""
        self._started.append(duty)  # also one that fails may have begun, and is stopped
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        try:
            with deadline(DUTY_S):
                await duty.start(term)
        except (OutliveError, OSError) as error:
            why = str(error) or f"no end within {DUTY_S:g} s"
            _log.error("primary.duty_not_started", host=self._host, duty=duty.name, error=why)
            self._faults.activate(FaultCode.PRIMARY_DUTY, subject, what=f"start {duty.name}", why=why)
        else:
            self._faults.clear(FaultCode.PRIMARY_DUTY, subject)

    async def stop(self) -> None:
        """Stop all that were started, the last one first."""
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        while self._started:
            duty = self._started.pop()
            try:
                with deadline(DUTY_S):
                    await duty.stop()
            except (OutliveError, OSError) as error:
                why = str(error) or f"no end within {DUTY_S:g} s"
                _log.error("primary.duty_not_stopped", host=self._host, duty=duty.name, error=why)
                self._faults.activate(FaultCode.PRIMARY_DUTY, subject, what=f"stop {duty.name}", why=why)

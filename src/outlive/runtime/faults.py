"""Faults are a function of state: a role computes which faults are active now, and one recorder writes the difference.

``record`` gets everything that its reporter says is active. What is new is raised, what goes on is refreshed now and
then, what is not named any more is ended. The recorder knows its own faults by their labels and lists them when it
starts, so a fault that an earlier process raised ends as well, and none is missing after a restart. A reporter that
does not know what is active (a cache that lost the store, a role that does not lead) does not call ``record``.

Faults are for people: a store that is away loses nothing but time, because the next call compares again. In
maintenance nothing is raised or refreshed. A fault that comes again after its end is a new one, so that an old
acknowledgement hides nothing (docs/concepts/safety.md#woken).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from outlive.base import (
    Clock,
    Instant,
    NotFound,
    OutliveError,
    Refused,
    Unavailable,
    Unknown,
    as_datetime,
    deadline,
    get_logger,
)
from outlive.resources import (
    CLUSTER,
    HOST_LABEL,
    NAME_LENGTH_LIMIT,
    WRITER_LABEL,
    Cluster,
    Fault,
    Hypervisor,
    ObjectMeta,
    ObjectRef,
    object_name,
)
from outlive.resources.reasons import FULL_HEALTH, POWER_CODES, FaultCode, Message, Value, fault_message
from outlive.runtime.crashes import Crashes
from outlive.runtime.periodic import Periodic
from outlive.runtime.retention import Sweeper
from outlive.store import Selector, Store, compare_and_swap, list_all, read

REPORTER_LABEL: Final = "outlive.dev/reporter"
"""Who raises and ends a fault; daemons also have the host's label, and coordinators that of who wrote."""
REPORTERS_OF_COORDINATORS: Final = ("fencer", "primary")
"""Roles that several coordinators have, one after the other: each goes on with the faults of the one before."""
REFRESH_S: Final = 60.0
"""How often a fault that goes on is written again."""
LOOK_S: Final = 5.0
"""How often a set of faults is compared at least."""
LIST_AGAIN_S: Final = 300.0
"""How often the recorder reads its own faults again, in case somebody else changed them."""
WRITE_S: Final = 10.0
"""How long writing one fault may take, all tries together."""
TRIES: Final = 4
"""Writes of one fault before it is left to the next call."""
OF_THE_STORE: Final = (Unavailable, Unknown, TimeoutError)
"""Errors that no fault is to blame for: the others would meet them as well."""
LIMIT: Final = 10_000
"""Faults of one reporter; what is beyond that is logged and not written."""
ENDED_KEPT_S: Final = 30 * 86400.0
"""How long a fault is kept that has ended."""
ENDED_KEPT: Final = 20_000
"""Ended faults that are kept."""
MESSAGE_CHARACTERS: Final = 1024
"""What is kept of a message and of a remedy."""

Role = Literal[
    "daemon",
    "fencer",
    "primary",
    "recovery",
    "controller",
    "failover",
    "inventory",
    "commitments",
    "commitments-sync",
    "server",
    "notify",
    "network",
]
HOST_KINDS: Final = ("Hypervisor", "Membership")
ALWAYS_RAISED: Final = (FaultCode.CLUSTER_DISARMED, FaultCode.UNKNOWN_VM)
"""Faults that maintenance of the cluster does not silence: what it is, and what keeps hosts from starting a second VM
of a name."""

_log = get_logger("faults")


class ActiveFault(msgspec.Struct, frozen=True):
    """A fault that is active now; ``fields`` are those of its entry in the table, besides ``subject``."""

    code: FaultCode
    subject: ObjectRef
    fields: Mapping[str, Value] = {}

    @property
    def name(self) -> str:
        """``<code>.<subject>``."""
        return fault_name(self.code, self.subject)

    @property
    def message(self) -> Message:
        """What is wrong, and what helps."""
        full = fault_message(self.code, self.subject.name, self.fields)
        return Message(full.text[:MESSAGE_CHARACTERS], full.remedy[:MESSAGE_CHARACTERS])


def crash_faults(crashes: Crashes) -> tuple[ActiveFault, ...]:
    """One for each object with a part that crashed and is not known to work again."""
    return tuple(ActiveFault(FaultCode.WORKER_CRASHED, about, said) for about, said in crashes.active.items())


def fault_name(code: str, subject: ObjectRef) -> str:
    """``<code>.<subject>``; a subject's name that is too long for that is shortened."""
    return f"{code}.{object_name(subject.name, length=NAME_LENGTH_LIMIT - len(code) - 1)}"


def code_of(name: str) -> str:
    """The code in the name of a fault; no code has a dot."""
    return name.partition(".")[0]


def compute_health(faults: Iterable[Fault]) -> int:
    """Of the cluster: 100 less what every fault takes that neither ended nor was acknowledged, and never below 0."""
    return max(0, FULL_HEALTH - sum(fault.delta for fault in faults if not fault.ended and not fault.acknowledged))


async def acknowledge(store: Store, clock: Clock, name: str, *, acknowledged: bool = True) -> str:
    """Have a fault that goes on lower the health no more, or again; what was done. ``NotFound``; ``Refused`` where it
    has ended."""

    def change(found: Fault | None) -> Fault | None:
        if found is None:
            raise NotFound(f"there is no fault {name[:80]!r}", remedy="see outlive get faults")
        if found.ended:
            raise Refused(f"{name} is over", remedy="nothing is to be done")
        return None if found.acknowledged is acknowledged else msgspec.structs.replace(found, acknowledged=acknowledged)

    await compare_and_swap(store, Fault, name, change, clock=clock)
    return f"{name}: acknowledged" if acknowledged else f"{name}: not acknowledged any more"


class FaultSet:
    """The faults that the parts of one process find active, each by its own look; ``run`` records them.

    A new process begins with none: what its parts do not find again ends, unless ``undetermined`` names it.
    """

    def __init__(self, recorder: FaultRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._active: dict[str, ActiveFault] = {}
        self._loop = Periodic(self._record, LOOK_S, clock=clock, wakes=True)
        self.crashes = Crashes(clock, self._loop.wake)
        """The parts of this process that crashed."""
        self.undetermined: Callable[[], Collection[str]] = tuple
        """Codes of faults, and names of single ones, of which nobody can say yet whether they are active."""

    def activate(self, code: FaultCode, subject: ObjectRef, **fields: Value) -> None:
        """It is so now; to be said at every look."""
        fault = ActiveFault(code, subject, fields)
        if self._active.get(fault.name) != fault:
            self._active[fault.name] = fault
            self._loop.wake()

    def clear(self, code: FaultCode, subject: ObjectRef) -> None:
        """It is not so."""
        if self._active.pop(fault_name(code, subject), None) is not None:
            self._loop.wake()

    def is_recorded(self, code: FaultCode, subject: ObjectRef) -> bool:
        """Whether it is active, and the store has acknowledged that since it was last said to be another one."""
        name = fault_name(code, subject)
        return name in self._active and self._recorder.has(name)

    def forget(self) -> None:
        """The store is another one than before."""
        self._recorder.forget()
        self._loop.wake()

    @property
    def active(self) -> tuple[ActiveFault, ...]:
        """All of them."""
        return (*self._active.values(), *crash_faults(self.crashes))

    async def run(self) -> None:
        """Record them when one changes, and now and then, until cancelled."""
        await self._loop.run()

    async def _record(self) -> None:
        await self._recorder.record(self.active, undetermined=self.undetermined())


def build_unrecorded(one: ActiveFault, at: Instant) -> Fault:
    """A fault that is active now and that no store holds: the process that sees it shows it for as long as it lasts."""
    return Fault(
        metadata=ObjectMeta(name=one.name),
        code=one.code,
        subject=one.subject,
        message=one.message.text,
        remedy=one.message.remedy,
        delta=one.code.delta,
        first_seen=as_datetime(at),
        last_seen=as_datetime(at),
    )


def is_silenced(code: str, cluster: Cluster | None, host: Hypervisor | None, now: Instant) -> bool:
    """Whether maintenance of the cluster, or of the host that the fault is about, has nobody hear of the fault now."""
    if cluster is not None and cluster.spec.resting_reason(now) and code not in ALWAYS_RAISED:
        return True
    if host is None:
        return False
    fencing = host.spec.fencing
    return fencing.is_in_maintenance(now) or (code in POWER_CODES and fencing.power_in_maintenance(now))


def fault_sweeper(store: Store, clock: Clock) -> Sweeper[Fault]:
    """Deletes faults that ended long ago, and the oldest of too many that have ended; one that goes on stays."""
    return Sweeper(
        store,
        Fault,
        seen=lambda fault: fault.last_seen if fault.ended else None,
        keep_s=ENDED_KEPT_S,
        keep=ENDED_KEPT,
        clock=clock,
    )


class FailedWrite(msgspec.Struct, frozen=True):
    """A fault that could not be written."""

    tries: int
    again_s: float
    """Not before then is it tried again (monotonic)."""


class FaultRecorder:
    """See the module. ``store`` is the one that ``role`` may use; ``host`` is named by daemons and coordinators."""

    def __init__(self, store: Store, clock: Clock, role: Role, host: str = "") -> None:
        self._store = store
        self._clock = clock
        self._role = role
        shared = role in REPORTERS_OF_COORDINATORS
        self._own = {REPORTER_LABEL: role} | ({HOST_LABEL: host} if host and not shared else {})
        """Labels of faults that are this reporter's."""
        self._labels = self._own | ({WRITER_LABEL: host} if host and shared else {})
        self._open: dict[str, tuple[str, float]] = {}
        """Faults of this reporter that have not ended: message, and when they were written last (monotonic)."""
        self._list_at = 0.0
        self._failing = False
        self._failed: dict[str, FailedWrite] = {}
        """Faults that could not be written when they were last tried; all others come before them."""

    def forget(self) -> None:
        """Read the own faults anew at the next call: another one may have reported since, or the store was restored."""
        self._list_at, self._open = 0.0, {}

    def has(self, name: str) -> bool:
        """Whether the store has acknowledged this fault, and not its end."""
        return self._open.get(name, ("", 0.0))[0] != ""

    async def record(self, active: Iterable[ActiveFault], *, undetermined: Collection[str] = ()) -> None:
        """Make the store say exactly this; errors of the store are logged, and the next call tries again.

        ``undetermined``: codes of faults, and names of single ones, of which nobody can say now whether they are
        active; they do not end.
        """
        wanted = {one.name: one for one in active}
        if len(wanted) > LIMIT:
            _log.error("fault.too_many", reporter=self._role, count=len(wanted), limit=LIMIT)
            wanted = dict(list(wanted.items())[:LIMIT])
        try:
            await self._list()
            stays = {*wanted, *undetermined}
            over = (name for name in self._open if name not in stays and code_of(name) not in stays)
            for name in sorted((*wanted, *over), key=self._failed.__contains__):
                await self._write(name, wanted.get(name))
        except (OutliveError, TimeoutError) as error:
            if not self._failing:
                _log.warning("fault.not_written", reporter=self._role, error=str(error) or "no answer in time")
            self._failing = True
        else:
            self._failing = False

    async def _write(self, name: str, one: ActiveFault | None) -> None:
        """Raise one fault, or end it (``None``). One that the store does not take holds up no other, and is tried
        again later and later; the errors ``OF_THE_STORE`` are raised."""
        now, before = self._clock.monotonic(), self._failed.get(name)
        if before is not None and now < before.again_s:
            return
        tries = before.tries + 1 if before is not None else 1
        try:
            with deadline(WRITE_S):
                if one is not None:
                    await self._raise(name, one)
                else:
                    await compare_and_swap(self._store, Fault, name, self._end_fault, clock=self._clock, tries=TRIES)
                    self._open.pop(name, None)
                    _log.info("fault.ended", fault=name, reporter=self._role)
        except OF_THE_STORE:
            self._failed[name] = FailedWrite(tries, now)
            raise
        except OutliveError as error:
            if before is None:
                _log.warning("fault.refused", fault=name, reporter=self._role, error=str(error))
            self._failed[name] = FailedWrite(tries, now + min(LOOK_S * 2.0 ** min(tries - 1, 16), REFRESH_S))
        else:
            self._failed.pop(name, None)

    async def _list(self) -> None:
        now = self._clock.monotonic()
        if now < self._list_at:
            return
        found = {
            one.name: (one.message, now)
            async for one in list_all(self._store, Fault, selector=Selector.from_labels(self._own))
            if not one.ended
        }
        self._open = {name: self._open.get(name, kept) for name, kept in found.items()}
        self._failed.clear()
        self._list_at = now + LIST_AGAIN_S

    async def _raise(self, name: str, one: ActiveFault) -> None:
        now, message = self._clock.monotonic(), one.message
        text, at = self._open.get(name, ("", 0.0))
        if text == message.text and now - at < REFRESH_S:
            return
        cluster = await read(self._store, Cluster, CLUSTER)
        of_host = one.subject.kind in HOST_KINDS
        host = await read(self._store, Hypervisor, one.subject.name) if of_host else None
        if is_silenced(one.code, cluster, host, self._clock.now()):
            return
        self._open.setdefault(name, ("", 0.0))  # a write whose answer is lost may have been applied
        await compare_and_swap(
            self._store, Fault, name, lambda kept: self._raise_fault(kept, one, message), clock=self._clock, tries=TRIES
        )
        if self._list_at:  # else the store is another one, and that may have been written to the one before
            self._open[name] = (message.text, now)
        if text != message.text:
            _log.warning(
                "fault.raised",
                fault=name,
                message=message.text,
                remedy=message.remedy,
                reporter=self._role,
            )

    def _raise_fault(self, kept: Fault | None, one: ActiveFault, message: Message) -> Fault:
        now = as_datetime(self._clock.now())
        meta = ObjectMeta(name=one.name) if kept is None else kept.metadata
        comes_anew = kept is None or kept.ended
        return Fault(
            metadata=msgspec.structs.replace(meta, labels=self._labels),
            code=one.code,
            subject=msgspec.structs.replace(one.subject, uid=""),
            message=message.text,
            remedy=message.remedy,
            delta=one.code.delta,
            acknowledged=kept is not None and not comes_anew and kept.acknowledged,
            first_seen=now if kept is None or comes_anew else kept.first_seen,
            last_seen=now,
        )

    def _end_fault(self, kept: Fault | None) -> Fault | None:
        if kept is None or kept.ended:
            return None
        labels = {key: value for key, value in kept.metadata.labels.items() if key != WRITER_LABEL}
        if labels != self._own:
            return None
        meta = msgspec.structs.replace(kept.metadata, labels=self._labels)
        return msgspec.structs.replace(kept, metadata=meta, ended=True, last_seen=as_datetime(self._clock.now()))

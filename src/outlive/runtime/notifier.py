"""Tells targets of faults, from the one process that leads, and records in the store what they were told.

There is no queue: what is due is decided anew before each message (``due_notices``), so that a target that was away is
told what is so now. A target that fails is tried again later and later, and is itself a fault, of which it is not
told. A message is sent before it is recorded: after a crash it is sent once more, with the same ids. Faults that the
store cannot hold (``local``) are told as well, and by every process, since one that cannot write does not lead; what
was told of those is kept in memory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from outlive.base import (
    AlreadyExists,
    Clock,
    Conflict,
    Ids,
    NotFound,
    OutliveError,
    Random,
    Unavailable,
    as_datetime,
    deadline,
    get_logger,
    set_within,
)
from outlive.resources import Delivery, Fault, Notification, ObjectMeta, ObjectRef
from outlive.resources.reasons import FaultCode
from outlive.runtime.election import Elector
from outlive.runtime.faults import ActiveFault, FaultRecorder
from outlive.runtime.informer import Informer
from outlive.runtime.metrics import Metrics
from outlive.runtime.notifications import (
    HEARTBEAT,
    NOTICES_LIMIT,
    TARGET_KIND,
    Notice,
    NotificationMessage,
    NotifySettings,
    TargetSettings,
    due_notices,
    is_settled,
    record_delivery,
    test_message,
)
from outlive.runtime.periodic import Periodic
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store, compare_and_swap, list_all

LOOK_S: Final = 1.0
"""How often it is decided what is due, besides at each change of a fault."""
GATHER_S: Final = 0.2
"""After a change others are waited for that belong to it, so that they are one message."""
RETRY_FIRST_S: Final = 2.0
RETRY_MOST_S: Final = 300.0
"""Pauses between tries of a target that fails: doubled from the first to the last."""
FAILING_TRIES: Final = 3
"""So many failures in a row are a fault."""
DOUBT_S: Final = 2.0
"""A cache of faults that has lost the store for longer ends nothing."""
SHOWN: Final = 300
"""Characters of an answer or an error of a target that are shown."""

_log = get_logger("notify")


class NotificationTarget(Protocol):
    """Somebody who is told."""

    async def send(self, message: NotificationMessage) -> str:
        """Have the message delivered; what the target answered, in a few words. An ``OutliveError`` says why it was not
        taken; it may have arrived all the same. Cancelling ends it."""
        ...


class HeartbeatTarget(Protocol):
    """Somebody who notices when nobody calls."""

    async def ping(self) -> None:
        """Call once; an ``OutliveError`` where that failed."""
        ...


@dataclass(slots=True)
class TargetState:
    """How one target fares."""

    name: str
    settings: TargetSettings
    port: NotificationTarget
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    """In a row."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class NotifierPorts:
    """Who is told, by name, as the settings name them."""

    targets: Mapping[str, NotificationTarget]
    heartbeat: HeartbeatTarget | None = None


class Notifier:
    """See the module. ``run`` until cancelled."""

    def __init__(
        self,
        store: Store,
        faults: Informer[Fault],
        settings: NotifySettings,
        ports: NotifierPorts,
        *,
        cluster: str,
        elector: Elector,
        clock: Clock,
        random: Random,
        ids: Ids,
        metrics: Metrics,
        local: Callable[[], Iterable[Fault]] = tuple,
        is_quiet: Callable[[Fault], bool] = lambda _: False,
        unready: Callable[[], str] = lambda: "",
    ) -> None:
        self._store = store
        self._faults = faults
        self._settings = settings
        self._cluster = settings.cluster or cluster
        self._elector = elector
        self._clock = clock
        self._random = random
        self._ids = ids
        self._local = local
        self._is_quiet = is_quiet
        self._unready = unready
        self._recorder = FaultRecorder(store, clock, "notify")
        configured = settings.targets
        self._targets = {name: TargetState(name, configured[name], port) for name, port in ports.targets.items()}
        self._heartbeat = ports.heartbeat
        self._heart = TargetFailures()
        self._term = 0
        """The term of which ``_told`` is; 0: it is of none."""
        self._loading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._told: dict[str, dict[str, Delivery]] = {}
        """Recorded faults → target → what it was told."""
        self._unwritten: set[str] = set()
        """Faults whose entry in ``_told`` the store does not have yet."""
        self._own: dict[str, Fault] = {}
        """Faults of this process that the store cannot hold, and those of which an end is to be told."""
        self._told_own: dict[str, dict[str, Delivery]] = {}
        self._sent = metrics.add_counter(
            "notifications_total", "Messages to targets of notifications", ("target", "result")
        )
        self._failing = metrics.add_gauge(
            "notification_failures", "Messages in a row that a target of notifications did not take", ("target",)
        )
        for name in (*self._targets, *((HEARTBEAT,) if ports.heartbeat is not None else ())):
            self._failing.labels(name).set(0)

    async def run(self) -> None:
        """Tell every target, for ever."""
        end = self._faults.subscribe(lambda _old, _new: self._wake(), replay=False)
        try:
            async with OrderedTaskGroup() as group:
                for state in self._targets.values():
                    group.create_task(self._serve(state), name=f"notify {state.name}")
                if self._heartbeat is not None:
                    group.create_task(self._beat(self._heartbeat), name="heartbeat")
                report = Periodic(self._report_failing, LOOK_S, clock=self._clock, wait_first=True)
                group.create_task(report.run(), name="notify faults")
        finally:
            end()

    async def test(self, target: str = "") -> list[dict[str, str]]:
        """Send a test message to this target, or to all; for each what it answered, or why it failed. ``NotFound``."""
        if target and target not in self._targets:
            raise NotFound(
                f"there is no target {target[:80]!r}",
                remedy=f"targets: {', '.join(self._targets) or 'none; see section notify of outlive.yaml'}",
            )
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(self._test_target(name)) for name in ([target] if target else self._targets)]
        return [task.result() for task in tasks]

    async def _test_target(self, name: str) -> dict[str, str]:
        message = test_message(self._cluster, name, self._clock.now(), self._ids.new_uuid())
        try:
            said, result = await self._deliver(self._targets[name], message), "sent"
        except OutliveError as error:
            said, result = str(error)[:SHOWN], "failed"
        return {"target": name, "result": result, "answer": said}

    def _wake(self) -> None:
        for state in self._targets.values():
            state.wake.set()

    # One target

    async def _serve(self, state: TargetState) -> None:
        while True:
            if await set_within(state.wake, LOOK_S):
                await self._clock.sleep(GATHER_S)
            state.wake.clear()
            while await self._tell(state):
                pass
            if state.failures:
                longest = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(state.failures - 1, 16))
                await self._clock.sleep(self._random.uniform(0.75, 1.0) * longest)

    async def _tell(self, state: TargetState) -> bool:
        """Send one message, if anything is due; whether more may be."""
        leads = await self._load()
        now, notices = self._clock.now(), list[Notice]()
        if leads:
            notices += due_notices(self._faults.items(), self._told, state.name, state.settings, now, self._is_quiet)
        self._see_own()
        notices += due_notices(self._own.values(), self._told_own, state.name, state.settings, now)
        del notices[NOTICES_LIMIT:]
        if not notices:
            await self._write()
            return False
        message = NotificationMessage(
            cluster=self._cluster, target=state.name, sent_at=as_datetime(now), notices=tuple(notices)
        )
        try:
            answer = await self._deliver(state, message)
        except OutliveError as error:
            state.failures, state.why = state.failures + 1, str(error)[:SHOWN]
            self._count(state.name, "failed", state.failures)
            _log.warning("notify.failed", target=state.name, tries=state.failures, why=state.why)
            return False
        state.failures, state.why = 0, ""
        self._count(state.name, "sent", 0)
        _log.info("notify.sent", target=state.name, message=message.id, notices=len(notices), answer=answer)
        for notice in notices:
            own = notice.fault in self._own
            kept = self._told_own if own else self._told
            before = kept.get(notice.fault, {}).get(state.name)
            after = record_delivery(before, notice, state.name, self._clock.now())
            self._change(kept, notice.fault, state.name, after)
            if not own:
                self._unwritten.add(notice.fault)
        await self._write()
        return True

    async def _deliver(self, state: TargetState, message: NotificationMessage) -> str:
        limit_s = float(state.settings.timeout)
        try:
            with deadline(limit_s):
                return (await state.port.send(message))[:SHOWN]
        except TimeoutError:
            raise Unavailable(
                f"{state.name} did not answer within {limit_s:g} s", remedy="see whether it runs"
            ) from None

    def _count(self, target: str, result: str, failures: int) -> None:
        self._sent.labels(target, result).inc()
        self._failing.labels(target).set(failures)

    # What was told

    async def _load(self) -> bool:
        """Read what was told, once a term; whether recorded faults can be told of now."""
        async with self._loading:
            if not self._elector.is_leader or not self._faults.synced or self._faults.stalled_s() > DOUBT_S:
                return False
            term = self._elector.term
            if self._term != term:
                try:
                    told = {one.name: one async for one in list_all(self._store, Notification)}
                except (OutliveError, TimeoutError) as error:
                    _log.warning("notify.not_read", error=str(error))
                    return False
                self._told = {name: {each.target: each for each in one.deliveries} for name, one in told.items()}
                self._unwritten, self._term = set(), term
                self._recorder.forget()
            targets = {name: state.settings for name, state in self._targets.items()}
            for name, kept in list(self._told.items()):
                fault = self._faults.get(name)
                for target in [one.target for one in kept.values() if is_settled(fault, one, targets)]:
                    self._change(self._told, name, target, None)
                    self._unwritten.add(name)
            return True

    def _change(self, told: dict[str, dict[str, Delivery]], name: str, target: str, now: Delivery | None) -> None:
        entry = told.setdefault(name, {})
        if now is not None:
            entry[target] = now
        else:
            entry.pop(target, None)
            if not entry:
                del told[name]

    async def _write(self) -> None:
        """Have the store say what was told; what it does not take is tried again at the next look.

        One write at a time: of two, the one that was begun earlier could come later.
        """
        async with self._writing:
            for name in sorted(self._unwritten):
                kept = self._told.get(name, {})
                deliveries = tuple(kept[target] for target in sorted(kept))
                self._unwritten.discard(name)
                try:
                    await self._write_notification(name, deliveries)
                except (OutliveError, TimeoutError) as error:
                    self._unwritten.add(name)
                    _log.warning("notify.not_recorded", fault=name, error=str(error))
                    return

    async def _write_notification(self, name: str, deliveries: tuple[Delivery, ...]) -> None:
        if not deliveries:
            try:
                found = await self._store.get(Notification, name, fresh=True)
                await self._store.delete(found.ref, uid=found.metadata.uid, version=found.metadata.resource_version)
            except (NotFound, Conflict):
                return
            return

        def change(kept: Notification | None) -> Notification:
            one = kept if kept is not None else Notification(metadata=ObjectMeta(name=name))
            return msgspec.structs.replace(one, deliveries=deliveries)

        try:
            await compare_and_swap(self._store, Notification, name, change, clock=self._clock)
        except AlreadyExists as error:
            raise Conflict(f"Notification/{name} was made by somebody else", remedy="it is tried again") from error

    def _see_own(self) -> None:
        """Keep since when faults of this process are active, and those that have ended until that was told."""
        current = {one.name: one for one in self._local()}
        for name, one in current.items():
            before = self._own.get(name)
            first = before.first_seen if before is not None and not before.ended else one.first_seen
            self._own[name] = msgspec.structs.replace(one, first_seen=first)
        for name in [name for name in self._own if name not in current]:
            if name in self._told_own:
                self._own[name] = msgspec.structs.replace(self._own[name], ended=True)
            else:
                del self._own[name]

    # Its own faults, and the heartbeat

    async def _report_failing(self) -> None:
        """Record targets that fail, while this process leads."""
        if not await self._load():
            return
        failing = {name: TargetFailures(one.failures, one.why) for name, one in self._targets.items()}
        failing[HEARTBEAT] = self._heart
        await self._recorder.record(
            ActiveFault(
                FaultCode.NOTIFY_FAILING,
                ObjectRef(kind=TARGET_KIND, name=name),
                {"tries": FAILING_TRIES, "why": one.why},
            )
            for name, one in failing.items()
            if one.count >= FAILING_TRIES
        )

    async def _beat(self, heartbeat: HeartbeatTarget) -> None:
        """Call as long as this process leads and is ready, the first time as soon as it is."""
        every_s = float(self._settings.heartbeat.every)

        async def beat() -> float:
            if not self._elector.is_leader or self._unready():
                return min(LOOK_S, every_s)
            try:
                await heartbeat.ping()
                self._heart = TargetFailures()
            except OutliveError as error:
                _log.warning("notify.heartbeat_failed", why=str(error)[:SHOWN])
                self._heart = TargetFailures(self._heart.count + 1, str(error)[:SHOWN])
            self._count(HEARTBEAT, "failed" if self._heart.count else "sent", self._heart.count)
            return every_s

        await Periodic(beat, every_s, clock=self._clock).run()


@dataclass(frozen=True, slots=True)
class TargetFailures:
    """How often in a row a target failed, and why it did last."""

    count: int = 0
    why: str = ""

"""The primary coordinator: one of the coordinators holds ``Election/primary``, and has duties while it does.

The role is a holder and a term. A coordinator that takes it starts its duties (phase ``takeover``); one that is asked
to hand it over stops them first (phase ``relinquish``), and only then gives the role back, marked for whom. Whoever is
meant takes it at once, others after the silence of an election, the leaver last. Every step is one compare-and-swap on
the record, and each has a limit: of a leaver that stalls the role is taken over all the same, with a Fault. A guard of
its own sees to it that duties end where the role is lost, whatever the hand-over is doing.

An election excludes nobody, so a duty must bear that for a moment another host has it as well
(docs/reference/runtime.md#primary-coordinator).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from outlive.base.clock import Clock
from outlive.base.deadline import deadline, set_within
from outlive.base.errors import NotFound, OutliveError, Refused
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.node.operator import change_cluster
from outlive.node.requests import NodeRequestCode, NodeRequestInput, RequestedNode, node_request
from outlive.resources import (
    Cluster,
    Election,
    ElectionRecord,
    Fault,
    Hypervisor,
    Membership,
    ObjectRef,
    PrimaryRequest,
)
from outlive.resources.cluster import CLUSTER
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import FaultSet, fault_name
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store
from outlive.store.access import read

LOOK_S: Final = 1.0
"""How often the primary looks for requests, and its guard at the role."""
DUTY_S: Final = 10.0
"""How long one duty may take to start or to stop."""
SETTLE_S: Final = 2.0
"""From the last step of a hand-over until it counts as done."""
RESIGN_LOOK_S: Final = 0.1
GUARD_S: Final = 20.0
"""How long duties may outlast the role before the guard stops them."""

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


@dataclass(frozen=True, slots=True)
class Former:
    """A host from which the role was taken while it was stopping its duties."""

    host: str
    since_s: float
    process: tuple[str, int, str]
    """Membership, epoch and nonce, as they were seen first after that."""
    seq: int
    """Its last renewal that was seen before it had had the time to stop all of them."""


def _process(member: Membership) -> tuple[str, int, str]:
    return member.metadata.uid, member.record.epoch, member.record.nonce


class Primary:
    """One coordinator's part in it; ``run`` until cancelled, which ends its duties."""

    def __init__(
        self,
        store: Store,
        host: str,
        duties: Sequence[Duty],
        *,
        elector: PrimaryElector,
        faults: FaultSet,
        clock: Clock,
    ) -> None:
        self.elector = elector
        self._store = store
        self._host = host
        self._duties = duties
        self._faults = faults
        self._clock = clock
        self._started: list[Duty] = []
        """In the order in which they were started."""
        self._resigning = asyncio.Event()
        self._stalled = ""
        """From whom the role was taken while it was stopping its duties, which may still be running there."""
        self._former: Former | None = None

    @property
    def running(self) -> tuple[str, ...]:
        """Duties that were started and not stopped."""
        return tuple(duty.name for duty in self._started)

    @property
    def holds(self) -> bool:
        """Whether this host has the role, or still does some of its duties."""
        return self.elector.is_leader or bool(self._started)

    def withdraw(self) -> None:
        """Take the role no more: the daemon is about to stop."""
        self.elector.withdrawn = True

    async def resign(self) -> None:
        """Give the role up for good, if it is held, as a hand-over does; returns once no duty is done here."""
        self.withdraw()
        self._resigning.set()
        while self.holds:
            await self._clock.sleep(RESIGN_LOOK_S)

    async def run(self) -> None:
        """Be a candidate for the role, and do its duties."""
        try:
            async with OrderedTaskGroup() as group:
                group.create_task(self.elector.run(), name="primary election")
                group.create_task(self._work(), name="primary duties")
                group.create_task(self._guard(), name="primary guard")
                group.create_task(self._follow(), name="former primary")
        finally:
            await self._stop()
            await self.elector.give_back()

    async def _work(self) -> None:
        while True:
            term = await self.elector.wait_leader()
            leading = asyncio.create_task(self._lead(term), name="primary leads")
            lost = asyncio.create_task(self.elector.wait_lost())
            try:
                await asyncio.wait((leading, lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (leading, lost):
                    task.cancel()
                await asyncio.wait((leading, lost))
            if not leading.cancelled() and (error := leading.exception()) is not None:
                _log.error("primary.failed", host=self._host, error=str(error))
            await self._stop()
            await self._clock.sleep(LOOK_S)

    async def _lead(self, term: int) -> None:
        """From taking the role until it was given back."""
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        if self.elector.stalled:
            self._stalled, self._former = self.elector.stalled, None
            previous = self._stalled
            self._faults.activate(FaultCode.PRIMARY_STALLED, subject, previous=previous, limit_s=STALL_S)
        _log.info("primary.takes_over", host=self._host, term=term)
        for duty in self._duties:
            if not self._resigning.is_set():
                await self._start(duty, term)
        await set_within(self._resigning, SETTLE_S)
        while not self._resigning.is_set() and not await self._marked(phase=""):
            await set_within(self._resigning, LOOK_S)
        _log.info("primary.holds", host=self._host, term=term, duties=self.running)
        while True:
            await set_within(self._resigning, LOOK_S)
            if self._resigning.is_set():
                await self._marked(phase="relinquish", to="")
                break
            wanted = await self._wanted()
            if wanted is None:
                continue
            request, step = wanted
            if not step.relinquish:
                await self._marked(answered=request.id)
            elif await self._marked(answered=request.id, phase="relinquish", to=step.to):
                break
        _log.info("primary.relinquishes", host=self._host, term=term)
        await self._stop()
        await self.elector.give_back()

    async def _marked(self, **changes: object) -> bool:
        try:
            return await self.elector.mark(**changes)
        except (OutliveError, TimeoutError) as error:
            _log.warning("primary.not_marked", host=self._host, error=str(error) or "no answer in time")
            return False

    async def _wanted(self) -> tuple[PrimaryRequest, Next] | None:
        """The request that is to be answered, if there is one that this version knows of."""
        try:
            cluster = await read(self._store, Cluster, CLUSTER)
        except OutliveError as error:
            _log.warning("primary.not_read", host=self._host, error=str(error))
            return None
        record, request = self.elector.record, cluster.spec.primary if cluster is not None else None
        step = answer_request(self._host, record, request) if record is not None else None
        return (request, step) if request is not None and step is not None else None

    async def _guard(self) -> None:
        """Stop what outlasts the role, whatever else is going on."""
        since: float | None = None
        while True:
            await self._clock.sleep(LOOK_S)
            now = self._clock.monotonic()
            if self.elector.is_leader or not self._started:
                since = None
                continue
            since = now if since is None else since
            if now - since >= GUARD_S:
                _log.error("primary.duties_outlast_role", host=self._host, duties=self.running)
                await self._stop()

    async def _follow(self) -> None:
        """Have the fault of a host that stalled end, whoever has the role by then."""
        while True:
            await self._clock.sleep(LOOK_S)
            try:
                if self._stalled and await self._former_has_ended():
                    self._stalled = ""
                    self._faults.clear(FaultCode.PRIMARY_STALLED, ObjectRef(kind="Hypervisor", name=self._host))
            except OutliveError as error:
                _log.warning("primary.former_not_read", host=self._host, error=str(error))

    async def _former_has_ended(self) -> bool:
        """Whether no duty runs any more on the host that stalled, or it says itself which one does.

        Its process has gone; or it lives for as long as all of its duties may take to stop, so that it has reported
        whatever did not (``primary-duty``), and there is no such report.
        """
        member, now_s = await read(self._store, Membership, self._stalled), self._clock.monotonic()
        if member is None:
            return True
        first = self._former
        if first is None or first.host != self._stalled:
            first = self._former = Former(self._stalled, now_s, _process(member), member.record.seq)
        record = member.record
        if _process(member) != first.process or record.dead_through >= record.epoch or record.state == "Released":
            return True
        if now_s < first.since_s + DUTY_S * len(self._duties) + SETTLE_S:
            first = self._former = replace(first, seq=record.seq)
        if record.state != "Held" or record.seq == first.seq:
            return False
        about = ObjectRef(kind="Hypervisor", name=self._stalled)
        fault = await read(self._store, Fault, fault_name(FaultCode.PRIMARY_DUTY, about))
        return fault is None or fault.ended

    async def _start(self, duty: Duty, term: int) -> None:
        self._started.append(duty)  # also one that fails may have begun, and is stopped
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        try:
            with deadline(DUTY_S):
                await duty.start(term)
        except (OutliveError, TimeoutError) as error:
            why = str(error) or f"no end within {DUTY_S:g} s"
            _log.error("primary.duty_not_started", host=self._host, duty=duty.name, error=why)
            self._faults.activate(FaultCode.PRIMARY_DUTY, subject, what=f"start {duty.name}", why=why)
        else:
            self._faults.clear(FaultCode.PRIMARY_DUTY, subject)

    async def _stop(self) -> None:
        """Stop the duties, the last one first."""
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        while self._started:
            duty = self._started.pop()
            try:
                with deadline(DUTY_S):
                    await duty.stop()
            except (OutliveError, TimeoutError) as error:
                why = str(error) or f"no end within {DUTY_S:g} s"
                _log.error("primary.duty_not_stopped", host=self._host, duty=duty.name, error=why)
                self._faults.activate(FaultCode.PRIMARY_DUTY, subject, what=f"stop {duty.name}", why=why)


# Asking for it


@dataclass(frozen=True, slots=True)
class Asked:
    """How a request was answered; ``id`` is empty where nothing is to be done."""

    id: str
    text: str


async def request_primary(
    store: Store, clock: Clock, request_id: str, verb: Literal["primary", "secondary"], host: str
) -> Asked:
    """Ask for the role to be handed over, or given up. ``NotFound``, ``Refused``."""
    found, election = await read(store, Hypervisor, host), await read(store, Election, ROLE)
    node = None
    if found is not None:
        member = await read(store, Membership, host)
        node = RequestedNode(
            name=host,
            mode=found.spec.mode,
            daemon_state="run" if member is not None and member.record.state == "Held" else "stop",
            router_state=role_of(host, found.spec.mode, election.record if election is not None else ElectionRecord()),
            domain_state=found.status.domain_state,
        )
    result = node_request(NodeRequestInput(request=verb, node=node))
    match result.code:
        case NodeRequestCode.UNKNOWN_NODE:
            raise NotFound(f"there is no host {host!r}", remedy="see outlive get hosts")
        case NodeRequestCode.NOT_COORDINATOR:
            raise Refused(f"{host} is no coordinator", remedy=f"outlive host promote {host}, and join it as one")
        case NodeRequestCode.NOT_ACTIVE:
            raise Refused(f"the daemon of {host} does not run", remedy="start it first")
        case NodeRequestCode.ALREADY:
            return Asked("", f"{host} is {verb} already")
    await change_cluster(store, clock, primary=PrimaryRequest(id=request_id, verb=verb, host=host))
    return Asked(request_id, f"{host}: {verb} is requested")


async def primary_is_settled(store: Store, request_id: str) -> str | None:
    """Who is primary once the request was answered and the hand-over is done; ``None`` before."""
    election = await read(store, Election, ROLE)
    record = election.record if election is not None else ElectionRecord()
    return record.holder if record.answered == request_id and record.holder and not record.phase else None


def role_of(host: str, mode: str, record: ElectionRecord) -> str:
    """A host's part in it: ``client``, ``secondary``, ``takeover``, ``primary`` or ``relinquish``."""
    if mode != "coordinator":
        return "client"
    return (record.phase or "primary") if record.holder == host else "secondary"

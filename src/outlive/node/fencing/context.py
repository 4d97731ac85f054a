"""What all parts of one fencer share: what it has seen, its rules, whom it may ask, and how it writes.

``take`` takes one protocol step on one Membership by the store's compare-and-swap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from outlive.base import Clock, Random, Unavailable, as_datetime, natural_key
from outlive.node.fencing.identity import SystemIndex
from outlive.node.fencing.isolation import Isolation
from outlive.node.fencing.policy import HostSettings
from outlive.node.fencing.power import EarlyIdentities, PowerSequence, answer_limit_s
from outlive.node.fencing.rehearsals import Rehearsals
from outlive.node.fencing.rules import Observer, Rules
from outlive.node.fencing.watcher import Watcher
from outlive.node.membership.states import date_proofs
from outlive.node.membership.steps import RecordOutcome
from outlive.node.ports import CutPort, PowerPort
from outlive.resources import CLUSTER, Cluster, Hypervisor, MemberRecord, Membership, ObjectRef, is_lost
from outlive.runtime import Crashes, DecisionLog, Informer, ProtocolStep, Refusal
from outlive.store import Store, compare_and_swap, read, swap

POWER_AT_ONCE: Final = 64
"""Power commands of one fencer at the same time."""

V = TypeVar("V")

_replace = msgspec.structs.replace


class WriteResult(NamedTuple):
    """What came of a step: a refusal, or the document as it is now; ``None``: there is none."""

    record: MemberRecord | None
    refused: Refusal | None


class FencerContext:
    """See the module. ``store`` is under the fencer's own name; its calls may raise ``Unavailable``."""

    def __init__(
        self,
        store: Store,
        *,
        host: str,
        observer: Observer,
        power: PowerPort,
        cut: CutPort | None,
        clock: Clock,
        random: Random,
        decisions: DecisionLog,
        primary: Callable[[], str] = str,
        crashes: Crashes | None = None,
    ) -> None:
        random = random.fork("fencer")
        self.me = host
        self.store = store
        self.clock = clock
        self.crashes = crashes or Crashes(clock)
        self.decisions = decisions
        self.memberships = Informer(store, Membership, clock=clock, random=random)
        self.hypervisors = Informer(store, Hypervisor, clock=clock, random=random)
        self.clusters = Informer(store, Cluster, clock=clock, random=random)
        self.watcher = Watcher(clock, host)
        self.others: dict[str, None] = {}
        """The other coordinators."""
        self.observer = observer
        self.primary = primary
        """Who has the role of the primary coordinator, as far as this host knows; empty: nobody."""
        self.rules = Rules(self)
        self.systems = SystemIndex()
        self.hypervisors.subscribe(self.systems.on_hypervisor)
        self.memberships.subscribe(self.systems.on_membership)
        self.power = PowerSequence(power, clock, decisions, self.systems)
        self.power_slots = asyncio.Semaphore(POWER_AT_ONCE)
        self.switching_on: dict[str, None] = {}
        """Hosts that are being switched on."""
        self.isolation = None if cut is None else Isolation(cut, store)
        self.rehearsals = Rehearsals(self)
        self.identities = EarlyIdentities(self)

    def answer_limit_s(self, settings: HostSettings) -> float:
        """How long one answer of the host's BMC may take now."""
        host = settings.hypervisor
        known = (None,) if host is None else (host.status.power_answer_s, self.rehearsals.answer_s(host.name))
        return answer_limit_s(settings, max((one for one in known if one is not None), default=None))

    def report_crash(self, part: str, error: Exception) -> float:
        """A part of this fencer failed with an error that nobody expected; seconds to wait before the next try."""
        return self.crashes.record_crash(self.subject, part, error)

    def report_success(self, part: str) -> None:
        """It was done without one."""
        self.crashes.record_success(self.subject, part)

    @property
    def subject(self) -> ObjectRef:
        """Of faults of this fencer itself: its own host."""
        return ObjectRef(kind="Hypervisor", name=self.me)

    def is_leader(self) -> bool:
        """Whether I am the first of the coordinators that are not silent: who writes what all know."""
        mine = natural_key(self.me)
        return not any(natural_key(host) < mine and self.is_heard(host) for host in self.others)

    def is_heard(self, host: str) -> bool:
        """Whether it is a member and not silent."""
        seen = self.watcher.get(host)
        if seen is None or seen.record.state != "Held":
            return False
        return self.clock.monotonic() - seen.since <= self.rules.silence_s(host, seen)

    async def read_membership(self, host: str) -> Membership | None:
        """As it is now; ``None`` if there is none."""
        return await read(self.store, Membership, host)

    async def read_settings(self, host: str) -> HostSettings:
        """What operators want now. ``Unavailable`` while nobody knows, because what the cluster said is gone."""
        cluster = await read(self.store, Cluster, CLUSTER)
        hypervisor = await read(self.store, Hypervisor, host)
        if is_lost(cluster, (one.record for one in self.memberships.items())):
            raise Unavailable("Cluster/default is missing, or says nothing of its store: a controller makes it anew")
        return HostSettings(cluster, hypervisor)

    async def swap(self, on: Membership, record: MemberRecord) -> MemberRecord:
        """Write exactly this version. ``Conflict``: it changed; ``Unknown``: it may still be written."""
        written = await swap(self.store, _replace(on, record=record))
        self.memberships.note(written, replaced=on.metadata.resource_version)
        return written.record

    async def take(
        self,
        host: str,
        step: ProtocolStep[V, RecordOutcome],
        view: Callable[[MemberRecord], V],
        applied: Callable[[MemberRecord], bool],
    ) -> WriteResult:
        """Take the step on the Membership as it is now, unless it is ``applied`` already."""
        refused: Refusal | None = None
        replaced = ""

        def change(found: Membership | None) -> Membership | None:
            nonlocal refused, replaced
            refused = None
            if found is None:
                refused = Refusal(step=step.name, precondition="record", why=f"{host} is not registered")
                return None
            if applied(found.record):
                return None
            outcome = self.decisions.use(step.decision, view(found.record), subject=host)
            refused, replaced = outcome.refused, found.metadata.resource_version
            if outcome.record is None:
                return None
            return _replace(found, record=date_proofs(outcome.record, found.record, as_datetime(self.clock.now())))

        now = await compare_and_swap(self.store, Membership, host, change, clock=self.clock)
        if now is not None and refused is None and replaced not in ("", now.metadata.resource_version):
            self.memberships.note(now, replaced=replaced)
        return WriteResult(None if now is None else now.record, refused)

"""What all fences of one fencer share: its clock, what it has seen, its rules, whom it may ask, and how it writes.

``FenceWriter`` takes one protocol step on one Membership by the store's compare-and-swap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import Unavailable
from outlive.node.fencing.isolation import Isolation
from outlive.node.fencing.policy import HostSettings
from outlive.node.fencing.power import PowerSequence
from outlive.node.fencing.rehearsals import Rehearsals
from outlive.node.fencing.rules import Rules
from outlive.node.fencing.states import FenceOutcome, decision_of
from outlive.node.fencing.watcher import Watcher
from outlive.node.membership.pause import is_lost
from outlive.node.membership.states import dated
from outlive.resources import Cluster, ClusterSpec, Hypervisor, MemberRecord, Membership
from outlive.resources.cluster import CLUSTER
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.informer import Informer
from outlive.runtime.steps import ProtocolStep, Refusal
from outlive.store import Store, compare_and_swap, read, swap

V = TypeVar("V")

_replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a step: a refusal, or the document as it is now."""

    membership: Membership | None = None
    refused: Refusal | None = None

    @property
    def record(self) -> MemberRecord | None:
        """The document's content."""
        return None if self.membership is None else self.membership.record


class FenceWriter:
    """See the module. All calls may raise ``Unavailable``."""

    def __init__(self, store: Store, memberships: Informer[Membership], clock: Clock, decisions: DecisionLog) -> None:
        self._store = store
        self._memberships = memberships
        self._clock = clock
        self._decisions = decisions

    async def membership(self, host: str) -> Membership | None:
        """As it is now; ``None`` if there is none."""
        return await read(self._store, Membership, host)

    async def settings(self, host: str) -> HostSettings:
        """What operators want now. ``Unavailable`` while nobody knows, because what the cluster said is gone."""
        cluster = await read(self._store, Cluster, CLUSTER)
        hypervisor = await read(self._store, Hypervisor, host)
        if is_lost(cluster, (one.record for one in self._memberships.items())):
            raise Unavailable("Cluster/default is missing, or says nothing of its store: a controller makes it anew")
        if cluster is None:
            return HostSettings(ClusterSpec(), hypervisor)
        return HostSettings(cluster.spec, hypervisor, cluster.status.store_incarnation, cluster.paused)

    async def swap(self, on: Membership, record: MemberRecord) -> Membership:
        """Write exactly this version. ``Conflict``: it changed; ``Unknown``: it may still be written."""
        written = await swap(self._store, _replace(on, record=record))
        self._memberships.note(written, replaced=on.metadata.resource_version)
        return written

    async def take(
        self,
        host: str,
        step: ProtocolStep[V, FenceOutcome],
        view: Callable[[MemberRecord], V],
        applied: Callable[[MemberRecord], bool],
    ) -> Written:
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
            outcome = self._decisions.use(decision_of(step), view(found.record), subject=host)
            refused, replaced = outcome.refused, found.metadata.resource_version
            if outcome.record is None:
                return None
            return _replace(found, record=dated(outcome.record, found.record, as_datetime(self._clock.now())))

        now = await compare_and_swap(self._store, Membership, host, change, clock=self._clock)
        if now is not None and refused is None and replaced not in ("", now.metadata.resource_version):
            self._memberships.note(now, replaced=replaced)
        return Written(membership=now, refused=refused)


@dataclass(frozen=True, slots=True)
class FencerContext:
    """See the module. ``me``: the fencer's own host; ``leads``: whether it is the one that does what every coordinator
    could."""

    me: str
    leads: Callable[[], bool]
    store: Store
    clock: Clock
    decisions: DecisionLog
    watcher: Watcher
    rules: Rules
    writer: FenceWriter
    power: PowerSequence
    power_slots: asyncio.Semaphore
    cutting: Isolation | None
    rehearsals: Rehearsals


POWER_AT_ONCE: Final = 64
"""Power commands of one fencer at the same time."""

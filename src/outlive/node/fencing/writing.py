"""How a fencer writes: one step on one Membership, by compare-and-swap on a version that it just read.

A conflict means that somebody else moved first, so everything is read and decided anew. A lost answer is settled by
reading: ``applied`` says whether what is there now holds what was to be written. Both a limited number of times; then
the caller hears ``Unavailable`` and tries later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.deadline import deadline
from outlive.base.errors import Conflict, NotFound, Unavailable, Unknown
from outlive.node.fencing.condemning import FenceOutcome
from outlive.node.fencing.rules import HostSettings
from outlive.node.membership.states import dated
from outlive.resources import Cluster, ClusterSpec, Hypervisor, MemberRecord, Membership, R
from outlive.runtime.decisions import Decision, DecisionLog
from outlive.runtime.informer import Informer
from outlive.runtime.steps import ProtocolStep, Refusal
from outlive.store import Store

TRIES: Final = 6
"""Reads and writes of one step before the fencer rests."""
CALL_LIMIT_S: Final = 5.0
"""How long one call of the store may take before its answer counts as lost."""

V = TypeVar("V")

_decisions: dict[str, Decision[Any, Any]] = {}


def decision_of(step: ProtocolStep[Any, Any]) -> Decision[Any, Any]:
    """The step as a decision, made once."""
    return _decisions.setdefault(step.name, step.decision)


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
    """See the module."""

    def __init__(self, store: Store, memberships: Informer[Membership], clock: Clock, decisions: DecisionLog) -> None:
        self._store = store
        self._memberships = memberships
        self._clock = clock
        self._decisions = decisions

    async def membership(self, host: str) -> Membership | None:
        """As it is now; ``None`` if there is none. ``Unavailable``."""
        return await self._read(Membership, host)

    async def settings(self, host: str) -> HostSettings:
        """What operators want now. ``Unavailable``."""
        cluster = await self._read(Cluster, "default")
        hypervisor = await self._read(Hypervisor, host)
        if cluster is None:
            return HostSettings(ClusterSpec(), hypervisor)
        return HostSettings(cluster.spec, hypervisor, cluster.status.store_incarnation)

    async def swap(self, on: Membership, record: MemberRecord) -> Membership:
        """One compare-and-swap on exactly this version. ``Conflict``, ``Unknown``, ``Unavailable``."""
        try:
            with deadline(CALL_LIMIT_S):
                written = await self._store.replace(msgspec.structs.replace(on, record=record))
        except TimeoutError:
            raise Unknown(f"no answer to a write of Membership/{on.name} in {CALL_LIMIT_S:g} s") from None
        self._memberships.note(written, replaced=on.metadata.resource_version)
        return written

    async def take(
        self,
        host: str,
        step: ProtocolStep[V, FenceOutcome],
        view: Callable[[MemberRecord], V],
        applied: Callable[[MemberRecord], bool],
    ) -> Written:
        """Read, decide, write; again after a conflict or a lost answer. ``Unavailable`` when that does not end."""
        sent = False
        for _ in range(TRIES):
            current = await self.membership(host)
            if current is None:
                return Written(refused=Refusal(step=step.name, precondition="record", why=f"{host} is not registered"))
            if sent and applied(current.record):
                return Written(membership=current)
            outcome: FenceOutcome = self._decisions.use(decision_of(step), view(current.record), subject=host)
            if outcome.refused is not None or outcome.record is None:
                return Written(membership=current, refused=outcome.refused)
            try:
                record = dated(outcome.record, current.record, as_datetime(self._clock.now()))
                return Written(membership=await self.swap(current, record))
            except Conflict:
                continue
            except Unknown:
                sent = True
        raise Unavailable(f"{step.name} of {host} was not written in {TRIES} tries", remedy="it is tried again later")

    async def _read(self, kind: type[R], name: str) -> R | None:
        try:
            with deadline(CALL_LIMIT_S):
                return await self._store.get(kind, name, fresh=True)
        except NotFound:
            return None
        except (TimeoutError, Unknown):
            raise Unavailable(f"{kind.kind()}/{name} could not be read") from None

"""The storage agent beside Outlive's own fencing: lost quorum becomes the proof ``cut`` of a condemned host's volumes.

Only where the host has a Membership that was revoked, and only for volumes of which this node proves that the host can
write them no more. The host's replicas are disconnected first, so that it does not regain quorum by this node, and that
is read back; both happen after the isolation was announced in the Membership, as with every other isolation
(docs/concepts/safety.md#proofs). What another has recorded stays: a proof that does not hold all of it is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from outlive.base import Clock, NotFound, OutliveError, Random, as_datetime, get_logger
from outlive.node.fencing import ISOLATE, PROVE_CUT, CutView, FencedView
from outlive.node.membership import RecordOutcome, date_proofs
from outlive.node.ports import CutPort
from outlive.resources import CLUSTER, Cluster, MemberRecord, Membership
from outlive.runtime import Informer, OrderedTaskGroup, Periodic, ProtocolStep
from outlive.store import Store, compare_and_swap, read

LOOK_S: Final = 2.0
"""How often revoked memberships are looked at."""
DISK: Final = "disk:drbd:"

V = TypeVar("V", bound=FencedView)
_log = get_logger("storage.cuts")
_replace = msgspec.structs.replace


class StorageCuts:
    """See the module. ``lost_volumes``: resources of which this node proves that a host can write them no more."""

    def __init__(
        self,
        store: Store,
        cuts: CutPort,
        lost_volumes: Callable[[str], tuple[str, ...]],
        *,
        host: str,
        clock: Clock,
        random: Random,
    ) -> None:
        self._store = store
        self._cuts = cuts
        self._lost_volumes = lost_volumes
        self._host = host
        self._clock = clock
        self._memberships = Informer(store, Membership, clock=clock, random=random)

    async def run(self) -> None:
        """Until cancelled."""
        async with OrderedTaskGroup() as group:
            group.create_task(self._memberships.run(), name="memberships")
            await self._memberships.wait_synced()
            await Periodic(self.record_all, LOOK_S, clock=self._clock).run()

    async def record_all(self) -> None:
        """Record what is proven of every revoked membership, and let in who was let in again."""
        for member in self._memberships.items():
            record = member.record
            if record.state == "Revoked" and record.fence.id and record.dead_through < record.epoch:
                try:
                    await self.record(member.name, record)
                except OutliveError as error:
                    _log.warning("storage.cut_not_recorded", host=member.name, error=str(error))
        try:
            await self._release()
        except OutliveError as error:
            _log.warning("storage.cut_not_released", error=str(error))

    async def record(self, host: str, record: MemberRecord) -> None:
        """Announce the isolation of the host, disconnect its replicas, read that back, record it. Errors of both."""
        epoch = record.epoch
        scope = tuple(f"{DISK}{name}" for name in sorted(self._lost_volumes(host)))
        known = record.cut.scope if record.cut.through >= epoch else ()
        if not scope or set(scope) <= set(known):
            return
        if not set(known) <= set(scope):
            return  # somebody else isolates it from more than this node can answer for
        cluster = await read(self._store, Cluster, CLUSTER)
        paused = cluster is not None and cluster.status.pause is not None
        announced = await self._take(
            host,
            ISOLATE,
            lambda now: FencedView(host=host, record=now, observer=self._host, epoch=epoch, paused=paused),
        )
        if announced is None or announced.cut.through < epoch:
            return
        await self._cuts.cut(host, epoch, scope)
        report = await self._cuts.read_back(host, epoch)
        there = tuple(one for one in scope if one in set(report.scope))
        if not there or not set(known) <= set(there):
            return
        proven = await self._take(
            host,
            PROVE_CUT,
            lambda now: CutView(
                host=host,
                record=now,
                observer=self._host,
                epoch=epoch,
                paused=paused,
                scope=there if set(now.cut.scope) <= set(there) else (),
                written=scope,
                read_back=report.scope,
                evidence=f"{self._host} has quorum without {host}: {report.evidence}",
            ),
        )
        if proven is not None and set(there) <= set(proven.cut.scope):
            _log.info("storage.cut_recorded", host=host, epoch=epoch, scope=there)

    async def _release(self) -> None:
        """Connect replicas again whose host was let in, by a record that says so."""
        try:
            hosts = dict(await self._cuts.list_hosts())
        except NotFound:
            return
        for host, epoch in hosts.items():
            member = await read(self._store, Membership, host)
            if member is not None and member.record.cut.through < epoch <= member.record.dead_through:
                await self._cuts.lift(host, epoch)

    async def _take(
        self, host: str, step: ProtocolStep[V, RecordOutcome], view: Callable[[MemberRecord], V]
    ) -> MemberRecord | None:
        """Take the step on the Membership as it is now; the record after it, ``None`` without a Membership."""

        def change(found: Membership | None) -> Membership | None:
            if found is None or found.record.state != "Revoked":
                return None
            outcome = step.attempt(view(found.record))
            if outcome.refused is not None:
                _log.info("storage.cut_refused", host=host, step=step.name, why=outcome.refused.why)
            if outcome.record is None or outcome.record == found.record:
                return None
            return _replace(found, record=date_proofs(outcome.record, found.record, as_datetime(self._clock.now())))

        now = await compare_and_swap(self._store, Membership, host, change, clock=self._clock)
        return None if now is None else now.record

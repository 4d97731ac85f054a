"""Facts about hosts and store that recovery writes down: who is lost, and which incarnation of the store this is.

Both are conveniences for others: no assignment waits for them, and both are put right whenever they are looked at.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import NotFound
from outlive.base.logging import get_logger
from outlive.node.ports.faults import Faults
from outlive.recovery.view import CLUSTER, RecoveryInformers, RecoveryObserver
from outlive.resources import Cluster, Hypervisor, MemberRecord, Membership, ObjectRef
from outlive.store import Store, answered

RESTORED_FAULT: Final = "store-restored"
RESTORED_DELTA: Final = 30
JOINING_S: Final = 30.0
"""So long hosts that have never joined any store may take to join before somebody is told."""

_replace = msgspec.structs.replace
_log = get_logger("recovery")


def incarnation_of(store: Store) -> str:
    """What the store says of itself; empty where it says nothing."""
    return str(getattr(store, "incarnation", ""))


def lost_by(record: MemberRecord) -> str | None:
    """The fence by which a host is lost, empty where it is not, ``None`` where that is not clear."""
    if record.state == "Held" and record.dead_through < record.epoch:
        return ""
    if record.state == "Released":  # stopped on purpose: what was promised on it waits for it
        return None
    if record.dead_through >= record.epoch:
        return record.fence.id or f"{record.proof.kind if record.proof else 'proof'}.{record.epoch}"
    return None


class LostHosts:
    """Keeps ``Hypervisor.status.lost`` as the Memberships say."""

    def __init__(self, store: Store, informers: RecoveryInformers) -> None:
        self._store = store
        self._informers = informers

    def wrong(self) -> list[str]:
        """Hosts whose status says something else than their Membership, by name."""
        return [
            one.name
            for one in self._informers.memberships.items()
            if (host := self._informers.hypervisors.get(one.name)) is not None
            and (wanted := lost_by(one.record)) is not None
            and bool(wanted) != bool(host.status.lost)
        ]

    async def put_right(self, name: str) -> None:
        """Write what the Membership says now, read afresh."""
        async with answered(f"host {name}"):
            member = await self._store.get(Membership, name, fresh=True)
            host = await self._store.get(Hypervisor, name, fresh=True)
        wanted = lost_by(member.record)
        if wanted is None or bool(wanted) == bool(host.status.lost):
            return
        async with answered(f"host {name}"):
            written = await self._store.replace_status(_replace(host, status=_replace(host.status, lost=wanted)))
        self._informers.hypervisors.note(written, replaced=host.metadata.resource_version)
        _log.info("recovery.host_lost" if wanted else "recovery.host_back", host=name, fence=wanted)


class Incarnation:
    """Keeps ``Cluster.status.storeIncarnation`` as the store says, and a fault while hosts have not joined since."""

    def __init__(
        self, store: Store, informers: RecoveryInformers, observer: RecoveryObserver, faults: Faults, clock: Clock
    ) -> None:
        """``store``: in the name of the controller that owns the status of ``Cluster``."""
        self._clock = clock
        self._since: float | None = None
        """When hosts were first seen that have not joined."""
        self._store = store
        self._informers = informers
        self._observer = observer
        self._faults = faults
        self._told: bool | None = None
        """Whether it stands; ``None``: whoever led before may have told it, or ended it."""
        self._seen = ""
        """What this controller has written down last, or found: a backup may be older than that."""

    def begin(self) -> None:
        """This controller leads, perhaps once more: somebody else may have told anything meanwhile."""
        self._told = None

    def wrong(self) -> bool:
        """Whether something is to be written or told."""
        news = self._has_changed()
        if not news:
            self._seen = self._says() or self._seen
        return news or bool(self._late()) != self._told

    def _has_changed(self) -> bool:
        known, says = self._informers.clusters.get(CLUSTER), self._says()
        return known is not None and says != "" and known.status != known.status.became(says, self._seen)

    def _late(self) -> tuple[str, ...]:
        """Hosts that have not joined and by now should have, or that joined a store of the past.

        One that is about to join for the first time has no incarnation: nothing was restored for its sake.
        """
        unsettled = self._observer.unsettled()
        if not unsettled:
            self._since = None
            return ()
        now = self._clock.monotonic()
        since = self._since = self._since if self._since is not None else now
        members = (self._observer.member(name) for name in unsettled)
        past = any(one is not None and one.record.incarnation for one in members)
        return unsettled if past or now - since > JOINING_S else ()

    def _says(self) -> str:
        return incarnation_of(self._store)

    def _written(self) -> str:
        known = self._informers.clusters.get(CLUSTER)
        return known.status.store_incarnation if known is not None else ""

    async def put_right(self) -> None:
        """Write it, and raise or end the fault."""
        if self._has_changed():
            await self._write(self._says())
        unsettled = self._late()
        subject = ObjectRef(kind="Cluster", name=CLUSTER)
        if unsettled and not self._told:
            message = f"the store was restored: {len(unsettled)} hosts have not joined since, and nothing is recovered"
            remedy = f"start their daemons, or set confirmedIncarnation of Cluster/default to {self._written()}"
            await self._faults.raise_(RESTORED_FAULT, subject, message, remedy=remedy, delta=RESTORED_DELTA)
        elif self._told is not False and not unsettled:
            await self._faults.end(RESTORED_FAULT, subject)
        self._told = bool(unsettled)

    async def _write(self, says: str) -> None:
        try:
            async with answered(f"Cluster/{CLUSTER}"):
                cluster = await self._store.get(Cluster, CLUSTER, fresh=True)
        except NotFound:
            return
        status = cluster.status.became(says, self._seen)
        if status == cluster.status:
            return
        async with answered(f"Cluster/{CLUSTER}"):
            written = await self._store.replace_status(_replace(cluster, status=status))
        self._informers.clusters.note(written, replaced=cluster.metadata.resource_version)
        self._seen = says
        _log.info("recovery.store_incarnation", incarnation=says, before=cluster.status.store_incarnation)

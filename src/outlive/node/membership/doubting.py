"""What a host knows of the incarnations that a restored store had before, which a backup need not.

A host that saw the store go back takes what the store says of itself for its present incarnation only if that cannot be
from the backup: it is neither what the host's record said then nor what the host was last a member in, or the store
says that it had the latter before. A host that is certain writes down what it knows, for those that cannot be, such as
one that was found dead since the restore. Where nobody is, an operator is told.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import Conflict, NotFound, OutliveError, Unknown
from outlive.base.logging import get_logger
from outlive.node.desired_state import CLUSTER
from outlive.node.membership.join import Entered
from outlive.node.membership.lease import LeaseRenewer
from outlive.resources import Cluster, MemberRecord, ObjectRef
from outlive.resources.cluster import ClusterStatus
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import FaultSet
from outlive.store import Store, answered

IN_DOUBT_S: Final = 30.0
"""So long nobody is troubled: whoever is certain, or restored the store, may be about to say."""

_replace = msgspec.structs.replace
_log = get_logger("node.membership")


def in_doubt(entered: Entered, status: ClusterStatus) -> bool:
    """Whether the store, which this host saw go back, may yet have to say that it is another one."""
    says = status.store_incarnation
    if entered.superseded == "" or says == "":
        return False
    return says in (entered.superseded, entered.known) and entered.known not in status.former_incarnations


def predecessor(entered: Entered, record: MemberRecord, status: ClusterStatus) -> str:
    """An incarnation that certainly came before the present one, and is not written down; empty: none."""
    known, says = entered.known, status.store_incarnation
    if entered.superseded == "" or record.incarnation != says or known in ("", says, *status.former_incarnations):
        return ""
    return "" if in_doubt(entered, status) else known


class Doubting:
    """See the module."""

    def __init__(self, store: Store, keeper: LeaseRenewer, *, host: str, clock: Clock, faults: FaultSet) -> None:
        self._store = store
        self._keeper = keeper
        self._host = host
        self._clock = clock
        self._faults = faults
        self._since_s: float | None = None
        """Since when it is in doubt (monotonic)."""
        self._told = True
        """An earlier daemon may have told it."""
        self._said: tuple[Entered, str] | None = None
        """What was written down last, and in which incarnation: the store keeps the latest few only."""

    async def look(self, cluster: Cluster | None) -> None:
        """Say what is certain, and that something is not: ``cluster`` as last read."""
        entered, record = self._keeper.entered, self._keeper.record
        if cluster is None or entered is None or record is None or not self._keeper.held:
            return
        vouched = cluster.status.store_incarnation == cluster.spec.confirmed_incarnation
        self._tell(cluster.status.store_incarnation, not vouched and in_doubt(entered, cluster.status))
        present = (entered, cluster.status.store_incarnation)
        if self._said != present and predecessor(entered, record, cluster.status):
            try:
                await self._write(entered, record)
            except NotFound:
                return
            except OutliveError as error:
                _log.warning("membership.former_not_said", host=self._host, error=str(error))

    async def _write(self, entered: Entered, record: MemberRecord) -> None:
        """Once; what comes in between is looked at in the next turn."""
        async with answered(f"Cluster/{CLUSTER}"):
            cluster = await self._store.get(Cluster, CLUSTER, fresh=True)
        before = predecessor(entered, record, cluster.status)
        if not before:
            return
        status = cluster.status.became(cluster.status.store_incarnation, before)
        try:
            async with answered(f"Cluster/{CLUSTER}"):
                await self._store.replace_status(_replace(cluster, status=status))
        except (Conflict, Unknown):
            return
        self._said = (entered, status.store_incarnation)
        _log.info("membership.former_said", host=self._host, former=before)

    def _tell(self, says: str, doubt: bool) -> None:
        now_s = self._clock.monotonic()
        self._since_s = (self._since_s if self._since_s is not None else now_s) if doubt else None
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        if self._since_s is not None and now_s - self._since_s >= IN_DOUBT_S:
            self._faults.activate(FaultCode.STORE_IN_DOUBT, subject, incarnation=says)
        elif not doubt:
            self._faults.clear(FaultCode.STORE_IN_DOUBT, subject)

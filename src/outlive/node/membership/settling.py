"""Whether all that runs is known to the store: after a restored backup, only once every host has registered again.

Asked before a host starts what others might be running unknown to the store. Once every host had joined under an
incarnation of the store it stays settled, so hosts are listed once for each incarnation; a host that registers for the
first time takes it as settled, because no earlier state of the store can mean it. A host that saw the store go back
waits until the store says that it is another one, which may take a moment, or until an operator vouches for it. Read
fresh, before what is decided on is read again by its version.
"""

from __future__ import annotations

from outlive.base.errors import NotFound
from outlive.node.desired_state import CLUSTER
from outlive.node.membership.doubting import in_doubt
from outlive.node.membership.lease import LeaseRenewer
from outlive.resources import Cluster, Membership
from outlive.store import LIST_S, Store, answered, list_all


class Settling:
    """See the module."""

    def __init__(self, store: Store, keeper: LeaseRenewer) -> None:
        self._store = store
        self._keeper = keeper
        self._known = ""
        """The incarnation under which everybody had joined."""

    async def settled(self) -> bool:
        """Whether that is so now; errors of the store are the caller's."""
        try:
            async with answered(f"Cluster/{CLUSTER}"):
                cluster = await self._store.get(Cluster, CLUSTER, fresh=True)
        except NotFound:
            return True
        incarnation = cluster.status.store_incarnation
        if incarnation in ("", cluster.spec.confirmed_incarnation):
            return True
        record, entered = self._keeper.record, self._keeper.entered
        if record is None or entered is None:
            return False
        if in_doubt(entered, cluster.status):
            return False
        for host in cluster.status.missing(incarnation):
            if not await self._accounted_for(host, incarnation):
                return False
        if incarnation == self._known:
            return True
        first = entered.row == "J0" and record.incarnation in ("", incarnation)
        if not first:
            if record.incarnation != incarnation:
                return False
            async with answered("all memberships", LIST_S):
                async for member in list_all(self._store, Membership):
                    if member.record.incarnation != incarnation:
                        return False  # dead or released as it is called: the backup may be older than its return
        self._known = incarnation
        return True

    async def _accounted_for(self, host: str, incarnation: str) -> bool:
        """Whether a host that missed itself has registered since, or somebody has said that it is off."""
        try:
            async with answered(f"Membership/{host}"):
                member = await self._store.get(Membership, host, fresh=True)
        except NotFound:
            return False
        return member.record.incarnation == incarnation

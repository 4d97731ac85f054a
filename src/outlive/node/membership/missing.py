"""A host that a restored store has no Membership of: it says so, so that nobody takes the store for complete.

It was added after the backup, and may run what the store believes to be elsewhere, or nowhere. It writes its name into
``Cluster.status.missingHosts``, under the incarnation in which it misses itself; while it stands there nothing is
recovered and no host starts what others might be running. The name goes once the host has registered what it runs in
this store, and not when it is merely let in again: others that have settled before would start at once what it has yet
to register. What this does not prevent: what was started elsewhere before the host had spoken. A Membership that
somebody deletes in a store that was not restored is no such case.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import Conflict, NotFound, OutliveError, Unavailable, Unknown
from outlive.base.logging import get_logger
from outlive.node.desired_state import CLUSTER
from outlive.resources import Cluster, MemberRecord, Membership
from outlive.store import Store, answered

TRIES: Final = 6
"""Writes of one change; it is tried again at the next turn."""

_replace = msgspec.structs.replace
_log = get_logger("node.membership")


class Missing:
    """See the module."""

    def __init__(self, store: Store, host: str) -> None:
        self._store = store
        self._host = host

    async def look(self, cluster: Cluster | None, record: MemberRecord | None, *, standing: bool) -> None:
        """Say how it stands: ``cluster`` as last read, ``record`` as the store last showed it of this host."""
        said = cluster is not None and self._host in cluster.status.missing_hosts
        try:
            if standing and said and record is not None:
                await self._write(record.incarnation, there=False)
            elif not standing and record is not None and record.state == "Held" and not await self._exists():
                await self._write(record.incarnation, there=True)
        except NotFound:
            return
        except OutliveError as error:
            _log.warning("membership.missing_not_said", host=self._host, error=str(error))

    async def speak(self, joined: str) -> None:
        """Say that the store lacks this host, which was registered under ``joined`` last; before it enters anew.

        Errors of the store; ``Unavailable`` as well where others keep changing the document.
        """
        try:
            if not await self._write(joined, there=True):
                raise Unavailable(f"{self._host} could not say that the store lacks it")
        except NotFound:
            return

    async def _exists(self) -> bool:
        try:
            async with answered(f"Membership/{self._host}"):
                await self._store.get(Membership, self._host, fresh=True)
        except NotFound:
            return False
        return True

    async def _write(self, joined: str, *, there: bool) -> bool:
        """Whether it is as it is to be."""
        for _ in range(TRIES):
            async with answered(f"Cluster/{CLUSTER}"):
                cluster = await self._store.get(Cluster, CLUSTER, fresh=True)
            status, incarnation = cluster.status, cluster.status.store_incarnation
            if there and (joined == "" or incarnation in ("", joined)):
                return True  # not restored, or nobody has said so yet
            if not there and joined != incarnation:
                return True  # it has not registered in this store yet
            names = {host: one for host, one in status.missing_hosts.items() if host != self._host}
            if there:
                names[self._host] = incarnation
            if names == status.missing_hosts:
                return True
            changed = _replace(status, missing_hosts=dict(sorted(names.items())))
            try:
                async with answered(f"Cluster/{CLUSTER}"):
                    await self._store.replace_status(_replace(cluster, status=changed))
            except (Conflict, Unknown):
                continue
            _log.warning("membership.missing" if there else "membership.found", host=self._host)
            return True
        return False

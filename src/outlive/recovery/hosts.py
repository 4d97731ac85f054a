"""Facts about hosts and store that recovery writes down: who is lost, and which incarnation of the store this is.

Both are conveniences for others: no assignment waits for them, and both are put right whenever they are looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists
from outlive.base.logging import get_logger
from outlive.node.membership.pause import PauseGate, is_lost
from outlive.recovery.view import RecoveryInformers
from outlive.resources import Cluster, Hypervisor, MemberRecord, Membership, ObjectMeta
from outlive.resources.cluster import CLUSTER, Pause
from outlive.store import Store, answered
from outlive.store.access import compare_and_swap

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


class StorePause:
    """Writes the store's own incarnation into ``Cluster.status``, and ends the pause."""

    def __init__(self, store: Store, informers: RecoveryInformers, gate: PauseGate, clock: Clock) -> None:
        """``store``: in the name of the controller that owns the status of ``Cluster``."""
        self._store = store
        self._informers = informers
        self._gate = gate
        self._clock = clock

    def wrong(self) -> bool:
        """Whether something may have to be written."""
        known = self._informers.clusters.get(CLUSTER)
        if known is None:
            return is_lost(None, self._records())
        return known.paused or not known.status.knows(incarnation_of(self._store))

    async def put_right(self) -> None:
        """Write it, and look whether the pause is over. Errors of the store."""
        says, at = incarnation_of(self._store), as_datetime(self._clock.now())
        if self._informers.clusters.get(CLUSTER) is None:
            with contextlib.suppress(AlreadyExists):
                await self._store.create(Cluster(metadata=ObjectMeta(name=CLUSTER)))

        def change(cluster: Cluster | None) -> Cluster | None:
            if cluster is None or cluster.status.knows(says):
                return None
            status = cluster.status
            _log.info("recovery.store_incarnation", incarnation=says)
            if status.store_incarnation == "" and not is_lost(cluster, self._records()):  # the first one
                return _replace(cluster, status=_replace(status, store_incarnation=says))
            return _replace(cluster, status=status.became(says, Pause(since=at)))

        await compare_and_swap(self._store, Cluster, CLUSTER, change, clock=self._clock)
        await self._gate.paused()

    def _records(self) -> Iterator[MemberRecord]:
        return (one.record for one in self._informers.memberships.items())

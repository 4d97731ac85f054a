"""The pause: what nobody may do while the store has gone back and not every host has registered what it runs.

It is one state of ``Cluster.status``, written in the same compare-and-swap as the store's new incarnation: by the
operator's restore, or by the first host that misses a write which the store had acknowledged. Every gate reads it
fresh, after the version of the object that it is about to swap was read, so that a restore in between is either seen or
fails the swap. A host counts as registered once its Membership carries the present incarnation. A process that the
pause stops looks whether it is over; a host that the backup lacks writes itself into ``waitsFor``, which fails that
write. A ``Cluster`` that is missing, or says nothing of its store, counts as paused where a host has registered: it
was there, and nobody knows what it said. What this does not prevent: what was started before anybody knew that the
store had gone back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from outlive.base import Clock, Conflict, Forbidden, Ids, NotFound, Unknown, as_datetime, get_logger
from outlive.resources import CLUSTER, Cluster, ClusterStatus, Hypervisor, MemberRecord, Membership, Pause, is_lost
from outlive.store import LIST_S, Store, change_status, list_all, read, require_answer, swap

AGAIN_S: Final = 1.0
"""How often one process looks at most whether the pause is over."""

_replace = msgspec.structs.replace
_log = get_logger("node.membership")


def waits_for(cluster: Cluster, members: Mapping[str, MemberRecord], hosts: Iterable[str]) -> tuple[str, ...]:
    """Hosts that have not registered what they run in the store as it is now.

    ``members``: all Memberships, in whatever state: a backup may be older than the return of a host that it calls dead.
    ``hosts``: those that have a daemon of ours, with a Membership or without one.
    """
    pause = cluster.status.pause
    named = {*members, *hosts, *(pause.waits_for if pause is not None else ())}
    incarnation = cluster.status.store_incarnation
    return tuple(sorted(one for one in named if one not in members or members[one].incarnation != incarnation))


class PauseGate:
    """See the module. One for each process."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._looked_s = float("-inf")
        """When was last looked whether the pause is over (monotonic)."""

    async def is_paused(self) -> bool:
        """Whether the cluster is paused now; if nobody is waited for any more, it is not. Errors of the store."""
        cluster = await read(self._store, Cluster, CLUSTER)
        if cluster is None or cluster.status.store_incarnation == "":
            return is_lost(cluster, (await self._read_members()).values())
        if not cluster.paused:
            return False
        now = self._clock.monotonic()
        if now - self._looked_s < AGAIN_S:
            return True
        self._looked_s = now
        return not await self._resume(cluster)

    async def _resume(self, cluster: Cluster) -> bool:
        """Whether the pause could be ended: every host was seen to have registered, after this version was read.

        The lists may be older than that where a store serves them from a cache. A Membership in them that is older than
        its host's registration only makes the pause longer, and one never loses its incarnation again; a host that they
        lack and that waits is in ``waitsFor``, or adds itself to it, and the swap on ``cluster`` fails.
        """
        members = await self._read_members()
        with require_answer("all hypervisors", LIST_S):
            hosts = [
                one.name async for one in list_all(self._store, Hypervisor, whole=True) if one.spec.management == "node"
            ]
        left = waits_for(cluster, members, hosts)
        pause = _replace(cluster.status.pause or Pause(), waits_for=left) if left else None
        if pause != cluster.status.pause:
            try:
                await swap(self._store, _replace(cluster, status=_replace(cluster.status, pause=pause)))
            except (Conflict, NotFound, Unknown, Forbidden):  # the server may have seen fewer hosts register
                return False
            _log.warning("cluster.resumed" if pause is None else "cluster.paused", waits_for=left)
        return not left

    async def _read_members(self) -> dict[str, MemberRecord]:
        with require_answer("all memberships", LIST_S):
            return {member.name: member.record async for member in list_all(self._store, Membership, whole=True)}

    async def report(self, host: str, known: Collection[str], *, stamps: bool) -> bool:
        """Have the cluster paused until ``host`` has registered; whether the store is another one than it knew.

        ``known``: incarnations that the host was a member in, or that its record names. Where the store still has one
        of these, nobody has said that it was restored: ``stamps`` says whether the host, which misses a write of its
        own, says so itself. Errors of the store.
        """

        def add_host(cluster: Cluster) -> ClusterStatus | None:
            status, at = cluster.status, as_datetime(self._clock.now())
            if status.store_incarnation in ("", *known):
                if not stamps:
                    return None
                pause = Pause(reason="went-back", since=at, waits_for=(host,))
                return status.with_incarnation(self._ids.new_uuid(), pause)
            pause = status.pause or Pause(since=at)
            if host in pause.waits_for:
                return None
            pause = _replace(pause, waits_for=tuple(sorted({*pause.waits_for, host})))
            return _replace(status, pause=pause)

        cluster = await change_status(self._store, Cluster, CLUSTER, add_host, clock=self._clock)
        return cluster is not None and cluster.status.store_incarnation not in ("", *known)

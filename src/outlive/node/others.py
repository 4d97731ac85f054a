"""How the other hosts do, as they have published it, for a host that gets slow and asks whether it is alone with that.

Where the store is slow for everybody, everybody asks: so a page is read first, and no more if that page alone shows a
common cause. What is read is as old as the others' last writes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import NotFound
from outlive.node.leaving import Peer, same_cause
from outlive.node.membership.states import member_view
from outlive.node.scoring import Gauged
from outlive.resources import Hypervisor, HypervisorUsage, Membership
from outlive.resources.taking import refuses
from outlive.store import Store

PAGE: Final = 100
"""Hosts that are read at once."""
PAGES_LIMIT: Final = 200
ENOUGH: Final = 8
"""Hosts of one page that say something about all of them."""
AHEAD_LIMIT: Final = 16
"""Hosts in line of which it is looked up whether they live."""


class Others:
    """See the module."""

    def __init__(self, store: Store, host: str) -> None:
        self._store = store
        self._host = host

    async def look(self, common_share: float) -> tuple[Peer, ...]:
        """The hosts with our daemon but this one; those of the first page, without figures, if so many degrade."""
        found: list[Peer] = []
        token = ""
        for _ in range(PAGES_LIMIT):
            page = await self._store.list(Hypervisor, limit=PAGE, token=token)
            found += [_peer(one) for one in page.items if one.name != self._host and one.spec.management == "node"]
            token = page.token
            if not token:
                break
            together = 1 + sum(one.degrading for one in found)
            if len(found) >= ENOUGH and same_cause(together, len(found) + 1, common_share):
                return tuple(found)
        return await self._with_scores(found)

    async def living(self, peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
        """Without hosts that were left, or were to be, when they died: they keep nobody waiting."""
        ahead = [one.name for one in peers if one.works and one.leaving in ("waits", "leaves")][:AHEAD_LIMIT]
        gone = [name for name in ahead if not await self._lives(name)]
        return tuple(one for one in peers if one.name not in gone)

    async def _lives(self, host: str) -> bool:
        try:
            return member_view(await self._store.get(Membership, host)).record.state == "Held"
        except NotFound:
            return False

    async def _with_scores(self, peers: list[Peer]) -> tuple[Peer, ...]:
        """With the figures that hosts publish every interval."""
        scores: dict[str, dict[str, int]] = {}
        token = ""
        for _ in range(PAGES_LIMIT):
            page = await self._store.list(HypervisorUsage, limit=PAGE, token=token)
            scores |= {one.name: one.usage.scores for one in page.items}
            token = page.token
            if not token:
                break
        return tuple(msgspec.structs.replace(one, scores=scores.get(one.name, {})) for one in peers)


def _peer(host: Hypervisor) -> Peer:
    degrading = host.status.degrading
    return Peer(
        name=host.name,
        works=not refuses(host),
        degrading=degrading is not None,
        causes=() if degrading is None else tuple(Gauged(one) for one in degrading.causes if one in set(Gauged)),
        leaving="" if degrading is None else degrading.leaving,
    )

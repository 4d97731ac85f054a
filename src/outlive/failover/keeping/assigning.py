"""Carrying an assignment out: its actions in order, those that can be one write together.

What becomes of each is ``joining``'s business. Stopping after any write is safe: every membership that was written was
allowed by the rules beside those written before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from outlive.base.logging import request_context
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.joining import Apart, Joining, Outcome
from outlive.failover.keeping.turns import Turn
from outlive.failover.keeping.writes import SlotWriter
from outlive.failover.model import VmView
from outlive.failover.planner.actions import Action, Join
from outlive.failover.report.reporter import Reporter
from outlive.failover.separation import ServerGroup
from outlive.failover.topology import Topology

JOINS_TOGETHER = 64
"""VMs that one write lets into a slot at most."""


class Assignment:
    """Carries out what the assignment decided."""

    def __init__(
        self,
        writer: SlotWriter,
        reporter: Reporter,
        *,
        request_id: str = "",
        turn: Turn | None = None,
        topology: Callable[[], Topology] = Topology,
        groups: Iterable[ServerGroup] = (),
    ) -> None:
        """``topology`` and ``groups``: what the decision was made with; the former is looked at where writes meet."""
        self._writer = writer
        self._reporter = reporter
        self._request_id = request_id
        self._turn = turn or Turn()
        self._apart = Apart(topology, groups)

    async def carry_out(
        self,
        actions: Sequence[Action],
        hand: Hand,
        vms: Mapping[str, VmView],
        *,
        requests: Mapping[str, str],
    ) -> Outcome:
        """Write in order. ``requests`` has the request id of each VM. Never raises for what the store refuses."""
        run = Joining(self._writer, self._reporter, hand, vms, self._request_id, self._turn, self._apart)
        for together in _together(actions):
            async with self._turn.hold():
                if len(together) == 1 or not await run.join_all(together, requests):
                    for action in together:
                        with request_context(req=requests.get(action.vm, "")):
                            await run.do(action)
        return run.outcome


def _together(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """The actions in order; those that follow each other into one slot are one write.

    Only those: were all who join one slot brought forward, a failure in between would leave everybody in that slot and
    nobody in another, a state from which the plan finds no second slot for them.
    """
    batch: list[Action] = []
    for action in actions:
        last = batch[-1] if batch else None
        joins = isinstance(action, Join) and isinstance(last, Join) and action.slot == last.slot
        if batch and (not joins or len(batch) >= JOINS_TOGETHER):
            yield batch
            batch = []
        batch.append(action)
    if batch:
        yield batch

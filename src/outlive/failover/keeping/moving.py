"""Carrying out what repacking decided: join, then leave, and stop at the first surprise.

Repacking is never urgent, so nothing is decided again here: whatever a write meets ends it for this cycle. A VM that
joined and did not leave has a slot more than it needs until a later cycle empties that slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outlive.base.errors import NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.turns import Turn
from outlive.failover.keeping.writes import SlotWriter
from outlive.failover.planner.repack import Move

_log = get_logger("failover.repack")


class Told(Protocol):
    """Whoever is told of what was written."""

    def slot_reused(self, slot: str, uid: str, host: str, vm: str, members: int) -> None:
        """A VM joined a slot."""
        ...

    def member_repacked(self, slot: str, uid: str, vm: str, to: str) -> None:
        """A VM left a slot for another."""
        ...


class Untold:
    """Nobody is told."""

    def slot_reused(self, slot: str, uid: str, host: str, vm: str, members: int) -> None:
        """Nothing to do."""

    def member_repacked(self, slot: str, uid: str, vm: str, to: str) -> None:
        """Nothing to do."""


class Moving:
    """Carries moves out."""

    def __init__(self, writer: SlotWriter, reporter: Told, *, turn: Turn | None = None) -> None:
        self._writer = writer
        self._reporter = reporter
        self._turn = turn or Turn()

    async def carry_out(self, moves: Sequence[Move], hand: Hand) -> int:
        """Write in order; the number of moves that were made."""
        for made, move in enumerate(moves):
            try:
                async with self._turn.hold():
                    if self._is_stale(move, hand):
                        return made
                    await self._join(move, hand)
                    await self._leave(move, hand)
            except OutliveError as error:
                _log.info("repack.stopped", vm=move.vm, made=made, error=str(error))
                return made
        return len(moves)

    def _is_stale(self, move: Move, hand: Hand) -> bool:
        slots = (hand.view(move.joins), hand.view(move.leaves))
        return self._turn.stale([move.vm, *(vm for slot in slots if slot is not None for vm in slot.members)])

    async def _join(self, move: Move, hand: Hand) -> None:
        if not move.joins:
            return
        view = hand.view(move.joins)
        if view is None:
            raise NotFound(f"slot {move.joins} is gone", remedy="the next cycle looks again")
        written = hand.put(
            await self._writer.set_members(hand.object(move.joins), {**view.members, move.vm: move.vm_host})
        )
        self._reporter.slot_reused(written.name, written.uid, written.host, move.vm, len(written.members))

    async def _leave(self, move: Move, hand: Hand) -> None:
        view = hand.view(move.leaves)
        if view is None:
            return
        left = {vm: host for vm, host in view.members.items() if vm != move.vm}
        if left:
            hand.put(await self._writer.set_members(hand.object(move.leaves), left))
        else:
            await self._writer.delete(hand.object(move.leaves))
            hand.drop(move.leaves)
        self._reporter.member_repacked(view.name, view.uid, move.vm, move.joins)

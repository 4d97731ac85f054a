"""Carrying a clean-up out, write by write, with what each failure means.

A decision was made on what was seen; the cluster may have moved on. Each write therefore replaces exactly the version
that was seen, and a ``Conflict`` is answered by reading that slot again and deciding again about it.
What else fails is counted as docs/reference/failover.md#cycle says and left to a later cycle. Stopping after any write
is safe: taking memberships away never breaks a rule. A ``Turn`` says what may have happened since the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from outlive.base.errors import Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.failover.keeping.hand import Hand
from outlive.failover.keeping.turns import Turn
from outlive.failover.keeping.writes import SlotWriter
from outlive.failover.model import SlotView
from outlive.failover.planner.cleanup import CleanResult, Deletion, Drop
from outlive.failover.report.reporter import Reporter
from outlive.resources import Reservation

REREADS = 3
"""Times that one slot is read and decided about again before it is left to the next cycle."""

_log = get_logger("failover.act")


class Judge(Protocol):
    """Decides about clean-up again, when a slot turned out to be another than was seen."""

    async def judge(self, slot: SlotView, others: Sequence[SlotView]) -> CleanResult:
        """About this slot as it is now; ``others``: all other slots of its members."""
        ...


class CleanUp:
    """Carries out what clean-up decided."""

    def __init__(self, writer: SlotWriter, judge: Judge, reporter: Reporter, *, turn: Turn | None = None) -> None:
        self._writer = writer
        self._judge = judge
        self._reporter = reporter
        self._turn = turn or Turn()

    async def carry_out(self, result: CleanResult, hand: Hand) -> None:
        """Write changed memberships by slot name, then delete; ``hand`` becomes the state after it."""
        drops = _by_slot(result.dropped)
        after = {slot.name: slot for slot in result.slots}
        for name in result.changed:
            async with self._turn.hold():
                if not self._is_left(drops.get(name, ())):
                    await self._change(after[name], drops.get(name, ()), hand)
        for deletion in result.deleted:
            async with self._turn.hold():
                if not self._is_left(drops.get(deletion.slot, ())):
                    await self._delete(deletion, drops.get(deletion.slot, ()), hand)

    def _is_left(self, drops: Sequence[Drop]) -> bool:
        """Whether the slot is left to whoever follows changes, because a VM that would leave it has changed."""
        vms = [drop.vm for drop in drops]
        if not self._turn.stale(vms):
            return False
        self._turn.leave(vms)
        return True

    async def _change(self, wanted: SlotView, drops: Sequence[Drop], hand: Hand) -> None:
        try:
            written = await self._writer.set_members(hand.object(wanted.name), wanted.members)
        except Conflict:
            await self._again(wanted.name, hand)
            return
        except OutliveError as error:
            _log.warning("slot.not_written", slot=wanted.name, error=str(error))
            hand.suppose(wanted)
            return
        hand.put(written)
        self._tell(written, drops)

    async def _delete(self, deletion: Deletion, drops: Sequence[Drop], hand: Hand) -> None:
        slot = hand.object(deletion.slot)
        try:
            await self._writer.delete(slot)
        except Conflict:
            await self._again(deletion.slot, hand)
            return
        except OutliveError as error:
            _log.warning("slot.not_deleted", slot=deletion.slot, error=str(error))
            hand.suppose_gone(deletion.slot)
            return
        hand.drop(deletion.slot)
        self._tell(slot, drops)
        self._reporter.slot_deleted(slot.metadata.uid, deletion)

    async def _again(self, name: str, hand: Hand) -> None:
        """The slot changed since it was seen: read it, decide about it again, and write that."""
        for _ in range(REREADS):
            try:
                fresh = await self._writer.fresh(name)
                await self._write_again(fresh, hand)
            except NotFound:
                hand.drop(name)
                return
            except Conflict:
                continue
            except OutliveError as error:
                _log.warning("slot.not_written", slot=name, error=str(error))
                return
            return
        _log.warning("slot.kept_changing", slot=name, rereads=REREADS)

    async def _write_again(self, fresh: Reservation, hand: Hand) -> None:
        view = hand.put(fresh)
        others = [slot for slot in hand.around(view.members) if slot.name != view.name]
        result = await self._judge.judge(view, others)
        drops = _by_slot(result.dropped).get(fresh.name, ())
        deletion = next((one for one in result.deleted if one.slot == fresh.name), None)
        if deletion is not None:
            await self._writer.delete(fresh)
            hand.drop(fresh.name)
            self._tell(fresh, drops)
            self._reporter.slot_deleted(fresh.metadata.uid, deletion)
        elif drops:
            left = {vm: host for vm, host in view.members.items() if vm not in {drop.vm for drop in drops}}
            hand.put(await self._writer.set_members(fresh, left))
            self._tell(fresh, drops)

    def _tell(self, slot: Reservation, drops: Sequence[Drop]) -> None:
        for drop in drops:
            _log.info("member.removed", slot=drop.slot, vm=drop.vm, cause=drop.cause.value, detail=drop.detail)
            self._reporter.member_removed(slot.metadata.uid, drop)


def _by_slot(drops: Iterable[Drop]) -> dict[str, list[Drop]]:
    found: dict[str, list[Drop]] = {}
    for drop in drops:
        found.setdefault(drop.slot, []).append(drop)
    return found

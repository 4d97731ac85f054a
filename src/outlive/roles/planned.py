"""Carries out a plan of a whole fleet: each slot is written once, with all its members.

A slot's memberships were decided together with all others, and every part of them obeys the rules (taking memberships
away never breaks one), so the writes are safe to stop after any of them. Slots that exist are replaced exactly as they
were seen; one that changed meanwhile is left to the cycle and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlive.base.errors import Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.failover.keeping.writes import NewSlot, SlotWriter
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Join, Open
from outlive.failover.planner.plan import PlanResult
from outlive.resources import Reservation
from outlive.runtime.tasks import OrderedTaskGroup

WRITES_AT_ONCE = 16
"""Slots that are written at the same time."""

_log = get_logger("failover.plan")


class Written(msgspec.Struct, kw_only=True):
    """What came of a plan."""

    opened: int = 0
    joined: int = 0
    """Slots that existed and got members."""
    changed_meanwhile: int = 0
    """Slots that were left alone because somebody else had changed them."""


async def write_plan(
    writer: SlotWriter,
    result: PlanResult,
    objects: Mapping[str, Reservation],
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write every slot that the plan opens or adds members to. The first error of the store ends it."""
    written = Written()
    opened = {action.slot_key: action for action in result.actions if isinstance(action, Open)}
    joined = {action.slot for action in result.actions if isinstance(action, Join)}
    work = iter([slot for slot in result.slots if slot.name in opened or slot.name in joined])
    failures: list[OutliveError] = []
    done = 0

    async def worker() -> None:
        nonlocal done
        for slot in work:
            if failures:
                return
            try:
                await _write(writer, slot, opened.get(slot.name), objects.get(slot.name), written)
            except OutliveError as error:
                failures.append(error)
            done += 1
            progress(done)

    async with OrderedTaskGroup() as group:
        for number in range(WRITES_AT_ONCE):
            group.create_task(worker(), name=f"plan {number}")
    if failures:
        error = failures[0]
        message = f"{error.message}; {written.opened} slots were opened and {written.joined} joined"
        raise type(error)(message, place=error.place, remedy="repeat: a new plan goes on from there") from error
    return written


async def _write(
    writer: SlotWriter, slot: SlotView, opened: Open | None, before: Reservation | None, written: Written
) -> None:
    if opened is None:
        assert before is not None, "a slot that is joined existed before"
        try:
            await writer.set_members(before, slot.members)
        except (Conflict, NotFound) as error:
            _log.warning("slot.changed_meanwhile", slot=slot.name, error=str(error))
            written.changed_meanwhile += 1
            return
        written.joined += 1
        return
    others = {vm: host for vm, host in slot.members.items() if vm != opened.vm}
    new = NewSlot(
        vm=opened.vm,
        vm_host=opened.vm_host,
        host=opened.host,
        zone=opened.zone,
        group=opened.group,
        cpu_milli=opened.cpu_milli,
        memory_bytes=opened.memory_bytes,
        others=others,
    )
    await writer.open(new)
    written.opened += 1

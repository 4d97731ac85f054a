"""Carries out a plan of a whole fleet: each slot is written once in a stage, with all its members.

A slot's memberships were decided together with all others, and every part of them obeys the rules (taking memberships
away never breaks one), so the writes are safe to stop after any of them. Slots that exist are replaced exactly as they
were seen; one that changed meanwhile is left to the cycle and counted, unless somebody is to leave a slot for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from outlive.base.errors import Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Leave, Open
from outlive.failover.planner.repack import Move
from outlive.failover.reconciler.writes import NewSlot, SlotWriter
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
    left: int = 0
    """Slots that lost members, those included that went."""
    changed_meanwhile: int = 0
    """Slots that were left alone because somebody else had changed them."""


async def write_plan(
    writer: SlotWriter,
    actions: Sequence[Action],
    objects: Mapping[str, Reservation],
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> Written:
    """Write every slot that the plan changes. The first error of the store ends it.

    The actions are carried out in stages, each of which opens slots and lets VMs join before VMs leave. ``Conflict``
    where somebody changed a slot of a stage in which VMs are to leave: they are left where they are.
    """
    work = _Writing(writer, objects, progress)
    try:
        for joins, leaves in _stages(actions):
            await work.join(joins)
            if leaves and work.written.changed_meanwhile:
                raise Conflict("a slot was changed meanwhile", remedy="repeat: a new plan goes on from there")
            await work.leave(leaves)
    except OutliveError as error:
        done = work.written
        message = f"{error.message}; {done.opened} slots were opened, {done.joined} joined and {done.left} left"
        raise type(error)(message, place=error.place, remedy="repeat: a new plan goes on from there") from error
    return work.written


def actions_of(moves: Iterable[Move], slots: Mapping[str, SlotView]) -> list[Action]:
    """Moves of a repacking as actions of a plan, each a stage of its own, up to the first into a slot that is gone."""
    actions: list[Action] = []
    for move in moves:
        if move.joins and move.joins not in slots:
            break
        if move.joins:
            host = slots[move.joins].host
            actions.append(Join(slot=move.joins, vm=move.vm, vm_host=move.vm_host, host=host))
        actions.append(Leave(slot=move.leaves, vm=move.vm))
    return actions


def _stages(actions: Sequence[Action]) -> Iterator[tuple[list[Open | Join], list[Leave]]]:
    """The actions in order, in stages of those who join and those who leave after that."""
    joins, leaves = list[Open | Join](), list[Leave]()
    for action in actions:
        if isinstance(action, Leave):
            leaves.append(action)
        elif not isinstance(action, Fail):
            if leaves:
                yield joins, leaves
                joins, leaves = [], []
            joins.append(action)
    if joins or leaves:
        yield joins, leaves


class _Writing:
    """The slots while a plan is written."""

    def __init__(
        self,
        writer: SlotWriter,
        objects: Mapping[str, Reservation],
        progress: Callable[[int], None],
    ) -> None:
        self.written = Written()
        self._writer = writer
        self._objects = dict(objects)
        """By name, those that the plan opens by their key."""
        self._progress = progress
        self._done = 0

    async def join(self, actions: Sequence[Open | Join]) -> None:
        """Open slots and let VMs join, one write a slot."""
        opened = {action.slot_key: action for action in actions if isinstance(action, Open)}
        more: dict[str, dict[str, str]] = {}
        for action in actions:
            more.setdefault(action.slot_key if isinstance(action, Open) else action.slot, {})[action.vm] = (
                action.vm_host
            )

        async def write(name: str) -> None:
            if name in opened:
                await self._open(opened[name], more[name])
            else:
                await self._set(name, {**self._members(name), **more[name]})
                self.written.joined += 1

        await self._all(list(more), write)

    async def leave(self, actions: Sequence[Leave]) -> None:
        """Take VMs out of slots, one write a slot; slots without members go."""
        gone: dict[str, set[str]] = {}
        for action in actions:
            gone.setdefault(action.slot, set()).add(action.vm)

        async def write(name: str) -> None:
            left = {vm: host for vm, host in self._members(name).items() if vm not in gone[name]}
            if left:
                await self._set(name, left)
            else:
                await self._writer.delete(self._objects.pop(name))
            self.written.left += 1

        await self._all(list(gone), write)

    def _members(self, name: str) -> Mapping[str, str]:
        failover = self._objects[name].status.failover_reservation
        return failover.allocations if failover is not None else {}

    async def _set(self, name: str, members: Mapping[str, str]) -> None:
        self._objects[name] = await self._writer.set_members(self._objects[name], members)

    async def _open(self, action: Open, members: Mapping[str, str]) -> None:
        new = NewSlot(
            vm=action.vm,
            vm_host=action.vm_host,
            host=action.host,
            zone=action.zone,
            group=action.group,
            cpu_milli=action.cpu_milli,
            memory_bytes=action.memory_bytes,
            others={vm: host for vm, host in members.items() if vm != action.vm},
        )
        self._objects[action.slot_key] = (await self._writer.open(new)).slot
        self.written.opened += 1

    async def _all(self, names: Sequence[str], write: Callable[[str], Awaitable[None]]) -> None:
        """Write these slots, several at a time."""
        work, failures = iter(names), list[OutliveError]()

        async def worker() -> None:
            for name in work:
                if failures:
                    return
                try:
                    await write(name)
                except (Conflict, NotFound) as error:
                    _log.warning("slot.changed_meanwhile", slot=name, error=str(error))
                    self.written.changed_meanwhile += 1
                except OutliveError as error:
                    failures.append(error)
                self._done += 1
                self._progress(self._done)

        async with OrderedTaskGroup() as group:
            for number in range(WRITES_AT_ONCE):
                group.create_task(worker(), name=f"plan {number}")
        if failures:
            raise failures[0]

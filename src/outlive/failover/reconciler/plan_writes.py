"""Carries out a plan of a whole fleet: each slot is written once in a stage, with all its members.

A slot's memberships were decided together with all others, and every part of them obeys the rules (taking memberships
away never breaks one), so the writes are safe to stop after any of them. Slots that exist are replaced exactly as they
were seen; one that changed meanwhile is left to the cycle, unless somebody is to leave a slot for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from outlive.base.errors import Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Join, Leave, Open
from outlive.failover.planner.repack import Move
from outlive.failover.reconciler.writes import SlotWriter
from outlive.resources import Reservation
from outlive.runtime.tasks import OrderedTaskGroup

WRITES_AT_ONCE = 16
"""Slots that are written at the same time."""

_log = get_logger("failover.plan")


async def write_plan(
    writer: SlotWriter,
    actions: Iterable[Action],
    objects: Mapping[str, Reservation],
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write every slot that the plan changes. The first error of the store ends it.

    The actions are carried out in stages, each of which opens slots and lets VMs join before VMs leave. ``Conflict``
    where somebody changed a slot of a stage in which VMs are to leave: they are left where they are.
    """
    work = _Writing(writer, objects, progress)
    try:
        for stage in stages(actions):
            await work.join([action for action in stage if isinstance(action, Open | Join)])
            leaves = [action for action in stage if isinstance(action, Leave)]
            if leaves and work.changed_meanwhile:
                raise Conflict("a slot was changed meanwhile", remedy="repeat: a new plan goes on from there")
            await work.leave(leaves)
    except OutliveError as error:
        message = f"{error.message}; {work.opened} slots were opened, {work.joined} joined and {work.left} left"
        raise type(error)(message, place=error.place, remedy="repeat: a new plan goes on from there") from error


def stages(actions: Iterable[Action]) -> Iterator[Sequence[Action]]:
    """Joins and openings with the departures that follow them."""
    stage: list[Action] = []
    for action in actions:
        if stage and isinstance(stage[-1], Leave) and not isinstance(action, Leave):
            yield stage
            stage = []
        stage.append(action)
    if stage:
        yield stage


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


class _Writing:
    """The slots while a plan is written."""

    def __init__(self, writer: SlotWriter, objects: Mapping[str, Reservation], progress: Callable[[int], None]) -> None:
        self.opened = self.joined = self.left = 0
        self.changed_meanwhile = False
        """Whether some slot was left alone because somebody else had changed it."""
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
            name = action.slot_key if isinstance(action, Open) else action.slot
            more.setdefault(name, {})[action.vm] = action.vm_host

        async def write(name: str) -> None:
            if name in opened:
                self._objects[name] = await self._writer.open(opened[name], more[name])
                self.opened += 1
            else:
                await self._set(name, {**self._objects[name].members, **more[name]})
                self.joined += 1

        await self._all(list(more), write)

    async def leave(self, actions: Sequence[Leave]) -> None:
        """Take VMs out of slots, one write a slot; slots without members go."""
        gone: dict[str, set[str]] = {}
        for action in actions:
            gone.setdefault(action.slot, set()).add(action.vm)

        async def write(name: str) -> None:
            left = {vm: host for vm, host in self._objects[name].members.items() if vm not in gone[name]}
            if left:
                await self._set(name, left)
            else:
                await self._writer.delete(self._objects.pop(name))
            self.left += 1

        await self._all(list(gone), write)

    async def _set(self, name: str, members: Mapping[str, str]) -> None:
        self._objects[name] = await self._writer.set_members(self._objects[name], members)

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
                    self.changed_meanwhile = True
                except OutliveError as error:
                    failures.append(error)
                self._done += 1
                self._progress(self._done)

        async with OrderedTaskGroup() as group:
            for number in range(WRITES_AT_ONCE):
                group.create_task(worker(), name=f"plan {number}")
        if failures:
            raise failures[0]

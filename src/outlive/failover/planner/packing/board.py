"""The board that packing searches on: who is in which slot, and what every single change would cost.

A *point* is a unit of failure. A slot touches the point of its own host and those of its members. All five rules hold
if no slot touches a point twice and any two slots of a VM have no point in common but the VM's own
(docs/reference/failover-planning.md#packing). The first is always kept here, and so are sizes, offers and room; how
many points too many the second finds is the number of *clashes*, which a search brings down to none.

What every change of one membership would do to that number is the sum of two tables: ``meet`` (points in common of two
slots) and ``near`` (slots that share a VM with this one and touch that point). Both follow each change, so that all
changes of all VMs at one point are judged in a few array operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlive.failover.planner.packing.problem import Problem

BLOCKED = 2_000
"""Added in a table where a change is forbidden; far above what any change can cost."""
COST_LIMIT = 1_000
"""A change that costs so much is forbidden."""

Ints = NDArray[np.int64]
Table = NDArray[Any]
"""Whole numbers, as small as they may be."""


class Saved(NamedTuple):
    """A state to come back to."""

    slots_of: Ints
    slot_host: Ints
    slot_size: Ints
    free: Ints
    closed: NDArray[np.bool_]
    clashes: int
    tables: tuple[Table, ...]


class Board:
    """Memberships by number, and the tables."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.slots_of = problem.slots_of.copy()
        self.slot_host = problem.slot_host.copy()
        self.slot_size = problem.slot_size.copy()
        self.free = problem.free.copy()
        self.closed = np.zeros(problem.slots, dtype=bool)
        self._build()
        self.clashes = self.count_clashes()

    def _build(self) -> None:
        given = self.problem
        slots, width = given.slots, given.width
        largest = width * (BLOCKED + given.points) + 3 * BLOCKED + slots
        kind = np.int16 if largest < np.iinfo(np.int16).max else np.int32
        self._others = np.repeat((given.held - 1)[:, None], width, axis=1).astype(kind)
        self._counting = np.arange(given.slots_of.size)
        touches = np.zeros((given.points, slots + 1), dtype=kind)
        for place in range(width):
            touches[given.vm_point, self.slots_of[:, place]] += 1
        touches[given.host_point[self.slot_host], np.arange(slots)] += 1
        touches[:, slots] = 0
        linked = np.zeros((slots + 1, slots + 1), dtype=kind)
        for one in range(width):
            for other in range(width):
                if one != other:
                    linked[self.slots_of[:, one], self.slots_of[:, other]] = 1
        linked[slots, :] = linked[:, slots] = 0
        plain = touches.astype(np.float32)
        self.touches = np.asfortranarray(touches)  # columns are added to each other, slot by slot
        self.linked = linked
        self.meet = (plain.T @ plain).astype(kind) + BLOCKED * linked
        self.near = np.asfortranarray((plain @ linked.astype(np.float32)).astype(kind) + BLOCKED * touches)
        self.meet[slots, :] = self.meet[:, slots] = 0
        if given.keeps_apart:
            near = given.too_near(self.slot_host[:, None], self.slot_host[None, :])
            self.meet[:slots, :slots] += BLOCKED * near.astype(kind)
        self.meet[np.arange(slots), np.arange(slots)] = BLOCKED
        self.barred = np.zeros((len(given.kind_size), slots + 1), dtype=kind)
        self.barred[:, slots] = BLOCKED
        for slot in range(slots):
            self._bar(slot)

    def _bar(self, slot: int) -> None:
        """Which kinds of VM may not join the slot: it is too small, elsewhere, or closed."""
        given = self.problem
        if self.closed[slot] or not given.joinable[slot]:
            self.barred[:, slot] = BLOCKED
            return
        allowed = (given.kind_size <= self.slot_size[slot]).all(axis=1) & given.kind_reuse[:, self.slot_host[slot]]
        self.barred[:, slot] = np.where(allowed, 0, BLOCKED)

    def count_clashes(self) -> int:
        """Counted from the tables; 0 means that the rules hold."""
        return sum(int(excess.sum()) for _, _, excess in self._pairs())

    def clashing(self) -> list[tuple[int, int, int]]:
        """VMs with two of their slots that have more in common than the VM."""
        found: list[tuple[int, int, int]] = []
        for one, other, excess in self._pairs():
            vms = np.nonzero(excess > 0)[0]
            pairs = self.slots_of[vms][:, (one, other)].tolist()
            found += [(vm, a, b) for vm, (a, b) in zip(vms.tolist(), pairs, strict=True)]
        return found

    def _pairs(self) -> Iterator[tuple[int, int, Table]]:
        """For each two places of a VM's slots: the points too many that they have in common, VM by VM."""
        slots = self.problem.slots
        for one in range(self.problem.width):
            for other in range(one):
                a, b = self.slots_of[:, one], self.slots_of[:, other]
                yield one, other, np.where((a < slots) & (b < slots), self.meet[a, b] - BLOCKED - 1, 0)

    def common(self, one: int, other: int) -> Ints:
        """The points that two slots have in common."""
        return np.nonzero(self.touches[:, one] & self.touches[:, other])[0]

    @property
    def _tables(self) -> tuple[Table, ...]:
        return self.touches, self.linked, self.meet, self.near, self.barred

    def save(self) -> Saved:
        """The state as it is."""
        return Saved(
            self.slots_of.copy(),
            self.slot_host.copy(),
            self.slot_size.copy(),
            self.free.copy(),
            self.closed.copy(),
            self.clashes,
            tuple(table.copy(order="K") for table in self._tables),
        )

    def restore(self, saved: Saved) -> None:
        """Back to that state."""
        self.slots_of[:] = saved.slots_of
        self.slot_host[:] = saved.slot_host
        self.slot_size[:] = saved.slot_size
        self.free[:] = saved.free
        self.closed[:] = saved.closed
        self.clashes = saved.clashes
        for table, was in zip(self._tables, saved.tables, strict=True):
            table[:] = was

    # What changes would cost.

    def judge_moves(self, point: int, vms: Ints) -> Table:
        """(memberships, slots): clashes more or fewer if a membership of these VMs, all at one point, went there.

        Memberships are told VM after VM, ``width`` each.
        """
        given, width = self.problem, self.problem.width
        mine = self.slots_of[vms]
        places = mine.reshape(-1)
        if width == 2:
            partners = self.meet[mine[:, ::-1].reshape(-1)]
        else:
            met = self.meet[mine]
            partners = (met.sum(axis=1, keepdims=True, dtype=met.dtype) - met).reshape(len(places), -1)
        others = self._others[vms].reshape(-1)
        here = partners[self._counting[: len(places)], places]
        near = self.near[point]
        costs: Table = partners - self.linked[places]
        costs -= (near[places] - BLOCKED + here - others * (BLOCKED + 2))[:, None]
        costs += near + np.repeat(self.barred[given.vm_kind[vms]], width, axis=0)
        costs[~given.movable[vms].reshape(-1)] = BLOCKED
        return costs

    def judge_hosts(self, slot: int) -> Table:
        """Clashes more or fewer if the slot were on each host; forbidden where it cannot be."""
        given = self.problem
        at = given.host_point
        here = int(self.slot_host[slot])
        near = self.near[:, slot]
        costs: Table = near[at] - (near[at[here]] - BLOCKED)
        costs[np.any(self.free < self.slot_size[slot], axis=1)] = BLOCKED
        kinds = np.unique(given.vm_kind[self.members(slot)[0]])
        costs[~(given.kind_reuse[kinds].all(axis=0) & given.kind_new[kinds].any(axis=0))] = BLOCKED
        if given.keeps_apart:
            partners = np.nonzero(self.linked[slot, : given.slots])[0]
            hosts = np.arange(len(at))
            costs[given.too_near(hosts[:, None], self.slot_host[partners][None, :]).any(axis=1)] = BLOCKED
        return costs

    def members(self, slot: int) -> tuple[Ints, Ints]:
        """The VMs of this plan that are in the slot, and which of their places that is."""
        found = np.nonzero(self.slots_of == slot)
        return found[0], found[1]

    # Changes.

    def move(self, vm: int, place: int, slot: int, cost: int) -> None:
        """Put a membership into another slot."""
        point = int(self.problem.vm_point[vm])
        old = int(self.slots_of[vm, place])
        partners = self._partners(vm, place)
        for other in partners:
            self._unlink(old, other)
        self._leave(point, old)
        self._touch(point, slot)
        for other in partners:
            self._link(slot, other)
        self.slots_of[vm, place] = slot
        self.clashes += cost

    def put(self, slot: int, host: int, cost: int) -> None:
        """Put a slot on another host."""
        given = self.problem
        old = int(self.slot_host[slot])
        self._leave(int(given.host_point[old]), slot)
        self._touch(int(given.host_point[host]), slot)
        if given.keeps_apart:
            now = given.too_near(host, self.slot_host).astype(self.meet.dtype)
            change = BLOCKED * (now - given.too_near(old, self.slot_host))
            self.meet[slot, : given.slots] += change
            self.meet[: given.slots, slot] += change
            self.meet[slot, slot] = BLOCKED
        self.slot_host[slot] = host
        self.free[old] += self.slot_size[slot]
        self.free[host] -= self.slot_size[slot]
        self._bar(slot)
        self.clashes += cost

    def close(self, slot: int) -> None:
        """Take away a slot without members."""
        self._leave(int(self.problem.host_point[self.slot_host[slot]]), slot)
        self.free[self.slot_host[slot]] += self.slot_size[slot]
        self.slot_size[slot] = 0
        self.closed[slot] = True
        self._bar(slot)

    def bar(self, slot: int) -> None:
        """Nobody may join the slot from now on."""
        self.barred[:, slot] = BLOCKED

    def _partners(self, vm: int, place: int) -> list[int]:
        none = self.problem.slots
        return [slot for at, slot in enumerate(self.slots_of[vm].tolist()) if at != place and slot != none]

    def _link(self, one: int, other: int) -> None:
        for a, b in ((one, other), (other, one)):
            self.linked[a, b] = 1
            self.meet[a, b] += BLOCKED
            self.near[:, a] += self.touches[:, b]

    def _unlink(self, one: int, other: int) -> None:
        for a, b in ((one, other), (other, one)):
            self.linked[a, b] = 0
            self.meet[a, b] -= BLOCKED
            self.near[:, a] -= self.touches[:, b]

    def _leave(self, point: int, slot: int) -> None:
        self.touches[point, slot] = 0
        touching = self.touches[point]
        self.meet[slot] -= touching
        self.meet[:, slot] -= touching
        self.meet[slot, slot] = BLOCKED
        self.near[point] -= self.linked[slot]
        self.near[point, slot] -= BLOCKED

    def _touch(self, point: int, slot: int) -> None:
        touching = self.touches[point]
        self.meet[slot] += touching
        self.meet[:, slot] += touching
        self.meet[slot, slot] = BLOCKED
        self.near[point] += self.linked[slot]
        self.near[point, slot] += BLOCKED
        self.touches[point, slot] = 1

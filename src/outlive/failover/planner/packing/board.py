"""The board that packing searches on: who is in which slot, and what every single change would cost.

Only what the plan itself adds may move: memberships that it gives, and slots that it opens. Memberships and slots that
were there before count for the rules and stay. So do those of server groups, whose policies tie several VMs together.

A *point* is a unit of failure. A slot touches the point of its own host and those of its members. All five rules hold
if no slot touches a point twice and any two slots of a VM have no point in common but the VM's own
(docs/design/failover.md#packing). The first is always kept here, and so are sizes, offers and room; how
many points too many the second finds is the number of *clashes*, which a search brings down to none.

What every change of one membership would do to that number is the sum of two tables: ``meet`` (points in common of two
slots) and ``near`` (slots that share a VM with this one and touch that point). Both follow each change, so that all
changes of all VMs at one point are judged in a few array operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlive.failover.fleet import Bools, FleetIndex, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import PlanInput, offered_hosts
from outlive.resources import CPU, MEMORY

BLOCKED = 2_000
"""Added in a table where a change is forbidden; far above what any change can cost."""
COST_LIMIT = 1_000
"""A change that costs so much is forbidden."""

Ints = NDArray[np.int64]
Table = NDArray[Any]
"""Whole numbers, as small as they may be."""
Saved = tuple[list[Table], int]
"""A state to come back to."""


class Board:
    """A plan by numbers, and the tables. The number after the last slot stands for "none"."""

    def __init__(
        self, given: PlanInput, before: Iterable[SlotView], found: Sequence[SlotView], still: Collection[str] = ()
    ) -> None:
        """The plan that begins with ``before`` and ends with ``found``. Members that are ``still`` stay in their slots,
        and these on their hosts."""
        views, reuse = {vm.id: vm for vm in given.vms}, offered_hosts(given.reuse)
        were = {slot.name: slot.members for slot in before}
        places: dict[str, list[tuple[int, bool]]] = {}
        where: dict[str, str] = {}
        self.slots = len(found)
        opened = np.array([slot.name not in were for slot in found], dtype=bool)
        self.own = opened.copy()
        """Slots that the plan opens and that nothing holds in place."""
        for number, slot in enumerate(found):
            for vm, recorded in slot.members.items():
                known, held = vm in views, vm in were.get(slot.name, ()) or vm in still
                moves = known and not held and bool(reuse.get(given.classes.get(vm, "")))
                places.setdefault(vm, []).append((number, moves))
                where[vm] = views[vm].host if known else recorded
                if vm in still or not known:
                    self.own[number] = False
        self.vms = tuple(places)
        self.width = max(2, max((len(slots) for slots in places.values()), default=0))
        """The most slots of any VM, two at least."""
        self.slots_of = np.full((len(places), self.width), self.slots, dtype=np.int64)
        self.movable = np.zeros((len(places), self.width), dtype=bool)
        for row, slots in enumerate(places.values()):
            for place, (number, moves) in enumerate(slots):
                self.slots_of[row, place], self.movable[row, place] = number, moves
        fleet = FleetIndex(given.topology)
        fleet.host_numbers(given.offered_hosts)
        self.slot_host = np.array(fleet.host_numbers([slot.host for slot in found]), dtype=np.int64)
        vm_host = np.array(fleet.host_numbers(list(where.values())), dtype=np.int64)
        self.hosts, self.points = tuple(fleet.host_names), len(fleet.unit_names)
        self._host_point = fleet.units_at(np.arange(len(self.hosts)))
        self.vm_point = self._host_point[vm_host]
        codes = [fleet.separation.codes_of(domain) for domain in given.topology.apart]
        self._domains = np.array(codes, dtype=np.int64).reshape(-1, len(self.hosts))
        """(domains that are kept apart, hosts): number of the value, or -1."""
        self.slot_size = np.array([(slot.cpu_milli, slot.memory_bytes) for slot in found], dtype=np.int64).reshape(
            -1, 2
        )
        fleet.set_free(FreeAmounts.from_table(given.free))
        self._free = np.array([fleet.free_of(self.hosts, name) for name in (CPU, MEMORY)], dtype=np.int64).T.copy()
        """(hosts, 2), less the plan's slots."""
        np.subtract.at(self._free, self.slot_host[opened], self.slot_size[opened])
        self.closed = np.zeros(self.slots, dtype=bool)
        self._joinable = np.array([slot.ready is not False for slot in found], dtype=bool)
        self._number_kinds(given, vm_host)
        self._build()
        self.clashes = self.count_clashes()

    def _number_kinds(self, given: PlanInput, vm_host: Ints) -> None:
        """VMs of one kind may join the same slots."""
        views, numbers = {vm.id: vm for vm in given.vms}, dict[object, int]()
        reuse, new = offered_hosts(given.reuse), offered_hosts(given.new)
        kinds, sizes, reuses, opens = list[int](), list[tuple[int, int]](), list[Bools](), list[Bools]()
        for vm, host in zip(self.vms, vm_host.tolist(), strict=True):
            view, key = views.get(vm), given.classes.get(vm, "")
            size, limit = ((view.cpu_milli, view.memory_bytes), view.host_limit) if view else ((0, 0), ())
            own = self._domains[:, host, None]
            kind = (size, key, limit, own.tobytes())
            if kind not in numbers:
                numbers[kind] = len(numbers)
                apart = ~((self._domains == own) & (own >= 0)).any(axis=0)
                allowed = self._mask_hosts(limit or self.hosts) & apart
                sizes.append(size)
                reuses.append(allowed & self._mask_hosts(reuse.get(key, ())))
                opens.append(allowed & self._mask_hosts(new.get(key, ())))
            kinds.append(numbers[kind])
        shape = (len(numbers), len(self.hosts))
        self.vm_kind = np.array(kinds, dtype=np.int64)
        self._kind_size = np.array(sizes, dtype=np.int64).reshape(-1, 2)
        self._kind_reuse = np.array(reuses, dtype=bool).reshape(shape)
        """(kinds, hosts): where they may join a slot."""
        self.kind_new = np.array(opens, dtype=bool).reshape(shape)
        """(kinds, hosts): where they may open one."""

    def _mask_hosts(self, some: Collection[str]) -> Bools:
        return np.array([host in some for host in self.hosts], dtype=bool)

    def _find_crowded_slots(self, some: Any, others: Any) -> Any:
        """Whether hosts are in one domain; host numbers or arrays of them, that fit each other."""
        near = np.zeros(np.broadcast(some, others).shape, dtype=bool)
        for values in self._domains:
            near |= (values[some] == values[others]) & (values[some] >= 0)
        return near

    def _build(self) -> None:
        slots, width = self.slots, self.width
        largest = width * (BLOCKED + self.points) + 3 * BLOCKED + slots
        kind = np.int16 if largest < np.iinfo(np.int16).max else np.int32
        others = (self.slots_of < slots).sum(axis=1) - 1
        self._others = np.repeat(others[:, None], width, axis=1).astype(kind)
        self._counting = np.arange(self.slots_of.size)
        touches = np.zeros((self.points, slots + 1), dtype=kind)
        for place in range(width):
            touches[self.vm_point, self.slots_of[:, place]] += 1
        touches[self._host_point[self.slot_host], np.arange(slots)] += 1
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
        if len(self._domains):
            near = self._find_crowded_slots(self.slot_host[:, None], self.slot_host[None, :])
            self.meet[:slots, :slots] += BLOCKED * near.astype(kind)
        self.meet[np.arange(slots), np.arange(slots)] = BLOCKED
        self.barred = np.zeros((len(self._kind_size), slots + 1), dtype=kind)
        self.barred[:, slots] = BLOCKED
        for slot in range(slots):
            self._bar(slot)

    def _bar(self, slot: int) -> None:
        """Which kinds of VM may not join the slot: it is too small, elsewhere, or closed."""
        if self.closed[slot] or not self._joinable[slot]:
            self.barred[:, slot] = BLOCKED
            return
        allowed = (self._kind_size <= self.slot_size[slot]).all(axis=1) & self._kind_reuse[:, self.slot_host[slot]]
        self.barred[:, slot] = np.where(allowed, 0, BLOCKED)

    def count_clashes(self) -> int:
        """Counted from the tables; 0 means that the rules hold."""
        return sum(int(excess.sum()) for _, _, excess in self._iter_pairs())

    def find_clashing(self) -> list[tuple[int, int, int]]:
        """VMs with two of their slots that have more in common than the VM."""
        found: list[tuple[int, int, int]] = []
        for one, other, excess in self._iter_pairs():
            vms = np.nonzero(excess > 0)[0]
            pairs = self.slots_of[vms][:, (one, other)].tolist()
            found += [(vm, a, b) for vm, (a, b) in zip(vms.tolist(), pairs, strict=True)]
        return found

    def _iter_pairs(self) -> Iterator[tuple[int, int, Table]]:
        """For each two places of a VM's slots: the points too many that they have in common, VM by VM."""
        slots = self.slots
        for one in range(self.width):
            for other in range(one):
                a, b = self.slots_of[:, one], self.slots_of[:, other]
                yield one, other, np.where((a < slots) & (b < slots), self.meet[a, b] - BLOCKED - 1, 0)

    def common_points(self, one: int, other: int) -> Ints:
        """The points that two slots have in common."""
        return np.nonzero(self.touches[:, one] & self.touches[:, other])[0]

    @property
    def _arrays(self) -> tuple[Table, ...]:
        plan = (self.slots_of, self.slot_host, self.slot_size, self._free, self.closed)
        return (*plan, self.touches, self.linked, self.meet, self.near, self.barred)

    def save(self) -> Saved:
        """The state as it is."""
        return [array.copy(order="K") for array in self._arrays], self.clashes

    def restore(self, saved: Saved) -> None:
        """Back to that state."""
        arrays, self.clashes = saved
        for array, was in zip(self._arrays, arrays, strict=True):
            array[:] = was

    # What changes would cost.

    def judge_moves(self, point: int, vms: Ints) -> Table:
        """(memberships, slots): clashes more or fewer if a membership of these VMs, all at one point, went there.

        Memberships are listed VM after VM, ``width`` each.
        """
        width = self.width
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
        costs += near + np.repeat(self.barred[self.vm_kind[vms]], width, axis=0)
        costs[~self.movable[vms].reshape(-1)] = BLOCKED
        return costs

    def judge_hosts(self, slot: int) -> Table:
        """Clashes more or fewer if the slot were on each host; forbidden where it cannot be."""
        at = self._host_point
        here = int(self.slot_host[slot])
        near = self.near[:, slot]
        costs: Table = near[at] - (near[at[here]] - BLOCKED)
        costs[np.any(self._free < self.slot_size[slot], axis=1)] = BLOCKED
        kinds = np.unique(self.vm_kind[self.members_of(slot)[0]])
        costs[~(self._kind_reuse[kinds].all(axis=0) & self.kind_new[kinds].any(axis=0))] = BLOCKED
        if len(self._domains):
            partners = np.nonzero(self.linked[slot, : self.slots])[0]
            hosts = np.arange(len(at))
            costs[self._find_crowded_slots(hosts[:, None], self.slot_host[partners][None, :]).any(axis=1)] = BLOCKED
        return costs

    def members_of(self, slot: int) -> tuple[Ints, Ints]:
        """The VMs of this plan that are in the slot, and which of their places that is."""
        found = np.nonzero(self.slots_of == slot)
        return found[0], found[1]

    # Changes.

    def move(self, vm: int, place: int, slot: int, cost: int) -> None:
        """Put a membership into another slot."""
        point = int(self.vm_point[vm])
        old = int(self.slots_of[vm, place])
        partners = [one for at, one in enumerate(self.slots_of[vm].tolist()) if at != place and one != self.slots]
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
        old = int(self.slot_host[slot])
        self._leave(int(self._host_point[old]), slot)
        self._touch(int(self._host_point[host]), slot)
        if len(self._domains):
            now = self._find_crowded_slots(host, self.slot_host).astype(self.meet.dtype)
            change = BLOCKED * (now - self._find_crowded_slots(old, self.slot_host))
            self.meet[slot, : self.slots] += change
            self.meet[: self.slots, slot] += change
            self.meet[slot, slot] = BLOCKED
        self.slot_host[slot] = host
        self._free[old] += self.slot_size[slot]
        self._free[host] -= self.slot_size[slot]
        self._bar(slot)
        self.clashes += cost

    def close(self, slot: int) -> None:
        """Take away a slot without members."""
        self._leave(int(self._host_point[self.slot_host[slot]]), slot)
        self._free[self.slot_host[slot]] += self.slot_size[slot]
        self.slot_size[slot] = 0
        self.closed[slot] = True
        self._bar(slot)

    def bar(self, slot: int) -> None:
        """Nobody may join the slot from now on."""
        self.barred[:, slot] = BLOCKED

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

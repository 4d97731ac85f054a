"""Looks through all orders of emptying hosts, where the fleet is small enough for that.

Only arrangements are looked at in which memberships are exchanged one at a time: whoever has what it needs joins
another slot and leaves one. That misses nothing. Take any order of steps that holds, and of every VM's memberships
only as many as it needs, another one being picked when one of these is left: each state of that is part of a state
that held, so the rules hold in it and everything fits (docs/reference/failover.md#what-if). New slots may be as large
as any VM's, because in some order somebody larger may have opened them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from outlive.failover.analysis.drain.layout import Layout, holders, needs_of
from outlive.failover.analysis.drain.steps import DrainInput
from outlive.failover.rules import fits, may_run_on
from outlive.failover.sizing import ResolvedSize

SEARCHED_HOSTS = 8
"""The largest fleet that is searched, in hosts …"""
SEARCHED_VMS = 12
"""… and in VMs."""


class Block(NamedTuple):
    """A slot without a name."""

    host: str
    cpu_milli: int
    memory_bytes: int
    counts: bool
    members: tuple[str, ...]


class Arrangement(NamedTuple):
    """Where the VMs run that may move, and all slots."""

    places: tuple[str, ...]
    blocks: tuple[Block, ...]


class Looked(NamedTuple):
    """An arrangement with what follows from it."""

    state: Arrangement
    at: dict[str, str]
    units: dict[str, str]
    """VM → unit of the host that it runs on."""
    counts: dict[str, dict[str, int]]
    """VM → unit → how often it occurs for the VM (docs/reference/failover.md#counters)."""
    blocks: dict[str, list[Block]]
    """VM → its slots."""
    free: dict[str, dict[str, int]]


class Change(NamedTuple):
    """From one arrangement to the next: a VM moves, or leaves a slot, having taken another where it must."""

    vm: str
    host: str = ""
    joins: Block | None = None
    opens: Block | None = None
    leaves: Block | None = None


def searchable(layout: Layout, given: DrainInput) -> str:
    """The limit that forbids a search; empty where one can be made."""
    hosts = {*given.free, *given.drained, *(vm.host for vm in given.vms)}
    if len(hosts) > SEARCHED_HOSTS:
        return f"SEARCHED_HOSTS ({SEARCHED_HOSTS})"
    if len(given.vms) > SEARCHED_VMS:
        return f"SEARCHED_VMS ({SEARCHED_VMS})"
    if layout.counters.faulty() or any(len(holders(slot)) > 1 for slot in given.slots):
        return "rules that are broken already, or slots that are not where they are wanted"
    if layout.topology.apart or any(vm.server_group and vm.group_policy for vm in given.vms):
        return "domains or server groups that are kept apart"
    return ""


class Search:
    """All arrangements that can be reached, nearest to the goal first."""

    def __init__(self, layout: Layout, given: DrainInput, floors: Mapping[str, int]) -> None:
        """Leaves memberships that count for nobody out at once: the next clean-up would."""
        self.states = 0
        """Arrangements that a search has found, once it has looked through all of them."""
        self._layout = layout
        self._floors = floors
        self._limit = given.search_limit
        self._unit = layout.topology.unit
        self._drained = layout.drained
        for slot in layout.final_slots():
            for vm in slot.members:
                if layout.is_stale(vm, slot.name):
                    layout.leave(vm, slot.name)
            if not layout.counters.members(slot.name):
                layout.close(slot.name)
        self._vms = layout.vms
        self._movers = tuple(sorted(vm.id for vm in given.vms if vm.host in layout.drained))
        self._index = {vm: at for at, vm in enumerate(self._movers)}
        self._home = {vm.id: vm.host for vm in given.vms}
        self._needs = {vm.id: needs_of(vm) for vm in given.vms}
        self._targets = {
            vm: [h for h in given.destinations.get(vm, ()) if h not in layout.drained] for vm in self._movers
        }
        self._sizes = sorted({(size.cpu_milli, size.memory_bytes) for size in map(layout.size, self._home)})
        self._reuse = {vm: layout.hosts_of("reuse", vm) for vm in self._home}
        self._new = {vm: sorted(layout.hosts_of("new", vm)) for vm in self._home}
        self._limited = layout.room.limited
        self._base = self._without_slots(given)

    def _without_slots(self, given: DrainInput) -> dict[str, dict[str, int]]:
        """What hosts have free without slots and without VMs that moved there."""
        free = {host: dict(amounts) for host, amounts in given.free.items()}
        for slot in given.slots:
            if slot.host in free:
                for name, amount in (("cpu", slot.cpu_milli), ("memory", slot.memory_bytes)):
                    free[slot.host][name] = free[slot.host].get(name, 0) + amount
        return free

    def run(self) -> bool | None:
        """Whether the goal can be reached; ``None`` where the limit ended the search. If so, the steps are done."""
        blocks = self._start_blocks()
        start = Arrangement(tuple(self._home[vm] for vm in self._movers), tuple(sorted(blocks)))
        came: dict[Arrangement, tuple[Arrangement, Change] | None] = {start: None}
        queue = [(self._distance(start), 0, start)]
        pushed = looked = 0
        while queue:
            _, _, state = heapq.heappop(queue)
            if self._distance(state) == 0:
                self._carry_out(state, came)
                return True
            for change, following in self._changes(state):
                looked += 1
                if looked > self._limit:
                    return None
                if following not in came:
                    came[following] = (state, change)
                    pushed += 1
                    heapq.heappush(queue, (self._distance(following), pushed, following))
        self.states = len(came)
        return False

    def _start_blocks(self) -> list[Block]:
        return [
            Block(slot.host, slot.cpu_milli, slot.memory_bytes, slot.ready is not False, tuple(sorted(slot.members)))
            for slot in self._layout.final_slots()
        ]

    def _distance(self, state: Arrangement) -> int:
        waiting = sum(host in self._drained for host in state.places)
        held = sum(1 + len(block.members) for block in state.blocks if block.host in self._drained)
        return 4 * waiting + held

    # What may come next.

    def _changes(self, state: Arrangement) -> Iterator[tuple[Change, Arrangement]]:
        looked = self._look(state)
        for at, vm in enumerate(self._movers):
            for host in self._targets[vm]:
                if host != state.places[at] and self._may_move(looked, vm, host):
                    places = (*state.places[:at], host, *state.places[at + 1 :])
                    yield Change(vm, host=host), Arrangement(places, state.blocks)
        for vm in sorted(looked.blocks):
            yield from self._exchanges(looked, vm)

    def _exchanges(self, looked: Looked, vm: str) -> Iterator[tuple[Change, Arrangement]]:
        """The VM leaves one of its slots; before that it joins another where it would have too few."""
        state, mine = looked.state, looked.blocks[vm]
        counting = [block for block in mine if self._covers(vm, block)]
        spare = len(counting) > self._floors.get(vm, 0)
        remaining = {left: _with(state.blocks, left, _less(left, vm)) for left in mine}
        for left in mine:
            if spare or left not in counting:
                yield Change(vm, leaves=left), Arrangement(state.places, remaining[left])
        if spare:
            return
        others = [block for block in dict.fromkeys(state.blocks) if self._may_join(looked, vm, block)]
        opened = list(self._new_blocks(looked, vm))
        for left in counting:
            for block in others:
                joined = block._replace(members=tuple(sorted((*block.members, vm))))
                blocks = _with(remaining[left], block, joined)
                yield Change(vm, joins=block, leaves=left), Arrangement(state.places, blocks)
            for block in opened:
                blocks = tuple(sorted((*remaining[left], block)))
                yield Change(vm, opens=block, leaves=left), Arrangement(state.places, blocks)

    def _new_blocks(self, looked: Looked, vm: str) -> Iterator[Block]:
        for host in self._new[vm]:
            if self._unit(host) in looked.counts[vm]:
                continue
            for cpu, memory in self._sizes:
                block = Block(host, cpu, memory, True, (vm,))
                if self._covers(vm, block) and self._fits(looked, host, {"cpu": cpu, "memory": memory}):
                    yield block

    def _covers(self, vm: str, block: Block) -> bool:
        view = self._vms[vm]
        return block.counts and fits(view, block) and may_run_on(view, block.host)

    def _may_join(self, looked: Looked, vm: str, block: Block) -> bool:
        if vm in block.members or block.host in self._drained or block.host not in self._reuse[vm]:
            return False
        mine, here = looked.counts[vm], looked.units[vm]
        if not self._covers(vm, block) or self._unit(block.host) in mine:
            return False
        return all(looked.units[other] not in mine and here not in looked.counts[other] for other in block.members)

    def _may_move(self, looked: Looked, vm: str, host: str) -> bool:
        if not self._fits(looked, host, self._needs[vm]):
            return False
        unit = self._unit(host)
        if unit == looked.units[vm]:
            return True
        others = {other for block in looked.blocks.get(vm, ()) for other in block.members}
        return unit not in looked.counts[vm] and not any(unit in looked.counts[other] for other in others)

    def _look(self, state: Arrangement) -> Looked:
        """What questions about an arrangement need, worked out once."""
        at = dict(self._home)
        at.update(zip(self._movers, state.places, strict=True))
        units = {vm: self._unit(host) for vm, host in at.items()}
        counts = {vm: {unit: 1} for vm, unit in units.items()}
        blocks: dict[str, list[Block]] = {}
        free = {host: dict(amounts) for host, amounts in self._base.items()}
        for block in state.blocks:
            if block.host in free:
                _take(free[block.host], {"cpu": block.cpu_milli, "memory": block.memory_bytes})
            touched = [self._unit(block.host), *(units[member] for member in block.members)]
            for place, member in enumerate(block.members, start=1):
                blocks.setdefault(member, []).append(block)
                mine = counts[member]
                for other, unit in enumerate(touched):
                    if other != place:
                        mine[unit] = mine.get(unit, 0) + 1
        for vm in self._movers:
            if at[vm] in free and at[vm] not in self._drained:
                _take(free[at[vm]], self._needs[vm])
        return Looked(state, at, units, counts, blocks, free)

    def _fits(self, looked: Looked, host: str, needs: Mapping[str, int]) -> bool:
        if not self._limited:
            return True
        free = looked.free.get(host)
        return free is not None and all(free.get(name, 0) >= amount for name, amount in needs.items() if amount > 0)

    # The way there, as steps.

    def _carry_out(self, state: Arrangement, came: Mapping[Arrangement, tuple[Arrangement, Change] | None]) -> None:
        path: list[Change] = []
        before = came[state]
        while before is not None:
            path.append(before[1])
            before = came[before[0]]
        for change in reversed(path):
            self._do(change)

    def _do(self, change: Change) -> None:
        layout = self._layout
        if change.host:
            layout.move(change.vm, change.host)
        left = self._named(change.leaves) if change.leaves is not None else ""
        if change.joins is not None:
            layout.join(change.vm, self._named(change.joins))
        if change.opens is not None:
            size = ResolvedSize(cpu_milli=change.opens.cpu_milli, memory_bytes=change.opens.memory_bytes)
            layout.open(change.vm, change.opens.host, size)
        if left:
            layout.leave(change.vm, left)
            if not layout.counters.members(left):
                layout.close(left)

    def _named(self, block: Block) -> str:
        """The first slot, by name, that looks like this."""
        layout = self._layout
        for name in layout.slots_on([block.host]):
            slot = layout.slots[name]
            same = (slot.cpu_milli, slot.memory_bytes, slot.ready is not False)
            if same == block[1:4] and tuple(layout.counters.members(name)) == block.members:
                return name
        raise AssertionError(f"the search lost sight of {block}")


def _take(free: dict[str, int], needs: Mapping[str, int]) -> None:
    for name, amount in needs.items():
        free[name] = free.get(name, 0) - amount


def _less(block: Block, vm: str) -> Block | None:
    """The slot without the VM; ``None`` where nobody is left."""
    members = tuple(member for member in block.members if member != vm)
    return block._replace(members=members) if members else None


def _with(blocks: tuple[Block, ...], old: Block, new: Block | None) -> tuple[Block, ...]:
    """The slots with one of them replaced, or given up."""
    rest = list(blocks)
    rest.remove(old)
    return tuple(sorted((*rest, new) if new is not None else rest))

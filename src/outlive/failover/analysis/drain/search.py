"""Looks through all orders of emptying hosts, where the fleet is small enough for that.

Only arrangements are looked at in which memberships are exchanged one at a time: whoever has what it needs joins
another slot and leaves one. That misses nothing. Take any order of steps that holds, and of every VM's memberships
only as many as it needs, another one being picked when one of these is left: each state of that is part of a state
that held, so the rules hold in it and everything fits (docs/reference/failover-analysis.md#what-if). New slots may be
as large as any VM's, because in some order somebody larger may have opened them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from outlive.failover.analysis.drain.layout import Layout
from outlive.failover.analysis.drain.steps import DrainInput
from outlive.failover.fleet import Fleet, FreeAmounts, held_by, holders
from outlive.failover.model import SlotView, amounts_of
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
    if layout.fleet.faulty() or any(len(holders(slot)) > 1 for slot in given.slots):
        return "rules that are broken already, or slots that are not where they are wanted"
    if given.topology.apart or any(vm.server_group and vm.group_policy for vm in given.vms):
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
        self._topology = given.topology
        self._drained = layout.drained
        for slot in layout.final_slots():
            for vm in slot.members:
                if layout.is_stale(vm, slot.name):
                    layout.leave(vm, slot.name)
            if not slot.members:
                layout.close(slot.name)
        self._vms = layout.vms
        self._movers = tuple(sorted(vm.id for vm in given.vms if vm.host in layout.drained))
        self._home = {vm.id: vm.host for vm in given.vms}
        self._targets = {
            vm: [h for h in given.destinations.get(vm, ()) if h not in layout.drained] for vm in self._movers
        }
        self._sizes = sorted({(size.cpu_milli, size.memory_bytes) for size in map(layout.size, self._home)})
        self._reuse = {vm: layout.hosts_of("reuse", vm) for vm in self._home}
        self._new = {vm: sorted(layout.hosts_of("new", vm)) for vm in self._home}
        self._free = FreeAmounts.of_resources(given.free)
        self._held = given.slots

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
        fleet = self._fleet(state)
        for at, vm in enumerate(self._movers):
            for host in self._targets[vm]:
                if host != state.places[at] and self._may_move(fleet, vm, host):
                    places = (*state.places[:at], host, *state.places[at + 1 :])
                    yield Change(vm, host=host), Arrangement(places, state.blocks)
        for vm in sorted({member for block in state.blocks for member in block.members}):
            yield from self._exchanges(fleet, state, vm)

    def _exchanges(self, fleet: Fleet, state: Arrangement, vm: str) -> Iterator[tuple[Change, Arrangement]]:
        """The VM leaves one of its slots; before that it joins another where it would have too few."""
        mine = [block for block in state.blocks if vm in block.members]
        counting = [block for block in mine if self._covers(vm, block)]
        spare = len(counting) > self._floors.get(vm, 0)
        remaining = {left: _with(state.blocks, left, _less(left, vm)) for left in mine}
        for left in mine:
            if spare or left not in counting:
                yield Change(vm, leaves=left), Arrangement(state.places, remaining[left])
        if spare:
            return
        usable = set(fleet.eligible_slots(vm))
        others = [
            block
            for block in dict.fromkeys(state.blocks)
            if block.host in self._reuse[vm] and self._covers(vm, block) and str(state.blocks.index(block)) in usable
        ]
        opened = list(self._new_blocks(fleet, vm))
        for left in counting:
            for block in others:
                joined = block._replace(members=tuple(sorted((*block.members, vm))))
                blocks = _with(remaining[left], block, joined)
                yield Change(vm, joins=block, leaves=left), Arrangement(state.places, blocks)
            for block in opened:
                blocks = tuple(sorted((*remaining[left], block)))
                yield Change(vm, opens=block, leaves=left), Arrangement(state.places, blocks)

    def _new_blocks(self, fleet: Fleet, vm: str) -> Iterator[Block]:
        for host in self._new[vm]:
            for cpu, memory in self._sizes if fleet.may_open(vm, host) else ():
                block = Block(host, cpu, memory, True, (vm,))
                if self._covers(vm, block) and fleet.fits(host, {"cpu": cpu, "memory": memory}):
                    yield block

    def _covers(self, vm: str, block: Block) -> bool:
        view = self._vms[vm]
        return block.counts and fits(view, block) and may_run_on(view, block.host)

    def _may_move(self, fleet: Fleet, vm: str, host: str) -> bool:
        if not fleet.fits(host, amounts_of(self._vms[vm])):
            return False
        with fleet.trial():
            fleet.move_vm(vm, host)
            return not fleet.faulty()

    def _fleet(self, state: Arrangement) -> Fleet:
        """The fleet in this arrangement: slots are called by their place in it."""
        at = {**self._home, **dict(zip(self._movers, state.places, strict=True))}
        vms = [msgspec.structs.replace(vm, host=at[name]) for name, vm in self._vms.items()]
        slots = [
            SlotView(
                name=str(number),
                host=block.host,
                cpu_milli=block.cpu_milli,
                memory_bytes=block.memory_bytes,
                members={member: at[member] for member in block.members},
            )
            for number, block in enumerate(state.blocks)
        ]
        fleet = Fleet.build(slots, vms, topology=self._topology)
        fleet.set_free(self._free)
        for slot in self._held:
            fleet.take(slot.host, held_by(slot), -1)
        for slot in slots:
            fleet.take(slot.host, held_by(slot))
        for vm in self._movers:
            if at[vm] not in self._drained:
                fleet.take(at[vm], amounts_of(self._vms[vm]))
        return fleet

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

    def _named(self, block: Block) -> str:
        """The first slot, by name, that looks like this."""
        layout = self._layout
        for name in layout.slots_on([block.host]):
            slot = layout.slots[name]
            same = (slot.cpu_milli, slot.memory_bytes, slot.ready is not False)
            if same == block[1:4] and tuple(layout.fleet.members(name)) == block.members:
                return name
        raise AssertionError(f"the search lost sight of {block}")


def _less(block: Block, vm: str) -> Block | None:
    """The slot without the VM; ``None`` where nobody is left."""
    members = tuple(member for member in block.members if member != vm)
    return block._replace(members=members) if members else None


def _with(blocks: tuple[Block, ...], old: Block, new: Block | None) -> tuple[Block, ...]:
    """The slots with one of them replaced, or given up."""
    rest = list(blocks)
    rest.remove(old)
    return tuple(sorted((*rest, new) if new is not None else rest))

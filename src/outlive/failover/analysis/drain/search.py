"""Looks through all orders of emptying hosts, where the fleet is small enough for that.

It looks only at arrangements in which memberships are exchanged one at a time: a VM that has what it needs joins
another slot and leaves one. That misses nothing. Take any order of steps that holds, and of every VM's memberships
only as many as it needs, another one being picked when one of these is left: each state of that is part of a state
that held, so the rules hold in it and everything fits (docs/design/failover.md#what-if). New slots may be
as large as any VM's, because in some order somebody larger may have opened them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from outlive.failover.analysis.drain.inputs import DrainInput
from outlive.failover.analysis.drain.layout import Layout
from outlive.failover.fleet import holding_hosts
from outlive.failover.rules import is_large_enough
from outlive.failover.slots import ResolvedSize
from outlive.placement import amounts_of

SEARCHED_HOSTS = 8
"""The largest fleet that is searched, in hosts …"""
SEARCHED_VMS = 12
"""… and in VMs."""


Block = tuple[str, int, int, bool, tuple[str, ...]]
"""A slot without its name: host, milli-cores, bytes, whether it is ready, members."""
Arrangement = tuple[tuple[str, ...], tuple[Block, ...]]
"""Where the VMs run that may move, and all slots."""
Change = tuple[Callable[[], None], ...]
"""Steps from one arrangement to the next: a VM moves, or leaves a slot, having taken another where it must."""


def exceeded_limit(layout: Layout, given: DrainInput) -> str:
    """The limit that forbids a search; empty where one can be made."""
    hosts = {*given.free, *given.drained, *(vm.host for vm in given.vms)}
    if len(hosts) > SEARCHED_HOSTS:
        return f"SEARCHED_HOSTS ({SEARCHED_HOSTS})"
    if len(given.vms) > SEARCHED_VMS:
        return f"SEARCHED_VMS ({SEARCHED_VMS})"
    if layout.fleet.list_faulty() or any(len(holding_hosts(slot)) > 1 for slot in given.slots):
        return "rules that are broken already, or slots that are not where they are wanted"
    if given.topology.apart or any(vm.rules for vm in given.vms):
        return "domains or server groups that are kept apart"
    return ""


class DrainSearch:
    """All arrangements that can be reached, nearest to the goal first."""

    def __init__(self, layout: Layout, given: DrainInput, floors: Mapping[str, int]) -> None:
        """Leaves memberships that count for nobody out at once: the next clean-up would."""
        self.states = 0
        """Arrangements that a search has found, once it has looked through all of them."""
        self._layout = layout
        self._floors = floors
        self._limit = given.search_limit
        self._movers = [vm.id for vm in given.vms if vm.host in layout.drained]
        self._destinations = given.destinations
        self._sizes = sorted({(size.cpu_milli, size.memory_bytes) for size in map(layout.new_slot_size, layout.vms)})
        for slot in layout.final_slots():
            for vm in slot.members:
                if layout.is_stale(vm, slot.name):
                    layout.leave(vm, slot.name)
            if not slot.members:
                layout.close(slot.name)
        self._start = layout.mark

    def run(self) -> bool | None:
        """Whether the goal can be reached; ``None`` where the limit ended the search. If so, the steps are done."""
        layout, start, looked = self._layout, self._get_arrangement(), 0
        came: dict[Arrangement, tuple[Arrangement, Change] | None] = {start: None}
        queue = [(self._estimate_distance(start), 0, start)]
        while queue:
            distance, _, state = heapq.heappop(queue)
            # Do the steps that lead there, from the start.
            path: list[Change] = []
            before = came[state]
            while before is not None:
                path.append(before[1])
                before = came[before[0]]
            layout.undo(self._start)
            for change in reversed(path):
                for step in change:
                    step()
            if distance == 0:
                return True
            for change in list(self._possible_changes()):
                looked += 1
                if looked > self._limit:
                    return None
                mark = layout.mark
                for step in change:
                    step()
                following = self._get_arrangement()
                layout.undo(mark)
                if following not in came:
                    heapq.heappush(queue, (self._estimate_distance(following), len(came), following))
                    came[following] = (state, change)
        self.states = len(came)
        return False

    def _get_arrangement(self) -> Arrangement:
        layout = self._layout
        blocks = [
            (
                slot.host,
                slot.cpu_milli,
                slot.memory_bytes,
                slot.ready is not False,
                tuple(layout.fleet.members_of(name)),
            )
            for name, slot in layout.slots.items()
            if layout.fleet.has_slot(name)
        ]
        return tuple(map(layout.host_of, self._movers)), tuple(sorted(blocks))

    def _estimate_distance(self, state: Arrangement) -> int:
        places, blocks = state
        drained = self._layout.drained
        waiting = sum(host in drained for host in places)
        held = sum(1 + len(members) for host, *_, members in blocks if host in drained)
        return 4 * waiting + held

    # What may come next.

    def _possible_changes(self) -> Iterator[Change]:
        layout = self._layout
        for vm in self._movers:
            for host in self._destinations.get(vm, ()):
                if host not in layout.drained and host != layout.host_of(vm) and self._may_move(vm, host):
                    yield (partial(layout.move, vm, host),)
        for vm in sorted(layout.vms):
            yield from self._iter_exchanges(vm)

    def _may_move(self, vm: str, host: str) -> bool:
        layout = self._layout
        if not layout.fleet.has_room(host, amounts_of(layout.vms[vm])):
            return False
        mark = layout.mark
        layout.move(vm, host)
        lawful = not layout.fleet.list_faulty()
        layout.undo(mark)
        return lawful

    def _iter_exchanges(self, vm: str) -> Iterator[Change]:
        """The VM leaves one of its slots; before that it joins another where it would have too few."""
        layout, fleet = self._layout, self._layout.fleet
        mine = fleet.slots_of(vm)
        counting = [slot for slot in mine if layout.slot_counts(vm, slot)]
        spare = len(counting) > self._floors.get(vm, 0)
        takes: list[Callable[[], None]] = []
        if not spare:
            takes += [partial(layout.join, vm, slot) for slot in layout.joinable_slots(vm)]
            for host in sorted(layout.hosts_of("new", vm)):
                for cpu, memory in self._sizes if fleet.may_open(vm, host) else ():
                    size = ResolvedSize(cpu_milli=cpu, memory_bytes=memory)
                    if is_large_enough(layout.vms[vm], size) and fleet.has_room(host, {"cpu": cpu, "memory": memory}):
                        takes.append(partial(layout.open, vm, host, size))
        for slot in mine:
            leave = partial(layout.leave, vm, slot)
            if spare or slot not in counting:
                yield (leave,)
            else:
                yield from ((take, leave) for take in takes)

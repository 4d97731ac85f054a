"""The fair split: free hosts that several flavor groups may use are dealt out, so that nothing is promised twice.

The rule is a game of rounds (docs/design/commitment-rules.md#capacity-split): in each round every group takes one VM of
its smallest flavor from the host that suits it best. ``split`` plays the same rounds and stops playing where the rest
is plain: groups that share no host with another one, and the last group that has any host left, take all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec


class SplitGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A flavor group that takes part: its smallest flavor, and the hosts that placement would give it."""

    name: str
    memory_bytes: int
    cpu_milli: int = 0
    """0: memory alone counts."""
    candidates: tuple[str, ...] = ()


class SplitHost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is left on a host; less than nothing counts as nothing."""

    name: str
    memory_bytes: int
    cpu_milli: int


class SplitInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The groups of one zone and its hosts. Group names and host names are unique."""

    groups: tuple[SplitGroup, ...]
    hosts: tuple[SplitHost, ...]


class SplitShare(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one group has: ``slots`` VMs of its smallest flavor for itself, ``free_slots`` if nobody competed."""

    name: str
    slots: int
    free_slots: int


class SplitResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The shares by group name, and what is left over on hosts that are a candidate of any group."""

    shares: tuple[SplitShare, ...]
    unassigned_memory_bytes: int
    unassigned_cpu_milli: int


def slots_on(memory_bytes: int, cpu_milli: int, flavor_memory: int, flavor_cpu: int) -> int:
    """How many VMs of a flavor fit into so much; memory alone counts where the flavor has no cores."""
    if flavor_memory <= 0:
        return 0
    fits = max(0, memory_bytes) // flavor_memory
    return fits if flavor_cpu <= 0 else min(fits, max(0, cpu_milli) // flavor_cpu)


def split(given: SplitInput) -> SplitResult:
    """Deal out the hosts of one zone. A candidate that is not among the hosts is passed over."""
    hosts = sorted(given.hosts, key=lambda host: host.name)
    rank = {host.name: number for number, host in enumerate(hosts)}
    room = RemainingRoom([host.memory_bytes for host in hosts], [host.cpu_milli for host in hosts])
    groups = sorted(given.groups, key=lambda group: group.name)
    takers = [
        Taker(group.memory_bytes, group.cpu_milli, sorted({rank[one] for one in group.candidates if one in rank}))
        for group in groups
    ]
    free = [taker.count_total(room) for taker in takers]
    deal(room, takers)
    touched = {host for taker in takers for host in taker.hosts}
    return SplitResult(
        shares=tuple(
            SplitShare(name=group.name, slots=taker.taken, free_slots=most)
            for group, taker, most in zip(groups, takers, free, strict=True)
        ),
        unassigned_memory_bytes=sum(room.memory[host] for host in touched),
        unassigned_cpu_milli=sum(room.cpu[host] for host in touched),
    )


class RemainingRoom:
    """What is left of each host, by the rank of its name."""

    def __init__(self, memory: Sequence[int], cpu: Sequence[int]) -> None:
        self.memory, self.cpu = [max(0, one) for one in memory], [max(0, one) for one in cpu]
        self.changes: list[int] = []
        """Hosts from which one VM was taken, one after the other."""


class Taker:
    """One group while it takes. ``hosts`` are ranks of names."""

    __slots__ = ("_best", "_changed", "_heap", "_heard", "_key", "cpu", "eligible", "hosts", "memory", "taken")

    def __init__(self, memory: int, cpu: int, hosts: Sequence[int]) -> None:
        self.memory, self.cpu, self.hosts = memory, cpu, hosts
        self.taken = 0
        self.eligible: set[int] = set()
        self._heap: list[tuple[int, int, int, int]] = []
        """Remainder, memory, cpu and rank of hosts as they were at some time; what changed since is passed over."""
        self._heard = 0
        """So many changes of hosts are in the heap, or in … """
        self._changed: set[int] = set()
        """… these hosts, which are not in order yet."""
        self._best = -1
        self._key = (0, 0, 0, -1)
        """Of the best host, when it was found."""

    def begin(self, room: RemainingRoom) -> None:
        """Look at every host."""
        memory, cpu = room.memory, room.cpu
        self.eligible = {host for host in self.hosts if memory[host] >= self.memory > 0 and cpu[host] >= self.cpu}
        self._heap = [(memory[host] % self.memory, memory[host], cpu[host], host) for host in self.eligible]
        heapify(self._heap)
        self._heard = len(room.changes)

    def find_best_host(self, room: RemainingRoom) -> int:
        """The host that suits best: least is left over beside whole VMs, then least memory, cores, and by name.

        As long as the best one got no worse, only hosts that changed meanwhile can be better.
        """
        eligible, size, memories, cpus = self.eligible, self.memory, room.memory, room.cpu
        changed = set(room.changes[self._heard :])
        self._heard = len(room.changes)
        self._changed |= changed
        best = self._best
        if best not in eligible:
            return self._search_heap(room)
        memory = memories[best]
        least = (memory % size, memory, cpus[best], best)
        if best in changed and least > self._key:
            return self._search_heap(room)
        for host in changed:
            if host in eligible:
                memory = memories[host]
                over = memory % size
                if over <= least[0]:
                    least = min(least, (over, memory, cpus[host], host))
        self._key = least
        self._best = least[3]
        return self._best

    def _search_heap(self, room: RemainingRoom) -> int:
        """Put all changed hosts in order, and see who is first."""
        heap, eligible, size = self._heap, self.eligible, self.memory
        memories, cpus = room.memory, room.cpu
        for host in self._changed:
            if host in eligible:
                memory = memories[host]
                heappush(heap, (memory % size, memory, cpus[host], host))
        self._changed.clear()
        while True:
            self._key = key = heap[0]
            host = key[3]
            if memories[host] == key[1] and cpus[host] == key[2] and host in eligible:
                self._best = host
                return host
            heappop(heap)

    def take(self, room: RemainingRoom, host: int) -> None:
        """Take one VM from the best host, which is the best one all the more then: as much is left over, of less."""
        self.taken += 1
        room.memory[host] -= self.memory
        room.cpu[host] -= self.cpu
        self._changed.add(host)
        self._heard += 1
        room.changes.append(host)

    def count_total(self, room: RemainingRoom) -> int:
        """How many VMs all its hosts take together, if nobody else takes any."""
        return sum(slots_on(room.memory[host], room.cpu[host], self.memory, self.cpu) for host in self.hosts)

    def take_all(self, room: RemainingRoom) -> None:
        """Take everything that is left: nobody else can."""
        for host in self.hosts:
            count = slots_on(room.memory[host], room.cpu[host], self.memory, self.cpu)
            self.taken += count
            room.memory[host] -= count * self.memory
            room.cpu[host] -= count * self.cpu


def deal(room: RemainingRoom, takers: Sequence[Taker]) -> None:
    """Play all rounds. ``takers`` are in order of their names."""
    for among in _group_sharing(takers):
        if len(among) == 1:
            among[0].take_all(room)
        else:
            _play(room, among)


def _group_sharing(takers: Sequence[Taker]) -> list[list[Taker]]:
    """The takers in sets that share no host with those of another set."""
    root = list(range(len(takers)))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    first: dict[int, int] = {}
    for at, taker in enumerate(takers):
        for host in taker.hosts:
            root[find(at)] = find(first.setdefault(host, at))
    found: dict[int, list[Taker]] = {}
    for at, taker in enumerate(takers):
        found.setdefault(find(at), []).append(taker)
    return list(found.values())


def _play(room: RemainingRoom, takers: Sequence[Taker]) -> None:
    """Rounds of takers that share hosts, until one or none is left."""
    memory, cpu = room.memory, room.cpu
    users: dict[int, _Users] = {}
    for taker in takers:
        taker.begin(room)
        for host in taker.eligible:
            users.setdefault(host, _Users()).add(taker)
    place = {id(taker): at for at, taker in enumerate(takers)}
    going = [taker for taker in takers if taker.eligible]
    while len(going) > 1:
        going.sort(key=lambda one: (len(one.eligible), -one.memory, -one.cpu, place[id(one)]))
        for taker in going:
            if not taker.eligible:
                continue
            host = taker.find_best_host(room)
            taker.take(room, host)
            mine = users[host]
            if memory[host] < mine.memory or cpu[host] < mine.cpu:
                mine.drop(host, memory[host], cpu[host])
        going = [taker for taker in going if taker.eligible]
    for taker in going:
        taker.take_all(room)


class _Users:
    """The takers for whom a host has room for one VM at least, and the most that any of them needs."""

    __slots__ = ("cpu", "memory", "takers")

    def __init__(self) -> None:
        self.takers: list[Taker] = []
        self.memory = self.cpu = 0

    def add(self, taker: Taker) -> None:
        """One more."""
        self.takers.append(taker)
        self.memory, self.cpu = max(self.memory, taker.memory), max(self.cpu, taker.cpu)

    def drop(self, host: int, memory: int, cpu: int) -> None:
        """Let those go who need more than the host has left."""
        mine = self.takers
        self.takers, self.memory, self.cpu = [], 0, 0
        for taker in mine:
            if memory >= taker.memory and cpu >= taker.cpu:
                self.add(taker)
            else:
                taker.eligible.discard(host)

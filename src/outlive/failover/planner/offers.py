"""Offers by host number: which slots may be reused, and which host holds the next new slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlive.base.errors import BadInput
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.planner.actions import Offer
from outlive.placement.ranking import host_hashes, tie_keys

NO_LIMIT = 2**62
"""Free amount of a host without a figure that limits it."""

LOOKED_UP = 8
"""Slots of an offer that are looked up one by one before all of them are worked out."""

Ints = NDArray[np.int64]


def _clamped(amount: int) -> int:
    return max(-NO_LIMIT, min(amount, NO_LIMIT))


class FreeAmounts(NamedTuple):
    """What hosts have free. Without any host nothing is known, and nothing is limited."""

    names: tuple[str, ...]
    amounts: Ints
    """(hosts, 2): milli-cores and bytes."""

    @classmethod
    def of(cls, free: Mapping[str, tuple[int, int]]) -> FreeAmounts:
        """From a table."""
        pairs = ((_clamped(cpu), _clamped(memory)) for cpu, memory in free.values())
        amounts = np.fromiter(chain.from_iterable(pairs), dtype=np.int64, count=2 * len(free))
        return cls(tuple(free), amounts.reshape(-1, 2))

    def of_host(self, name: str) -> tuple[int, int] | None:
        """One host's, or ``None`` where it has no limit."""
        try:
            cpu, memory = self.amounts[self.names.index(name)].tolist()
        except ValueError:
            return None
        return cpu, memory

    def table(self) -> dict[str, tuple[int, int]]:
        """Host → milli-cores and bytes."""
        return {name: (cpu, memory) for name, (cpu, memory) in zip(self.names, self.amounts.tolist(), strict=True)}


class FreeLedger:
    """Free milli-cores and bytes by host number, less the slots that were opened."""

    def __init__(self, tallies: ConflictIndex) -> None:
        """Without any limit. A host that later amounts leave out has no room."""
        self._tallies = tallies
        self._unknown = NO_LIMIT
        self._amounts = np.full((1, 2), NO_LIMIT, dtype=np.int64)
        self._new_here = np.zeros(1, dtype=bool)
        self._names: tuple[str, ...] = ()
        self._numbers: Ints = np.zeros(0, dtype=np.int64)
        self._renewed: FreeAmounts | None = None

    def renew(self, free: FreeAmounts) -> None:
        """Begin again with these amounts; nothing was opened yet."""
        self._renewed = free

    def grow(self) -> None:
        """Take over what was renewed, and hosts that the tallies learnt since; before anything is asked."""
        free, self._renewed = self._renewed, None
        if free is not None:
            if free.names is not self._names:
                self._numbers = np.array(self._tallies.hosts(free.names), dtype=np.int64)
                self._names = free.names
            self._unknown = 0 if free.names else NO_LIMIT
        more = len(self._tallies.host_names) - len(self._amounts)
        if more > 0:
            self._amounts = np.vstack([self._amounts, np.full((more, 2), self._unknown, dtype=np.int64)])
            self._new_here = np.concatenate([self._new_here, np.zeros(more, dtype=bool)])
        if free is not None:
            self._amounts[:] = self._unknown
            self._amounts[self._numbers] = np.clip(free.amounts, -NO_LIMIT, NO_LIMIT)
            self._new_here[:] = False

    def take(self, host: int, cpu_milli: int, memory_bytes: int) -> None:
        """Deduct a slot."""
        self.grow()
        if self._amounts[host, 0] < NO_LIMIT:
            self._amounts[host] -= (cpu_milli, memory_bytes)

    def mark_new(self, hosts: Iterable[int]) -> None:
        """These hosts received a new slot in this cycle."""
        self.grow()
        for host in hosts:
            self._new_here[host] = True

    def room(self, hosts: Ints, cpu_milli: int, memory_bytes: int) -> NDArray[np.bool_]:
        """For each of these hosts whether a slot of that size fits."""
        amounts = self._amounts[hosts]
        return (amounts[:, 0] >= cpu_milli) & (amounts[:, 1] >= memory_bytes)

    def new_here(self, hosts: Ints) -> NDArray[np.bool_]:
        """For each of these hosts whether it received a new slot in this cycle."""
        return self._new_here[hosts]

    def roomiest(self, hosts: Ints, cpu_milli: int, memory_bytes: int) -> tuple[int, int, int] | None:
        """(host, free milli-cores, free bytes) of the host that comes closest to holding such a slot."""
        limited = hosts[self._amounts[hosts, 0] < NO_LIMIT]
        if not len(limited):
            return None
        amounts = self._amounts[limited]
        wanted = np.maximum(np.array([cpu_milli, memory_bytes]), 1)
        shares = np.minimum(amounts / wanted, 1.0)
        best = int(np.lexsort((shares.sum(axis=1), shares.min(axis=1)))[-1])
        return int(limited[best]), int(amounts[best, 0]), int(amounts[best, 1])


class ReuseHosts:
    """The slots on the hosts of one offer: looked up one by one at first, then as a bit set that follows along."""

    def __init__(self, tallies: ConflictIndex, offer: Offer) -> None:
        self._tallies = tallies
        self._names = offer.hosts
        self._asked = 0
        self._hosts: set[int] = set()
        self._slots: int | None = None
        self._generation = 0
        self._seen = 0

    def fullest(self, slots: int) -> int | None:
        """The slot with the most members in a bit set that is on an offered host; among equals the first by rank."""
        tallies = self._tallies
        while self._slots is None and self._asked < LOOKED_UP:
            slot = tallies.fullest(slots)
            if slot is None:
                return None
            self._asked += 1
            if tallies.host_names[tallies.slot_host(slot)] in self._names:
                return slot
            slots &= ~tallies.slot_bit(slot)
        return tallies.fullest(slots & self._current())

    def _current(self) -> int:
        """The bit set as of now. Slots that are gone may still be in it."""
        tallies = self._tallies
        found = self._slots
        if found is None or self._generation != tallies.generation:
            self._hosts = self._hosts or set(tallies.hosts(self._names))
            found, self._generation = tallies.slots_on(self._hosts), tallies.generation
            self._seen = len(tallies.slot_log)
        log = tallies.slot_log
        while self._seen < len(log):
            slot = log[self._seen]
            self._seen += 1
            bit = tallies.slot_bit(slot)
            found = found | bit if tallies.slot_host(slot) in self._hosts else found & ~bit
        self._slots = found
        return found


class HostHashes:
    """The stable hash of each host by number, worked out once."""

    def __init__(self, tallies: ConflictIndex) -> None:
        self._tallies = tallies
        self._hashes: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def __getitem__(self, hosts: Ints) -> NDArray[np.uint64]:
        names = self._tallies.host_names
        if len(names) > len(self._hashes):
            self._hashes = np.concatenate([self._hashes, host_hashes(names[len(self._hashes) :])])
        return self._hashes[hosts]


class NewHosts:
    """The hosts of one offer in order, with ties, ready to be walked."""

    def __init__(self, tallies: ConflictIndex, offer: Offer, hashes: HostHashes) -> None:
        if offer.scores and len(offer.scores) != len(offer.hosts):
            raise BadInput(
                f"an offer has {len(offer.hosts)} hosts and {len(offer.scores)} scores", remedy="give one score a host"
            )
        self.names = offer.hosts
        self.rejected = offer.rejected
        self.error = offer.error
        self.hosts: Ints = np.array(tallies.hosts(offer.hosts), dtype=np.int64)
        self._hashes = hashes
        self._position = np.full(len(tallies.host_names), -1, dtype=np.int64)
        self._position[self.hosts] = np.arange(len(self.hosts))
        first = np.ones(len(self.hosts), dtype=bool)
        if offer.scores:
            scores = np.array(offer.scores)
            first[1:] = scores[1:] != scores[:-1]
        self._starts = np.append(np.nonzero(first)[0], len(self.hosts))
        self._group = np.cumsum(first) - 1

    def places(self, hosts: Iterable[int]) -> Ints:
        """Places in this offer of those hosts that are in it."""
        numbers = np.fromiter(hosts, dtype=np.int64)
        places = self._position[numbers[numbers < len(self._position)]]
        return places[places >= 0]

    def best(self, vm: str, possible: NDArray[np.bool_]) -> int | None:
        """The place of the first possible host; among equal scores the one whose tie key for this VM is least."""
        if not len(possible):
            return None
        first = int(possible.argmax())
        if not possible[first]:
            return None
        group = int(self._group[first])
        end = int(self._starts[group + 1])
        if end == first + 1:
            return first
        places = first + np.nonzero(possible[first:end])[0]
        keys = tie_keys(vm, self._hashes[self.hosts[places]])
        least = places[keys == keys.min()]
        return min((int(place) for place in least), key=self.names.__getitem__)

"""Offers by host number: which slots may be reused, and which host holds the next new slot."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.base.errors import BadInput
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.planner.actions import Offer
from outlive.placement.ranking import host_hashes, tie_keys

LOOKED_UP = 8
"""Slots of an offer that are looked up one by one before all of them are worked out."""

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
Ints = NDArray[np.int64]


class ReuseHosts:
    """The slots on the hosts of one offer: looked up one by one at first, then as a bit set that follows along."""

    def __init__(self, index: ConflictIndex, offer: Offer) -> None:
        self._index = index
        self._names = offer.hosts
        self._asked = 0
        self._hosts: set[int] = set()
        self._slots: int | None = None
        self._generation = 0
        self._seen = 0

    def fullest(self, slots: int) -> int | None:
        """The slot with the most members in a bit set that is on an offered host; among equals the first by rank."""
        index = self._index
        while self._slots is None and self._asked < LOOKED_UP:
            slot = index.fullest(slots)
            if slot is None:
                return None
            self._asked += 1
            if index.host_names[index.slot_host(slot)] in self._names:
                return slot
            slots &= ~index.slot_bit(slot)
        return index.fullest(slots & self.slots)

    @property
    def slots(self) -> int:
        """The bit set as of now. Slots that are gone may still be in it."""
        index = self._index
        found = self._slots
        if found is None or self._generation != index.generation:
            self._hosts = self._hosts or set(index.hosts(self._names))
            found, self._generation = index.slots_on(self._hosts), index.generation
            self._seen = len(index.slot_log)
        log = index.slot_log
        while self._seen < len(log):
            slot = log[self._seen]
            self._seen += 1
            bit = index.slot_bit(slot)
            found = found | bit if index.slot_host(slot) in self._hosts else found & ~bit
        self._slots = found
        return found


class HostHashes:
    """The stable hash of each host by number, worked out once."""

    def __init__(self, index: ConflictIndex) -> None:
        self._index = index
        self._hashes: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def __getitem__(self, hosts: Ints) -> NDArray[np.uint64]:
        names = self._index.host_names
        if len(names) > len(self._hashes):
            self._hashes = np.concatenate([self._hashes, host_hashes(names[len(self._hashes) :])])
        return self._hashes[hosts]


class NewHosts:
    """The hosts of one offer in order, with ties, ready to be walked."""

    def __init__(self, index: ConflictIndex, offer: Offer, hashes: HostHashes) -> None:
        if offer.scores and len(offer.scores) != len(offer.hosts):
            raise BadInput(
                f"an offer has {len(offer.hosts)} hosts and {len(offer.scores)} scores", remedy="give one score a host"
            )
        self.names = offer.hosts
        self.rejected = offer.rejected
        self.error = offer.error
        self.hosts: Ints = np.array(index.hosts(offer.hosts), dtype=np.int64)
        self._hashes = hashes
        first = np.ones(len(self.hosts), dtype=bool)
        if offer.scores:
            scores = np.array(offer.scores)
            first[1:] = scores[1:] != scores[:-1]
        self._starts = np.append(np.nonzero(first)[0], len(self.hosts))
        self._group = np.cumsum(first) - 1

    def best(self, vm: str, possible: NDArray[np.bool_], preferred: Mapping[str, int] = NOTHING) -> int | None:
        """The place of the first possible host; among equal scores the one that the VM prefers most, and among these
        the one whose tie key for this VM is least."""
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
        if preferred:
            weights = np.array([preferred.get(self.names[place], 0) for place in places.tolist()])
            places = places[weights == weights.max()]
        keys = tie_keys(vm, self._hashes[self.hosts[places]])
        least = places[keys == keys.min()]
        return min((int(place) for place in least), key=self.names.__getitem__)

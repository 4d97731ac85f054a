"""Empty small slots into others, a few memberships at a time, so that less capacity is held for the same promise.

A VM first joins its new slot and only then leaves the old one: every state in between is valid, nobody's coverage
drops, and what is held never grows (docs/reference/failover.md#repacking). Greedy and local: a slot is emptied whole or
not touched, and no search goes further than that.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.failover.eligibility.counters import Counters
from outlive.failover.eligibility.rules import fits
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.actions import Offer
from outlive.failover.topology import Topology

CANDIDATES = 8
"""The smallest slots that one cycle tries to empty."""


class RepackInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A state in which nobody misses a slot."""

    slots: tuple[SlotView, ...]
    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs."""
    classes: dict[str, str] = {}
    """VM → key of its offers; VMs without one stay where they are."""
    reuse: dict[str, Offer] = {}
    """Class → hosts whose slots such VMs may join."""
    limit: int = 0
    """Memberships that may change."""
    topology: Topology = Topology()


class Move(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM leaves a slot; before that it joins another, unless it has slots to spare."""

    vm: str
    vm_host: str
    leaves: str
    joins: str = ""


class RepackResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What to move, in order."""

    actions: tuple[Move, ...] = ()


def smallest_slots(slots: Iterable[SlotView]) -> list[SlotView]:
    """The slots that are tried, fewest members first."""
    ready = [slot for slot in slots if slot.ready is not False and slot.members]
    return sorted(ready, key=lambda slot: (len(slot.members), -slot.memory_bytes, slot.name))[:CANDIDATES]


def repack(given: RepackInput) -> RepackResult:
    """Empty as many of the smallest slots as the limit allows."""
    work = _Work(given)
    for slot in smallest_slots(given.slots):
        work.empty(slot)
    return RepackResult(actions=tuple(work.moves))


class _Work:
    """The state as the moves leave it."""

    def __init__(self, given: RepackInput) -> None:
        self.moves: list[Move] = []
        self._given = given
        self._vms = {vm.id: vm for vm in given.vms}
        self._slots = {slot.name: slot for slot in given.slots}
        self._counters = Counters.build(
            sorted(given.slots, key=lambda slot: slot.name), given.vms, given.required, given.topology
        )
        self._emptied: set[str] = set()
        self._used: set[str] = set()

    def empty(self, slot: SlotView) -> None:
        """Move all members elsewhere, or none."""
        if slot.name in self._used or 2 * len(slot.members) > self._given.limit - self._changes(self.moves):
            return
        moves: list[Move] = []
        for vm in sorted(slot.members):
            move = self._move(vm, slot.name)
            if move is None:
                self._take_back(moves)
                return
            if move.joins:
                self._counters.join(vm, move.joins)
            self._counters.leave(vm, slot.name)
            moves.append(move)
        self.moves += moves
        self._emptied.add(slot.name)
        self._used.update(move.joins for move in moves)

    def _move(self, name: str, slot: str) -> Move | None:
        vm, counters = self._vms.get(name), self._counters
        if vm is None:
            return None
        counting = [one for one in counters.slots_of(name) if one != slot and self._counts(vm, one)]
        if len(counting) >= self._given.required.get(name, 0):
            return Move(vm=name, vm_host=vm.host, leaves=slot)
        offer = self._given.reuse.get(self._given.classes.get(name, ""))
        if offer is None or offer.error:
            return None
        hosts = set(offer.hosts)
        possible = [
            one
            for one in counters.eligible_slots(name)
            if one not in self._emptied and self._slots[one].host in hosts and self._counts(vm, one)
        ]
        if not possible:
            return None
        best = min(possible, key=lambda one: (-len(counters.members(one)), one))
        return Move(vm=name, vm_host=vm.host, leaves=slot, joins=best)

    def _counts(self, vm: VmView, slot: str) -> bool:
        view = self._slots[slot]
        return view.ready is not False and fits(vm, view)

    def _take_back(self, moves: list[Move]) -> None:
        for move in reversed(moves):
            self._counters.join(move.vm, move.leaves)
            if move.joins:
                self._counters.leave(move.vm, move.joins)

    @staticmethod
    def _changes(moves: list[Move]) -> int:
        return sum(2 if move.joins else 1 for move in moves)

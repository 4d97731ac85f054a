"""The cheapest remedy that works: candidates in the order of their cost, each tried on the model before it is said.

The order and the limits are those of docs/reference/failover-analysis.md#remedies. Nothing here proposes what was not
tried, except where the model cannot say (placement did not answer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from itertools import combinations, islice
from itertools import count as serial
from typing import Final

import msgspec

from outlive.failover.analysis.explain.model import (
    CLEANED_UP,
    NOT_CLEANED_UP,
    AddHosts,
    Answer,
    Answers,
    FreeRoom,
    GiveSize,
    HostReady,
    Kind,
    MoveMembership,
    Remedy,
    SlotReady,
    remedy,
)
from outlive.failover.analysis.explain.obstacles import Against
from outlive.failover.analysis.explain.trials import Change, Model, done_of
from outlive.failover.planner.actions import Action
from outlive.failover.rules import counts
from outlive.failover.sizes import ResolvedSize, enough_for, resolve_size
from outlive.placement.vms import VmView
from outlive.resources.reasons.obstacles import Obstacle

MOVES_TRIED: Final = 24
"""Memberships of other VMs whose move is tried."""
LEFT_BEHIND: Final = 1
"""Members that must stay in a slot that somebody leaves: a slot without members is deleted."""
SLOTS_LOOKED: Final = 200
"""Slots that are looked at for such a membership, by name."""
TARGETS_TRIED: Final = 3
"""Slots that each of them is tried to move to."""
SETS_TRIED: Final = 12
"""Sets of hosts on which room is freed, or that are made ready, that are tried; as many for slots."""
NEW_HOSTS: Final = 16
"""Most hosts that are proposed to be added for one VM."""
LEAST_CPU_MILLI: Final = 1_000
LEAST_MEMORY_BYTES: Final = 2**30
"""What a VM without size is tried with."""
READY_CODES: Final = frozenset({"bad-condition", "no-high-availability", "in-maintenance"})
"""Refusals that a host can be freed from without being another host."""


class Search:
    """The remedy for one VM."""

    def __init__(self, against: Against, model: Model, answers: Answers) -> None:
        self._against = against
        self._model = model
        self._answers = answers
        self._vm: VmView = against.vm
        self._size: ResolvedSize = against.size
        self._answer: Answer = against.answer

    @cached_property
    def now(self) -> list[Action]:
        """What the planner would do for the VM as things are."""
        return self._model.serve(self._vm, self._size, self._answer)

    def cheapest(self) -> Remedy:
        """The first that works."""
        if self._answer.new.error and self._answer.reuse.error:
            text = f"placement gives no answer: {self._answer.new.error}; the next cycle asks again"
            return remedy(Kind.ASK_AGAIN, text=text, tried=False)
        if self._against.whole is Obstacle.ZERO_SIZE:
            return self._sized()
        if self._works(Change()):
            return remedy(Kind.CYCLE, text=self._waiting())
        for look in (self._repack, self._free, self._ready, self._add_hosts):
            found = look()
            if found is not None:
                return found
        return remedy(Kind.NONE, text=self._helpless(), tried=False)

    def instead_of(self, found: Remedy) -> Remedy | None:
        """New hosts, for whom the cheapest remedy does not suit."""
        return self._add_hosts() if found.kind in (Kind.REPACK, Kind.FREE, Kind.READY) else None

    # What waiting does.

    def _waiting(self) -> str:
        if self._against.whole is Obstacle.OWN_CLASH:
            return CLEANED_UP
        how = "wait for the next cycle, or run `outlive failover plan --apply`"
        limit = self._against.state.limit
        ahead = self._model.order.get(self._vm.id, 0) if limit > 0 else 0
        if 0 < limit <= ahead:
            how += f"; a cycle serves {limit} VMs and {ahead:,} are before it: raise failover.maxVMsToProcess"
        return how

    # A membership of another VM moves.

    def _repack(self) -> Remedy | None:
        for vm, slot in islice(self._in_the_way(), MOVES_TRIED):
            view = self._against.ground.views.get(vm)
            left = self._model.slots.get(slot)
            if view is None or left is None or vm not in left.members or len(left.members) < LEFT_BEHIND + 1:
                continue
            size = self._against.state.sizes.get(vm) or resolve_size(view)
            answer = self._answers.of(view, enough_for(view, size))
            if answer is None:
                continue
            targets = (name for name in self._model.index.joinable(view, answer.reuse.hosts) if name != slot)
            for target in list(islice(targets, TARGETS_TRIED)):
                if self._works(Change(moves=((vm, slot, target),))):
                    move = MoveMembership(vm=vm, vm_host=view.host, from_slot=slot, to_slot=target)
                    return remedy(Kind.REPACK, (move,))
        return None

    def _in_the_way(self) -> Iterator[tuple[str, str]]:
        """(VM, slot): memberships but for which a slot could be joined or opened; those that block most first."""
        against, found = self._against, Counter[tuple[str, str]]()
        offered = frozenset(self._answer.reuse.hosts)
        host_of = against.ground.index.host_of_slot
        slots = (name for name in against.slots.named(Obstacle.RULE) if host_of(name) in offered)
        for name in islice(slots, SLOTS_LOOKED):
            found.update(against.movable(against.joining(name)))
        room = frozenset(self._answer.new.hosts)
        for host in against.hosts.named(Obstacle.RULE):
            if host in room and not any(against.lacks(host) or ()):
                found.update(against.movable(against.opening(host)))
        yield from sorted(found, key=lambda pair: (-found[pair], pair))

    # Room is freed.

    def _free(self) -> Remedy | None:
        against, need = self._against, self._against.need
        lacking: list[tuple[float, float, str, tuple[int, int]]] = []
        for host in against.hosts.named(Obstacle.NO_CAPACITY):
            if not self._only(host, capacity=True):
                continue
            whole = against.state.capacity.get(host, (0, 0))
            if whole[0] < need[0] or whole[1] < need[1]:
                continue
            lacks = against.lacks(host)
            if lacks is None:
                continue
            cpu, memory = lacks[0] / max(1, need[0]), lacks[1] / max(1, need[1])
            lacking.append((max(cpu, memory), cpu + memory, host, lacks))
        lacking.sort()
        lacks_of = {host: lacks for _, _, host, lacks in lacking}
        for hosts in self._sets([host for _, _, host, _ in lacking]):
            free = {host: self._enough(host, lacks_of[host]) for host in hosts}
            if self._works(Change(new_hosts=hosts, free=free)):
                return remedy(
                    Kind.FREE,
                    [FreeRoom(host=one, cpu_milli=lacks_of[one][0], memory_bytes=lacks_of[one][1]) for one in hosts],
                )
        return None

    def _enough(self, host: str, lacks: tuple[int, int]) -> tuple[int, int]:
        room = self._against.room(host) or (0, 0)
        return (room[0] + lacks[0], room[1] + lacks[1])

    # A host or a slot is made ready.

    def _ready(self) -> Remedy | None:
        return self._ready_slots() or self._ready_hosts()

    def _ready_slots(self) -> Remedy | None:
        model, vm = self._model, self._vm
        closed = {host.name for host in model.state.hosts if host.closed}
        idle = [
            slot
            for slot in model.slots.values()
            if slot.ready is False and not slot.unready and slot.host not in closed
        ]
        fit = [slot for slot in idle if slot.cpu_milli >= vm.cpu_milli and slot.memory_bytes >= vm.memory_bytes]
        mine = [slot.name for slot in fit if counts(vm, msgspec.structs.replace(slot, ready=True))]
        offered = frozenset(self._answer.reuse.hosts)
        index = model.index
        allowed = index.admissible(index.vm(vm.id))
        others = [
            slot.name
            for slot in fit
            if slot.name not in mine and slot.host in offered and allowed & index.slot_bit(index.slot(slot.name))
        ]
        for slots in self._sets([*mine, *others]):
            if self._works(Change(ready_slots=slots)):
                return remedy(Kind.READY, [SlotReady(slot=slot) for slot in slots])
        return None

    def _ready_hosts(self) -> Remedy | None:
        against, answer = self._against, self._answer
        able = []
        for host in against.hosts.named(Obstacle.PLACEMENT):
            numbers = answer.against_new.get(host, ())
            refusal = answer.refusals[numbers[0]] if numbers else None
            if refusal is None or refusal.code not in READY_CODES or not self._only(host, capacity=False):
                continue
            if not any(against.lacks(host) or (1,)):
                able.append((host, refusal.message))
        why = dict(able)
        for hosts in self._sets([host for host, _ in able]):
            reuse = [host for host in hosts if len(answer.against_reuse.get(host, ())) <= 1]
            if self._works(Change(new_hosts=hosts, reuse_hosts=reuse)):
                return remedy(Kind.READY, [HostReady(host=host, why=why[host]) for host in hosts])
        return None

    def _only(self, host: str, *, capacity: bool) -> bool:
        """Whether no more than one step of placement refuses a new slot on the host."""
        against = self._answer.against_new.get(host, ())
        if len(against) > 1:
            return False
        return not against or self._answer.refusals[against[0]].is_capacity == capacity

    def _sets(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Small sets of these, those that are just enough first."""
        tried = 0
        for number in range(self._short, self._missing() + 1):
            for chosen in combinations(names[: SETS_TRIED + number], number):
                yield chosen
                tried += 1
                if tried >= SETS_TRIED:
                    return

    @property
    def _short(self) -> int:
        """The fewest further hosts or slots that can do."""
        return max(1, self._missing() - done_of(self.now))

    def _missing(self) -> int:
        return max(1, self._model.ground.misses(self._vm))

    # Hosts are added.

    def _add_hosts(self) -> Remedy | None:
        host = self._answer.new_host
        if host is None:
            return None
        known = {one.name for one in self._against.state.hosts}
        names = new_names(known, min(NEW_HOSTS, self._missing() + 1))
        for number in range(self._short, len(names) + 1):
            some = names[:number]
            free = dict.fromkeys(some, (host.cpu_milli, host.memory_bytes))
            if self._works(Change(new_hosts=some, free=free)):
                return remedy(Kind.ADD_HOSTS, (AddHosts.like(host, some),))
        return None

    # A size is given.

    def _sized(self) -> Remedy:
        vm, against = self._vm, self._against
        cpu, memory = vm.cpu_milli or LEAST_CPU_MILLI, vm.memory_bytes or LEAST_MEMORY_BYTES
        sized = msgspec.structs.replace(vm, cpu_milli=cpu, memory_bytes=memory)
        give = GiveSize(vm=vm.id, flavor=vm.flavor, cpu_milli=cpu, memory_bytes=memory)
        size = enough_for(sized, against.size)
        answer = self._answers.of(sized, size)
        if answer is None:
            return remedy(Kind.SIZE, (give,), tried=False)
        later = Search(Against(against.state, against.ground, sized, size, answer), self._model, self._answers)
        rest = later.cheapest()
        if not rest.tried:
            return remedy(Kind.SIZE, (give,), text=f"{give.text()}; then: {rest.text}", tried=False)
        also = "" if rest.kind is Kind.CYCLE else f"; then {rest.text}"
        found = remedy(Kind.SIZE, (give, *rest.actions), text=f"{give.text()}{also}")
        return msgspec.structs.replace(found, cost=found.cost + rest.cost)

    # Whatever it is.

    def _works(self, change: Change) -> bool:
        return self._model.covers(self._vm, self._size, self._answer, change)

    def _helpless(self) -> str:
        if self._against.whole is Obstacle.OWN_CLASH:
            return NOT_CLEANED_UP
        if self._answer.new_host is None:
            return "no host can be described that placement would take for this VM; see its flavor's extra specs"
        return "no single change that was tried gives it all its slots"


def new_names(known: Set[str], count: int) -> tuple[str, ...]:
    """Names that no host has."""
    names = (f"new-host-{number}" for number in serial(1))
    return tuple(islice((name for name in names if name not in known), count))

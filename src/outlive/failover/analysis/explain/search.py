"""The cheapest remedy that works: candidates in the order of their cost, each tried on the model before it is said.

The order and the limits are those of docs/design/failover.md#remedies. Nothing here proposes what was not
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
    AnswerSource,
    FreeRoom,
    GiveSize,
    HostReady,
    MoveMembership,
    PlacementAnswer,
    Remedy,
    RemedyKind,
    SlotReady,
    build_remedy,
)
from outlive.failover.analysis.explain.obstacles import Against
from outlive.failover.analysis.explain.trials import Change, Model, done_of
from outlive.failover.planner.actions import Action
from outlive.failover.rules import slot_counts
from outlive.failover.slots import ResolvedSize, enlarge_for_vm, resolve_size
from outlive.placement import VmView
from outlive.resources.reasons import Obstacle

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


class RemedySearch:
    """The remedy for one VM."""

    def __init__(self, against: Against, model: Model, answers: AnswerSource) -> None:
        self._against = against
        self._model = model
        self._answers = answers
        self._vm: VmView = against.vm
        self._size: ResolvedSize = against.size
        self._answer: PlacementAnswer = against.answer

    @cached_property
    def now(self) -> list[Action]:
        """What the planner would do for the VM as things are."""
        return self._model.serve(self._vm, self._size, self._answer)

    def find_cheapest(self) -> Remedy:
        """The first that works."""
        if self._answer.new.error and self._answer.reuse.error:
            text = f"placement gives no answer: {self._answer.new.error}; the next cycle asks again"
            return build_remedy(RemedyKind.ASK_AGAIN, text=text, tried=False)
        if self._against.whole is Obstacle.ZERO_SIZE:
            return self._try_size()
        if self._check_change(Change()):
            if self._against.whole is Obstacle.OWN_CLASH:
                return build_remedy(RemedyKind.CYCLE, text=CLEANED_UP)
            how = "wait for the next cycle, or run `outlive failover plan --apply`"
            limit = self._against.state.limit
            ahead = self._model.order.get(self._vm.id, 0) if limit > 0 else 0
            if 0 < limit <= ahead:
                how += f"; a cycle serves {limit} VMs and {ahead:,} are before it: raise failover.maxVMsToProcess"
            return build_remedy(RemedyKind.CYCLE, text=how)
        for look in (self._try_repacking, self._try_freeing, self._ready_slots, self._ready_hosts, self._add_hosts):
            found = look()
            if found is not None:
                return found
        if self._against.whole is Obstacle.OWN_CLASH:
            text = NOT_CLEANED_UP
        elif self._answer.new_host is None:
            text = "no host can be described that placement would take for this VM; see its flavor's extra specs"
        else:
            text = "no single change that was tried gives it all its slots"
        return build_remedy(RemedyKind.NONE, text=text, tried=False)

    def find_alternative(self, found: Remedy) -> Remedy | None:
        """New hosts, for whom the cheapest remedy does not suit."""
        return self._add_hosts() if found.kind in (RemedyKind.REPACK, RemedyKind.FREE, RemedyKind.READY) else None

    # What waiting does.

    # A membership of another VM moves.

    def _try_repacking(self) -> Remedy | None:
        for vm, slot in islice(self._blocking_memberships(), MOVES_TRIED):
            view = self._against.ground.views.get(vm)
            left = self._model.slots.get(slot)
            if view is None or left is None or vm not in left.members or len(left.members) < LEFT_BEHIND + 1:
                continue
            size = self._against.state.sizes.get(vm) or resolve_size(view)
            answer = self._answers.find_answer(view, enlarge_for_vm(view, size))
            if answer is None:
                continue
            targets = (name for name in self._model.index.joinable_slots(view, answer.reuse.hosts) if name != slot)
            for target in list(islice(targets, TARGETS_TRIED)):
                if self._check_change(Change(moves=((vm, slot, target),))):
                    move = MoveMembership(vm=vm, vm_host=view.host, from_slot=slot, to_slot=target)
                    return build_remedy(RemedyKind.REPACK, (move,))
        return None

    def _blocking_memberships(self) -> Iterator[tuple[str, str]]:
        """(VM, slot): memberships but for which a slot could be joined or opened; those that block most first."""
        against, found = self._against, Counter[tuple[str, str]]()
        offered = frozenset(self._answer.reuse.hosts)
        host_of = against.ground.index.host_of_slot
        slots = (name for name in against.slots.names_with(Obstacle.RULE) if host_of(name) in offered)
        for name in islice(slots, SLOTS_LOOKED):
            found.update(against.movable_memberships(against.breaches_by_joining(name)))
        room = frozenset(self._answer.new.hosts)
        for host in against.hosts.names_with(Obstacle.RULE):
            if host in room and not any(against.missing_room(host) or ()):
                found.update(against.movable_memberships(against.breaches_by_opening(host)))
        yield from sorted(found, key=lambda pair: (-found[pair], pair))

    # Room is freed.

    def _try_freeing(self) -> Remedy | None:
        against, need = self._against, self._against.need
        lacking: list[tuple[float, float, str, tuple[int, int]]] = []
        for host in against.hosts.names_with(Obstacle.NO_CAPACITY):
            if not self._has_one_refusal(host, capacity=True):
                continue
            whole = against.state.capacity.get(host, (0, 0))
            if whole[0] < need[0] or whole[1] < need[1]:
                continue
            lacks = against.missing_room(host)
            if lacks is None:
                continue
            cpu, memory = lacks[0] / max(1, need[0]), lacks[1] / max(1, need[1])
            lacking.append((max(cpu, memory), cpu + memory, host, lacks))
        lacking.sort()
        lacks_of = {host: lacks for _, _, host, lacks in lacking}
        for hosts in self._iter_small_sets([host for _, _, host, _ in lacking]):
            rooms = {host: against.free_room(host) or (0, 0) for host in hosts}
            free = {host: (room[0] + lacks_of[host][0], room[1] + lacks_of[host][1]) for host, room in rooms.items()}
            if self._check_change(Change(new_hosts=hosts, free=free)):
                return build_remedy(
                    RemedyKind.FREE,
                    [FreeRoom(host=one, cpu_milli=lacks_of[one][0], memory_bytes=lacks_of[one][1]) for one in hosts],
                )
        return None

    # A host or a slot is made ready.

    def _ready_slots(self) -> Remedy | None:
        model, vm = self._model, self._vm
        closed = {host.name for host in model.state.hosts if host.closed}
        idle = [
            slot
            for slot in model.slots.values()
            if slot.ready is False and not slot.unready and slot.host not in closed
        ]
        fit = [slot for slot in idle if slot.cpu_milli >= vm.cpu_milli and slot.memory_bytes >= vm.memory_bytes]
        mine = [slot.name for slot in fit if slot_counts(vm, msgspec.structs.replace(slot, ready=True))]
        offered = frozenset(self._answer.reuse.hosts)
        index = model.index
        allowed = index.admissible_slots(index.vm_number(vm.id))
        others = [
            slot.name
            for slot in fit
            if slot.name not in mine and slot.host in offered and allowed & index.slot_bit(index.slot_number(slot.name))
        ]
        for slots in self._iter_small_sets([*mine, *others]):
            if self._check_change(Change(ready_slots=slots)):
                return build_remedy(RemedyKind.READY, [SlotReady(slot=slot) for slot in slots])
        return None

    def _ready_hosts(self) -> Remedy | None:
        against, answer = self._against, self._answer
        able = []
        for host in against.hosts.names_with(Obstacle.PLACEMENT):
            numbers = answer.against_new.get(host, ())
            refusal = answer.refusals[numbers[0]] if numbers else None
            if refusal is None or refusal.code not in READY_CODES or not self._has_one_refusal(host, capacity=False):
                continue
            if not any(against.missing_room(host) or (1,)):
                able.append((host, refusal.message))
        why = dict(able)
        for hosts in self._iter_small_sets([host for host, _ in able]):
            reuse = [host for host in hosts if len(answer.against_reuse.get(host, ())) <= 1]
            if self._check_change(Change(new_hosts=hosts, reuse_hosts=reuse)):
                return build_remedy(RemedyKind.READY, [HostReady(host=host, why=why[host]) for host in hosts])
        return None

    def _has_one_refusal(self, host: str, *, capacity: bool) -> bool:
        """Whether no more than one step of placement refuses a new slot on the host."""
        against = self._answer.against_new.get(host, ())
        if len(against) > 1:
            return False
        return not against or self._answer.refusals[against[0]].is_capacity == capacity

    def _iter_small_sets(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Small sets of these, those that are just enough first."""
        tried = 0
        for number in range(self._short, self._count_missing() + 1):
            for chosen in combinations(names[: SETS_TRIED + number], number):
                yield chosen
                tried += 1
                if tried >= SETS_TRIED:
                    return

    @property
    def _short(self) -> int:
        """The fewest further hosts or slots that can do."""
        return max(1, self._count_missing() - done_of(self.now))

    def _count_missing(self) -> int:
        return max(1, self._model.ground.count_missing(self._vm))

    # Hosts are added.

    def _add_hosts(self) -> Remedy | None:
        host = self._answer.new_host
        if host is None:
            return None
        known = {one.name for one in self._against.state.hosts}
        names = new_names(known, min(NEW_HOSTS, self._count_missing() + 1))
        for number in range(self._short, len(names) + 1):
            some = names[:number]
            free = dict.fromkeys(some, (host.cpu_milli, host.memory_bytes))
            if self._check_change(Change(new_hosts=some, free=free)):
                return build_remedy(RemedyKind.ADD_HOSTS, (AddHosts.from_host(host, some),))
        return None

    # A size is given.

    def _try_size(self) -> Remedy:
        vm, against = self._vm, self._against
        cpu, memory = vm.cpu_milli or LEAST_CPU_MILLI, vm.memory_bytes or LEAST_MEMORY_BYTES
        sized = msgspec.structs.replace(vm, cpu_milli=cpu, memory_bytes=memory)
        give = GiveSize(vm=vm.id, flavor=vm.flavor, cpu_milli=cpu, memory_bytes=memory)
        size = enlarge_for_vm(sized, against.size)
        answer = self._answers.find_answer(sized, size)
        if answer is None:
            return build_remedy(RemedyKind.SIZE, (give,), tried=False)
        later = RemedySearch(Against(against.state, against.ground, sized, size, answer), self._model, self._answers)
        rest = later.find_cheapest()
        if not rest.tried:
            return build_remedy(RemedyKind.SIZE, (give,), text=f"{give.describe()}; then: {rest.text}", tried=False)
        also = "" if rest.kind is RemedyKind.CYCLE else f"; then {rest.text}"
        found = build_remedy(RemedyKind.SIZE, (give, *rest.actions), text=f"{give.describe()}{also}")
        return msgspec.structs.replace(found, cost=found.cost + rest.cost)

    # Whatever it is.

    def _check_change(self, change: Change) -> bool:
        return self._model.covers(self._vm, self._size, self._answer, change)


def new_names(known: Set[str], count: int) -> tuple[str, ...]:
    """Names that no host has."""
    names = (f"new-host-{number}" for number in serial(1))
    return tuple(islice((name for name in names if name not in known), count))

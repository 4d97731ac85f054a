"""The first obstacle to a VM's slot on each host and in each slot, and all of them counted.

The order is that of docs/reference/failover-analysis.md#explanations. What the rules and separation say is asked of the
conflict index: which slots they close to the VM at once, and which rule would be broken by trying it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from outlive.failover.analysis.coverage import allocation_fault
from outlive.failover.analysis.explain.model import (
    CandidateReason,
    ExplainedFleet,
    PlacementAnswer,
    ReasonTally,
    part_amounts,
)
from outlive.failover.conflicts import NEW_SLOT, Breach
from outlive.failover.fleet import FleetIndex, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.rules import serves
from outlive.failover.separation import groups_of
from outlive.failover.slots import ResolvedSize, format_amounts
from outlive.failover.topology import iter_bits
from outlive.placement import VmView
from outlive.resources.reasons import Obstacle, describe_many, describe_one, render


class NamedSlotIndex:
    """VMs and slots by name, and the index over them, in which names and numbers have the same order."""

    def __init__(self, state: ExplainedFleet, slots: Iterable[SlotView]) -> None:
        self.views = {vm.id: vm for vm in state.vms}
        self._required = state.required
        self.slots = {slot.name: slot for slot in sorted(slots, key=lambda slot: slot.name)}
        self.index = FleetIndex(state.topology)
        self.hosts = self.index.host_numbers(sorted(host.name for host in state.hosts))
        self.index.set_free(FreeAmounts.from_table(state.free))
        for vm in state.vms:
            self.index.add_vm(vm, state.required.get(vm.id, 0))
        self.index.separation.take(groups_of(state.vms, state.required))
        self.index.load(self.slots.values())
        self.index.judge()

    def count_missing(self, vm: VmView, ready: Collection[str] = ()) -> int:
        """How many slots the VM misses as the index is now, if these slots were ready."""
        return max(
            0, self._required.get(vm.id, 0) - sum(self._slot_counts(vm, slot, ready) for slot in self.slots_of(vm))
        )

    def slots_of(self, vm: VmView) -> list[str]:
        """The slots that the VM is a member of, by name."""
        return self.index.slots_of(vm.id)

    def is_covered(self, vm: VmView) -> bool:
        """Whether the VM has all the slots that it needs, and no rule is broken for it."""
        return not self.count_missing(vm) and self.index.holds_for(vm.id)

    def _slot_counts(self, vm: VmView, name: str, ready: Collection[str]) -> bool:
        slot = self.slots.get(name)
        if slot is None:
            return True  # opened for it in a trial
        if name in ready:
            slot = msgspec.structs.replace(slot, ready=True)
        return slot.members.get(vm.id, vm.host) == vm.host and serves(vm, slot)


class ObstacleFinding(NamedTuple):
    """The obstacle of several hosts or slots alike."""

    why: Obstacle
    rule: int = 0
    refusal: int = -1
    """Number of placement's refusal."""

    @property
    def word(self) -> str:
        """The stable word."""
        return f"rule-{self.rule}" if self.rule else self.why.value


_ORDER = {why: place for place, why in enumerate(Obstacle)}


class Kinds:
    """Hosts or slots by their first obstacle, as bit sets of their numbers."""

    def __init__(self, names: Sequence[str], all_of_them: int) -> None:
        self._names = names
        self._all = self._left = all_of_them
        self._of: dict[ObstacleFinding, int] = {}

    def put(self, finding: ObstacleFinding, these: int) -> None:
        """This is the obstacle of those of them that have none yet."""
        found = self._left & these
        if found:
            self._of[finding] = self._of.get(finding, 0) | found
            self._left &= ~found

    def put_rest(self, finding: ObstacleFinding) -> None:
        """This is the obstacle of all others."""
        self.put(finding, self._left)

    def find_obstacle(self, number: int) -> ObstacleFinding:
        """The obstacle of one."""
        return next(finding for finding, found in self._of.items() if found >> number & 1)

    def count_obstacles(self) -> Iterator[tuple[ObstacleFinding, int, str]]:
        """(what, how many, the first by name), in the order in which obstacles are looked for."""
        for finding, found in sorted(self._of.items(), key=lambda one: (_rank(one[0]), -one[1].bit_count())):
            yield finding, found.bit_count(), self._names[next(iter_bits(found))]

    def names_with(self, why: Obstacle) -> Iterator[str]:
        """The names of those that have this obstacle."""
        found = 0
        for finding, these in self._of.items():
            found |= these if finding.why is why else 0
        return (self._names[number] for number in iter_bits(found))

    def pick_closest(self, count: int | None) -> list[int]:
        """All numbers; or so many, those first whose obstacle is the last in the order.

        Of every obstacle there are examples, as evenly as there are numbers for it: else one
        refusal that many share would hide the others.
        """
        if count is None:
            return list(iter_bits(self._all))
        alike: dict[tuple[int, int], list[int]] = {}
        for finding, found in self._of.items():
            alike.setdefault(_rank(finding), []).extend(islice(iter_bits(found), count))
        groups = [nsmallest(count, alike[rank]) for rank in sorted(alike, reverse=True)]
        places = sorted((place, at) for at, group in enumerate(groups) for place in range(len(group)))[:count]
        return [groups[at][place] for at, place in sorted((at, place) for place, at in places)]


def _rank(finding: ObstacleFinding) -> tuple[int, int]:
    return (_ORDER[finding.why], finding.rule)


class Against:
    """One VM's obstacles."""

    def __init__(
        self, state: ExplainedFleet, ground: NamedSlotIndex, vm: VmView, size: ResolvedSize, answer: PlacementAnswer
    ) -> None:
        self.state = state
        self.ground = ground
        self.vm = vm
        self.size = size
        self.answer = answer
        self._index = ground.index
        self._number = ground.index.vm_number(vm.id)
        self._opening: dict[str, list[Breach]] = {}
        self._refusals = [
            ObstacleFinding(Obstacle.ZERO_SIZE)
            if refusal.code == Obstacle.ZERO_SIZE.value
            else ObstacleFinding(Obstacle.NO_CAPACITY if refusal.is_capacity else Obstacle.PLACEMENT, refusal=number)
            for number, refusal in enumerate(answer.refusals)
        ]

    @cached_property
    def whole(self) -> Obstacle:
        """The obstacle that the VM itself is, wherever the slot would be; ``NOTHING`` as a rule."""
        if min(self.vm.cpu_milli, self.vm.memory_bytes, self.size.cpu_milli, self.size.memory_bytes) <= 0:
            return Obstacle.ZERO_SIZE
        return Obstacle.NOTHING if self._index.holds_for(self.vm.id) else Obstacle.OWN_CLASH

    @cached_property
    def hosts(self) -> Kinds:
        """The obstacles to a new slot, host by host."""
        index, answer = self._index, self.answer
        kinds = Kinds(index.host_names, _to_bit_set(self.ground.hosts))
        blocked = index.blocked_units(self._number)
        for host in self.ground.hosts:
            if index.unit_of(host) in blocked:
                rule = min((one.rule for one in self.breaches_by_opening(index.host_names[host])), default=0)
                kinds.put(ObstacleFinding(Obstacle.RULE, rule), 1 << host)
        closed = index.separation.closed_hosts(self.vm.id)
        if closed is not None:
            kinds.put(ObstacleFinding(Obstacle.APART), _to_bit_set(np.nonzero(closed)[0].tolist()))
        if answer.new.error:
            kinds.put_rest(ObstacleFinding(Obstacle.PLACEMENT_ERROR))
        for refusal, hosts in self._group_by_refusal(answer.against_new).items():
            kinds.put(refusal, _to_bit_set(hosts))
        offered = np.array(index.host_numbers(answer.new.hosts), dtype=np.int64)
        fitting = offered[index.have_slot_room(offered, self.size.cpu_milli, self.size.memory_bytes)]
        kinds.put(ObstacleFinding(self.whole), _to_bit_set(fitting.tolist()))
        kinds.put(ObstacleFinding(Obstacle.NO_CAPACITY), _to_bit_set(offered.tolist()))
        kinds.put_rest(ObstacleFinding(Obstacle.PLACEMENT))
        return kinds

    @cached_property
    def slots(self) -> Kinds:
        """The obstacles to joining, slot by slot."""
        index, answer, vm = self._index, self.answer, self.vm
        kinds = Kinds(index.slot_names, index.alive)
        kinds.put(ObstacleFinding(Obstacle.MEMBER), _to_bit_set(index.slot_numbers(self._number)))
        kinds.put(ObstacleFinding(Obstacle.NOT_READY), ~index.open_slots)
        kinds.put(ObstacleFinding(Obstacle.TOO_SMALL), ~index.fitting_slots((vm.cpu_milli, vm.memory_bytes)))
        kinds.put(ObstacleFinding(Obstacle.MEMBERS_CLASH), index.slots_at_fault())
        kinds.put(ObstacleFinding(Obstacle.RULE), index.refused_slots(self._number))
        kinds.put(ObstacleFinding(Obstacle.APART), ~index.separation.allowed_slots(vm.id, index.alive))
        if answer.reuse.error:
            kinds.put_rest(ObstacleFinding(Obstacle.PLACEMENT_ERROR))
        for refusal, hosts in self._group_by_refusal(answer.against_reuse).items():
            kinds.put(refusal, index.placed_on(hosts))
        kinds.put(ObstacleFinding(self.whole), index.slots_on(set(index.host_numbers(answer.reuse.hosts))))
        kinds.put_rest(ObstacleFinding(Obstacle.PLACEMENT))
        return kinds

    def breaches_by_joining(self, slot: str) -> list[Breach]:
        """The rules that joining the slot would break, the lowest first."""
        return self._index.find_objections(self.vm.id, slot)

    def breaches_by_opening(self, host: str) -> list[Breach]:
        """The same of a new slot on the host."""
        if host not in self._opening:
            self._opening[host] = self._index.objections_to_opening(self.vm.id, host)
        return self._opening[host]

    def movable_memberships(self, breaches: Sequence[Breach]) -> set[tuple[str, str]]:
        """(VM, slot): memberships of others, each of which is part of everything that would be broken."""
        index, found = self._index, None
        mine = index.slots_of(self.vm.id)
        for breach in breaches:
            others = {breach.vm, *breach.others} - {self.vm.id}
            slots = [slot for slot in dict.fromkeys((*breach.slots, *mine)) if slot != NEW_SLOT]
            here = {(vm, slot) for slot in slots for vm in others.intersection(index.members_of(slot))}
            found = here if found is None else found & here
        return found or set()

    def _group_by_refusal(self, against: dict[str, tuple[int, ...]]) -> dict[ObstacleFinding, list[int]]:
        """What the first refusing step says → the hosts of which it says that."""
        found: dict[ObstacleFinding, list[int]] = {}
        for name, why in against.items():
            found.setdefault(self._refusals[why[0]], []).append(self._index.host_number(name))
        return found

    # Room.

    def free_room(self, host: str) -> tuple[int, int] | None:
        """What a new slot could use on the host, by placement and by the plan's own account, below zero where more is
        in use than there is; ``None``: not known."""
        placed, free = self.answer.room.get(host), self.state.free.get(host)
        if placed is None:
            refused = self.answer.against_new.get(host, ())
            for_room = any(self.answer.refusals[number].is_capacity for number in refused)
            enough = free is None or (free[0] >= self.need[0] and free[1] >= self.need[1])
            found = None if for_room and enough else free
        else:
            found = placed if free is None else (min(placed[0], free[0]), min(placed[1], free[1]))
        over = self.state.overbooked.get(host)
        if found is None or over is None:
            return found
        return (-over[0] if over[0] else found[0], -over[1] if over[1] else found[1])

    @cached_property
    def need(self) -> tuple[int, int]:
        """What a host must have free for a new slot."""
        return (max(self.size.cpu_milli, self.answer.need[0]), max(self.size.memory_bytes, self.answer.need[1]))

    def missing_room(self, host: str) -> tuple[int, int] | None:
        """What is missing on a host for a new slot; ``None`` where its figures are not known."""
        room = self.free_room(host)
        if room is None:
            return None
        return (max(0, self.need[0] - room[0]), max(0, self.need[1] - room[1]))

    def find_roomiest(self) -> tuple[str, tuple[int, int]] | None:
        """Of hosts with nothing against them but room the one that lacks least, in shares of what is needed."""
        best: tuple[float, float, str, tuple[int, int]] | None = None
        cpu, memory = max(1, self.need[0]), max(1, self.need[1])
        for host in self.hosts.names_with(Obstacle.NO_CAPACITY):
            room, refused = self.free_room(host), self.answer.against_new.get(host, ())
            if room is None or not all(self.answer.refusals[number].is_capacity for number in refused):
                continue
            low, high = sorted((min(1.0, room[0] / cpu), min(1.0, room[1] / memory)))
            key = (-low, -low - high, host, room)
            if best is None or key < best:
                best = key
        return None if best is None else (best[2], best[3])

    # Words.

    def host_reason(self, number: int) -> CandidateReason:
        """The answer about one host."""
        host = self._index.host_names[number]
        finding = self.hosts.find_obstacle(number)
        breaches = self.breaches_by_opening(host) if finding.why is Obstacle.RULE else []
        return self._render_reason(finding, host, None, breaches)

    def slot_reason(self, number: int) -> CandidateReason:
        """The answer about one slot."""
        slot = self.ground.slots[self._index.slot_names[number]]
        finding = self.slots.find_obstacle(number)
        breaches: list[Breach] = []
        if finding.why is Obstacle.RULE:
            breaches = self.breaches_by_joining(slot.name)
        elif finding.why is Obstacle.MEMBERS_CLASH:
            breaches = next(found for vm in sorted(slot.members) if (found := self._index.find_breaches(vm)))
        return self._render_reason(finding, slot.host, slot, breaches)

    def _render_reason(
        self, finding: ObstacleFinding, host: str, slot: SlotView | None, breaches: list[Breach]
    ) -> CandidateReason:
        index, name = self._index, slot.name if slot is not None else ""
        if finding.why is Obstacle.OWN_CLASH:
            message = describe_one(finding.why, breach=index.find_breaches(self.vm.id)[0].describe())
            return CandidateReason(host=host, slot=name, reason=finding.word, message=message)
        if breaches:
            breach = breaches[0]
            members = slot.members if slot is not None else {}
            vms = sorted({breach.vm, *breach.others} - {self.vm.id}, key=lambda vm: (vm not in members, vm))
            other = vms[0] if vms else ""
            besides = [one for one in breach.slots if one not in (name, NEW_SLOT)]
            if other and not besides:
                besides = [one for one in index.slots_of(self.vm.id) if other in index.members_of(one)]
            at = index.location_of(other) if other else index.host_of_slot(besides[0]) if besides else self.vm.host
            word = f"rule-{breach.rule}" if finding.why is Obstacle.RULE else finding.word
            message = describe_one(finding.why, rule=breach.rule, breach=breach.describe())
            return CandidateReason(
                host=host,
                slot=name,
                reason=word,
                message=message,
                other_vm=other,
                other_host=at if finding.why is Obstacle.RULE else "",
                other_slot=besides[0] if besides and finding.why is Obstacle.RULE else "",
            )
        refusal = self.answer.refusals[finding.refusal] if finding.refusal >= 0 else None
        step, code = (refusal.step, refusal.code) if refusal is not None else ("", "")
        return CandidateReason(
            host=host,
            slot=name,
            reason=finding.word,
            message=self._render_finding(finding, host, slot),
            step=step,
            code=code,
        )

    def _render_finding(self, finding: ObstacleFinding, host: str, slot: SlotView | None) -> str:
        vm = self.vm
        answer = self.answer
        refusal = answer.refusals[finding.refusal] if finding.refusal >= 0 else None
        needs, room = (self.need, self.free_room(host)) if slot is None else (answer.need, answer.reuse_room.get(host))
        fault = allocation_fault(vm, slot) if slot is not None and finding.why is Obstacle.MEMBER else None
        offer = answer.new if slot is None else answer.reuse
        size = format_amounts(vm.cpu_milli, vm.memory_bytes)
        return describe_one(
            finding.why,
            but=render(fault).text if fault is not None else "",
            holds=format_amounts(slot.cpu_milli, slot.memory_bytes) if slot is not None else "",
            needs=format_amounts(*needs) if finding.why is Obstacle.NO_CAPACITY else size,
            declares=size,
            free=format_amounts(max(0, room[0]), max(0, room[1])) if room is not None else "",
            over=part_amounts(max(0, -room[0]), max(0, -room[1])) if room is not None and min(room) < 0 else "",
            beside=" beside slots" if slot is not None else "",
            apart=self._index.separation.explain_closed(vm.id, host),
            step=refusal.step if refusal is not None else "",
            message=refusal.message if refusal is not None else "",
            error=offer.error,
            nothing="a slot could be opened here" if slot is None else "it may join this slot",
        )

    def host_tallies(self) -> tuple[ReasonTally, ...]:
        """The hosts by obstacle."""
        return self._build_tallies(self.hosts, "")

    def slot_tallies(self) -> tuple[ReasonTally, ...]:
        """The slots by obstacle."""
        return self._build_tallies(self.slots, "are on hosts that ")

    def _build_tallies(self, kinds: Kinds, of_hosts: str) -> tuple[ReasonTally, ...]:
        found: dict[tuple[str, str], ReasonTally] = {}
        for finding, count, first in kinds.count_obstacles():
            about_host = finding.why in (Obstacle.PLACEMENT, Obstacle.NO_CAPACITY)
            refusal = self.answer.refusals[finding.refusal] if finding.refusal >= 0 else None
            text = describe_many(
                finding.why,
                needs=format_amounts(self.vm.cpu_milli, self.vm.memory_bytes),
                rule=finding.rule,
                room=format_amounts(*self.need),
                zone=self.vm.zone,
                step=refusal.step if refusal is not None else "",
                code=refusal.code if refusal is not None else "",
                message=refusal.message if refusal is not None else "",
            )
            key = (finding.word, f"{of_hosts if about_host else ''}{text}")
            known = found.get(key)
            if known is not None:
                count, first = count + known.count, min(first, known.example)
            found[key] = ReasonTally(reason=key[0], count=count, text=key[1], example=first)
        return tuple(found.values())


def _to_bit_set(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found

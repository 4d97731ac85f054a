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
from outlive.failover.analysis.explain.model import Answer, Reason, State, Tally, part_amounts
from outlive.failover.breaches import Breach
from outlive.failover.conflicts import NEW_SLOT
from outlive.failover.fleet import Fleet, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.rules import serves
from outlive.failover.separation import groups_of
from outlive.failover.sizes import ResolvedSize, amounts
from outlive.failover.slotsets import bits
from outlive.placement.vms import VmView
from outlive.resources.reasons import render
from outlive.resources.reasons.obstacles import Obstacle, of_many, of_one


class Ground:
    """VMs and slots by name, and the index over them, in which names and numbers have the same order."""

    def __init__(self, state: State, slots: Iterable[SlotView]) -> None:
        self.views = {vm.id: vm for vm in state.vms}
        self._required = state.required
        self.slots = {slot.name: slot for slot in sorted(slots, key=lambda slot: slot.name)}
        self.index = Fleet(state.topology)
        self.hosts = self.index.hosts(sorted(host.name for host in state.hosts))
        self.index.set_free(FreeAmounts.of(state.free))
        for vm in state.vms:
            self.index.add_vm(vm, state.required.get(vm.id, 0))
        self.index.separation.take(groups_of(state.vms, state.required))
        self.index.load(self.slots.values())
        self.index.judge()

    def misses(self, vm: VmView, ready: Collection[str] = ()) -> int:
        """How many slots the VM misses as the index is now, if these slots were ready."""
        return max(0, self._required.get(vm.id, 0) - sum(self._counts(vm, slot, ready) for slot in self.slots_of(vm)))

    def slots_of(self, vm: VmView) -> list[str]:
        """The slots that the VM is a member of, by name."""
        return self.index.slots_of(vm.id)

    def is_covered(self, vm: VmView) -> bool:
        """Whether the VM has all the slots that it needs, and no rule is broken for it."""
        return not self.misses(vm) and self.index.holds_for(vm.id)

    def _counts(self, vm: VmView, name: str, ready: Collection[str]) -> bool:
        slot = self.slots.get(name)
        if slot is None:
            return True  # opened for it in a trial
        if name in ready:
            slot = msgspec.structs.replace(slot, ready=True)
        return slot.members.get(vm.id, vm.host) == vm.host and serves(vm, slot)


class Finding(NamedTuple):
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
        self._of: dict[Finding, int] = {}

    def put(self, finding: Finding, these: int) -> None:
        """This is the obstacle of those of them that have none yet."""
        found = self._left & these
        if found:
            self._of[finding] = self._of.get(finding, 0) | found
            self._left &= ~found

    def put_rest(self, finding: Finding) -> None:
        """This is the obstacle of all others."""
        self.put(finding, self._left)

    def kind(self, number: int) -> Finding:
        """The obstacle of one."""
        return next(finding for finding, found in self._of.items() if found >> number & 1)

    def counted(self) -> Iterator[tuple[Finding, int, str]]:
        """(what, how many, the first by name), in the order in which obstacles are looked for."""
        for finding, found in sorted(self._of.items(), key=lambda one: (_rank(one[0]), -one[1].bit_count())):
            yield finding, found.bit_count(), self._names[next(bits(found))]

    def named(self, why: Obstacle) -> Iterator[str]:
        """The names of those that have this obstacle."""
        found = 0
        for finding, these in self._of.items():
            found |= these if finding.why is why else 0
        return (self._names[number] for number in bits(found))

    def closest(self, count: int | None) -> list[int]:
        """All numbers; or so many, those first whose obstacle is the last in the order.

        Of every obstacle there are examples, as evenly as there are numbers for it: else one
        refusal that many share would hide the others.
        """
        if count is None:
            return list(bits(self._all))
        alike: dict[tuple[int, int], list[int]] = {}
        for finding, found in self._of.items():
            alike.setdefault(_rank(finding), []).extend(islice(bits(found), count))
        groups = [nsmallest(count, alike[rank]) for rank in sorted(alike, reverse=True)]
        places = sorted((place, at) for at, group in enumerate(groups) for place in range(len(group)))[:count]
        return [groups[at][place] for at, place in sorted((at, place) for place, at in places)]


def _rank(finding: Finding) -> tuple[int, int]:
    return (_ORDER[finding.why], finding.rule)


class Against:
    """One VM's obstacles."""

    def __init__(self, state: State, ground: Ground, vm: VmView, size: ResolvedSize, answer: Answer) -> None:
        self.state = state
        self.ground = ground
        self.vm = vm
        self.size = size
        self.answer = answer
        self._index = ground.index
        self._number = ground.index.vm(vm.id)
        self._opening: dict[str, list[Breach]] = {}
        self._refusals = [self._refused(number) for number in range(len(answer.refusals))]

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
        kinds = Kinds(index.host_names, _set(self.ground.hosts))
        blocked = index.blocked_units(self._number)
        for host in self.ground.hosts:
            if index.unit_of(host) in blocked:
                rule = min((one.rule for one in self.opening(index.host_names[host])), default=0)
                kinds.put(Finding(Obstacle.RULE, rule), 1 << host)
        closed = index.separation.closed(self.vm.id)
        if closed is not None:
            kinds.put(Finding(Obstacle.APART), _set(np.nonzero(closed)[0].tolist()))
        if answer.new.error:
            kinds.put_rest(Finding(Obstacle.PLACEMENT_ERROR))
        for refusal, hosts in self._by_refusal(answer.against_new).items():
            kinds.put(refusal, _set(hosts))
        offered = np.array(index.hosts(answer.new.hosts), dtype=np.int64)
        fitting = offered[index.room(offered, self.size.cpu_milli, self.size.memory_bytes)]
        kinds.put(Finding(self.whole), _set(fitting.tolist()))
        kinds.put(Finding(Obstacle.NO_CAPACITY), _set(offered.tolist()))
        kinds.put_rest(Finding(Obstacle.PLACEMENT))
        return kinds

    @cached_property
    def slots(self) -> Kinds:
        """The obstacles to joining, slot by slot."""
        index, answer, vm = self._index, self.answer, self.vm
        kinds = Kinds(index.slot_names, index.alive)
        kinds.put(Finding(Obstacle.MEMBER), _set(index.slot_numbers(self._number)))
        kinds.put(Finding(Obstacle.NOT_READY), ~index.open_slots)
        kinds.put(Finding(Obstacle.TOO_SMALL), ~index.fitting((vm.cpu_milli, vm.memory_bytes)))
        kinds.put(Finding(Obstacle.MEMBERS_CLASH), index.slots_at_fault())
        kinds.put(Finding(Obstacle.RULE), index.refused(self._number))
        kinds.put(Finding(Obstacle.APART), ~index.separation.among(vm.id, index.alive))
        if answer.reuse.error:
            kinds.put_rest(Finding(Obstacle.PLACEMENT_ERROR))
        for refusal, hosts in self._by_refusal(answer.against_reuse).items():
            kinds.put(refusal, index.placed_on(hosts))
        kinds.put(Finding(self.whole), index.slots_on(set(index.hosts(answer.reuse.hosts))))
        kinds.put_rest(Finding(Obstacle.PLACEMENT))
        return kinds

    def joining(self, slot: str) -> list[Breach]:
        """The rules that joining the slot would break, the lowest first."""
        return self._index.objections(self.vm.id, slot)

    def opening(self, host: str) -> list[Breach]:
        """The same of a new slot on the host."""
        if host not in self._opening:
            self._opening[host] = self._index.objections_to_opening(self.vm.id, host)
        return self._opening[host]

    def movable(self, breaches: Sequence[Breach]) -> set[tuple[str, str]]:
        """(VM, slot): memberships of others, each of which is part of everything that would be broken."""
        index, found = self._index, None
        mine = index.slots_of(self.vm.id)
        for breach in breaches:
            others = {breach.vm, *breach.others} - {self.vm.id}
            slots = [slot for slot in dict.fromkeys((*breach.slots, *mine)) if slot != NEW_SLOT]
            here = {(vm, slot) for slot in slots for vm in others.intersection(index.members(slot))}
            found = here if found is None else found & here
        return found or set()

    def _by_refusal(self, against: dict[str, tuple[int, ...]]) -> dict[Finding, list[int]]:
        """What the first refusing step says → the hosts of which it says that."""
        found: dict[Finding, list[int]] = {}
        for name, why in against.items():
            found.setdefault(self._refusals[why[0]], []).append(self._index.host(name))
        return found

    def _refused(self, number: int) -> Finding:
        refusal = self.answer.refusals[number]
        if refusal.code == Obstacle.ZERO_SIZE.value:
            return Finding(Obstacle.ZERO_SIZE)
        return Finding(Obstacle.NO_CAPACITY if refusal.is_capacity else Obstacle.PLACEMENT, refusal=number)

    # Room.

    def room(self, host: str) -> tuple[int, int] | None:
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

    def lacks(self, host: str) -> tuple[int, int] | None:
        """What is missing on a host for a new slot; ``None`` where its figures are not known."""
        room = self.room(host)
        if room is None:
            return None
        return (max(0, self.need[0] - room[0]), max(0, self.need[1] - room[1]))

    def roomiest(self) -> tuple[str, tuple[int, int]] | None:
        """Of hosts with nothing against them but room the one that lacks least, in shares of what is needed."""
        best: tuple[float, float, str, tuple[int, int]] | None = None
        cpu, memory = max(1, self.need[0]), max(1, self.need[1])
        for host in self.hosts.named(Obstacle.NO_CAPACITY):
            room, refused = self.room(host), self.answer.against_new.get(host, ())
            if room is None or not all(self.answer.refusals[number].is_capacity for number in refused):
                continue
            low, high = sorted((min(1.0, room[0] / cpu), min(1.0, room[1] / memory)))
            key = (-low, -low - high, host, room)
            if best is None or key < best:
                best = key
        return None if best is None else (best[2], best[3])

    # Words.

    def host_reason(self, number: int) -> Reason:
        """The answer about one host."""
        host = self._index.host_names[number]
        finding = self.hosts.kind(number)
        breaches = self.opening(host) if finding.why is Obstacle.RULE else []
        return self._reason(finding, host, None, breaches)

    def slot_reason(self, number: int) -> Reason:
        """The answer about one slot."""
        slot = self.ground.slots[self._index.slot_names[number]]
        finding = self.slots.kind(number)
        breaches: list[Breach] = []
        if finding.why is Obstacle.RULE:
            breaches = self.joining(slot.name)
        elif finding.why is Obstacle.MEMBERS_CLASH:
            breaches = next(found for vm in sorted(slot.members) if (found := self._index.breaches(vm)))
        return self._reason(finding, slot.host, slot, breaches)

    def _reason(self, finding: Finding, host: str, slot: SlotView | None, breaches: list[Breach]) -> Reason:
        index, name = self._index, slot.name if slot is not None else ""
        if finding.why is Obstacle.OWN_CLASH:
            message = of_one(finding.why, breach=index.breaches(self.vm.id)[0].sentence())
            return Reason(host=host, slot=name, reason=finding.word, message=message)
        if breaches:
            breach = breaches[0]
            members = slot.members if slot is not None else {}
            vms = sorted({breach.vm, *breach.others} - {self.vm.id}, key=lambda vm: (vm not in members, vm))
            other = vms[0] if vms else ""
            besides = [one for one in breach.slots if one not in (name, NEW_SLOT)]
            if other and not besides:
                besides = [one for one in index.slots_of(self.vm.id) if other in index.members(one)]
            at = index.location(other) if other else index.host_of_slot(besides[0]) if besides else self.vm.host
            word = f"rule-{breach.rule}" if finding.why is Obstacle.RULE else finding.word
            message = of_one(finding.why, rule=breach.rule, breach=breach.sentence())
            return Reason(
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
        return Reason(
            host=host,
            slot=name,
            reason=finding.word,
            message=self._sentence(finding, host, slot),
            step=step,
            code=code,
        )

    def _sentence(self, finding: Finding, host: str, slot: SlotView | None) -> str:
        vm = self.vm
        refusal = self.answer.refusals[finding.refusal] if finding.refusal >= 0 else None
        needs, room = (self.need, self.room(host)) if slot is None else (self.answer.need, self._reuse_room(host))
        fault = allocation_fault(vm, slot) if slot is not None and finding.why is Obstacle.MEMBER else None
        offer = self.answer.new if slot is None else self.answer.reuse
        size = amounts(vm.cpu_milli, vm.memory_bytes)
        return of_one(
            finding.why,
            but=render(fault).text if fault is not None else "",
            holds=amounts(slot.cpu_milli, slot.memory_bytes) if slot is not None else "",
            needs=amounts(*needs) if finding.why is Obstacle.NO_CAPACITY else size,
            declares=size,
            free=amounts(max(0, room[0]), max(0, room[1])) if room is not None else "",
            over=part_amounts(max(0, -room[0]), max(0, -room[1])) if room is not None and min(room) < 0 else "",
            beside=" beside slots" if slot is not None else "",
            apart=self._index.separation.why(vm.id, host),
            step=refusal.step if refusal is not None else "",
            message=refusal.message if refusal is not None else "",
            error=offer.error,
            nothing="a slot could be opened here" if slot is None else "it may join this slot",
        )

    def _reuse_room(self, host: str) -> tuple[int, int] | None:
        return self.answer.reuse_room.get(host)

    def host_tallies(self) -> tuple[Tally, ...]:
        """The hosts by obstacle."""
        return self._tallies(self.hosts, "")

    def slot_tallies(self) -> tuple[Tally, ...]:
        """The slots by obstacle."""
        return self._tallies(self.slots, "are on hosts that ")

    def _tallies(self, kinds: Kinds, of_hosts: str) -> tuple[Tally, ...]:
        found: dict[tuple[str, str], Tally] = {}
        for finding, count, first in kinds.counted():
            about_host = finding.why in (Obstacle.PLACEMENT, Obstacle.NO_CAPACITY)
            key = (finding.word, f"{of_hosts if about_host else ''}{self._phrase(finding)}")
            known = found.get(key)
            if known is not None:
                count, first = count + known.count, min(first, known.example)
            found[key] = Tally(reason=key[0], count=count, text=key[1], example=first)
        return tuple(found.values())

    def _phrase(self, finding: Finding) -> str:
        refusal = self.answer.refusals[finding.refusal] if finding.refusal >= 0 else None
        return of_many(
            finding.why,
            needs=amounts(self.vm.cpu_milli, self.vm.memory_bytes),
            rule=finding.rule,
            room=amounts(*self.need),
            zone=self.vm.zone,
            step=refusal.step if refusal is not None else "",
            code=refusal.code if refusal is not None else "",
            message=refusal.message if refusal is not None else "",
        )


def _set(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found

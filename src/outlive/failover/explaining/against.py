"""The first thing that stands against each host and each slot, for one VM, and all of them counted.

The order is that of docs/reference/failover.md#explanations. Findings are small and made for everybody; sentences are
made for those that are shown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from outlive.failover.explaining.ground import Ground, Standpoint, counts_for
from outlive.failover.explaining.model import Answer, State
from outlive.failover.explaining.words import (
    Clash,
    Finding,
    Reason,
    Tally,
    Why,
    capacity_sentence,
    refusal_phrase,
    rule_sentence,
)
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.reasons import amounts
from outlive.failover.sizing import ResolvedSize

_NOTHING = Finding(Why.NOTHING)
_NO_CAPACITY = Finding(Why.NO_CAPACITY)
_TOO_SMALL = Finding(Why.TOO_SMALL)
_NOT_READY = Finding(Why.NOT_READY)


class Against:
    """One VM's obstacles."""

    def __init__(self, state: State, ground: Ground, vm: VmView, size: ResolvedSize, answer: Answer) -> None:
        self.state = state
        self.ground = ground
        self.vm = vm
        self.size = size
        self.answer = answer
        self.rules: Standpoint = ground.at(vm)
        self._literal = state.compat.reverted("D10")
        self._unlimited = state.compat.reverted("D13")
        self._last = self._whole()

    def _whole(self) -> Finding:
        """What stands against the VM itself, wherever the slot would be."""
        sizes = (self.vm.cpu_milli, self.vm.memory_bytes, self.size.cpu_milli, self.size.memory_bytes)
        if min(sizes) <= 0 and not self._unlimited:
            return Finding(Why.ZERO_SIZE)
        breach = self.ground.breaches.get(self.vm.id)
        return _NOTHING if breach is None else Finding(Why.OWN_CLASH, text=breach.sentence())

    @property
    def whole(self) -> Finding:
        """What stands against the VM itself; ``NOTHING`` as a rule."""
        return self._last

    @cached_property
    def hosts(self) -> dict[str, Finding]:
        """Host → the first thing against a new slot there, by name."""
        names = sorted(host.name for host in self.state.hosts)
        if self.answer.new.error:
            unanswered = Finding(Why.PLACEMENT_ERROR, text=self.answer.new.error)
            return {name: self.rules.against_host(name) or unanswered for name in names}
        offered, against = frozenset(self.answer.new.hosts), self.answer.against_new
        found: dict[str, Finding] = {}
        shared = [self._refused(number) for number in range(len(self.answer.refusals))]
        fits, rule, separation, last = self._fits, self.rules.against_host, self.rules.separation, self._last
        for name in names:
            finding = rule(name) or separation(name)
            if finding is None:
                refused = against.get(name)
                if refused:
                    finding = shared[refused[0]]
                elif name not in offered:
                    finding = Finding(Why.PLACEMENT)
                else:
                    finding = last if fits(name) else _NO_CAPACITY
            found[name] = finding
        return found

    @cached_property
    def slots(self) -> dict[str, Finding]:
        """Slot → the first thing against joining it, by name."""
        offered, against = frozenset(self.answer.reuse.hosts), self.answer.against_reuse
        return {name: self._slot(slot, offered, against) for name, slot in self.ground.slots.items()}

    def _slot(self, slot: SlotView, offered: frozenset[str], against: dict[str, tuple[int, ...]]) -> Finding:
        vm = self.vm
        if vm.id in slot.members:
            return Finding(Why.MEMBER)
        if slot.ready is False and not self._literal:
            return _NOT_READY
        if slot.cpu_milli < vm.cpu_milli or slot.memory_bytes < vm.memory_bytes:
            return _TOO_SMALL
        finding = self.rules.against_slot(slot) or self.rules.separation(slot.host)
        if finding is not None:
            return finding
        if self.answer.reuse.error:
            return Finding(Why.PLACEMENT_ERROR, text=self.answer.reuse.error)
        refused = against.get(slot.host)
        if refused:
            return self._refused(refused[0])
        return self._last if slot.host in offered else Finding(Why.PLACEMENT)

    def _refused(self, number: int) -> Finding:
        refusal = self.answer.refusals[number]
        if refusal.code == Why.ZERO_SIZE.value:
            return Finding(Why.ZERO_SIZE)
        return Finding(Why.NO_CAPACITY if refusal.is_capacity else Why.PLACEMENT, refusal=number)

    def _fits(self, host: str) -> bool:
        if not self.state.free:
            return True
        free = self.state.free.get(host)
        if free is None:
            return self._unlimited
        return free[0] >= self.size.cpu_milli and free[1] >= self.size.memory_bytes

    # Room.

    def room(self, host: str) -> tuple[int, int] | None:
        """What a new slot could use on the host, by placement and by the plan's own account; ``None``: not known."""
        placed, free = self.answer.room.get(host), self.state.free.get(host)
        if placed is None or free is None:
            return placed or (free if not self.answer.room else None)
        return (min(placed[0], free[0]), min(placed[1], free[1]))

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

    def roomiest(self, hosts: Iterable[str]) -> tuple[str, tuple[int, int]] | None:
        """Of hosts without enough room the one that lacks least, in shares of what is needed."""
        best: tuple[float, float, str] | None = None
        cpu, memory = max(1, self.need[0]), max(1, self.need[1])
        for host in hosts:
            room = self.room(host)
            if room is None:
                continue
            low, high = sorted((min(1.0, room[0] / cpu), min(1.0, room[1] / memory)))
            key = (-low, -low - high, host)
            if best is None or key < best:
                best = key
        return None if best is None else (best[2], self.room(best[2]) or (0, 0))

    # Words.

    def host_reason(self, host: str) -> Reason:
        """The answer about one host."""
        finding = self.hosts[host]
        return self._reason(finding, host, "", self._sentence(finding, host, None))

    def slot_reason(self, name: str) -> Reason:
        """The answer about one slot."""
        finding, slot = self.slots[name], self.ground.slots[name]
        return self._reason(finding, slot.host, name, self._sentence(finding, slot.host, slot))

    def _reason(self, finding: Finding, host: str, slot: str, message: str) -> Reason:
        refusal = self.answer.refusals[finding.refusal] if finding.refusal >= 0 else None
        return Reason(
            host=host,
            slot=slot,
            reason=finding.word,
            message=message,
            other_vm=finding.vm,
            other_host=finding.host,
            other_slot=finding.slot,
            step=refusal.step if refusal is not None else "",
            code=refusal.code if refusal is not None else "",
        )

    def _sentence(self, finding: Finding, host: str, slot: SlotView | None) -> str:
        match finding.why:
            case Why.RULE:
                return rule_sentence(self.vm.id, finding, host, self.ground.topology.units)
            case Why.MEMBER:
                assert slot is not None
                return self.membership(slot)
            case Why.NOT_READY:
                return "the slot is not ready: it counts for nobody and takes nobody"
            case Why.TOO_SMALL:
                assert slot is not None
                holds, needs = (slot.cpu_milli, slot.memory_bytes), (self.vm.cpu_milli, self.vm.memory_bytes)
                return f"holds {amounts(*holds)}, the VM needs {amounts(*needs)}"
            case Why.MEMBERS_CLASH:
                return f"a rule is broken for member {finding.vm}: {finding.text}"
            case Why.NO_CAPACITY:
                if slot is None:
                    return capacity_sentence(self.need, self.room(host))
                return f"{capacity_sentence(self.answer.need, self.answer.reuse_room.get(host))} beside slots"
            case Why.PLACEMENT if finding.refusal >= 0:
                refusal = self.answer.refusals[finding.refusal]
                return f"{refusal.step}: {refusal.message}" if refusal.message else refusal.step
            case Why.PLACEMENT:
                return "placement does not offer this host"
            case Why.ZERO_SIZE:
                return f"the VM declares {amounts(self.vm.cpu_milli, self.vm.memory_bytes)}"
            case Why.OWN_CLASH:
                return f"a rule is broken for the VM itself: {finding.text}"
            case Why.NOTHING:
                return "it may join this slot" if slot is not None else "a slot could be opened here"
            case _:
                return finding.text

    def membership(self, slot: SlotView) -> str:
        """What a slot that lists the VM is worth to it."""
        vm = self.vm
        if counts_for(vm, slot, literal=self._literal):
            return "it is a member, and the slot counts"
        if slot.members.get(vm.id) != vm.host:
            return f"it is a member, but the slot believes it to be on {slot.members.get(vm.id)}"
        if slot.ready is False:
            return "it is a member, but the slot is not ready"
        return f"it is a member, but the slot holds {amounts(slot.cpu_milli, slot.memory_bytes)} only"

    def host_tallies(self) -> tuple[Tally, ...]:
        """The hosts by what stands against them."""
        return self._tallies(self.hosts, slots=False)

    def slot_tallies(self) -> tuple[Tally, ...]:
        """The slots by what stands against them."""
        return self._tallies(self.slots, slots=True)

    def _tallies(self, findings: dict[str, Finding], *, slots: bool) -> tuple[Tally, ...]:
        counts: dict[tuple[str, str], int] = {}
        first: dict[tuple[str, str], str] = {}
        seen: dict[tuple[Why, Clash | None, int], list[Any]] = {}
        for name, finding in findings.items():
            kind = (finding.why, finding.clash, finding.refusal)
            known = seen.get(kind)
            if known is None:
                seen[kind] = [1, name, finding]
            else:
                known[0] += 1
        for count, name, finding in seen.values():
            key = (finding.word, self._phrase(finding, slots=slots))
            counts[key] = counts.get(key, 0) + count
            first[key] = min(name, first.get(key, name))
        order = {why.value: place for why, place in _PLACE.items()}
        words = sorted(counts, key=lambda key: (order.get(key[0], _PLACE[Why.RULE]), key[0], -counts[key], key))
        return tuple(Tally(reason=key[0], count=counts[key], text=key[1], example=first[key]) for key in words)

    def _phrase(self, finding: Finding, *, slots: bool) -> str:
        many = {
            Why.MEMBER: "have it as a member",
            Why.NOT_READY: "are not ready",
            Why.TOO_SMALL: f"are smaller than {amounts(self.vm.cpu_milli, self.vm.memory_bytes)}",
            Why.MEMBERS_CLASH: "have a member for which a rule is broken",
            Why.APART: "are too near, or too far, by failure domains or server group",
            Why.PLACEMENT_ERROR: "could not be asked about",
            Why.NO_CAPACITY: f"{'are on hosts that ' if slots else ''}have less than {amounts(*self.need)} free",
            Why.ZERO_SIZE: "cannot hold a VM without size",
            Why.OWN_CLASH: "would do, were no rule broken for the VM itself",
            Why.NOTHING: "would do",
        }
        if finding.clash is not None:
            if slots:
                return f"are ruled out by rule {finding.clash.rule}"
            return {1: "is its own", 2: "have its slots", 4: "run its co-users"}[finding.clash.rule]
        if finding.why is Why.PLACEMENT:
            where = "are on hosts that " if slots else ""
            if finding.refusal < 0:
                return f"{where}are not offered by placement"
            return where + refusal_phrase(self.answer.refusals[finding.refusal], self.vm.zone)
        return many[finding.why]


_PLACE = {why: place for place, why in enumerate(Why)}


def closest(findings: Mapping[str, Finding], count: int | None) -> list[str]:
    """All names as they come; or so many, those first against which the last thing in the order stands."""
    if count is None:
        return list(findings)

    def place(name: str) -> tuple[int, int, str]:
        finding = findings[name]
        return (-_PLACE[finding.why], -finding.clash.rule if finding.clash else 0, name)

    return heapq.nsmallest(count, findings, key=place)

"""The first thing that stands against each host and each slot, for one VM, and all of them counted.

The order is that of docs/reference/failover.md#explanations. Findings are small and made for everybody; sentences are
made for those that are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from outlive.failover.analysis.coverage import allocation_fault
from outlive.failover.analysis.explain.findings import (
    Finding,
    Kinds,
    Reason,
    Tally,
    Why,
    capacity_sentence,
    refusal_phrase,
    rule_sentence,
)
from outlive.failover.analysis.explain.model import Answer, State
from outlive.failover.analysis.explain.rules_index import OBSTACLES, Ground, Standpoint
from outlive.failover.model import SlotView, VmView
from outlive.failover.rules import counts
from outlive.failover.sizing import ResolvedSize, amounts
from outlive.resources.reasons import render

_NOTHING = Finding(Why.NOTHING)
_NO_CAPACITY = Finding(Why.NO_CAPACITY)
_APART = Finding(Why.APART)


class Against:
    """One VM's obstacles."""

    def __init__(self, state: State, ground: Ground, vm: VmView, size: ResolvedSize, answer: Answer) -> None:
        self.state = state
        self.ground = ground
        self.vm = vm
        self.size = size
        self.answer = answer
        self.rules: Standpoint = ground.at(vm)
        self._last = self._whole()

    def _whole(self) -> Finding:
        """What stands against the VM itself, wherever the slot would be."""
        sizes = (self.vm.cpu_milli, self.vm.memory_bytes, self.size.cpu_milli, self.size.memory_bytes)
        if min(sizes) <= 0:
            return Finding(Why.ZERO_SIZE)
        breach = self.ground.breaches.get(self.vm.id)
        return _NOTHING if breach is None else Finding(Why.OWN_CLASH, text=breach.sentence())

    @property
    def whole(self) -> Finding:
        """What stands against the VM itself; ``NOTHING`` as a rule."""
        return self._last

    @cached_property
    def hosts(self) -> Kinds:
        """What stands against a new slot on each host, by kind."""
        kinds, answer = Kinds(), self.answer
        names = self.ground.host_names
        if answer.new.error:
            kinds.of = dict.fromkeys(names, kinds.number(Finding(Why.PLACEMENT_ERROR, text=answer.new.error)))
        else:
            kinds.of = dict.fromkeys(names, kinds.number(Finding(Why.PLACEMENT)))
            refused = [kinds.number(self._refused(number)) for number in range(len(answer.refusals))]
            kinds.of.update({name: refused[why[0]] for name, why in answer.against_new.items() if name in kinds.of})
            last, full = kinds.number(self._last), kinds.number(_NO_CAPACITY)
            offered = kinds.of.keys() & set(answer.new.hosts).difference(answer.against_new)
            kinds.of.update({name: last if self._fits(name) else full for name in offered})
        if self.rules.separates:
            apart = kinds.number(_APART)
            kinds.of.update({name: apart for name in names if self.rules.separation(name) is not None})
        for unit, cause in self.rules.blocked.items():
            rule = kinds.number(Finding(Why.RULE, cause.clash))
            kinds.of.update(dict.fromkeys(self.ground.hosts_in(unit), rule))
        return kinds

    @cached_property
    def slots(self) -> Kinds:
        """What stands against joining each slot, by kind."""
        kinds, answer, vm = Kinds(), self.answer, self.vm
        table, rules = self.ground.table, self.rules
        refused = [kinds.number(self._refused(number)) for number in range(len(answer.refusals))]
        last, silent, apart = (kinds.number(one) for one in (self._last, Finding(Why.PLACEMENT), _APART))
        if answer.reuse.error:
            silent = last = kinds.number(Finding(Why.PLACEMENT_ERROR, text=answer.reuse.error))
        offered, against = frozenset(answer.reuse.hosts), answer.against_reuse

        def of_host(host: str) -> int:
            if rules.separates and rules.separation(host) is not None:
                return apart
            why = against.get(host)
            return refused[why[0]] if why else last if host in offered else silent

        found = table.on_hosts(map(of_host, table.hosts))
        obstacles = rules.obstacles_of_all
        numbers = np.array([kinds.number(one) for one in OBSTACLES])
        found = np.where(obstacles >= 0, numbers[obstacles], found)
        member, not_ready, small = (kinds.number(Finding(why)) for why in (Why.MEMBER, Why.NOT_READY, Why.TOO_SMALL))
        found = np.where(table.smaller_than(vm.cpu_milli, vm.memory_bytes), small, found)
        found = np.where(table.ready, found, not_ready)
        found = np.where(table.these(rules.mine), member, found)
        kinds.of = dict(zip(table.names, found.tolist(), strict=True))
        return kinds

    def host(self, name: str) -> Finding:
        """What stands against a new slot on one host, in full."""
        kind = self.hosts.kind(name)
        match kind.why:
            case Why.RULE:
                return self.rules.against_host(name) or kind
            case Why.APART:
                return self.rules.separation(name) or kind
            case _:
                return kind

    def slot(self, name: str) -> Finding:
        """What stands against joining one slot, in full."""
        kind, slot = self.slots.kind(name), self.ground.slots[name]
        match kind.why:
            case Why.RULE | Why.MEMBERS_CLASH:
                return self.rules.against_slot(slot) or kind
            case Why.APART:
                return self.rules.separation(slot.host) or kind
            case _:
                return kind

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
            return False
        return free[0] >= self.size.cpu_milli and free[1] >= self.size.memory_bytes

    # Room.

    def room(self, host: str) -> tuple[int, int] | None:
        """What a new slot could use on the host, by placement and by the plan's own account; ``None``: not known."""
        placed, free = self.answer.room.get(host), self.state.free.get(host)
        if placed is None:
            refused = self.answer.against_new.get(host, ())
            return None if any(self.answer.refusals[number].is_capacity for number in refused) else free
        return placed if free is None else (min(placed[0], free[0]), min(placed[1], free[1]))

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
        finding = self.host(host)
        return self._reason(finding, host, "", self._sentence(finding, host, None))

    def slot_reason(self, name: str) -> Reason:
        """The answer about one slot."""
        finding, slot = self.slot(name), self.ground.slots[name]
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
        if counts(vm, slot):
            return "it is a member, and the slot counts"
        why = allocation_fault(vm, slot)
        return f"it is a member, but the slot {render(why).text if why is not None else 'does not count'}"

    def host_tallies(self) -> tuple[Tally, ...]:
        """The hosts by what stands against them."""
        return self._tallies(self.hosts, slots=False)

    def slot_tallies(self) -> tuple[Tally, ...]:
        """The slots by what stands against them."""
        return self._tallies(self.slots, slots=True)

    def _tallies(self, kinds: Kinds, *, slots: bool) -> tuple[Tally, ...]:
        found: dict[tuple[str, str], Tally] = {}
        for kind, count, first in kinds.counted():
            key = (kind.word, self._phrase(kind, slots=slots))
            known = found.get(key)
            if known is not None:
                count, first = count + known.count, min(first, known.example)
            found[key] = Tally(reason=key[0], count=count, text=key[1], example=first)
        return tuple(found.values())

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

"""Trials: would this VM get its slots if this or that were done? Asked of the planner itself, on a model.

The model is the fleet after clean-up, as the next cycle finds it, with counters that are kept: a trial changes them,
serves the VM and takes everything back, so that it costs what it touches and not what the fleet is large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from outlive.failover.analysis.explain.model import Answer, State
from outlive.failover.analysis.explain.rules_index import Ground
from outlive.failover.fleet import Fleet, FreeAmounts, held_by
from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.actions import Action, Fail, Join, Need, Offer, Open
from outlive.failover.planner.cleanup import CleanInput, clean
from outlive.failover.planner.greedy import Greedy
from outlive.failover.planner.selection import service_rank
from outlive.failover.rules import counts
from outlive.failover.sizing import ResolvedSize
from outlive.failover.slotsets import bits

_CLASS = ""


@dataclass(slots=True)
class Change:
    """What is supposed to be different."""

    moves: Sequence[tuple[str, str, str]] = ()
    """(VM, the slot that it leaves, the slot that it joins first)."""
    ready_slots: Sequence[str] = ()
    new_hosts: Sequence[str] = ()
    """Hosts that placement offers besides, with room for the slot."""
    reuse_hosts: Sequence[str] = ()
    """Hosts on which slots may be joined besides."""
    free: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Host → what is free there."""


class Model:
    """The fleet as the next cycle finds it."""

    def __init__(self, state: State, ground: Ground) -> None:
        self.state = state
        self.slots = _cleaned(state, ground)
        self.counters = Fleet.build(self.slots.values(), topology=ground.topology)
        self.counters.separation.take(ground.groups)
        self._free = FreeAmounts.of(state.free)
        self._slots_of: dict[str, list[str]] = {}
        for name, slot in self.slots.items():
            for member in slot.members:
                self._slots_of.setdefault(member, []).append(name)
        self._views = ground.views
        self._shared: Greedy | None = None
        self._hosts = tuple(host.name for host in state.hosts)
        self.trials = 0

    def slots_of(self, vm: str) -> Sequence[str]:
        """The slots that list the VM, by name."""
        return self._slots_of.get(vm, ())

    def present(self, vm: VmView) -> int:
        """Slots that count for the VM."""
        return sum(counts(vm, self.slots[slot]) for slot in self.slots_of(vm.id))

    @cached_property
    def order(self) -> dict[str, int]:
        """VM that misses slots → how many are served before it."""
        state = self.state
        counting: dict[str, int] = {}
        for slot in self.slots.values():
            for member in slot.members:
                view = self._views.get(member)
                if view is not None and counts(view, slot):
                    counting[member] = counting.get(member, 0) + 1
        ranked = sorted(
            (service_rank(vm, priority=state.priorities.get(vm.id, 0), present=present), vm.id)
            for vm in state.vms
            if state.required.get(vm.id, 0) > (present := counting.get(vm.id, 0))
        )
        return {vm: place for place, (_, vm) in enumerate(ranked)}

    def serve(
        self, vm: VmView, size: ResolvedSize, answer: Answer, change: Change | None = None, *, reasons: bool = True
    ) -> list[Action]:
        """What the planner would do for this VM alone, if it were so; empty where it misses nothing.

        Without ``reasons`` a refusal does not count hosts.
        """
        change = change or Change()
        self.trials += 1
        with self._changed(change):
            ready = {slot for slot in change.ready_slots if counts(vm, _ready(self.slots[slot]))}
            before = {slot for slot in self.slots_of(vm.id) if counts(vm, self.slots[slot])}
            needed = self.state.required.get(vm.id, 0) - max(self.present(vm), len(before | ready))
            if needed <= 0:
                return []
            greedy = self._greedy(answer, change, reasons=reasons)
            need = Need(vm=vm.id, needed=needed, size=size, offer_class=_CLASS)
            actions = greedy.serve(vm, need)
            self.take_back(vm, actions)
            return actions

    def covers(self, vm: VmView, size: ResolvedSize, answer: Answer, change: Change | None = None) -> bool:
        """Whether the VM would have all its slots."""
        if any(isinstance(action, Fail) for action in self.serve(vm, size, answer, change, reasons=False)):
            return False
        return not self.clashes(vm.id)

    def clashes(self, vm: str) -> bool:
        """Whether a rule is broken for the VM even after clean-up."""
        return self.counters.has_vm(vm) and not self.counters.holds_for(vm)

    def may_join(self, vm: VmView, reuse: Offer) -> list[str]:
        """The slots that another VM may join besides those that it has, fullest first."""
        counters = self.counters
        if not counters.has_vm(vm.id) or reuse.error:
            return []
        number, offered = counters.vm(vm.id), frozenset(reuse.hosts)
        usable = counters.admissible(number) & counters.open_slots & counters.fitting((vm.cpu_milli, vm.memory_bytes))
        usable = self.counters.separation.among(vm.id, usable)
        found = [counters.slot_names[slot] for slot in bits(usable)]
        found = [name for name in found if counters.host_of_slot(name) in offered]
        return sorted(found, key=lambda name: (-len(self.slots[name].members), name))

    def greedy(self, answers: Mapping[str, Answer], new_hosts: Mapping[str, tuple[int, int]], *, prefix: str) -> Greedy:
        """A planner on this model; ``new_hosts``: offered to all classes besides, with what is free there."""
        names = list(new_hosts)
        return self._planner(
            {key: _with_hosts(answer.new, names) for key, answer in answers.items()},
            {key: answer.reuse for key, answer in answers.items()},
            prefix,
            new_hosts,
        )

    def _greedy(self, answer: Answer, change: Change, *, reasons: bool) -> Greedy:
        """The planner that trials share, since what it knows of hosts stays."""
        if self._shared is None:
            self._shared = self._fresh_planner()
        self._shared.renew(
            reuse={_CLASS: _with_hosts(answer.reuse, change.reuse_hosts)},
            new={_CLASS: _with_hosts(answer.new, change.new_hosts)},
            free=self._free,
            hosts=self._hosts if reasons else (),
        )
        self._grant(self._shared, change.free)
        self._shared.name_new_slots("try-")
        return self._shared

    def _planner(
        self,
        new: Mapping[str, Offer],
        reuse: Mapping[str, Offer],
        prefix: str,
        granted: Mapping[str, tuple[int, int]],
    ) -> Greedy:
        greedy = self._fresh_planner()
        greedy.renew(reuse=reuse, new=new, free=self._free, hosts=self._hosts)
        self._grant(greedy, granted)
        greedy.name_new_slots(prefix)
        return greedy

    def _fresh_planner(self) -> Greedy:
        return Greedy(self.counters, reuse={}, new={}, free={})

    def _grant(self, greedy: Greedy, free: Mapping[str, tuple[int, int]]) -> None:
        """So much is free on these hosts, whatever was."""
        if not self.state.free:
            return
        for host, (cpu, memory) in free.items():
            greedy.fleet.grant(host, cpu, memory)

    @contextmanager
    def _changed(self, change: Change) -> Iterator[None]:
        counters = self.counters
        for vm, leaves, joins in change.moves:
            counters.join(vm, joins)
            counters.leave(vm, leaves)
        for slot in change.ready_slots:
            counters.set_ready(slot, ready=True)
        try:
            yield
        finally:
            for slot in change.ready_slots:
                counters.set_ready(slot, ready=False)
            for vm, leaves, joins in reversed(change.moves):
                counters.join(vm, leaves)
                counters.leave(vm, joins)

    def take_back(self, vm: VmView, actions: Sequence[Action]) -> None:
        """Undo what was given to a VM last."""
        for action in reversed(actions):
            match action:
                case Join():
                    self.counters.leave(vm.id, action.slot)
                case Open():
                    self.counters.remove_slot(action.slot_key)
                case Fail():
                    continue


class Serving:
    """Several VMs are served one after the other, and everything is taken back at the end."""

    def __init__(self, model: Model, answers: Mapping[str, Answer]) -> None:
        """``answers``: class of offers → placement's answer."""
        self._model = model
        self._answers = answers
        self._done: list[tuple[VmView, list[Action]]] = []
        self._serial = 0
        self.hosts = {host.name for host in model.state.hosts}
        """Names of all hosts."""

    def __enter__(self) -> Serving:
        self._greedy = self._fresh({})
        return self

    def __exit__(self, *_: object) -> None:
        self._back(0)

    def serve(self, vm: VmView, need: Need) -> Fail | None:
        """Give the VM what it misses; the refusal where that is not possible."""
        return self._serve(self._greedy, vm, need)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile the fleet is as it was before."""
        done = list(self._done)
        self._back(0)
        try:
            yield
        finally:
            greedy = self._greedy = self._fresh({})
            for vm, actions in done:
                self._again(greedy, vm, actions)

    def trial(self, wishes: Sequence[tuple[VmView, Need]], new_hosts: Mapping[str, tuple[int, int]]) -> int:
        """How many of these VMs would get all that they miss, with such hosts besides; nothing stays of it."""
        with self._model.counters.trial():
            greedy = self._fresh(new_hosts)
            for _, actions in self._done:
                for action in actions:
                    if isinstance(action, Open):
                        greedy.fleet.take(action.host, held_by(slot_of(action)))
            served = (greedy.serve(vm, need) for vm, need in wishes)
            return sum(not any(isinstance(action, Fail) for action in actions) for actions in served)

    def _serve(self, greedy: Greedy, vm: VmView, need: Need) -> Fail | None:
        actions = greedy.serve(vm, need)
        self._done.append((vm, actions))
        return next((action for action in actions if isinstance(action, Fail)), None)

    def _again(self, greedy: Greedy, vm: VmView, actions: Sequence[Action]) -> None:
        """Do what was done before, without asking."""
        counters = self._model.counters
        counters.place_vm(vm)
        for action in actions:
            if isinstance(action, Open):
                counters.open(slot_of(action))
                counters.join(vm.id, action.slot_key)
            elif isinstance(action, Join):
                counters.join(vm.id, action.slot)
        self._done.append((vm, list(actions)))

    def _back(self, mark: int) -> None:
        while len(self._done) > mark:
            vm, actions = self._done.pop()
            self._model.take_back(vm, actions)

    def _fresh(self, new_hosts: Mapping[str, tuple[int, int]]) -> Greedy:
        self._serial += 1
        return self._model.greedy(self._answers, new_hosts, prefix=f"try-{self._serial}-")


def slot_of(action: Open) -> SlotView:
    """The slot that an action opens, without its member."""
    return SlotView(
        name=action.slot_key,
        host=action.host,
        target_host=action.host,
        zone=action.zone,
        group=action.group,
        cpu_milli=action.cpu_milli,
        memory_bytes=action.memory_bytes,
        ready=True,
    )


def done_of(actions: Sequence[Action]) -> int:
    """Slots that were given."""
    return sum(not isinstance(action, Fail) for action in actions)


def _cleaned(state: State, ground: Ground) -> dict[str, SlotView]:
    """The slots after the clean-up of a cycle, by name."""
    listed = tuple(ground.slots.values())
    given = CleanInput(
        vms=state.vms,
        hosts=state.hosts,
        slots=listed,
        now=state.now,
        brake_share=state.brake_share,
        brake_number=state.brake_number,
        topology=state.topology,
    )
    return {slot.name: slot for slot in clean(given).slots}


def _ready(slot: SlotView) -> SlotView:
    return msgspec.structs.replace(slot, ready=True)


def _with_hosts(offer: Offer, hosts: Sequence[str]) -> Offer:
    """The offer with further hosts, as the last; those that it has already stay where they are."""
    known = frozenset(offer.hosts) if hosts else frozenset()
    hosts = [host for host in hosts if host not in known]
    if not hosts:
        return offer
    least = min(offer.scores, default=0.0) - 1.0
    scores = (*offer.scores, *(least for _ in hosts)) if len(offer.scores) == len(offer.hosts) else ()
    return msgspec.structs.replace(offer, hosts=(*offer.hosts, *hosts), scores=scores, error="")

"""Trials: would this VM get its slots if this or that were done? Asked of the planner itself, on a model.

The model is the fleet after clean-up, as the next cycle finds it. A trial changes its index, serves the VM and takes
everything back, so that it costs what it touches and not what the fleet is large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from outlive.failover.analysis.explain.model import ExplainedFleet, PlacementAnswer
from outlive.failover.analysis.explain.obstacles import NamedSlotIndex
from outlive.failover.planner.actions import Action, Fail, Need, PlacementOffer
from outlive.failover.planner.cleanup import CleanInput, clean
from outlive.failover.planner.greedy import Greedy
from outlive.failover.planner.selection import service_rank
from outlive.failover.slots import ResolvedSize
from outlive.placement import VmView

_CLASS = ""
Needs = Sequence[tuple[VmView, Need]]


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

    def __init__(self, state: ExplainedFleet, ground: NamedSlotIndex) -> None:
        self.state = state
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
        slots = clean(given, peaceful=not ground.index.list_faulty()).slots
        self.ground = ground if slots == listed else NamedSlotIndex(state, slots)
        self.slots, self.index = self.ground.slots, self.ground.index
        self._greedy = Greedy(self.index, reuse={}, new={})

    @cached_property
    def order(self) -> dict[str, int]:
        """VM that misses slots → how many are served before it."""
        state, missing = self.state, self.index.missing_slots()
        ranked = sorted(
            (service_rank(view, priority=state.priorities.get(vm, 0), present=state.required[vm] - count), vm)
            for vm, count in missing.items()
            if (view := self.ground.views.get(vm)) is not None
        )
        return {vm: place for place, (_, vm) in enumerate(ranked)}

    def serve(self, vm: VmView, size: ResolvedSize, answer: PlacementAnswer) -> list[Action]:
        """What the planner would do for this VM alone; empty where it misses nothing."""
        return self._try_change(vm, size, answer, Change(), worded=True)[0]

    def covers(self, vm: VmView, size: ResolvedSize, answer: PlacementAnswer, change: Change) -> bool:
        """Whether the VM would have all its slots, and no rule would be broken for it."""
        actions, holds = self._try_change(vm, size, answer, change, worded=False)
        return holds and not _has_failed(actions)

    @contextmanager
    def try_serving(self, needs: Needs, answers: Mapping[str, PlacementAnswer]) -> Iterator[dict[str, Fail]]:
        """Meanwhile these VMs have been served in this order; the answer is who did not get all. ``answers``: by class
        of offers."""
        with self.index.begin_trial():
            greedy = self._prepare_planner(answers, Change())
            found = {vm.id: greedy.serve(vm, need) for vm, need in needs if need.needed > 0}
            yield {one.vm: one for actions in found.values() for one in actions if isinstance(one, Fail)}

    def count_served(self, needs: Needs, answers: Mapping[str, PlacementAnswer], change: Change) -> int:
        """How many of these VMs would get all that they miss, one after the other; nothing stays of it."""
        with self.index.begin_trial():
            greedy = self._prepare_planner(answers, change)
            return sum(not _has_failed(greedy.serve(vm, need, worded=False)) for vm, need in needs)

    def _try_change(
        self, vm: VmView, size: ResolvedSize, answer: PlacementAnswer, change: Change, *, worded: bool
    ) -> tuple[list[Action], bool]:
        """What the planner would do, and whether all rules hold for the VM then."""
        index = self.index
        with index.begin_trial():
            for other, leaves, joins in change.moves:
                index.join(other, joins)
                index.leave(other, leaves)
            for slot in change.ready_slots:
                index.set_ready(slot, ready=True)
            index.place_vm(vm)
            need = Need(
                vm=vm.id, needed=self.ground.count_missing(vm, change.ready_slots), size=size, offer_class=_CLASS
            )
            greedy = self._prepare_planner({_CLASS: answer}, change)
            actions = greedy.serve(vm, need, worded=worded) if need.needed > 0 else []
            return actions, index.holds_for(vm.id)

    def _prepare_planner(self, answers: Mapping[str, PlacementAnswer], change: Change) -> Greedy:
        """The planner, as if hosts were so."""
        greedy = self._greedy
        greedy.renew(
            reuse={key: _add_hosts(answer.reuse, change.reuse_hosts) for key, answer in answers.items()},
            new={key: _add_hosts(answer.new, change.new_hosts) for key, answer in answers.items()},
            hosts=[host.name for host in self.state.hosts],
        )
        greedy.name_new_slots("try-")
        for host, (cpu, memory) in change.free.items():
            self.index.grant(host, cpu, memory)
        return greedy


def _has_failed(actions: Sequence[Action]) -> bool:
    return bool(actions) and isinstance(actions[-1], Fail)


def done_of(actions: Sequence[Action]) -> int:
    """Slots that were given."""
    return sum(not isinstance(action, Fail) for action in actions)


def _add_hosts(offer: PlacementOffer, hosts: Sequence[str]) -> PlacementOffer:
    """The offer with further hosts, as the last; those that it has already stay where they are."""
    known = frozenset(offer.hosts) if hosts else frozenset()
    hosts = [host for host in hosts if host not in known]
    if not hosts:
        return offer
    least = min(offer.scores, default=0.0) - 1.0
    scores = (*offer.scores, *(least for _ in hosts)) if len(offer.scores) == len(offer.hosts) else ()
    return msgspec.structs.replace(offer, hosts=(*offer.hosts, *hosts), scores=scores, error="")

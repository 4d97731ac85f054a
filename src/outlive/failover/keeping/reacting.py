"""What changes call for, decided on the kept state: who leaves a slot, and what is given to whom.

The same rules as in a cycle, on counters that follow along, so that an event costs what it touches
(docs/reference/failover.md#upkeep). Nothing is written here and the state stays as it is: it changes when writes are
acknowledged. Each decision is kept with what it rests on, the slots of the VMs concerned and those that they join; on
that input ``failover.assign`` gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlive.failover.keeping.decide import Decider
from outlive.failover.keeping.kept import KeptState
from outlive.failover.keeping.placing import Offers, Wanted
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Offer, Open
from outlive.failover.planner.assign import AssignInput, result_of
from outlive.failover.planner.cleanup import CleanResult, LeaveInput
from outlive.failover.planner.greedy import Greedy
from outlive.failover.planner.offers import FreeAmounts
from outlive.failover.separation import ServerGroup

KEY_PREFIX = "+new-"
"""Begins the keys of slots that have no name yet; no name can begin so."""


class Reactions:
    """Decides about the VMs that changes concerned."""

    def __init__(self, state: KeptState, decider: Decider) -> None:
        self._state = state
        self._decider = decider
        self._kept: Greedy | None = None

    def leaving(self, vms: Iterable[str], *, now: float) -> CleanResult:
        """What those of these VMs leave that are gone, run elsewhere than recorded, or have outgrown a slot."""
        state = self._state
        departing = sorted(vm for vm in vms if state.departs(vm))
        if not departing:
            return CleanResult()
        given = LeaveInput(
            vms=tuple(state.located[vm] for vm in departing if vm in state.located),
            gone=tuple(vm for vm in departing if vm not in state.located),
            slots=tuple(state.slots_of(departing)),
            now=now,
        )
        return self._decider.leave(given)

    def serving(self, wishes: Sequence[Wanted], offers: Offers, free: FreeAmounts) -> list[Action]:
        """What each of these gets, in this order, each beside those before it."""
        greedy = self._greedy()
        greedy.renew(reuse=offers.reuse, new=offers.new, free=free, hosts=self._state.sightings.names)
        record = _Record(self._state, self._decider, offers, free)
        actions: list[Action] = []
        for number, wish in enumerate(wishes):
            if not self._state.counters.has_vm(wish.vm.id):
                continue
            prefix = f"{KEY_PREFIX}{number}-"
            greedy.name_new_slots(prefix)
            own = self._state.counters.slots_of(wish.vm.id)
            served = greedy.serve(wish.vm, wish.need)
            record.keep(wish, own, served, greedy, prefix)
            actions += served
        self._undo(actions)
        return actions

    def _greedy(self) -> Greedy:
        counters = self._state.counters
        if self._kept is None or self._kept.counters is not counters:
            self._kept = Greedy(counters, reuse={}, new={}, free={})
        return self._kept

    def _undo(self, actions: Iterable[Action]) -> None:
        """Leave the counters as they were, until the writes are acknowledged."""
        counters = self._state.counters
        for action in reversed(list(actions)):
            match action:
                case Join(slot=slot, vm=vm):
                    counters.leave(vm, slot)
                case Open(slot_key=key):
                    counters.remove_slot(key)
                case Fail():
                    pass


class _Record:
    """Keeps what was decided in one pass."""

    def __init__(self, state: KeptState, decider: Decider, offers: Offers, free: FreeAmounts) -> None:
        self._state = state
        self._decider = decider
        self._offers = offers
        self._free = free
        self._pending: dict[str, SlotView] = {}
        """Slots as the actions so far leave them."""
        self._explained: set[str] = set()

    def keep(self, wish: Wanted, own: Sequence[str], actions: Sequence[Action], greedy: Greedy, prefix: str) -> None:
        """One VM's decision; ``own``: the slots that it had. Of those that got nothing the first of each class is kept,
        with the whole offer.
        """
        failed = any(isinstance(action, Fail) for action in actions)
        joins = {action.slot: action.host for action in actions if isinstance(action, Join)}
        opened = {action.slot_key: greedy.opened[action.slot_key] for action in actions if isinstance(action, Open)}
        group = self._state.separating.group(wish.vm.id)
        theirs = self._slots_of(group) - {*own, *joins, *opened}
        names = sorted({*own, *joins, *theirs})
        slots = {name: self._pending.get(name) or self._state.slots[name] for name in names}
        result = result_of([slots[name] for name in sorted(joins)], actions, opened)
        self._pending.update({slot.name: slot for slot in result.slots})
        if failed and wish.offer_class in self._explained:
            return
        hosts = [slot.host for slot in opened.values()]
        given = AssignInput(
            slots=tuple(slots.values()),
            vms=(wish.vm,),
            needs=(wish.need,),
            reuse={wish.offer_class: Offer(hosts=tuple(dict.fromkeys(joins.values())))},
            new={wish.offer_class: self._offered(wish.offer_class, hosts, whole=failed)},
            free=self._free.table() if failed else {},
            hosts=tuple(sorted(self._state.sightings.names)) if failed else (),
            excluded_slots=tuple(sorted(theirs)),
            key_prefix=prefix,
            groups=(group,) if group is not None else (),
        )
        given = msgspec.structs.replace(given, topology=self._state.topology(_hosts_in(given)))
        self._decider.assigned(given, result, subject=wish.vm.id)
        if failed:
            self._explained.add(wish.offer_class)

    def _slots_of(self, group: ServerGroup | None) -> set[str]:
        """The slots of the group's members, those that were opened in this pass included."""
        counters = self._state.counters
        members = group.members if group is not None else ()
        return {name for vm in members if counters.has_vm(vm) for name in counters.slots_of(vm)}

    def _offered(self, offer_class: str, hosts: Sequence[str], *, whole: bool) -> Offer:
        """The offer of new slots, or what was taken of it."""
        offer = self._offers.new.get(offer_class, Offer())
        if whole:
            return offer
        places = sorted(offer.hosts.index(host) for host in hosts)
        scores = tuple(offer.scores[place] for place in places) if offer.scores else ()
        return msgspec.structs.replace(offer, hosts=tuple(offer.hosts[place] for place in places), scores=scores)


def _hosts_in(given: AssignInput) -> set[str]:
    """Every host that the decision may look at."""
    found = {vm.host for vm in given.vms}.union(given.hosts, given.free)
    for slot in given.slots:
        found.update((slot.host, *slot.members.values()))
    for offer in given.new.values():
        found.update(offer.hosts)
    for group in given.groups:
        found.update(group.members.values())
    return found

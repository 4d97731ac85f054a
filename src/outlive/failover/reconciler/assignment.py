"""What VMs that miss slots are given, decided on the living index: tried there, recorded, and rolled back.

The same rules as in a plan, on an index that follows along, so that an event costs what it touches. Each decision is
recorded with what it rests on: the VM, its slots, those that it joins, and the offers that it takes; on that input
``failover.assign`` gives the same answer. Of VMs that got nothing the first of each class is recorded, with the whole
offer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from outlive.failover.fleet import Fleet
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Claim, Fail, Join, Need, Offer, Open
from outlive.failover.planner.assign import AssignInput, result_of
from outlive.failover.planner.greedy import Greedy
from outlive.failover.reconciler.cache import FleetCache
from outlive.failover.reconciler.decider import Decider
from outlive.failover.reconciler.inputs import KEY_PREFIX, Terms
from outlive.failover.separation import ServerGroup


class Assigner:
    """Decides about VMs that miss slots."""

    def __init__(self, cache: FleetCache, decider: Decider) -> None:
        self._cache = cache
        self._decider = decider
        self._greedy: Greedy | None = None

    def assign(self, missing: Sequence[Claim], terms: Terms) -> list[Action]:
        """What each of these gets, in this order, each beside those before it; the index stays as it is."""
        index, offers = self._cache.index, terms.offers
        greedy = self._prepared(index, limit_new=terms.limit_new, closed=terms.closed)
        greedy.renew(reuse=offers.reuse, new=offers.new, free=terms.free, hosts=self._cache.locations.names)
        greedy.mark_new(terms.used)
        greedy.expect(one.need for one in missing)
        record = _Record(self._cache, self._decider, terms)
        actions: list[Action] = []
        with index.trial():
            for number, one in enumerate(missing):
                if not index.has_vm(one.vm.id):
                    continue
                prefix = f"{KEY_PREFIX}{number}-"
                greedy.name_new_slots(prefix)
                own, later = index.slots_of(one.vm.id), greedy.expected_with(one.vm.id)
                served = greedy.serve(one.vm, one.need)
                record.add(one, own, later, served, greedy, prefix)
                actions += served
        return actions

    def _prepared(self, index: Fleet, *, limit_new: bool, closed: Collection[str]) -> Greedy:
        """The greedy assignment; the usual one is used again, because it remembers much about hosts."""
        if limit_new or closed:
            greedy = Greedy(index, reuse={}, new={}, free={}, one_new_per_host=limit_new)
            greedy.close(closed)
            return greedy
        if self._greedy is None or self._greedy.fleet is not index:
            self._greedy = Greedy(index, reuse={}, new={}, free={})
        return self._greedy


class _Record:
    """Records what was decided in one pass."""

    def __init__(self, cache: FleetCache, decider: Decider, terms: Terms) -> None:
        self._cache = cache
        self._decider = decider
        self._terms = terms
        self._used = list(terms.used)
        self._pending: dict[str, SlotView] = {}
        """Slots as the actions so far leave them."""
        self._explained: set[str] = set()

    def add(
        self,
        one: Claim,
        own: Sequence[str],
        later: tuple[Need, ...],
        actions: Sequence[Action],
        greedy: Greedy,
        prefix: str,
    ) -> None:
        """One VM's decision; ``own``: the slots that it had, ``later``: what is served after it beside it."""
        failed = any(isinstance(action, Fail) for action in actions)
        joins = {action.slot: action.host for action in actions if isinstance(action, Join)}
        opened = {action.slot_key: greedy.opened[action.slot_key] for action in actions if isinstance(action, Open)}
        groups = self._cache.index.separation.related(one.vm.id)
        theirs = self._slots_of(groups) - {*own, *joins, *opened}
        names = sorted({*own, *joins, *theirs})
        slots = {name: self._pending.get(name) or self._cache.slots[name] for name in names}
        result = result_of([slots[name] for name in sorted(joins)], actions, opened)
        self._pending.update({slot.name: slot for slot in result.slots})
        hosts = [slot.host for slot in opened.values()]
        if not failed or one.need.offer_class not in self._explained:
            given = AssignInput(
                slots=tuple(slots.values()),
                vms=(one.vm,),
                needs=(one.need,),
                reuse={one.need.offer_class: Offer(hosts=tuple(dict.fromkeys(joins.values())))},
                new={one.need.offer_class: self._offered(one.need.offer_class, hosts, whole=failed)},
                free=self._terms.free.table() if failed else {},
                hosts=tuple(sorted(self._cache.locations.names)) if failed else (),
                one_new_per_host=self._terms.limit_new,
                used_hosts=tuple(self._used),
                excluded_slots=tuple(sorted(theirs)),
                key_prefix=prefix,
                groups=groups,
                later=later,
            )
            given = msgspec.structs.replace(given, topology=self._cache.topology(_hosts_in(given)))
            self._decider.assigned(given, result, subject=one.vm.id)
        if failed:
            self._explained.add(one.need.offer_class)
        self._used += hosts if self._terms.limit_new else ()

    def _slots_of(self, groups: Sequence[ServerGroup]) -> set[str]:
        """The slots of the members of groups, those that were opened in this pass included."""
        index = self._cache.index
        members = {member for group in groups for member in group.members}
        return {name for vm in members if index.has_vm(vm) for name in index.slots_of(vm)}

    def _offered(self, offer_class: str, hosts: Sequence[str], *, whole: bool) -> Offer:
        """The offer of new slots, or what was taken of it."""
        offer = self._terms.offers.new.get(offer_class, Offer())
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

"""The greedy assignment: for each missing slot the fullest slot that can be reused, else the best host for a new one.

Exact about the rules and about capacity (what placement said, less what was opened since): both are asked of the
``Fleet``. It holds the state between calls, so that following one VM's event costs what the event touches and no more
(docs/reference/failover-planning.md#assigning).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.failover.fleet import Fleet, FreeAmounts
from outlive.failover.membership_index import Size
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Need, Offer, Open, new_slot, opening
from outlive.failover.planner.offers import HostHashes, Ints, NewHosts, ReuseHosts
from outlive.failover.sizes import amounts
from outlive.placement.vms import VmView
from outlive.resources.reasons import CoverageReason, Reason, render

_AFTER_ALL_NAMES = "\U0010ffff"
"""Ranks of new slots begin with this: where names break ties, they come after existing slots, oldest first."""


class Greedy:
    """A fleet and offers, and the next action for a VM."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        reuse: Mapping[str, Offer],
        new: Mapping[str, Offer],
        free: Mapping[str, tuple[int, int]] | None = None,
        hosts: Iterable[str] = (),
        one_new_per_host: bool = False,
        key_prefix: str = "new-",
        most_members: int = 0,
    ) -> None:
        """``free``: what hosts have, if not what the fleet says. ``hosts``: all, for the numbers in reasons; read
        when one is needed.

        ``most_members``: nobody joins a slot that has so many; 0: no limit. Only for planning from a snapshot.
        """
        self.fleet = fleet
        self.opened: dict[str, SlotView] = {}
        self.separation = fleet.separation
        self._hashes = HostHashes(fleet)
        self._one_new_per_host = one_new_per_host
        self._new_on: set[int] = set()
        """Hosts that received a new slot in this cycle."""
        self._most_members = most_members
        self._full = 0
        self._expected: dict[str, Need] = {}
        self.renew(reuse=reuse, new=new, free=free, hosts=hosts)
        self.name_new_slots(key_prefix)
        if most_members:
            for slot in fleet.slot_log:
                self._note_full(slot)

    def renew(
        self,
        *,
        reuse: Mapping[str, Offer],
        new: Mapping[str, Offer],
        free: Mapping[str, tuple[int, int]] | FreeAmounts | None = None,
        hosts: Iterable[str],
    ) -> None:
        """Take fresh answers of placement and what is free; nothing counts as opened any more."""
        self._reuse_offers, self._new_offers = reuse, new
        self._reuse: dict[str, ReuseHosts] = {}
        self._new: dict[str, NewHosts] = {}
        if free is not None:
            self.fleet.set_free(free if isinstance(free, FreeAmounts) else FreeAmounts.of(free))
        self.opened.clear()
        self._new_on.clear()
        self._hosts = hosts
        self._all_hosts: Ints | None = None

    def expect(self, needs: Iterable[Need]) -> None:
        """These are served from now on, in some order: who is to be with others leaves them room beside it."""
        self._expected = {need.vm: need for need in needs} if self.separation.has_groups else {}

    def expected_with(self, vm: str) -> tuple[Need, ...]:
        """What is still to be served for those that affinity groups keep together with the VM, by id."""
        if not self._expected:
            return ()
        others = sorted(self.separation.companions(vm) - {vm})
        return tuple(need for one in others if (need := self._expected.get(one)) is not None and need.needed > 0)

    def mark_new(self, hosts: Iterable[str]) -> None:
        """These hosts received a new slot in this cycle."""
        self._new_on.update(map(self.fleet.host, hosts))

    def name_new_slots(self, prefix: str) -> None:
        """Keys of new slots are this and a number, from 1."""
        self._key_prefix = prefix
        self._serial = 0

    def serve(self, vm: VmView, need: Need, *, worded: bool = True) -> list[Action]:
        """Give the VM what it needs, as far as that is possible; the last action is ``Fail`` where it is not.

        Without ``worded`` a failure for want of hosts does not count them (``reasons.unworded``).
        """
        actions: list[Action] = []
        self.fleet.place_vm(vm)
        refusal = self._refusal(vm, need)
        if refusal is not None:
            return [refusal]
        for done in range(need.needed):
            action = self._give(vm, need, need.needed - done, worded=worded)
            actions.append(action)
            if isinstance(action, Fail):
                break
            self._note_served(vm.id)
        return actions

    def _give(self, vm: VmView, need: Need, missing: int, *, worded: bool) -> Action:
        """One slot for the VM, where those that are to be with it have room as well, if there is such a host."""
        others = self.expected_with(vm.id) if self.fleet.limited else ()
        if others:
            beside = sum(one.size.cpu_milli for one in others), sum(one.size.memory_bytes for one in others)
            action = self._join(vm, need, beside) or self._open(vm, need, missing, worded=False, beside=beside)
            if not isinstance(action, Fail):
                return action
        return self._join(vm, need) or self._open(vm, need, missing, worded=worded)

    def _note_served(self, vm: str) -> None:
        need = self._expected.get(vm)
        if need is not None:
            self._expected[vm] = msgspec.structs.replace(need, needed=need.needed - 1)

    def _refusal(self, vm: VmView, need: Need) -> Fail | None:
        sizes = (vm.cpu_milli, vm.memory_bytes, need.size.cpu_milli, need.size.memory_bytes)
        if min(sizes) > 0:
            return None
        group = need.size.group_name
        declared = {
            "size": amounts(vm.cpu_milli, vm.memory_bytes),
            "group": group,
            "group_size": amounts(need.size.cpu_milli, need.size.memory_bytes) if group else "",
            "flavor": vm.flavor,
        }
        return failure(vm.id, Reason(CoverageReason.ZERO_SIZE, declared), need.needed)

    def _join(self, vm: VmView, need: Need, beside: Size | None = None) -> Join | None:
        """``beside``: only on hosts with so much room."""
        offer = self._reuse.get(need.offer_class)
        if offer is None:
            given = self._reuse_offers.get(need.offer_class)
            if given is None or given.error:
                return None
            offer = self._reuse[need.offer_class] = ReuseHosts(self.fleet, given)
        fleet = self.fleet
        number = fleet.vm(vm.id)
        usable = fleet.fitting((vm.cpu_milli, vm.memory_bytes))
        usable &= fleet.open_slots
        usable &= ~self._full
        limit = fleet.host_limit(number)
        if limit:
            usable &= fleet.placed_on(limit)
        if not usable:
            return None
        usable &= fleet.admissible(number)
        usable = self.separation.among(vm.id, usable)
        if beside is not None and usable:
            roomy = self.fleet.room(np.arange(len(fleet.host_names)), *beside)
            usable &= fleet.placed_on(np.flatnonzero(roomy).tolist())
        slot = offer.fullest(usable)
        if slot is None:
            return None
        if vm.preferred:
            slot = self._preferred(vm, fleet.as_full_as(slot, usable & offer.slots), slot)
        fleet.join_slot(number, slot, proven=True)
        if self._most_members:
            self._note_full(slot)
        host = fleet.host_names[fleet.slot_host(slot)]
        return Join(slot=fleet.slot_names[slot], vm=vm.id, vm_host=vm.host, host=host)

    def _preferred(self, vm: VmView, alike: int, slot: int) -> int:
        """Of slots that are alike the one on the host that the VM prefers most; ``slot`` where none of them is so."""
        fleet = self.fleet
        liked = [name for name, weight in vm.preferred.items() if weight > 0]
        for host in sorted(liked, key=lambda name: (-vm.preferred[name], name)):
            found = fleet.fullest(alike & fleet.placed_on((fleet.host(host),)))
            if found is not None:
                return found
        return slot

    def close(self, slots: Iterable[str]) -> None:
        """Nobody joins these."""
        for name in slots:
            if self.fleet.has_slot(name):
                self._full |= self.fleet.slot_bit(self.fleet.slot(name))

    def _note_full(self, slot: int) -> None:
        if self.fleet.slot_members(slot) >= self._most_members:
            self._full |= self.fleet.slot_bit(slot)

    def _open(self, vm: VmView, need: Need, missing: int, *, worded: bool, beside: Size = (0, 0)) -> Open | Fail:
        """``beside``: only on hosts with so much room beside the new slot."""
        offer = self._new_hosts(need.offer_class)
        if offer is None or offer.error:
            error = offer.error if offer is not None else f"placement was not asked for {need.offer_class}"
            return failure(vm.id, Reason(CoverageReason.PLACEMENT_UNAVAILABLE, {"error": error}), missing)
        if not self.fleet.holds_for(vm.id):
            return self._clash(vm, missing)
        size = need.size
        room = self.fleet.room(offer.hosts, size.cpu_milli + beside[0], size.memory_bytes + beside[1])
        allowed = ~self._barred(vm.id, offer.hosts)
        possible = room & allowed
        if self._one_new_per_host:
            possible &= ~self._new_here(offer.hosts)
        place = offer.best(vm.id, possible, vm.preferred)
        if place is None:
            if not worded and (offer.names or len(self._everywhere())):
                # All that an attempt has to know which may be dropped.
                return Fail(vm=vm.id, reason=CoverageReason.NO_CAPACITY, detail="", remedy="", missing=missing)
            return failure(vm.id, self._no_host(vm, need, offer, allowed, room), missing)
        return self._opened(vm, need, offer.names[place])

    def _new_here(self, hosts: Ints) -> NDArray[np.bool_]:
        """For each of these hosts whether it received a new slot in this cycle."""
        return _marked(len(self.fleet.host_names), self._new_on)[hosts]

    def _new_hosts(self, offer_class: str) -> NewHosts | None:
        offer = self._new.get(offer_class)
        if offer is None and offer_class in self._new_offers:
            offer = self._new[offer_class] = NewHosts(self.fleet, self._new_offers[offer_class], self._hashes)
        return offer

    def _opened(self, vm: VmView, need: Need, host: str) -> Open:
        slot = new_slot(self._new_key(), host, vm, need.size)
        rank = f"{_AFTER_ALL_NAMES}{self._serial:012d}"
        self.opened[slot.name] = slot
        number = self.fleet.open(slot, rank=rank)
        self.fleet.join_slot(self.fleet.vm(vm.id), number, proven=True)
        self._new_on.add(self.fleet.slot_host(number))
        return opening(slot, vm.id, vm.host)

    def _new_key(self) -> str:
        """The next key that no slot has as its name."""
        self._serial += 1
        while self.fleet.has_slot(f"{self._key_prefix}{self._serial}"):
            self._serial += 1
        return f"{self._key_prefix}{self._serial}"

    def _clash(self, vm: VmView, missing: int) -> Fail:
        unit = self.fleet.crowded(vm.id)[0]
        where = unit if self.fleet.has_units else f"host {unit}"
        return failure(vm.id, Reason(CoverageReason.MEMBERSHIPS_CLASH, {"where": where}), missing)

    def _no_host(
        self, vm: VmView, need: Need, offer: NewHosts, allowed: NDArray[np.bool_], room: NDArray[np.bool_]
    ) -> Reason:
        """Why no host can take a new slot: each offered host by the first thing that keeps it from holding the slot."""
        everywhere = self._everywhere()
        own = int(vm.host in offer.names)
        others = [name for place in np.nonzero(~allowed)[0].tolist() if (name := offer.names[place]) != vm.host]
        full = int(np.count_nonzero(allowed & ~room))
        already_new = 0
        if self._one_new_per_host:
            already_new = int(np.count_nonzero(allowed & room & self._new_here(offer.hosts)))
        short = full > 0 or any("capacity" in step for step, count in offer.rejected.items() if count)
        total, offered = max(len(everywhere), len(offer.hosts)), len(offer.hosts)
        if not total:
            code = CoverageReason.NO_HOSTS
        elif already_new:
            code = CoverageReason.ONE_PER_HOST
        elif short:
            code = CoverageReason.NO_CAPACITY
        else:
            code = CoverageReason.REFUSED if offered < total - (1 - own) else CoverageReason.RULES
        return Reason(
            code,
            {
                "vm": vm.id,
                "size": amounts(need.size.cpu_milli, need.size.memory_bytes),
                "total": total,
                "offered": offered,
                "refused": tuple(f"{step}: {count}" for step, count in sorted(offer.rejected.items())),
                "own": own,
                "by_rules": len(others),
                "example": self._example(vm.id, min(others)) if others else "",
                "already_new": already_new,
                "full": full,
                "roomiest": self._roomiest(vm.id, everywhere, need) if short else "",
            },
        )

    def _everywhere(self) -> Ints:
        """All hosts, by name; needed for reasons only."""
        if self._all_hosts is None:
            self._all_hosts = np.array([self.fleet.host(host) for host in sorted(set(self._hosts))], dtype=np.int64)
        return self._all_hosts

    def _barred(self, vm: str, hosts: Ints) -> NDArray[np.bool_]:
        """For each of these hosts whether the VM may not run there, or the rules or separation forbid a new slot."""
        fleet = self.fleet
        number = fleet.vm(vm)
        found = _marked(len(fleet.unit_names), fleet.blocked_units(number))[fleet.units_at(hosts)]
        limit = fleet.host_limit(number)
        if limit:
            found |= ~_marked(len(fleet.host_names), limit)[hosts]
        closed = self.separation.closed(vm)
        return found if closed is None else found | closed[hosts]

    def _example(self, vm: str, host: str) -> str:
        fleet, unit = self.fleet, self._unit_of(host)
        called = fleet.unit_names[unit]
        here = f"{host} is in {called}, which" if called != host else host
        number = fleet.vm(vm)
        limit = fleet.host_limit(number)
        if limit and fleet.host(host) not in limit:
            return f"{host} is none of the {len(limit)} hosts that the VM may run on"
        for slot in sorted(fleet.slot_numbers(number), key=fleet.slot_names.__getitem__):
            name = fleet.slot_names[slot]
            if fleet.unit_of(fleet.slot_host(slot)) == unit:
                return f"{here} has its slot {name}"
            others = [fleet.vm_names[one] for one in fleet.members_in(slot, unit) if one != number]
            if others:
                return f"{here} runs {min(others)}, a member of its slot {name}"
        if unit == self._unit_of(fleet.location(vm)):
            return f"{here} runs the VM"
        return self.separation.why(vm, host) or host

    def _unit_of(self, host: str) -> int:
        return self.fleet.unit_of(self.fleet.host(host))

    def _roomiest(self, vm: str, hosts: Ints, need: Need) -> str:
        """Of these hosts, where the VM may have a slot, the one with the most room for it."""
        found = self.fleet.roomiest(hosts[~self._barred(vm, hosts)], need.size.cpu_milli, need.size.memory_bytes)
        if found is None:
            return ""
        host, cpu, memory = found
        return f"{self.fleet.host_names[host]} with {amounts(cpu, memory)}"


def failure(vm: str, reason: Reason, missing: int) -> Fail:
    """The VM gets nothing more, for this reason."""
    said = render(reason)
    return Fail(vm=vm, reason=str(reason.code), detail=said.text, remedy=said.remedy, missing=missing)


def _marked(count: int, numbers: Iterable[int]) -> NDArray[np.bool_]:
    """For each of so many, whether its number is among these."""
    found = np.zeros(count, dtype=bool)
    found[list(numbers)] = True
    return found

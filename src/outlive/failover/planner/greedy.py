"""The greedy assignment: for each missing slot the fullest slot that can be reused, else the best host for a new one.

Exact about the rules and about capacity (what placement said, less what was opened since): both are asked of the
``FleetIndex``. It holds the state between calls, so that following one VM's event costs what the event touches and no
more (docs/design/failover.md#assigning).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.base import BadInput
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.fleet import FleetIndex, FreeAmounts
from outlive.failover.membership_index import Size
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Action, Fail, Join, Need, Open, PlacementOffer, new_slot, open_action
from outlive.failover.slots import format_amounts
from outlive.placement import VmView, host_hashes, tie_keys
from outlive.resources.reasons import CoverageReason, Reason, render

# Offers by host number: which slots may be reused, and which host holds the next new slot.

LOOKED_UP = 8
"""Slots of an offer that are looked up one by one before all of them are worked out."""

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
Ints = NDArray[np.int64]


class ReuseHosts:
    """The slots on the hosts of one offer: looked up one by one at first, then as a bit set that follows along."""

    def __init__(self, index: ConflictIndex, offer: PlacementOffer) -> None:
        self._index = index
        self._names = offer.hosts
        self._asked = 0
        self._hosts: set[int] = set()
        self._slots: int | None = None
        self._generation = 0
        self._seen = 0

    def find_fullest(self, slots: int) -> int | None:
        """The slot with the most members in a bit set that is on an offered host; among equals the first by rank."""
        index = self._index
        while self._slots is None and self._asked < LOOKED_UP:
            slot = index.find_fullest(slots)
            if slot is None:
                return None
            self._asked += 1
            if index.host_names[index.slot_host(slot)] in self._names:
                return slot
            slots &= ~index.slot_bit(slot)
        return index.find_fullest(slots & self.slots)

    @property
    def slots(self) -> int:
        """The bit set as of now. Slots that are gone may still be in it."""
        index = self._index
        found = self._slots
        if found is None or self._generation != index.generation:
            self._hosts = self._hosts or set(index.host_numbers(self._names))
            found, self._generation = index.slots_on(self._hosts), index.generation
            self._seen = len(index.slot_log)
        log = index.slot_log
        while self._seen < len(log):
            slot = log[self._seen]
            self._seen += 1
            bit = index.slot_bit(slot)
            found = found | bit if index.slot_host(slot) in self._hosts else found & ~bit
        self._slots = found
        return found


class HostHashes:
    """The stable hash of each host by number, worked out once."""

    def __init__(self, index: ConflictIndex) -> None:
        self._index = index
        self._hashes: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def __getitem__(self, hosts: Ints) -> NDArray[np.uint64]:
        names = self._index.host_names
        if len(names) > len(self._hashes):
            self._hashes = np.concatenate([self._hashes, host_hashes(names[len(self._hashes) :])])
        return self._hashes[hosts]


class NewHosts:
    """The hosts of one offer in order, with ties, ready to be walked."""

    def __init__(self, index: ConflictIndex, offer: PlacementOffer, hashes: HostHashes) -> None:
        if offer.scores and len(offer.scores) != len(offer.hosts):
            raise BadInput(
                f"an offer has {len(offer.hosts)} hosts and {len(offer.scores)} scores", remedy="give one score a host"
            )
        self.names = offer.hosts
        self.rejected = offer.rejected
        self.error = offer.error
        self.hosts: Ints = np.array(index.host_numbers(offer.hosts), dtype=np.int64)
        self._hashes = hashes
        first = np.ones(len(self.hosts), dtype=bool)
        if offer.scores:
            scores = np.array(offer.scores)
            first[1:] = scores[1:] != scores[:-1]
        self._starts = np.append(np.nonzero(first)[0], len(self.hosts))
        self._group = np.cumsum(first) - 1

    def choose_best(self, vm: str, possible: NDArray[np.bool_], preferred: Mapping[str, int] = NOTHING) -> int | None:
        """The place of the first possible host; among equal scores the one that the VM prefers most, and among these
        the one whose tie key for this VM is least."""
        if not len(possible):
            return None
        first = int(possible.argmax())
        if not possible[first]:
            return None
        group = int(self._group[first])
        end = int(self._starts[group + 1])
        if end == first + 1:
            return first
        places = first + np.nonzero(possible[first:end])[0]
        if preferred:
            weights = np.array([preferred.get(self.names[place], 0) for place in places.tolist()])
            places = places[weights == weights.max()]
        keys = tie_keys(vm, self._hashes[self.hosts[places]])
        least = places[keys == keys.min()]
        return min((int(place) for place in least), key=self.names.__getitem__)


_AFTER_ALL_NAMES = "\U0010ffff"
"""Ranks of new slots begin with this: where names break ties, they come after existing slots, oldest first."""


class Greedy:
    """A fleet and offers, and the next action for a VM."""

    def __init__(
        self,
        fleet: FleetIndex,
        *,
        reuse: Mapping[str, PlacementOffer],
        new: Mapping[str, PlacementOffer],
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
        reuse: Mapping[str, PlacementOffer],
        new: Mapping[str, PlacementOffer],
        free: Mapping[str, tuple[int, int]] | FreeAmounts | None = None,
        hosts: Iterable[str],
    ) -> None:
        """Take fresh answers of placement and what is free; nothing counts as opened any more."""
        self._reuse_offers, self._new_offers = reuse, new
        self._reuse: dict[str, ReuseHosts] = {}
        self._new: dict[str, NewHosts] = {}
        if free is not None:
            self.fleet.set_free(free if isinstance(free, FreeAmounts) else FreeAmounts.from_table(free))
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
        others = sorted(self.separation.find_companions(vm) - {vm})
        return tuple(need for one in others if (need := self._expected.get(one)) is not None and need.needed > 0)

    def mark_new(self, hosts: Iterable[str]) -> None:
        """These hosts received a new slot in this cycle."""
        self._new_on.update(map(self.fleet.host_number, hosts))

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
        if min(vm.cpu_milli, vm.memory_bytes, need.size.cpu_milli, need.size.memory_bytes) <= 0:
            group = need.size.group_name
            declared = {
                "size": format_amounts(vm.cpu_milli, vm.memory_bytes),
                "group": group,
                "group_size": format_amounts(need.size.cpu_milli, need.size.memory_bytes) if group else "",
                "flavor": vm.flavor,
            }
            return [build_fail(vm.id, Reason(CoverageReason.ZERO_SIZE, declared), need.needed)]
        for done in range(need.needed):
            action = self._give(vm, need, need.needed - done, worded=worded)
            actions.append(action)
            if isinstance(action, Fail):
                break
            expected = self._expected.get(vm.id)
            if expected is not None:
                self._expected[vm.id] = msgspec.structs.replace(expected, needed=expected.needed - 1)
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

    def _join(self, vm: VmView, need: Need, beside: Size | None = None) -> Join | None:
        """``beside``: only on hosts with so much room."""
        offer = self._reuse.get(need.offer_class)
        if offer is None:
            given = self._reuse_offers.get(need.offer_class)
            if given is None or given.error:
                return None
            offer = self._reuse[need.offer_class] = ReuseHosts(self.fleet, given)
        fleet = self.fleet
        number = fleet.vm_number(vm.id)
        usable = fleet.fitting_slots((vm.cpu_milli, vm.memory_bytes))
        usable &= fleet.open_slots
        usable &= ~self._full
        limit = fleet.host_limit(number)
        if limit:
            usable &= fleet.placed_on(limit)
        if not usable:
            return None
        usable &= fleet.admissible_slots(number)
        usable = self.separation.allowed_slots(vm.id, usable)
        if beside is not None and usable:
            roomy = self.fleet.have_slot_room(np.arange(len(fleet.host_names)), *beside)
            usable &= fleet.placed_on(np.flatnonzero(roomy).tolist())
        slot = offer.find_fullest(usable)
        if slot is None:
            return None
        if vm.preferred:
            # Of slots that are alike the one on the host that the VM prefers most, if one is on any such host.
            alike = fleet.select_as_full(slot, usable & offer.slots)
            liked = [name for name, weight in vm.preferred.items() if weight > 0]
            hosts = sorted(liked, key=lambda name: (-vm.preferred[name], name))
            found = (fleet.find_fullest(alike & fleet.placed_on((fleet.host_number(host),))) for host in hosts)
            slot = next((one for one in found if one is not None), slot)
        fleet.join_slot(number, slot, proven=True)
        if self._most_members:
            self._note_full(slot)
        host = fleet.host_names[fleet.slot_host(slot)]
        return Join(slot=fleet.slot_names[slot], vm=vm.id, vm_host=vm.host, host=host)

    def close(self, slots: Iterable[str]) -> None:
        """Nobody joins these."""
        for name in slots:
            if self.fleet.has_slot(name):
                self._full |= self.fleet.slot_bit(self.fleet.slot_number(name))

    def _note_full(self, slot: int) -> None:
        if self.fleet.slot_members(slot) >= self._most_members:
            self._full |= self.fleet.slot_bit(slot)

    def _open(self, vm: VmView, need: Need, missing: int, *, worded: bool, beside: Size = (0, 0)) -> Open | Fail:
        """``beside``: only on hosts with so much room beside the new slot."""
        offer = self._new.get(need.offer_class)
        if offer is None and need.offer_class in self._new_offers:
            given = self._new_offers[need.offer_class]
            offer = self._new[need.offer_class] = NewHosts(self.fleet, given, self._hashes)
        if offer is None or offer.error:
            error = offer.error if offer is not None else f"placement was not asked for {need.offer_class}"
            return build_fail(vm.id, Reason(CoverageReason.PLACEMENT_UNAVAILABLE, {"error": error}), missing)
        if not self.fleet.holds_for(vm.id):
            unit = self.fleet.crowded_unit_names(vm.id)[0]
            where = unit if self.fleet.has_units else f"host {unit}"
            return build_fail(vm.id, Reason(CoverageReason.MEMBERSHIPS_CLASH, {"where": where}), missing)
        size = need.size
        room = self.fleet.have_slot_room(offer.hosts, size.cpu_milli + beside[0], size.memory_bytes + beside[1])
        allowed = ~self._mask_barred(vm.id, offer.hosts)
        possible = room & allowed
        if self._one_new_per_host:
            possible &= ~self._mask_new(offer.hosts)
        place = offer.choose_best(vm.id, possible, vm.preferred)
        if place is None:
            if not worded and (offer.names or len(self._number_all_hosts())):
                # All that an attempt has to know which may be dropped.
                return Fail(vm=vm.id, reason=CoverageReason.NO_CAPACITY, detail="", remedy="", missing=missing)
            return build_fail(vm.id, self._explain_no_host(vm, need, offer, allowed, room), missing)
        self._serial += 1
        while self.fleet.has_slot(f"{self._key_prefix}{self._serial}"):
            self._serial += 1
        slot = new_slot(f"{self._key_prefix}{self._serial}", offer.names[place], vm, size)
        self.opened[slot.name] = slot
        number = self.fleet.open(slot, rank=f"{_AFTER_ALL_NAMES}{self._serial:012d}")
        self.fleet.join_slot(self.fleet.vm_number(vm.id), number, proven=True)
        self._new_on.add(self.fleet.slot_host(number))
        return open_action(slot, vm.id, vm.host)

    def _mask_new(self, hosts: Ints) -> NDArray[np.bool_]:
        """For each of these hosts whether it received a new slot in this cycle."""
        return _mask_of(len(self.fleet.host_names), self._new_on)[hosts]

    def _explain_no_host(
        self, vm: VmView, need: Need, offer: NewHosts, allowed: NDArray[np.bool_], room: NDArray[np.bool_]
    ) -> Reason:
        """Why no host can take a new slot: each offered host by the first thing that keeps it from holding the slot."""
        everywhere = self._number_all_hosts()
        own = int(vm.host in offer.names)
        others = [name for place in np.nonzero(~allowed)[0].tolist() if (name := offer.names[place]) != vm.host]
        full = int(np.count_nonzero(allowed & ~room))
        already_new = 0
        if self._one_new_per_host:
            already_new = int(np.count_nonzero(allowed & room & self._mask_new(offer.hosts)))
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
                "size": format_amounts(need.size.cpu_milli, need.size.memory_bytes),
                "total": total,
                "offered": offered,
                "refused": tuple(f"{step}: {count}" for step, count in sorted(offer.rejected.items())),
                "own": own,
                "by_rules": len(others),
                "example": self._explain_example(vm.id, min(others)) if others else "",
                "already_new": already_new,
                "full": full,
                "roomiest": self._describe_roomiest(vm.id, everywhere, need) if short else "",
            },
        )

    def _number_all_hosts(self) -> Ints:
        """All hosts, by name; needed for reasons only."""
        if self._all_hosts is None:
            self._all_hosts = np.array(
                [self.fleet.host_number(host) for host in sorted(set(self._hosts))], dtype=np.int64
            )
        return self._all_hosts

    def _mask_barred(self, vm: str, hosts: Ints) -> NDArray[np.bool_]:
        """For each of these hosts whether the VM may not run there, or the rules or separation forbid a new slot."""
        fleet = self.fleet
        number = fleet.vm_number(vm)
        found = _mask_of(len(fleet.unit_names), fleet.blocked_units(number))[fleet.units_at(hosts)]
        limit = fleet.host_limit(number)
        if limit:
            found |= ~_mask_of(len(fleet.host_names), limit)[hosts]
        closed = self.separation.closed_hosts(vm)
        return found if closed is None else found | closed[hosts]

    def _explain_example(self, vm: str, host: str) -> str:
        fleet, unit = self.fleet, self._unit_of(host)
        called = fleet.unit_names[unit]
        here = f"{host} is in {called}, which" if called != host else host
        number = fleet.vm_number(vm)
        limit = fleet.host_limit(number)
        if limit and fleet.host_number(host) not in limit:
            return f"{host} is none of the {len(limit)} hosts that the VM may run on"
        for slot in sorted(fleet.slot_numbers(number), key=fleet.slot_names.__getitem__):
            name = fleet.slot_names[slot]
            if fleet.unit_of(fleet.slot_host(slot)) == unit:
                return f"{here} has its slot {name}"
            others = [fleet.vm_names[one] for one in fleet.members_in(slot, unit) if one != number]
            if others:
                return f"{here} runs {min(others)}, a member of its slot {name}"
        if unit == self._unit_of(fleet.location_of(vm)):
            return f"{here} runs the VM"
        return self.separation.explain_closed(vm, host) or host

    def _unit_of(self, host: str) -> int:
        return self.fleet.unit_of(self.fleet.host_number(host))

    def _describe_roomiest(self, vm: str, hosts: Ints, need: Need) -> str:
        """Of these hosts, where the VM may have a slot, the one with the most room for it."""
        found = self.fleet.find_roomiest(
            hosts[~self._mask_barred(vm, hosts)], need.size.cpu_milli, need.size.memory_bytes
        )
        if found is None:
            return ""
        host, cpu, memory = found
        return f"{self.fleet.host_names[host]} with {format_amounts(cpu, memory)}"


def build_fail(vm: str, reason: Reason, missing: int) -> Fail:
    """The VM gets nothing more, for this reason."""
    said = render(reason)
    return Fail(vm=vm, reason=str(reason.code), detail=said.text, remedy=said.remedy, missing=missing)


def _mask_of(count: int, numbers: Iterable[int]) -> NDArray[np.bool_]:
    """For each of so many, whether its number is among these."""
    found = np.zeros(count, dtype=bool)
    found[list(numbers)] = True
    return found

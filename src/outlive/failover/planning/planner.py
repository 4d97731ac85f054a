"""One fleet followed event by event: what a VM's appearance, move or end does to the slots, at once.

Holds the counted state and the offers of placement between events, so that an event costs what it touches. Pure all the
same: it changes only itself and says what is to be written; who carries that out reports back what came of it
(``slot_created``, ``slot_gone``). The periodic pass (module ``cleanup``) stays the judge of everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from outlive.failover.compat import Compat
from outlive.failover.eligibility.counters import Counters
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.actions import Action, Need, Offer, Open
from outlive.failover.planning.cleanup import Cause, Deletion, Drop
from outlive.failover.planning.greedy import Greedy


class Departure(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a VM leaves behind: its memberships, and slots without a member."""

    dropped: tuple[Drop, ...] = ()
    deleted: tuple[Deletion, ...] = ()


class Planner:
    """The state after the last clean-up, kept up to date. Names that it does not know raise ``KeyError``."""

    def __init__(
        self,
        vms: Iterable[VmView],
        slots: Iterable[SlotView],
        required: Mapping[str, int],
        *,
        reuse: Mapping[str, Offer],
        new: Mapping[str, Offer],
        free: Mapping[str, tuple[int, int]],
        hosts: Iterable[str] = (),
        compat: Compat | None = None,
    ) -> None:
        """``required``: VM → slots that it needs; offers and free amounts as in ``AssignInput``."""
        self.counters = Counters.build(sorted(slots, key=lambda slot: slot.name), vms, required)
        self._greedy = Greedy(
            self.counters, reuse=reuse, new=new, free=free, hosts=hosts, key_prefix="planned-", compat=compat
        )

    def set_offers(
        self, reuse: Mapping[str, Offer], new: Mapping[str, Offer], free: Mapping[str, tuple[int, int]]
    ) -> None:
        """Take fresh answers of placement, and the free amounts that go with them."""
        self._greedy.set_offers(reuse, new)
        for host, (cpu, memory) in free.items():
            self._greedy.ledger.set_free(self.counters.host(host), cpu, memory)

    def appear(self, vm: VmView, required: int) -> Departure:
        """The VM is there, was resized, or runs elsewhere; in that case it leaves all its slots."""
        moved = self.counters.has_vm(vm.id) and self.counters.location(vm.id) != vm.host
        left = self._leave_all(vm.id, Cause.MOVED, f"VM {vm.id} runs on {vm.host}", vm.host) if moved else Departure()
        self.counters.add_vm(vm, required)
        return left

    def disappear(self, vm: str) -> Departure:
        """The VM is gone for good; nothing happens when it is not known."""
        if not self.counters.has_vm(vm):
            return Departure()
        host = self.counters.location(vm)
        left = self._leave_all(vm, Cause.GONE, f"VM {vm} is gone", host)
        if self.counters.has_vm(vm):
            self.counters.remove_vm(vm)
        return left

    def cover(self, vm: VmView, need: Need) -> list[Action]:
        """Give the VM the slots that it misses; ``need.needed`` says how many."""
        actions = self._greedy.serve(vm, need)
        self._greedy.opened.clear()
        return actions

    def slot_created(self, action: Open, name: str) -> None:
        """The slot of an ``Open`` exists under this name now."""
        self.counters.rename_slot(action.slot_key, name)

    def slot_gone(self, slot: str) -> None:
        """A slot, or one that could not be created, is not there (any more)."""
        if self.counters.has_slot(slot):
            self._give_back(slot)
            self.counters.remove_slot(slot)

    def slot_seen(self, slot: SlotView) -> None:
        """A slot as the store has it now, whoever changed it."""
        if self.counters.has_slot(slot.name):
            if self._is_as(slot):
                return
            self.slot_gone(slot.name)
        number = self.counters.add_slot(slot)
        self._greedy.ledger.take(self.counters.slot_host(number), slot.cpu_milli, slot.memory_bytes)

    def _is_as(self, slot: SlotView) -> bool:
        counters, name = self.counters, slot.name
        same = counters.host_of_slot(name) == slot.host and counters.members(name) == sorted(slot.members)
        same = same and counters.size_of_slot(name) == (slot.cpu_milli, slot.memory_bytes)
        if same:
            counters.set_ready(name, slot.ready is not False)
        return same

    def _leave_all(self, vm: str, cause: Cause, detail: str, host: str) -> Departure:
        drops, deletions = [], []
        for slot in self.counters.slots_of(vm):
            drops.append(Drop(slot=slot, vm=vm, cause=cause, detail=detail, host=host))
            self.counters.leave(vm, slot)
            if not self.counters.members(slot):
                deletions.append(Deletion(slot=slot, cause=Cause.EMPTY, detail="its last member left"))
                self.slot_gone(slot)
        return Departure(dropped=tuple(drops), deleted=tuple(deletions))

    def _give_back(self, slot: str) -> None:
        cpu, memory = self.counters.size_of_slot(slot)
        self._greedy.ledger.take(self.counters.host(self.counters.host_of_slot(slot)), -cpu, -memory)

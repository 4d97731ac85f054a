"""In what order hosts can be emptied while every VM goes on tolerating failures.

First by hand, as a careful operator would do it: join the new slot before leaving the old one, open before closing,
move a VM where nothing stands in the way, or clear away what does. Where that gets stuck, small fleets are searched
completely; whatever is left is either shown to be impossible or said to be not found, with the limit that ended the
search (docs/design/failover.md#what-if).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from outlive.failover.analysis.drain.inputs import DrainInput, DrainObstacle, DrainResult, Stuck
from outlive.failover.analysis.drain.layout import Layout
from outlive.failover.analysis.drain.proofs import find_impossibilities
from outlive.failover.analysis.drain.search import DrainSearch, exceeded_limit
from outlive.failover.analysis.tolerance import ToleranceInput, compute_tolerance
from outlive.failover.fleet import slot_amounts
from outlive.placement import amounts_of

ROUNDS = 8
"""Passes over everything that is still there; a pass in which nothing changes is the last."""
HOSTS_CLEARED = 24
"""Hosts, best first, on which slots are cleared out of a VM's way."""
JOINS_TRIED = 48
"""Slots, fullest first, that are tried in the place of one that a VM leaves."""
OPENS_TRIED = 24
"""Hosts that are tried for a new slot in the place of one that a VM leaves."""
SLOTS_MERGED = 64
"""Slots, fewest members first, whose members are tried to be put into others when room is short."""
SLOTS_EVICTED = 8
"""Slots that one host gives up to make room for a VM."""


def order_drain(given: DrainInput) -> DrainResult:
    """The steps that empty the hosts, every prefix of them a state that holds; or what stands in the way."""
    units = given.topology.units
    tolerance = ToleranceInput(vms=given.vms, required=given.required, slots=given.slots, units=units)
    now = compute_tolerance(tolerance).vms
    required = {vm: given.required[vm] if given.keep is None else given.keep for vm in now}
    weaker = {vm: level for vm, level in now.items() if level < required[vm]}
    floors = {vm: min(level, required[vm]) for vm, level in now.items()}
    targets = {vm: min(level, given.required[vm]) for vm, level in now.items()}
    work = Ordering(given, floors, targets)
    obstacles = find_impossibilities(given, floors, lawful=not work.layout.fleet.list_faulty())
    if obstacles:
        return DrainResult(possible=False, obstacles=tuple(obstacles), weaker=weaker)
    left = work.run()
    if not left:
        work.restore_protection()
        return _build_answer(work.layout, weaker)
    # A complete search, if the fleet is small enough for one.
    layout = Layout(given)
    refusal = exceeded_limit(layout, given)
    if refusal:
        return DrainResult(possible=False, proven=False, obstacles=tuple(left), weaker=weaker, limit=refusal)
    search = DrainSearch(layout, given, floors)
    found = search.run()
    if found:
        work = Ordering(given, floors, targets, layout)
        work.restore_protection()
        return _build_answer(layout, weaker)
    if found is None:
        limit = f"SEARCHED_CHANGES ({given.search_limit})"
        return DrainResult(possible=False, proven=False, obstacles=tuple(left), weaker=weaker, limit=limit)
    detail = f"all {search.states} arrangements that can be reached were looked through"
    proof = DrainObstacle(reason=Stuck.NO_ORDER, detail=detail)
    return DrainResult(possible=False, obstacles=(proof, *left), weaker=weaker)


def _build_answer(layout: Layout, weaker: dict[str, int]) -> DrainResult:
    return DrainResult(
        possible=True,
        steps=tuple(layout.steps),
        vms=layout.final_vms(),
        slots=layout.final_slots(),
        weaker=weaker,
    )


class Ordering:
    """The careful operator."""

    def __init__(
        self, given: DrainInput, floors: dict[str, int], targets: dict[str, int], layout: Layout | None = None
    ) -> None:
        """``floors``: VM → failures that it tolerates in every state; ``targets``: what it has now and shall have."""
        self.layout = layout or Layout(given)
        self._given = given
        self._floors = floors
        self._targets = targets
        self._thrifty = False
        """Whether VMs may end with less than their targets, down to their floors."""
        self._opens = True
        """Whether slots may be opened."""
        self._movers = [vm.id for vm in given.vms if vm.host in self.layout.drained]

    def run(self) -> list[DrainObstacle]:
        """Empty the hosts; what could not leave, nothing where all is done."""
        for thrifty in (False, True):
            self._thrifty = thrifty
            for _ in range(ROUNDS):
                before = len(self.layout.steps)
                for vm in self._remaining_vms():
                    self._move(vm)
                for slot in self.layout.slots_on(self._given.drained):
                    self._empty_slot(slot)
                if len(self.layout.steps) == before and not self._merge():
                    break
            if not self._remaining_vms() and not self.layout.slots_on(self._given.drained):
                return []
        layout = self.layout
        left = [*map(self._explain_stuck, self._remaining_vms())]
        for slot in layout.slots_on(self._given.drained):
            for vm in layout.fleet.members_of(slot):
                detail = f"finds no other slot than {slot} that keeps its tolerance at {self._floors.get(vm, 0)}"
                host = layout.slots[slot].host
                left.append(DrainObstacle(reason=Stuck.NOT_FOUND, vm=vm, slot=slot, host=host, detail=detail))
        return left

    def restore_protection(self) -> None:
        """Give VMs back what the steps took from them, as far as that is possible now."""
        touched = {step.vm for step in self.layout.steps if hasattr(step, "vm")}
        short = [vm for vm in touched if self.layout.tolerance_of(vm) < self._targets.get(vm, 0)]
        for vm in sorted(short, key=lambda name: (self.layout.tolerance_of(name), *self._rank(name))):
            for _ in range(self._targets[vm] - self.layout.tolerance_of(vm)):
                if not self._take_slot(vm, ""):
                    break

    def _remaining_vms(self) -> list[str]:
        """VMs that still run on the drained hosts, in the order in which they are moved."""
        return sorted((vm for vm in self._movers if self.layout.host_of(vm) in self.layout.drained), key=self._rank)

    def _rank(self, vm: str) -> tuple[int, int, str]:
        view = self.layout.vms.get(vm)
        return (-self._given.priorities.get(vm, 0), -view.memory_bytes if view else 0, vm)

    # Moving a VM.

    def _move(self, vm: str) -> bool:
        """Move it to the best host that will do, clearing slots out of the way where that helps."""
        layout = self.layout
        for slot in layout.fleet.slots_of(vm):
            if layout.is_stale(vm, slot):
                self._leave(vm, slot)
        hosts = layout.find_destinations(vm)
        needs = amounts_of(layout.vms[vm])
        roomy = layout.fleet.hosts_with_room(hosts, needs)
        clashing: list[tuple[int, int, str]] = []
        for place, (host, slots) in enumerate(layout.find_clashing_slots(vm, roomy)):
            if not slots:
                return self._try_move(vm, host)
            clashing.append((len(slots), place, host))
        for _, _, host in sorted(clashing)[:HOSTS_CLEARED]:
            if self._exchange_and_move(vm, host):
                return True
        crowded = [host for host in hosts if host not in set(roomy) and self._holds_enough(host, needs)]
        return any(self._made_room(vm, host, needs) for host in crowded[:HOSTS_CLEARED])

    def _try_move(self, vm: str, host: str) -> bool:
        layout = self.layout
        mark = layout.mark
        concerned = {vm}.union(*(layout.fleet.members_of(slot) for slot in layout.fleet.slots_of(vm)))
        layout.move(vm, host)
        floors = self._floors
        if all(layout.fleet.holds_for(one) or layout.tolerance_of(one) >= floors.get(one, 0) for one in concerned):
            return True
        layout.undo(mark)
        return False

    def _exchange_and_move(self, vm: str, host: str) -> bool:
        """Exchange the VM's slots that clash with the host for others, then move; or change nothing."""
        mark = self.layout.mark
        for slot in self._clashing_slots(vm, host):
            if not self._exchange(vm, slot, host):
                self.layout.undo(mark)
                return False
        if not self._clashing_slots(vm, host) and self._try_move(vm, host):
            return True
        self.layout.undo(mark)
        return False

    def _clashing_slots(self, vm: str, host: str) -> list[str]:
        return [slot for _, slots in self.layout.find_clashing_slots(vm, [host]) for slot in slots]

    def _holds_enough(self, host: str, needs: Mapping[str, int]) -> bool:
        """Whether the host would have room if it gave up its slots."""
        slots = [self.layout.slots[name] for name in self.layout.slots_on([host])]
        cpu, memory = sum(slot.cpu_milli for slot in slots), sum(slot.memory_bytes for slot in slots)
        more = {"cpu": cpu, "memory": memory}
        lacks = self.layout.fleet.missing_amounts(host, needs)
        return self.layout.fleet.knows_room(host) and all(more.get(name, 0) >= amount for name, amount in lacks.items())

    def _made_room(self, vm: str, host: str, needs: Mapping[str, int]) -> bool:
        """Dissolve slots on the host until the VM fits, then move it there; or change nothing."""
        layout = self.layout
        mark = layout.mark
        slots = sorted(layout.slots_on([host]), key=lambda name: (len(layout.fleet.members_of(name)), name))
        for slot in slots[:SLOTS_EVICTED]:
            lacks = layout.fleet.missing_amounts(host, needs)
            if not lacks:
                break
            if any(slot_amounts(layout.slots[slot]).get(name, 0) > 0 for name in lacks):
                before = layout.mark
                if not self._empty_slot(slot, avoid=host):
                    layout.undo(before)
        if layout.fleet.has_room(host, needs) and (
            self._exchange_and_move(vm, host) if self._clashing_slots(vm, host) else self._try_move(vm, host)
        ):
            return True
        layout.undo(mark)
        return False

    # Leaving slots.

    def _empty_slot(self, slot: str, avoid: str = "") -> bool:
        """Take everybody out, largest first, and close the slot; those who can leave do so even if others cannot."""
        layout = self.layout
        for vm in sorted(layout.fleet.members_of(slot), key=self._rank):
            self._exchange(vm, slot, "", avoid)
        if layout.fleet.has_slot(slot) and not layout.fleet.members_of(slot):
            layout.close(slot)
        return not layout.fleet.has_slot(slot)

    def _exchange(self, vm: str, slot: str, towards: str, avoid: str = "") -> bool:
        """The VM leaves the slot, after or before it takes another where it needs one; or nothing changes.

        ``towards``: the other slot must not clash with this host either; ``avoid``: nor may it be there.
        """
        layout = self.layout
        mark = layout.mark
        if vm not in layout.vms or not layout.slot_counts(vm, slot):
            self._leave(vm, slot)
            return True
        floor, target = self._floors.get(vm, 0), self._targets.get(vm, 0)
        wanted = floor if self._thrifty else min(target, layout.tolerance_of(vm))
        if self._leave(vm, slot) >= target:
            return True
        layout.undo(mark)
        if self._take_slot(vm, towards, avoid):
            if self._leave(vm, slot) >= wanted:
                return True
            layout.undo(mark)
        level = self._leave(vm, slot)
        if level >= floor and (self._take_slot(vm, towards, avoid, besides=slot) or level >= wanted):
            return True
        layout.undo(mark)
        return False

    def _leave(self, vm: str, slot: str) -> int:
        """Leave, and say what the VM tolerates now."""
        layout = self.layout
        layout.leave(vm, slot)
        return layout.tolerance_of(vm)

    def _take_slot(self, vm: str, towards: str, avoid: str = "", besides: str = "") -> bool:
        """Join a slot, or else open one, that would also do after a move towards a host."""
        layout = self.layout
        for slot in islice(layout.joinable_slots(vm), JOINS_TRIED):
            host = layout.slots[slot].host
            if slot != besides and host != avoid and not (towards and layout.has_clash(vm, slot, towards)):
                layout.join(vm, slot)
                return True
        for host in islice(layout.openable_hosts(vm) if self._opens else (), OPENS_TRIED):
            if host == avoid or (towards and layout.share_unit_or_domain(towards, host)):
                continue
            layout.open(vm, host)
            return True
        return False

    def _merge(self) -> bool:
        """Put the members of small slots into others, so that there is room; whether anything changed."""
        layout = self.layout
        before = len(layout.steps)
        self._opens = False
        slots = [name for name in layout.slots if layout.fleet.has_slot(name)]
        order = sorted(slots, key=lambda name: (len(layout.fleet.members_of(name)), name))
        for slot in order[:SLOTS_MERGED]:
            mark = layout.mark
            if layout.slots[slot].host in layout.drained or self._empty_slot(slot):
                continue
            layout.undo(mark)
        self._opens = True
        return len(layout.steps) > before

    # What is left.

    def _explain_stuck(self, vm: str) -> DrainObstacle:
        layout = self.layout
        hosts = layout.find_destinations(vm)
        needs = amounts_of(layout.vms[vm])
        full = len(hosts) - len(layout.fleet.hosts_with_room(hosts, needs))
        detail = (
            f"of {len(hosts)} hosts that may run it {full} have no room at that point, "
            f"on {len(hosts) - full} its slots or its co-users' stand in the way"
        )
        return DrainObstacle(reason=Stuck.NOT_FOUND, vm=vm, host=layout.host_of(vm), detail=detail)

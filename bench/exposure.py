"""For how long VMs are exposed after a failure: in our order of service, and with the largest memory first.

A fleet of random sizes is protected in full, hosts die, their VMs land in their slots, and then a planner with a
bounded number of VMs in each step gives everybody new ones. Exposure is what is missing, summed over VMs and steps; the
steps are the same, the rules are the same, and only the order differs
(docs/reference/failover-planning.md#scarce-capacity).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from bench.figures import Figure
from outlive.base import Random
from outlive.failover import SlotView, resolve_size
from outlive.failover.planner import AssignInput, Missing, Need, PlacementOffer, SelectInput, SelectResult, select
from outlive.failover.planner.assign import assign
from outlive.placement import VmView

GIB: Final = 2**30
K: Final = 2
"""Slots that every VM needs."""
SIZES: Final = (1, 1, 1, 2, 2, 4, 8)
"""Cores of VMs, with four times as many GiB."""
ROTATION: Final = 4
"""Every so many steps begin at a random place, as cycles do, so that VMs that nothing helps do not stop the others."""
IDLE_STEPS: Final = 3 * ROTATION
"""After so many steps in which nobody was given anything, nothing more can be given."""
STEPS: Final = 1_000
"""After so many the planner is given up."""


class Order(enum.Enum):
    """Who is served first."""

    EXPOSURE = "the fewest slots first, and in rounds where room is scarce"
    MEMORY = "the largest memory first, each VM all its slots at its turn"


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """VMs where they are now, with what is left of their slots."""

    hosts: tuple[str, ...]
    cores: int
    """Of each host."""
    vms: tuple[VmView, ...]
    slots: tuple[SlotView, ...] = ()

    def free(self) -> dict[str, tuple[int, int]]:
        """Host → milli-cores and bytes that neither VMs nor slots have."""
        left = {host: [self.cores * 1000, self.cores * 4 * GIB] for host in self.hosts}
        for one in (*self.vms, *self.slots):
            left[one.host][0] -= one.cpu_milli
            left[one.host][1] -= one.memory_bytes
        return {host: (max(0, cpu), max(0, memory)) for host, (cpu, memory) in left.items()}


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Summed over all steps until nothing more could be given, or until as long as the other order took."""

    slot_steps: int
    """Slots that were missing."""
    bare_steps: int
    """VMs that had no slot at all."""
    steps: int
    missing: int
    """Slots that are missing in the end."""


def after_failure(seed: int, *, cores: int = 128) -> Fleet:
    """A fleet of 20 to 32 hosts, one or two of which have just died, after recovery."""
    random = Random(seed).fork("exposure")
    hosts = tuple(f"h{number:02}" for number in range(random.randint(20, 32)))
    vms: list[VmView] = []
    for number in range(len(hosts) * random.randint(3, 6)):
        size = random.choice(SIZES)
        vms.append(
            VmView(
                id=f"v{number:03}",
                host=hosts[number % len(hosts)],
                zone="z",
                flavor=f"f{size}",
                cpu_milli=size * 1000,
                memory_bytes=size * 4 * GIB,
            )
        )
    whole = Fleet(hosts=hosts, cores=cores, vms=tuple(vms))
    covered = _served(whole, Order.EXPOSURE, limit=0)
    return _without(covered, tuple(random.sample(hosts, random.randint(1, 2))))


def _without(fleet: Fleet, dead: tuple[str, ...]) -> Fleet:
    """The VMs of dead hosts have landed in slots of theirs, which are theirs alone from then on."""
    slots = {slot.name: slot for slot in fleet.slots if slot.host not in dead}
    landed: list[VmView] = []
    for vm in fleet.vms:
        if vm.host in dead:
            mine = next((slot for slot in slots.values() if vm.id in slot.members), None)
            if mine is None:
                continue  # both of its slots are gone as well: it is placed, and is not this story's business
            del slots[mine.name]
            vm = msgspec.structs.replace(vm, host=mine.host)
        landed.append(vm)
    where = {vm.id: vm.host for vm in landed}
    left = [
        msgspec.structs.replace(slot, members={vm: host for vm, host in slot.members.items() if where.get(vm) == host})
        for slot in slots.values()
    ]
    hosts = tuple(host for host in fleet.hosts if host not in dead)
    return Fleet(hosts=hosts, cores=fleet.cores, vms=tuple(landed), slots=tuple(one for one in left if one.members))


def _served(fleet: Fleet, order: Order, *, limit: int, cycle: int = 1, draw: float = 0.0) -> Fleet:
    """After one step in which at most ``limit`` VMs are served; 0: all."""
    if order is Order.EXPOSURE:
        chosen = _select(fleet, limit=limit, cycle=cycle, draw=draw).selected
        return _given(fleet, chosen) if chosen else fleet
    sizes = {vm.id: vm.memory_bytes for vm in fleet.vms}
    missing = sorted(_select(fleet, limit=0).missing, key=lambda one: (-sizes[one.vm], one.vm))
    start = int(draw * len(missing)) if cycle % ROTATION == 0 and 0 < limit < len(missing) else 0
    for one in (missing[start:] + missing[:start])[: limit or None]:
        fleet = _given(fleet, [one])
    return fleet


def _select(fleet: Fleet, *, limit: int, cycle: int = 1, draw: float = 0.0) -> SelectResult:
    required = {vm.id: K for vm in fleet.vms}
    return select(
        SelectInput(
            vms=fleet.vms,
            slots=fleet.slots,
            required=required,
            limit=limit,
            rotation=ROTATION,
            cycle=cycle,
            draw=draw,
        )
    )


def _given(fleet: Fleet, chosen: Sequence[Missing]) -> Fleet:
    """After these have been served together."""
    views = {vm.id: vm for vm in fleet.vms}
    offer = {"c": PlacementOffer(hosts=fleet.hosts)}
    result = assign(
        AssignInput(
            slots=fleet.slots,
            vms=fleet.vms,
            needs=tuple(
                Need(vm=one.vm, needed=one.needed, size=resolve_size(views[one.vm]), offer_class="c") for one in chosen
            ),
            new=offer,
            reuse=offer,
            free=fleet.free(),
            hosts=fleet.hosts,
            key_prefix=f"n{len(fleet.slots)}-",
        )
    )
    changed = {slot.name: slot for slot in result.slots}
    slots = {slot.name: slot for slot in fleet.slots} | changed
    return msgspec.structs.replace(fleet, slots=tuple(slots.values()))


def held(fleet: Fleet) -> dict[str, int]:
    """VM → slots that it has."""
    found = dict.fromkeys((vm.id for vm in fleet.vms), 0)
    for slot in fleet.slots:
        for vm in slot.members:
            found[vm] += 1
    return found


def course(fleet: Fleet, order: Order, *, limit: int) -> list[tuple[int, int]]:
    """Slots that are missing and VMs without any, before each step and after the last one."""
    found: list[tuple[int, int]] = []
    random = Random(len(fleet.vms)).fork("turns")
    for cycle in range(1, STEPS + 1):
        has = held(fleet).values()
        found.append((sum(K - one for one in has if one < K), sum(one == 0 for one in has)))
        if found[-1][0] == 0 or found[-1:] * IDLE_STEPS == found[-IDLE_STEPS:]:
            break
        fleet = _served(fleet, order, limit=limit, cycle=cycle, draw=random.random())
    return found


def exposures(fleet: Fleet, *, limit: int) -> tuple[Exposure, Exposure]:
    """In our order, and with the largest memory first, over the same time."""
    ours, theirs = course(fleet, Order.EXPOSURE, limit=limit), course(fleet, Order.MEMORY, limit=limit)
    longest = max(len(ours), len(theirs))
    return _sum(ours, longest), _sum(theirs, longest)


def _sum(found: list[tuple[int, int]], steps: int) -> Exposure:
    whole = found + [found[-1]] * (steps - len(found))
    return Exposure(
        slot_steps=sum(slots for slots, _ in whole),
        bare_steps=sum(bare for _, bare in whole),
        steps=len(found) - 1,
        missing=found[-1][0],
    )


SEEDS: Final = 40
LIMITS: Final = (3, 10)
"""VMs that are served in a step."""


def measure() -> list[Figure]:
    pairs = [exposures(after_failure(seed), limit=limit) for seed in range(SEEDS) for limit in LIMITS]
    slots = [sum(one.slot_steps for one in order) for order in zip(*pairs, strict=True)]
    bare = [sum(one.bare_steps for one in order) for order in zip(*pairs, strict=True)]
    higher = sum(ours.slot_steps > theirs.slot_steps or ours.bare_steps > theirs.bare_steps for ours, theirs in pairs)
    failures = f"{len(pairs)} failures, {SEEDS} fleets"
    return [
        Figure(
            "slots missing x steps after a failure, of those with the largest memory first",
            round(slots[0] / slots[1], 3),
            "share",
            1.0,
            note=f"{slots[0]:,} and {slots[1]:,}; {failures}",
        ),
        Figure(
            "VMs without any slot x steps after a failure, of those with the largest memory first",
            round(bare[0] / bare[1], 3),
            "share",
            0.5,
            note=f"{bare[0]:,} and {bare[1]:,}",
        ),
        Figure("failures in which our order exposes more", higher, "failures", 0),
    ]

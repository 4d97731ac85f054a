"""Who misses slots, who is served in this cycle, how the cycle is summed up, and when the next one is.

Rules: docs/reference/failover.md#assigning. Chance enters as a number in the input, so that it replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlive.failover.eligibility.rules import serves
from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import SLOTS, Portions, portioned


class Missing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM with fewer slots than it needs."""

    vm: str
    required: int
    present: int

    @property
    def needed(self) -> int:
        """How many slots it misses."""
        return self.required - self.present


class SelectInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All VMs, what they need, the slots after clean-up, and the limits of a cycle."""

    vms: tuple[VmView, ...]
    slots: tuple[SlotView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    priorities: dict[str, int] = {}
    """VM → priority, larger is earlier; missing means 0."""
    limit: int = 0
    """VMs served in a cycle; 0 or less: all."""
    rotation: int = 0
    """Every n-th cycle starts at a random place; 0: never."""
    cycle: int = 1
    """Number of this cycle, the first being 1."""
    draw: float = 0.0
    """A uniform random number in [0, 1), used where rotation applies."""


class SelectResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who misses slots, and who of them is served."""

    missing: tuple[Missing, ...] = ()
    """Everybody, in the order of service."""
    selected: tuple[Missing, ...] = ()
    limit_hit: bool = False
    start: int = 0
    """Place in ``missing`` where the selection began."""

    @property
    def needed(self) -> int:
        """Slots missed by the selected VMs."""
        return sum(one.needed for one in self.selected)


class PauseInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a cycle went, and the settings of pauses."""

    limit_hit: bool
    reused: int
    created: int
    failed: int
    normal_s: float
    short_s: float
    min_success: int
    max_failures: int


def select(given: SelectInput) -> SelectResult:
    """List the VMs that miss slots and choose whom this cycle serves.

    A slot that is not ready, or smaller than the VM, does not count as present. Slots beyond what a VM
    needs are left alone.
    """
    present = presence(given.vms, given.slots)
    missing = [
        (vm, Missing(vm=vm.id, required=wanted, present=present.get(vm.id, 0)))
        for vm in given.vms
        if (wanted := given.required.get(vm.id, 0)) > present.get(vm.id, 0)
    ]
    missing.sort(
        key=lambda pair: service_rank(pair[0], priority=given.priorities.get(pair[0].id, 0), present=pair[1].present)
    )
    listed = tuple(one for _, one in missing)
    if given.limit <= 0 or given.limit >= len(listed):
        return SelectResult(missing=listed, selected=listed)
    rotates = given.rotation > 0 and given.cycle % given.rotation == 0
    start = min(int(given.draw * len(listed)), len(listed) - 1) if rotates else 0
    selected = (listed[start:] + listed[:start])[: given.limit]
    return SelectResult(missing=listed, selected=selected, limit_hit=True, start=start)


def service_rank(vm: VmView, *, priority: int, present: int) -> tuple[int, int, int, str]:
    """Sorts VMs that miss slots in the order of service (docs/reference/failover.md#assigning).

    Highest priority first, then the most exposed (fewest slots present), largest memory, id.
    """
    return (-priority, present, -vm.memory_bytes, vm.id)


def short(
    vms: Sequence[VmView], slots: Sequence[SlotView], required: Mapping[str, int]
) -> Portions[tuple[tuple[VmView, ...], tuple[SlotView, ...]]]:
    """The VMs that miss slots, and the slots that list them: on these ``select`` answers as on everything."""
    views: dict[str, VmView] = {}
    for some in portioned(vms):
        views.update((vm.id, vm) for vm in some if required.get(vm.id, 0) > 0)
        yield
    present: dict[str, int] = {}
    for portion in portioned(slots, SLOTS):
        _count(portion, views, present)
        yield
    lacking: dict[str, VmView] = {}
    for pairs in portioned(views.items()):
        lacking.update((vm, view) for vm, view in pairs if required[vm] > present.get(vm, 0))
        yield
    listing: list[SlotView] = []
    for portion in portioned(slots if lacking else (), SLOTS):
        listing += [slot for slot in portion if any(vm in lacking for vm in slot.members)]
        yield
    return tuple(lacking.values()), tuple(listing)


def presence(vms: Iterable[VmView], slots: Iterable[SlotView]) -> dict[str, int]:
    """VM → slots that count for it, of these VMs; those that have none are left out."""
    present: dict[str, int] = {}
    _count(slots, {vm.id: vm for vm in vms}, present)
    return present


def _count(slots: Iterable[SlotView], views: Mapping[str, VmView], present: dict[str, int]) -> None:
    """Add to ``present`` the slots that count for these VMs."""
    for slot in slots:
        for member in slot.members:
            vm = views.get(member)
            if vm is not None and serves(vm, slot):
                present[member] = present.get(member, 0) + 1


def next_pause_s(given: PauseInput) -> float:
    """Seconds until the next cycle: the short pause while catching up goes well, else the normal one."""
    catching_up = given.limit_hit and given.short_s > 0
    went_well = given.reused + given.created >= given.min_success and given.failed <= given.max_failures
    return given.short_s if catching_up and went_well else given.normal_s

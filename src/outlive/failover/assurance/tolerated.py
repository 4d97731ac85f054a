"""How many failures every VM survives, told after each cycle: for metrics and the status page.

A cycle knows for which VMs a rule is broken. Everybody else survives as many failures as slots count for it, whichever
they are: that is what the rules buy. So a fleet is told without looking at any slot again, and only the VMs whose rules
are broken are judged one by one, the first ``BROKEN_JUDGED`` of them (docs/reference/failover.md#bounds-and-tolerance).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from outlive.failover.assurance.standing import Standing
from outlive.failover.assurance.tolerance import judged
from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import SLOTS, Portions, portioned
from outlive.failover.topology import Topology
from outlive.resources import CoverageStatus

BROKEN_JUDGED = 500
"""VMs with broken rules that a cycle judges exactly; of further ones it says that they survive nothing."""


class Tolerated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the last cycle found."""

    unit: str
    """What fails: ``host``, or a failure domain."""
    fleet: int | None
    """By the weakest VM that needs slots; ``None`` when nobody does."""
    zones: dict[str, int]
    counts: dict[int, int]
    """Failures that are survived → VMs."""


class Tolerating:
    """Adds up what is told of every VM."""

    def __init__(self, unit: str, broken: Collection[str], judged: Mapping[str, int]) -> None:
        """``broken``: VMs for which a rule is broken; ``judged``: how many failures these survive, if known."""
        self._unit = unit
        self._broken = broken
        self._judged = judged
        self._zones: dict[str, int] = {}
        self._counts = Counter[int]()

    def add(self, vms: Iterable[VmView], told: Mapping[str, CoverageStatus]) -> None:
        """Count those that need slots."""
        for vm in vms:
            status = told[vm.id]
            if status.required <= 0:
                continue
            level = self._judged.get(vm.id, 0) if vm.id in self._broken else len(status.slots)
            self._counts[level] += 1
            self._zones[vm.zone] = min(level, self._zones.get(vm.zone, level))

    def done(self) -> Tolerated:
        """Everything together."""
        return Tolerated(
            unit=self._unit,
            fleet=min(self._counts, default=None),
            zones=dict(sorted(self._zones.items())),
            counts=dict(sorted(self._counts.items())),
        )


def judge_broken(
    broken: Collection[str],
    required: Mapping[str, int],
    views: Mapping[str, VmView],
    slots: Sequence[SlotView],
    topology: Topology,
) -> Portions[dict[str, int]]:
    """VM for which a rule is broken → failures that it survives."""
    chosen = [views[vm] for vm in sorted(broken) if vm in views and required.get(vm, 0) > 0][:BROKEN_JUDGED]
    if not chosen:
        return {}
    ids = {vm.id for vm in chosen}
    near: list[SlotView] = []
    where: dict[str, str] = {}
    for portion in portioned(slots, SLOTS):
        near += [slot for slot in portion if not ids.isdisjoint(slot.members)]
        # Of a member that nobody lists the last record counts, wherever it is.
        where.update(record for slot in portion for record in slot.members.items() if record[0] not in views)
        yield
    where.update((vm, views[vm].host) for slot in near for vm in slot.members if vm in views)
    yield
    found = yield from judged(Standing(chosen, near, where, topology.units))
    return found.levels

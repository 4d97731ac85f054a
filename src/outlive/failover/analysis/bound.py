"""How few slots, and how little reserved capacity, any valid plan needs at least.

Counting arguments from the rules (docs/design/failover.md#bounds-and-tolerance); no plan is sought and no
bound is claimed to be attainable. Every number holds for every valid plan of these VMs on these hosts. Hosts that fail
together count as one, because the rules count units of failure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.failover.model import HostView
from outlive.failover.topology import Topology
from outlive.placement import VmView

THRESHOLDS = 64
"""Sizes at which the slots of larger VMs are bounded, where a fleet has more than ``LOOKED_AT`` allows; with more
distinct sizes an even choice of them is used, which makes the bound smaller."""
LOOKED_AT = 2_000_000
"""VMs that may be looked at for all sizes together."""

AMOUNT_LIMIT = 2**62
"""Amounts beyond this are cut down to it."""
NEED_LIMIT = 100_000
"""So are needs: nobody has as many hosts, and the bound holds all the more."""

Ints = NDArray[np.int64]


class BoundInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """VMs with what they need, and the hosts."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    hosts: tuple[HostView, ...]
    topology: Topology = Topology()


class BoundResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The least that any valid plan needs."""

    slots: int
    cpu_milli: int
    memory_bytes: int


class _HostSetGroup:
    """VMs whose slots are on the same set of hosts, as columns."""

    def __init__(self, vms: list[VmView], given: BoundInput, hosts: Iterable[HostView]) -> None:
        index: dict[str, int] = {}
        unit, required = given.topology.unit_of_host, given.required
        self.at: Ints = np.array([index.setdefault(unit(vm.host), len(index)) for vm in vms], dtype=np.int64)
        self.needs: Ints = np.array([min(required[vm.id], NEED_LIMIT) for vm in vms], dtype=np.int64)
        self.cpu: Ints = np.array([min(vm.cpu_milli, AMOUNT_LIMIT) for vm in vms], dtype=np.int64)
        self.memory: Ints = np.array([min(vm.memory_bytes, AMOUNT_LIMIT) for vm in vms], dtype=np.int64)
        self.hosts = len({unit(host.name) for host in hosts} | set(index))

    def least_slots(self, among: NDArray[np.bool_] | None = None) -> int:
        """Slots that these VMs, or those ``among`` them, need at least."""
        at, needs = (self.at, self.needs) if among is None else (self.at[among], self.needs[among])
        if not len(needs):
            return 0
        best = 0
        for level in np.unique(needs):
            # The best of three bounds for the VMs that need so many slots or more.
            where, needed = at[needs >= level], needs[needs >= level]
            on_one_host = int(np.bincount(where, weights=needed).max())
            # Two slots have at most one VM in common, so pairs of a VM's slots are all different.
            by_pairs, ordered_pairs = 0, int((needed * (needed - 1)).sum())
            while by_pairs * (by_pairs - 1) < ordered_pairs:
                by_pairs = max(by_pairs + 1, int(ordered_pairs**0.5))
            reach = np.minimum(len(np.unique(where)) - 1 + needed, self.hosts - 1)
            by_squares = _bound_by_squares(int(needed.sum()), int(np.maximum(reach, needed).sum()))
            best = max(best, on_one_host, by_pairs, by_squares)
        return best

    def least_amount(self, sizes: Ints) -> int:
        return max(self._bound_by_sizes(sizes), self._bound_by_ranks(sizes))

    def _bound_by_sizes(self, sizes: Ints) -> int:
        """For every size, so many slots are at least that large."""
        steps = np.unique(sizes[sizes > 0])
        most = max(THRESHOLDS, LOOKED_AT // max(1, len(sizes)))
        if len(steps) > most:
            steps = steps[np.linspace(0, len(steps) - 1, most).round().astype(np.int64)]
        total, below = 0, 0
        for step in steps.tolist():
            total += (step - below) * self.least_slots(sizes >= step)
            below = step
        return total

    def _bound_by_ranks(self, sizes: Ints) -> int:
        """The j-th largest slot is as large as any host's j-th largest VM, each counted as often as it needs slots."""
        if not len(sizes):
            return 0
        by_size = np.argsort(-sizes, kind="stable")
        by_host = by_size[np.argsort(self.at[by_size], kind="stable")]
        needed = self.needs[by_host]
        up_to = needed.cumsum()
        first = np.searchsorted(self.at[by_host], self.at[by_host])
        ranks = np.empty_like(up_to)
        ranks[by_host] = up_to - (up_to - needed)[first]
        most = np.maximum.accumulate(ranks[by_size])
        """In descending order of size: the most slots that VMs of at least this size need on any one host."""
        steps = sizes[by_size] - np.append(sizes[by_size][1:], 0)
        return sum(step * count for step, count in zip(steps.tolist(), most.tolist(), strict=True) if step)


def compute_bound(given: BoundInput) -> BoundResult:
    """Bound the slots, milli-cores and bytes of any valid plan.

    VMs of different zones need different slots, so their bounds add up; this is used only if the hosts say their zones.
    """
    vms = [vm for vm in given.vms if given.required.get(vm.id, 0) > 0]
    everybody = _HostSetGroup(vms, given, given.hosts)
    names = {vm.zone for vm in vms if vm.zone}
    zones = [
        _HostSetGroup([vm for vm in vms if vm.zone == zone], given, [host for host in given.hosts if host.zone == zone])
        for zone in (sorted(names) if names <= {host.zone for host in given.hosts} else ())
    ]
    return BoundResult(
        slots=max(everybody.least_slots(), sum(zone.least_slots() for zone in zones)),
        cpu_milli=max(everybody.least_amount(everybody.cpu), sum(zone.least_amount(zone.cpu) for zone in zones)),
        memory_bytes=max(
            everybody.least_amount(everybody.memory), sum(zone.least_amount(zone.memory) for zone in zones)
        ),
    )


def _bound_by_squares(memberships: int, reach: int) -> int:
    """The least number of slots whose sizes add up to ``memberships`` and their squares to at most ``reach``.

    The sizes of a VM's slots add up to no more than the hosts that it can meet; summed over all VMs that bounds the
    squares of the sizes.
    """
    low, high = 1, memberships
    while low < high:
        middle = (low + high) // 2
        size, larger = divmod(memberships, middle)
        if (middle - larger) * size * size + larger * (size + 1) ** 2 <= reach:
            high = middle
        else:
            low = middle + 1
    return low

"""Hosts that cannot keep what is reserved on them: a slot there is no promise.

The figures are placement's (docs/reference/placement.md#capacity): effective capacity, less the host's allocation, less
everything that reservations hold there. Where a host does not tell its allocation, what its VMs need counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlive.failover.model import VmView
from outlive.failover.planner.reasons import amounts
from outlive.placement.blocking import CapacityQuery, Verdict, blocked_hosts, has_landed, unused, verdict
from outlive.placement.request import Intent
from outlive.resources import CPU, MEMORY, Hypervisor, Reservation

_ANYBODY = CapacityQuery(intent=Intent.UNKNOWN)


def without_room(
    hosts: Sequence[Hypervisor], reservations: Iterable[Reservation], vms: Iterable[VmView]
) -> dict[str, str]:
    """Host → why what is reserved there is not held; hosts that hold everything are left out."""
    held: dict[str, list[int]] = {}
    instances = {host.name: {one.id for one in host.status.instances} for host in hosts}
    for reservation in reservations:
        if verdict(reservation, _ANYBODY) is not Verdict.BLOCKS:
            continue
        left = unused(reservation)
        for name in blocked_hosts(reservation):
            if has_landed(reservation, instances.get(name, ())):
                continue
            _add(held, name, max(0, left.cpu_milli), max(0, left.memory_bytes))
    running: dict[str, list[int]] = {}
    for vm in vms:
        _add(running, vm.host, vm.cpu_milli, vm.memory_bytes)
    reasons: dict[str, str] = {}
    for host in hosts:
        why = _why(host, running.get(host.name, [0, 0]), held.get(host.name, [0, 0]))
        if why:
            reasons[host.name] = why
    for name in sorted(held.keys() - {host.name for host in hosts}):
        reasons[name] = "is not known"
    return reasons


def _add(sums: dict[str, list[int]], host: str, cpu: int, memory: int) -> None:
    there = sums.setdefault(host, [0, 0])
    there[0] += cpu
    there[1] += memory


def _why(host: Hypervisor, running: list[int], held: list[int]) -> str:
    if host.status.lost:
        return f"is lost by fence {host.status.lost}"
    capacity, allocation = host.effective_capacity(), host.status.allocation
    if capacity is None or CPU not in capacity or MEMORY not in capacity:
        return "does not tell its capacity"
    if allocation is not None:
        running = [allocation.cpu_milli, allocation.memory_bytes]
    lacking = [max(0, running[at] + held[at] - capacity[name]) for at, name in enumerate((CPU, MEMORY))]
    return f"lacks {amounts(*lacking)} for its VMs and all that is reserved there" if any(lacking) else ""

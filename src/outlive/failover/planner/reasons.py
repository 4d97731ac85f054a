"""Why a VM got no slot: a stable word, a sentence with numbers, and what would help.

Every reason is true in the state that it was found in; the hosts are counted by the first thing that keeps each from
holding the slot (docs/reference/failover.md#reasons).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from outlive.base.quantity import format_bytes, format_milli
from outlive.failover.planner.actions import Fail


class Reason(enum.StrEnum):
    """Why a VM is not covered, apart from what is wrong with slots that list it (``assurance.worth``)."""

    ZERO_SIZE = "zero-size"
    PLACEMENT_UNAVAILABLE = "placement-unavailable"
    MEMBERSHIPS_CLASH = "memberships-clash"
    ONE_PER_HOST = "one-new-slot-per-host"
    NO_CAPACITY = "no-capacity"
    REFUSED = "refused-by-placement"
    RULES = "rules-exclude-all-hosts"
    NO_HOSTS = "no-hosts"
    WAITING = "waiting-for-a-cycle"


class HostCount(msgspec.Struct, frozen=True, kw_only=True):
    """How placement and the rules divide the hosts for one new slot."""

    total: int
    offered: int
    own: int = 0
    by_rules: int = 0
    example: str = ""
    """Why one of the hosts under ``by_rules`` is excluded."""
    already_new: int = 0
    """Hosts that received a new slot in this cycle."""
    full: int = 0
    """Offered hosts that have no room any more."""
    roomiest: str = ""
    """The host that comes closest, with its free amounts, where some are full."""
    rejected: Mapping[str, int] = {}
    """Filter step → hosts that it refused."""


def no_host(vm: str, cpu_milli: int, memory_bytes: int, hosts: HostCount, missing: int) -> Fail:
    """No host can take a new slot for the VM."""
    size = amounts(cpu_milli, memory_bytes)
    reason = _main_reason(hosts)
    return Fail(
        vm=vm, reason=reason, detail=_sentence(hosts, size), remedy=_remedy(vm, reason, hosts, size), missing=missing
    )


def unworded(vm: str, missing: int) -> Fail:
    """There are hosts, and none can take a new slot: all that an attempt has to know which may be dropped."""
    return Fail(vm=vm, reason=Reason.NO_CAPACITY, detail="", remedy="", missing=missing)


def amounts(cpu_milli: int, memory_bytes: int) -> str:
    """A size for people: cores and bytes as quantities."""
    return f"{format_milli(cpu_milli)} cpu and {format_bytes(memory_bytes)} memory"


def refused_for_capacity(rejected: Mapping[str, int]) -> int:
    """Hosts that were refused because they are full."""
    return sum(count for step, count in rejected.items() if "capacity" in step)


def _main_reason(hosts: HostCount) -> Reason:
    if not hosts.total:
        return Reason.NO_HOSTS
    if hosts.already_new:
        return Reason.ONE_PER_HOST
    if hosts.full or refused_for_capacity(hosts.rejected):
        return Reason.NO_CAPACITY
    if hosts.offered < hosts.total - (0 if hosts.own else 1):
        return Reason.REFUSED
    return Reason.RULES


def _sentence(hosts: HostCount, size: str) -> str:
    if not hosts.total:
        return "there are no hosts"
    text = f"placement offers {hosts.offered} of {hosts.total} hosts"
    if hosts.rejected:
        text += f" (refused by {', '.join(f'{step}: {count}' for step, count in sorted(hosts.rejected.items()))})"
    parts = []
    if hosts.own:
        parts.append("1 runs the VM itself")
    if hosts.by_rules:
        parts.append(f"{hosts.by_rules} excluded by the rules (for example {hosts.example})")
    if hosts.already_new:
        parts.append(f"{hosts.already_new} received a new slot in this cycle")
    if hosts.full:
        parts.append(f"{hosts.full} without room for {size}")
    if parts:
        text += f"; of these {', '.join(parts)}"
    if hosts.roomiest and (hosts.full or refused_for_capacity(hosts.rejected)):
        text += f"; the most room is on {hosts.roomiest}"
    return text


def _remedy(vm: str, reason: Reason, hosts: HostCount, size: str) -> str:
    match reason:
        case Reason.NO_HOSTS:
            return "add hosts"
        case Reason.ONE_PER_HOST:
            return "wait for the next cycle, or set failover.limitOneNewReservationPerHypervisor to false"
        case Reason.NO_CAPACITY:
            return f"free {size} on one more host, or add a host"
        case Reason.REFUSED:
            return f"`outlive failover explain {vm}` tells which step refuses which host, and what would help"
        case _:
            return f"add a host: {hosts.total} are too few to keep this VM, its slots and their members apart"

"""The order of starts: a VM was not started before those that it starts after were seen running, unless it says why.

Judged by what really ran, at the write by which a host takes the VM to start it. A host may go by what it saw some
seconds ago, and by what it saw at any moment since the VM could start; both are allowed for, and nothing else is.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlive.node.ports.hypervisor import DomainState
from outlive.resources import VirtualMachine
from outlive.simulation.invariants.truth import Truth

UNNOTICED_S: Final = 30.0
"""How long the daemon of a living host may not know that a domain of it has ended."""
ON_THE_WAY_S: Final = 40.0
"""How long a renewal may be on its way that a host sent before it lost power."""
NEVER: Final = float("-inf")


class Starts:
    """Remembers since when each VM could start, and when it ran last."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._up: dict[str, dict[str, None]] = {}
        """VM → hosts where a domain of it runs, also while the host stands still."""
        self._ended: dict[str, tuple[float, str]] = {}
        """VM → when a running domain of it ended last, and where."""
        self._assigned_s: dict[str, float] = {}
        self._ran: dict[tuple[str, str], str] = {}
        """Host and VM → the run that ran there last: a host that registers it anew starts nothing."""

    def noticed(self, host: str, vm: str) -> None:
        """Its domain on that host came, changed or went."""
        domain = self._truth.hypervisors[host].domains.get(vm)
        up = self._up.setdefault(vm, {})
        if domain is not None and domain.state is DomainState.RUNNING:
            up[host] = None
            self._ran[host, vm] = domain.run_id
        elif host in up:
            del up[host]
            self._ended[vm] = (asyncio.get_running_loop().time(), host)

    def wrote(self, before: VirtualMachine, after: VirtualMachine) -> str:
        """What is wrong with a start that this write begins; empty where it begins none, or one in order."""
        if before.status.assigned != after.status.assigned:
            self._assigned_s[after.name] = asyncio.get_running_loop().time()
        if not after.spec.start_after:
            return ""
        known = {one.run_id for one in before.status.holders}
        for holder in after.status.holders:
            ran = self._ran.get((holder.hypervisor, after.name))
            if holder.run_id in (*known, ran) or holder.role:
                continue
            domain = self._truth.hypervisors[holder.hypervisor].domains.get(after.name)
            if domain is None or domain.run_id != holder.run_id:
                return self._out_of_order(after, holder.hypervisor)
        return ""

    def _out_of_order(self, vm: VirtualMachine, host: str) -> str:
        said = vm.status.start_order
        told = said.without if said is not None and said.hypervisor == host and said.detail else ()
        since_s = max(self._assigned_s.get(vm.name, NEVER), self._ended.get(vm.name, (NEVER, ""))[0])
        early = [
            name
            for name in vm.spec.start_after
            if name != vm.name and name not in told and not self._was_up(name, since_s)
        ]
        return f"is started on {host} before {', '.join(early)}, and does not say why" if early else ""

    def _was_up(self, name: str, since_s: float) -> bool:
        """Whether somebody could have seen it running at that time or later."""
        if self._up.get(name):
            return True
        ended_s, host = self._ended.get(name, (NEVER, ""))
        if not host:
            return False
        lives = self._truth.hypervisors[host].powered
        return ended_s + (UNNOTICED_S if lives else ON_THE_WAY_S) >= since_s

"""Moves from host to host."""

from __future__ import annotations

from outlive.node.ports.hypervisor import Domain
from outlive.node.vm.shared import VmMemory
from outlive.resources import VirtualMachine


class Migrator:
    """See the module."""

    async def step(self, vm: VirtualMachine, memory: VmMemory) -> float | None:
        """One step."""
        return 5.0

    async def left_over(self, vm: VirtualMachine, domain: Domain, memory: VmMemory) -> float | None:
        """A domain of a move that is over."""
        return 5.0

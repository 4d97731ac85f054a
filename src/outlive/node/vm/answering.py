"""Requests of users to one virtual machine."""

from __future__ import annotations

from outlive.resources import VirtualMachine


class Answerer:
    """See the module."""

    def asked(self, vm: VirtualMachine) -> bool:
        """Whether there is a request that was not answered."""
        return False

    async def answer(self, vm: VirtualMachine) -> None:
        """Answer it."""

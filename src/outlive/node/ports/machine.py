"""The machine that a daemon runs on."""

from __future__ import annotations

from typing import Protocol

from outlive.node.membership.steps import Remembered
from outlive.resources import Amounts, Capabilities


class MachinePort(Protocol):
    """The machine that a daemon runs on: who it is, how often it booted, and what it remembers over a boot."""

    def machine_id(self) -> str:
        """The machine's own identity; another machine of the same name has another one."""
        ...

    def boot_id(self) -> str:
        """Of the running kernel; new at every boot, and the same until the next."""
        ...

    async def remembered(self) -> Remembered | None:
        """What ``remember`` wrote last; ``None`` on a machine that never was a member.

        What was being written when the process was killed or the power failed is there whole, or not at all.
        """
        ...

    async def remember(self, remembered: Remembered) -> None:
        """Write it down; when this returns it survives a kill of the process and a loss of power.

        A new file is written and synced, renamed over the old one, and its directory is synced. ``OSError`` where the
        disk refuses: what was there before is there still.
        """
        ...

    def lock(self) -> bool:
        """Take the lock that admits one daemon; ``False`` if another one has it.

        It ends with the process that has it, however that ends, and with nothing else: a halted process keeps it.
        """
        ...

    def capacity(self) -> Amounts:
        """What the machine has for VMs."""
        ...

    def capabilities(self) -> Capabilities:
        """What the machine and its operating system are; what is not known is empty. It does not change."""
        ...

    def load(self) -> float:
        """How many of its cores are busy, as the kernel averages it."""
        ...

    def used(self) -> Amounts | None:
        """What of the machine is in use, by whatever runs on it: processors since the last call, memory now.

        ``None`` where nobody measures it.
        """
        ...

    def disk_stall(self) -> float | None:
        """The share of the last seconds, 0 to 1, in which work stood still for the machine's own disks.

        As the kernel averages it over about ten seconds (Linux: ``full avg10`` of ``/proc/pressure/io``); ``None``
        where it does not say.
        """
        ...

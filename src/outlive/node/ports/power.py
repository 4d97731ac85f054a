"""Power controllers: who they say that their system is, whether it is on, and two commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from outlive.base.errors import Unavailable
from outlive.resources import Hypervisor


class PowerState(StrEnum):
    """What a power controller says of its system."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class PowerReading(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of a power controller."""

    state: PowerState
    """``off`` only where the controller says so itself: a state on the way to it, or none, is ``unknown``."""
    system_uuid: str = ""
    """What the controller says that its system is."""


class PowerRefused(Unavailable):
    """The BMC answered that it does not do that: nothing happened, and nothing will."""


class PowerPort(Protocol):
    """Power controllers of hosts. ``Unavailable`` where one does not answer (``PowerRefused`` where it answers no),
    ``NotFound`` where a host has none.

    A driver runs each call in a child process that is killed when the caller gives up. One call sends one command at
    most: neither the driver nor its library nor the tool that it starts sends it again, and nothing is sent once the
    call has ended. A controller may carry out late what it was sent, whatever the call raised. Nothing that a
    controller says counts before its identity was checked (``outlive.node.fencing.proofs``).
    """

    async def read(self, host: Hypervisor) -> PowerReading:
        """Identity and state, by one answer: of one session with one controller, and asked for after this call.

        Nothing is kept from an earlier answer.
        """
        ...

    async def off(self, host: Hypervisor) -> None:
        """Cut the power, hard; returning says only that the command was taken. ``off`` of what is off does nothing."""
        ...

    async def on(self, host: Hypervisor) -> None:
        """Switch on; returning says only that the command was taken. ``on`` of what is on does nothing: no reset."""
        ...

    async def check(self, host: Hypervisor) -> str:
        """Why it would refuse the command to switch off, by what it says of itself; empty: nothing that is known."""
        ...

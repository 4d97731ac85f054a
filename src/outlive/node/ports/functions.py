"""Virtual functions of this host's network cards."""

from __future__ import annotations

from typing import Protocol

import msgspec

from outlive.resources.functions import VirtualFunctionSettings


class FoundFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual function as the kernel has it."""

    index: int
    """Its number on its card, from 0."""
    pci: str | None
    """``None``: it cannot be read."""
    device: str = ""
    """Its network device on this host; empty: it has none, such as while a guest has it."""
    occupied: bool = False
    """Whether another device of this host is on its network device, such as a guest's macvtap device."""
    mac: str = ""
    mtu: int = 0
    """0: not known."""
    settings: VirtualFunctionSettings = VirtualFunctionSettings()
    """As the card has them; what it does not say is absent."""


class FoundCard(msgspec.Struct, frozen=True, kw_only=True):
    """A physical function and its virtual functions."""

    most: int
    """Virtual functions that it can have; 0: none at all."""
    mtu: int
    functions: tuple[FoundFunction, ...] = ()
    up: bool = True
    """Whether it is up: of one that is down guests get no function."""


class FunctionPort(Protocol):
    """Makes and programs virtual functions. ``NotFound`` where this host has no such device."""

    async def prepare(self) -> str:
        """Have the kernel be ready to pass functions through to guests; why it is not, empty: it is."""
        ...

    async def read(self, card: str) -> FoundCard:
        """The device and its functions, in their order. ``NotFound``, ``Unavailable``."""
        ...

    async def set_count(self, card: str, count: int, *, replace: bool) -> None:
        """Have the device have so many functions.

        ``replace``: those that are there end first, as the caller has seen that none of them is used. ``Refused``
        where the device or its driver does not do that; then it has as many as before, or none.
        """
        ...

    async def bring_up(self, card: str) -> None:
        """Have the device be up. ``Refused``, ``NotFound``."""
        ...

    async def set_mtu(self, card: str, mtu: int) -> None:
        """``Refused``, ``NotFound``."""
        ...

    async def set_mac(self, card: str, index: int, mac: str) -> None:
        """Have the function have that MAC address, also in a guest. ``Refused``, ``NotFound``."""
        ...

    async def program(self, card: str, index: int, settings: VirtualFunctionSettings) -> dict[str, str]:
        """Program what is given, VLAN and priority in one; what was refused, by field, and why.

        Everything else is programmed all the same. ``NotFound``.
        """
        ...

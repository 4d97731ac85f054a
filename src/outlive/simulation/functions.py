"""Virtual functions of a virtual host's cards: ``FunctionPort``. A boot leaves nothing of what was programmed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from outlive.base import NotFound, Refused
from outlive.node.ports import FoundCard, FoundFunction, FunctionPort
from outlive.resources import MTU_USUAL, VirtualFunctionSettings
from outlive.simulation.machines import Machine

NO_MAC = "00:00:00:00:00:00"
"""Of a function that nobody has given an address to yet."""
AS_MADE = VirtualFunctionSettings(
    vlan=0, vlan_qos=0, tx_rate_min=0, tx_rate_max=0, spoof_check=True, link_state="auto", trust=False
)
"""As a card has a new function."""
_replace = msgspec.structs.replace


class SimCards(FunctionPort):
    """The cards of one machine. ``most``: card → functions that it can have."""

    def __init__(self, machine: Machine, most: Mapping[str, int]) -> None:
        self.refuses: set[str] = set()
        """Settings that every card refuses, by field, …"""
        self.ignores: set[str] = set()
        """… and those that it takes and does not follow."""
        self.in_guests: set[tuple[str, int]] = set()
        """Functions that somebody has put into a guest: nothing of them can be read."""
        self.programmed: list[tuple[str, int, VirtualFunctionSettings]] = []
        """What was programmed since the boot, in this order."""
        self.making = asyncio.Event()
        """Cleared: making functions takes until it is set."""
        self.making.set()
        self._machine = machine
        self._most = dict(most)
        self._boot = ""
        self._cards: dict[str, FoundCard] = {}

    def _find_card(self, card: str) -> FoundCard:
        if self._boot != self._machine.boot_id:
            self._boot = self._machine.boot_id
            self._cards = {name: FoundCard(most=most, mtu=MTU_USUAL) for name, most in self._most.items()}
            self.programmed.clear()
        if card not in self._cards:
            raise NotFound(f"this host has no network device {card}")
        return self._cards[card]

    async def prepare(self) -> str:
        """Always."""
        return ""

    async def read(self, card: str) -> FoundCard:
        """As ``FunctionPort``."""
        found = self._find_card(card)
        hidden = (_replace(one, pci=None) if (card, one.index) in self.in_guests else one for one in found.functions)
        return _replace(found, functions=tuple(hidden))

    async def set_count(self, card: str, count: int, *, replace: bool) -> None:
        """As ``FunctionPort``."""
        await self.making.wait()
        found = self._find_card(card)
        if count > found.most or (found.functions and not replace):
            raise Refused(f"{card} refuses to have {count} virtual functions")
        slot = sorted(self._most).index(card)
        made = (
            FoundFunction(
                index=index,
                pci=f"0000:{slot:02x}:{16 + index // 8:02x}.{index % 8}",
                mac=NO_MAC,
                mtu=MTU_USUAL,
                settings=AS_MADE,
            )
            for index in range(count)
        )
        self._cards[card] = _replace(found, functions=tuple(made))

    def take_down(self, card: str) -> None:
        """As somebody does it by hand."""
        self._cards[card] = _replace(self._find_card(card), up=False)

    async def bring_up(self, card: str) -> None:
        """As ``FunctionPort``."""
        self._cards[card] = _replace(self._find_card(card), up=True)

    async def set_mtu(self, card: str, mtu: int) -> None:
        """As ``FunctionPort``."""
        self._cards[card] = _replace(self._find_card(card), mtu=mtu)

    async def set_mac(self, card: str, index: int, mac: str) -> None:
        """As ``FunctionPort``."""
        self._change(card, index, mac=mac)

    async def program(self, card: str, index: int, settings: VirtualFunctionSettings) -> dict[str, str]:
        """As ``FunctionPort``."""
        others = self.refuses | self.ignores
        taken = {name: value for name, value in settings.list_set().items() if name not in others}
        before = self._find_card(card).functions[index].settings
        self._change(card, index, settings=_replace(before, **taken))
        self.programmed.append((card, index, settings))
        return {name: "Operation not supported" for name in settings.list_set() if name in self.refuses}

    def lose_vlan(self, card: str, index: int) -> None:
        """As libvirt does when it starts a guest whose definition names no VLAN."""
        before = self._find_card(card).functions[index].settings
        self._change(card, index, settings=_replace(before, vlan=0, vlan_qos=0))

    def _change(self, card: str, index: int, **changes: object) -> None:
        found = self._find_card(card)
        functions = tuple(_replace(one, **changes) if one.index == index else one for one in found.functions)
        self._cards[card] = _replace(found, functions=functions)

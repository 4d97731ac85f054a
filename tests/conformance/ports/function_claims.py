"""What every driver of virtual functions keeps (``outlive.node.ports.links``): claims about one card that is up.

The virtual card is asked by ``test_functions.py`` here, a real one in the kernel guest (``tests/integration/kernel``).
"""

from __future__ import annotations

import pytest

from outlive.base import NotFound, Refused
from outlive.node.ports import FunctionPort
from outlive.resources import VirtualFunctionSettings


async def has_other_functions_only_once_those_that_it_has_may_end(port: FunctionPort, card: str) -> None:
    await port.set_count(card, 2, replace=True)
    with pytest.raises(Refused, match=f"{card} refuses to have 3 virtual functions"):
        await port.set_count(card, 3, replace=False)
    assert len((await port.read(card)).functions) == 2
    await port.set_count(card, 3, replace=True)
    found = (await port.read(card)).functions
    assert [one.index for one in found] == [0, 1, 2]
    assert len({one.pci for one in found}) == 3


async def has_no_more_functions_than_it_can(port: FunctionPort, card: str) -> None:
    most = (await port.read(card)).most
    with pytest.raises(Refused, match=f"{card} refuses to have {most + 90} virtual functions"):
        await port.set_count(card, most + 90, replace=False)


async def that_is_not_there_is_named(port: FunctionPort, _card: str) -> None:
    with pytest.raises(NotFound, match="no network device enp9s9"):
        await port.read("enp9s9")


async def programs_what_is_given_and_keeps_all_else(port: FunctionPort, card: str) -> None:
    given = VirtualFunctionSettings(vlan=7, vlan_qos=3, spoof_check=False, trust=True)
    assert await port.program(card, 0, given) == {}
    assert await port.program(card, 0, VirtualFunctionSettings(vlan=9)) == {}
    first, second, *_ = (await port.read(card)).functions
    now = first.settings
    assert (now.vlan, now.vlan_qos, now.spoof_check, now.trust) == (9, 3, False, True)
    assert (second.settings.vlan, second.settings.spoof_check) == (0, True)


async def has_the_mac_address_that_it_was_given(port: FunctionPort, card: str) -> None:
    await port.set_mac(card, 0, "52:54:00:aa:bb:01")
    assert (await port.read(card)).functions[0].mac == "52:54:00:aa:bb:01"


async def has_the_mtu_that_it_was_given_and_is_up(port: FunctionPort, card: str) -> None:
    await port.set_mtu(card, 2000)
    await port.bring_up(card)
    found = await port.read(card)
    assert (found.mtu, found.up) == (2000, True)
    await port.set_mtu(card, 1500)


CLAIMS = (
    has_other_functions_only_once_those_that_it_has_may_end,
    has_no_more_functions_than_it_can,
    that_is_not_there_is_named,
    programs_what_is_given_and_keeps_all_else,
    has_the_mac_address_that_it_was_given,
    has_the_mtu_that_it_was_given_and_is_up,
)

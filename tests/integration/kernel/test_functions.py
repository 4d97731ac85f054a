"""The driver of virtual functions on a card that has some: what it makes, reads and programs, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.conformance.ports.function_claims import CLAIMS
from tests.support.kernel_guest import FUNCTIONS

from outlive.base import Refused
from outlive.resources import VirtualFunctionSettings

pytestmark = [pytest.mark.component("kernel-guest"), pytest.mark.slow]
T = TypeVar("T")


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def load(command: tuple[str, ...]) -> None:
    subprocess.run(["modprobe", *command], check=True)


@pytest.fixture(scope="module")
def functions() -> Any:
    from outlive.drivers.links import CardFunctions

    return CardFunctions()


@pytest.fixture(scope="module")
def card(functions: Any) -> str:
    """A card that is up, with two functions: to make some takes seconds here."""
    load(("igb",))
    (device,) = Path("/sys/class/net").glob("*/device/sriov_totalvfs")
    name = device.parts[4]
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    do(functions.set_count(name, 2, replace=False))
    await_link(name)
    return name


def await_link(name: str) -> None:
    """Return once the link of the card is up."""
    for _ in range(100):
        if Path("/sys/class/net", name, "carrier").read_text().strip() == "1":
            return
        time.sleep(0.1)
    raise AssertionError(f"the link of {name} does not come up")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda one: one.__name__)
def test_a_real_card(functions: Any, card: str, claim: Callable[[Any, str], Coroutine[Any, Any, None]]) -> None:
    """It has all of its functions to give, at addresses of the PCI bus."""
    do(claim(functions, card))
    found = do(functions.read(card))
    assert found.most == FUNCTIONS
    assert all(one.pci and one.pci.startswith("0000:") for one in found.functions)


def test_device_without_functions_is_refused_some(functions: Any, card: str) -> None:
    with pytest.raises(Refused, match="lo has no virtual functions"):
        do(functions.set_count("lo", 2, replace=False))


def test_setting_that_the_card_refuses_is_named_and_the_others_are_programmed(functions: Any, card: str) -> None:
    """This card has neither a state of links nor questions about the spreading of packets."""
    given = VirtualFunctionSettings(link_state="enable", query_rss=True, trust=True, vlan=5)
    refused = do(functions.program(card, 0, given))
    assert sorted(refused) == ["link_state", "query_rss"]
    assert all("not supported" in why for why in refused.values())
    now = do(functions.read(card)).functions[0].settings
    assert (now.trust, now.vlan, now.query_rss) == (True, 5, None)


def test_rate_is_programmed_or_refused_by_name(functions: Any, card: str) -> None:
    """The card limits what is sent only while its link is up; it promises nothing."""
    await_link(card)  # claims before have taken it down
    assert do(functions.program(card, 0, VirtualFunctionSettings(tx_rate_max=100))) == {}
    assert do(functions.read(card)).functions[0].settings.tx_rate_max == 100
    assert list(do(functions.program(card, 0, VirtualFunctionSettings(tx_rate_min=50)))) == ["tx_rate_min"]


def test_mac_address_is_set_and_a_bad_one_refused(functions: Any, card: str) -> None:
    do(functions.set_mac(card, 0, "52:54:00:aa:bb:01"))
    assert do(functions.read(card)).functions[0].mac == "52:54:00:aa:bb:01"
    with pytest.raises(Refused, match="refuses the MAC address 01:00:5e:00:00:01"):
        do(functions.set_mac(card, 0, "01:00:5e:00:00:01"))


def test_function_in_a_guest_has_no_address_to_be_read(functions: Any, card: str) -> None:
    """What is bound to the driver for guests is somebody's."""
    assert do(functions.prepare()) == ""
    *_, other, taken = do(functions.read(card)).functions
    load(("vfio-pci",))
    place = Path("/sys/bus/pci/devices", str(taken.pci))
    (place / "driver_override").write_text("vfio-pci")
    if (place / "driver").exists():
        (place / "driver/unbind").write_text(str(taken.pci))
    Path("/sys/bus/pci/drivers_probe").write_text(str(taken.pci))
    assert [one.pci for one in do(functions.read(card)).functions][-2:] == [other.pci, None]


def test_mtu_of_the_card_is_set(functions: Any, card: str) -> None:
    do(functions.set_mtu(card, 2000))
    assert do(functions.read(card)).mtu == 2000
    with pytest.raises(Refused, match="refuses an MTU of 99999"):
        do(functions.set_mtu(card, 99999))
    do(functions.set_mtu(card, 1500))

"""Virtual functions of this host's network cards, by the kernel's files and netlink: ``FunctionPort``.

Calls block, and a driver of a card may hang: each runs in one thread of its own, with a deadline. Each setting is one
message to the card, so that one which it refuses is known by its name, and the others are programmed; VLAN and priority
are one setting to the kernel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from outlive.base import NotFound, OutliveError, Refused, Unavailable, deadline
from outlive.drivers.commands import run
from outlive.drivers.libvirt.threads import Threads
from outlive.node.ports import FoundCard, FoundFunction, FunctionPort
from outlive.resources import LinkState, VirtualFunctionSettings, function_name

CALL_S: Final = 10.0
"""How long one question or one change may take."""
COUNT_S: Final = 60.0
"""How long a card may take to make its functions: the kernel looks for each of them."""
DEVICES: Final = Path("/sys/class/net")
INTERRUPTS: Final = Path("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")
PASSING: Final = ("vfio_iommu_type1", "allow_unsafe_interrupts=1")
"""The module by which devices are given to guests, also where the machine cannot remap their interrupts."""
PASSED_THROUGH: Final = "vfio-pci"
"""Kernel driver of a device that is given to a guest."""
WITH_FUNCTIONS: Final = 1
"""Mask by which the kernel tells of virtual functions as well."""
UP: Final = 1
"""Flag of a network device."""
LINK_STATES: Final[tuple[LinkState, ...]] = ("auto", "enable", "disable")
"""As the kernel numbers them."""
NOT_KNOWN: Final = 0xFFFF_FFFF
"""The kernel's word for a setting that the card does not have."""
T = TypeVar("T")


class CardFunctions(FunctionPort):
    """See the module."""

    def __init__(self) -> None:
        self._threads = Threads(1, "network cards")
        self._devices: dict[str, tuple[str, ...]] = {}
        """Card → names of its functions and their devices, and PCI addresses, as last read."""

    def list_devices(self) -> tuple[str, ...]:
        """All that guests may have of the cards that were read: names, network devices, PCI addresses."""
        return tuple(name for names in self._devices.values() for name in names)

    async def prepare(self) -> str:
        """As ``FunctionPort``. A kernel that can remap interrupts takes no notice of the parameter."""
        try:
            ended = await run(("modprobe", *PASSING), limit_s=CALL_S)
            if ended.code != 0:
                return f"modprobe {' '.join(PASSING)}: {ended.err.strip() or f'exit status {ended.code}'}"
            await self._call(lambda: INTERRUPTS.write_text("1"), CALL_S)  # it may have been loaded before, without that
        except OSError as error:
            return f"{INTERRUPTS} cannot be written: {error.strerror}"
        except OutliveError as error:
            return error.message
        return ""

    async def read(self, card: str) -> FoundCard:
        """As ``FunctionPort``."""
        found = await self._call(lambda: _read(card), CALL_S)
        parts = ((function_name(card, one.index), one.device, one.pci or "") for one in found.functions)
        self._devices[card] = tuple(part for names in parts for part in names if part)
        return found

    async def set_count(self, card: str, count: int, *, replace: bool) -> None:
        """As ``FunctionPort``."""
        await self._call(lambda: _set_count(card, count, replace=replace), COUNT_S)

    async def bring_up(self, card: str) -> None:
        """As ``FunctionPort``."""
        await self._call(lambda: _set_card(card, f"{card} does not come up", state="up"), CALL_S)

    async def set_mtu(self, card: str, mtu: int) -> None:
        """As ``FunctionPort``."""
        await self._call(lambda: _set_card(card, f"{card} refuses an MTU of {mtu}", mtu=mtu), CALL_S)

    async def set_mac(self, card: str, index: int, mac: str) -> None:
        """As ``FunctionPort``."""

        def work() -> None:
            with IPRoute() as netlink:
                if why := _send_order(netlink, _read_index(netlink, card), {"vf": index, "mac": mac}):
                    raise Refused(f"{card} refuses the MAC address {mac} for function {index}: {why}")

        await self._call(work, CALL_S)

    async def program(self, card: str, index: int, settings: VirtualFunctionSettings) -> dict[str, str]:
        """As ``FunctionPort``."""

        def work() -> dict[str, str]:
            refused: dict[str, str] = {}
            with IPRoute() as netlink:
                device = _read_index(netlink, card)
                now = _read_functions(netlink, device).get(index, {})
                for fields, order in _netlink_orders(settings, now):
                    if why := _send_order(netlink, device, {"vf": index, **order}):
                        refused |= dict.fromkeys(fields, why)
            return refused

        return await self._call(work, CALL_S)

    async def _call(self, work: Callable[[], T], limit_s: float) -> T:
        try:
            with deadline(limit_s):
                return await self._threads.submit(work)
        except TimeoutError:
            raise Unavailable(f"the network card did not answer within {limit_s:g} s") from None


def _read(card: str) -> FoundCard:
    folder = DEVICES / card
    if not folder.exists():
        raise NotFound(f"this host has no network device {card}", remedy="see ip link, and links.sriov of node.yaml")
    total = _read_number(folder / "device/sriov_totalvfs")
    count = _read_number(folder / "device/sriov_numvfs")
    with IPRoute() as netlink:
        said = _read_functions(netlink, _read_index(netlink, card))
    up = bool(int((folder / "flags").read_text(), 16) & UP)
    functions = tuple(
        _describe_function(folder / f"device/virtfn{index}", index, said.get(index, {})) for index in range(count)
    )
    return FoundCard(most=total, mtu=_read_number(folder / "mtu"), functions=functions, up=up)


def _describe_function(link: Path, index: int, said: Mapping[str, Any]) -> FoundFunction:
    """One function: where it is by the kernel's files, how it is programmed by its card."""
    device = next((path.name for path in sorted((link / "net").glob("*"))), "")
    driver = (link / "driver").resolve().name
    readable = link.exists() and driver != PASSED_THROUGH
    return FoundFunction(
        index=index,
        pci=link.resolve().name if readable else None,
        device=device,
        occupied=any((link / "net" / device).glob("upper_*")) if device else False,
        mac=str(said.get("mac", "")),
        mtu=_read_number(link / "net" / device / "mtu") if device else 0,
        settings=VirtualFunctionSettings(
            vlan=said.get("vlan"),
            vlan_qos=said.get("qos"),
            tx_rate_min=said.get("min_tx_rate"),
            tx_rate_max=said.get("max_tx_rate"),
            spoof_check=_parse_flag(said.get("spoofchk")),
            link_state=_parse_state(said.get("link_state")),
            trust=_parse_flag(said.get("trust")),
            query_rss=_parse_flag(said.get("rss_query_en")),
        ),
    )


def _parse_flag(value: int | None) -> bool | None:
    return None if value is None or value == NOT_KNOWN else bool(value)


def _parse_state(value: int | None) -> LinkState | None:
    return LINK_STATES[value] if value is not None and value < len(LINK_STATES) else None


def _read_functions(netlink: IPRoute, device: int) -> dict[int, dict[str, Any]]:
    """What the card says of each of its functions, by number: all values of one in one table."""
    (link,) = netlink.link("get", index=device, ext_mask=WITH_FUNCTIONS)
    listed = link.get_attr("IFLA_VFINFO_LIST")
    found: dict[int, dict[str, Any]] = {}
    for _, entry in listed["attrs"] if listed is not None else ():
        values: dict[str, Any] = {}
        for _, value in entry["attrs"]:
            values |= {key: one for key, one in value.items() if key != "attrs"} if isinstance(value, dict) else {}
        if "vf" in values:
            found[values["vf"]] = values
    return found


def _netlink_orders(
    settings: VirtualFunctionSettings, now: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """What is sent to the card, and the fields that each message is of; the other half of a pair stays as it is."""
    given = settings.list_set()
    if vlan := [name for name in ("vlan", "vlan_qos") if name in given]:
        number, priority = given.get("vlan", now.get("vlan", 0)), given.get("vlan_qos", now.get("qos", 0))
        yield tuple(vlan), {"vlan": {"vlan": number, "qos": priority}}
    if rates := [name for name in ("tx_rate_min", "tx_rate_max") if name in given]:
        least = given.get("tx_rate_min", now.get("min_tx_rate", 0))
        most = given.get("tx_rate_max", now.get("max_tx_rate", 0))
        yield tuple(rates), {"rate": {"min_tx_rate": least, "max_tx_rate": most}}
    for name, word in (("spoof_check", "spoofchk"), ("trust", "trust"), ("query_rss", "rss_query_en")):
        if name in given:
            yield (name,), {word: int(given[name])}
    if settings.link_state is not None:
        yield ("link_state",), {"link_state": LINK_STATES.index(settings.link_state)}


def _send_order(netlink: IPRoute, device: int, order: dict[str, Any]) -> str:
    """Why the card refuses it; empty: it is done."""
    try:
        netlink.link("set", index=device, vf=dict(order))
    except NetlinkError as error:
        return os.strerror(error.code)
    return ""


def _set_card(card: str, refusal: str, **order: Any) -> None:
    with IPRoute() as netlink:
        try:
            netlink.link("set", index=_read_index(netlink, card), **order)
        except NetlinkError as error:
            raise Refused(f"{refusal}: {os.strerror(error.code)}") from None


def _read_index(netlink: IPRoute, card: str) -> int:
    found = netlink.link_lookup(ifname=card)
    if not found:
        raise NotFound(f"this host has no network device {card}", remedy="see ip link, and links.sriov of node.yaml")
    return int(found[0])


def _set_count(card: str, count: int, *, replace: bool) -> None:
    file = DEVICES / card / "device/sriov_numvfs"
    if not file.exists():
        raise Refused(f"{card} has no virtual functions", remedy="its card, its firmware or its driver has no SR-IOV")
    try:
        if replace and count and _read_number(file):
            file.write_text("0")  # many cards only go from none to some
        file.write_text(str(count))
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        raise Refused(f"{card} refuses to have {count} virtual functions: {why}") from None


def _read_number(file: Path) -> int:
    """0 where the file does not say."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0

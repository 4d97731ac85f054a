"""``LinkPort`` on netlink, with announcements by raw sockets."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from outlive.base import Clock
from outlive.drivers.frames import send_frames
from outlive.drivers.links.addresses import (
    enter_address,
    find_index,
    frame_of,
    leave_address,
    parse_address_with_length,
    read_addresses,
    require_device,
)
from outlive.drivers.links.devices import carry_out, read_links, read_traffic
from outlive.drivers.links.netlink import Netlink
from outlive.drivers.links.sysctls import read_sysctls
from outlive.node.ports import ANNOUNCEMENT_PAUSE_S, ANNOUNCEMENTS, FoundLinks, LinkOp, LinkPort, LinkTraffic

if TYPE_CHECKING:
    from pyroute2 import IPRoute


class KernelLinks(LinkPort):
    """See the module."""

    def __init__(self, clock: Clock, netlink: Netlink | None = None) -> None:
        self._clock = clock
        self._netlink = netlink if netlink is not None else Netlink()

    async def close(self) -> None:
        """Let go of the thread."""
        await self._netlink.close()

    async def read(self, sysctls: Collection[str] = ()) -> FoundLinks:
        """As ``LinkPort``."""
        what = "the devices of this host are not known"
        return await self._netlink.ask(lambda route: read_links(route, read_sysctls(sysctls)), what, is_change=False)

    async def carry_out(self, op: LinkOp) -> None:
        """As ``LinkPort``."""
        what = " ".join(part for part in (op.op, op.device, op.key, op.value) if part)
        await self._netlink.ask(lambda route: carry_out(route, op), what, is_change=True)

    async def read_traffic(self) -> tuple[LinkTraffic, ...]:
        """As ``LinkPort``."""
        return await self._netlink.ask(read_traffic, "the traffic of this host is not known", is_change=False)

    async def list_addresses(self, device: str) -> tuple[str, ...]:
        """As ``LinkPort``."""

        def read(route: IPRoute) -> tuple[str, ...]:
            index = find_index(route, device)
            if index is None:
                return ()
            return tuple(found for at, found in read_addresses(route) if at == index)

        return await self._netlink.ask(read, f"the addresses of {device} are not known", is_change=False)

    async def add_address(self, device: str, address: str) -> None:
        """As ``LinkPort``."""
        wanted = parse_address_with_length(address)

        def add(route: IPRoute) -> bytes:
            index, mac = require_device(route, device)
            enter_address(route, device, index, wanted)
            frame = frame_of(wanted, mac)
            send_frames(device, [frame])
            return frame

        frame = await self._netlink.ask(add, f"{address} cannot be added to {device}", is_change=True)
        for _ in range(1, ANNOUNCEMENTS):
            await self._clock.sleep(ANNOUNCEMENT_PAUSE_S)
            await self._netlink.ask(
                lambda _route: send_frames(device, [frame]), f"{address} is not announced on {device}", is_change=True
            )

    async def remove_address(self, device: str, address: str) -> None:
        """As ``LinkPort``."""
        wanted = parse_address_with_length(address)

        def remove(route: IPRoute) -> None:
            index = find_index(route, device)
            if index is not None:
                leave_address(route, device, index, wanted)

        await self._netlink.ask(remove, f"{address} cannot be removed from {device}", is_change=True)

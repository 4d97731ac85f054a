"""Devices, addresses and routes of a virtual host: ``LinkPort``, and what remembers them on its disk.

A boot leaves the cards and nothing else. A call is made for as long as its process lives, whether or not somebody still
waits for it, as a kernel does: while the kernel owes its answers, calls wait, and are made in their order later.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

import msgspec

from outlive.base import NotFound, Unavailable
from outlive.node.ports import (
    ANNOUNCEMENT_PAUSE_S,
    FoundLinks,
    HostLink,
    HostRoute,
    LinkNotes,
    LinkOp,
    LinkPort,
    LinkTraffic,
)
from outlive.simulation.machines import Machine
from outlive.simulation.process import Process, go

T = TypeVar("T")
CALL_S: Final = 0.002
"""How long the kernel takes for one call."""
DISK_S: Final = 0.001
_replace = msgspec.structs.replace


class SimKernel:
    """The network devices of one machine. ``changed()`` is called after every change of an address."""

    def __init__(self, cards: Sequence[str], changed: Callable[[], None]) -> None:
        self.answers = asyncio.Event()
        """Set while it answers calls of the daemon."""
        self.answers.set()
        self.notes: bytes | None = None
        """On the machine's disk: what the daemon remembers of its links."""
        self._cards = tuple(cards)
        self._changed = changed
        self._links: dict[str, HostLink] = {}
        self._routes: dict[HostRoute, None] = {}
        self._sysctls: dict[str, str] = {}
        self.boot()

    def boot(self) -> None:
        """Only the cards are left."""
        self._links = {name: HostLink(name=name, up=True) for name in self._cards} | {
            "lo": HostLink(name="lo", up=True)
        }
        self._routes, self._sysctls = {}, {}
        self._changed()

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """All addresses, as device and address with its length."""
        return tuple((link.name, address) for link in self._links.values() for address in link.addresses)

    def read(self, sysctls: Collection[str]) -> FoundLinks:
        """As ``LinkPort``."""
        found = {key: self._sysctls.get(key, "0") for key in sorted(sysctls) if self._has_setting(key)}
        return FoundLinks(links=tuple(self._links.values()), routes=tuple(self._routes), sysctls=found)

    def list_addresses(self, device: str) -> tuple[str, ...]:
        """As ``LinkPort``."""
        link = self._links.get(device)
        return link.addresses if link is not None else ()

    def carry_out(self, op: LinkOp) -> None:
        """As ``LinkPort``."""
        match op.op:
            case "create":
                self._create(op)
            case "delete":
                self._delete(op.device)
            case "addAddress":
                present = self._find_link(op).addresses
                self._change(op, addresses=tuple(dict.fromkeys((*present, op.value))))
                self._changed()
            case "removeAddress":
                self.remove_address(op.device, op.value)
            case "up" | "down":
                self._change(op, up=op.op == "up")
            case "mtu":
                self._change(op, mtu=int(op.value))
            case "attach":
                self._change(op, bridge=op.value)
            case "detach":
                self._change(op, bridge="")
            case "addRemote":
                self._change(op, remotes=tuple(sorted({*self._find_link(op).remotes, op.value})))
            case "removeRemote":
                self._change(op, remotes=tuple(one for one in self._find_link(op).remotes if one != op.value))
            case "noChecksum":
                self._change(op, offload=False)
            case "addRoute":
                self._find_link(op)
                self._routes = {route: None for route in self._routes if route.to != op.key}
                self._routes[HostRoute(gateway=op.value, device=op.device, to=op.key)] = None
            case "removeRoute":
                self._routes.pop(HostRoute(gateway=op.value, device=op.device, to=op.key), None)
            case "sysctl" if self._has_setting(op.key):
                self._sysctls[op.key] = op.value
            case "sysctl":
                raise NotFound(f"this host has no setting {op.key}")
            case "ipv6Off":
                if not any(":" in one for one in self._find_link(op).addresses):
                    self._sysctls[f"net.ipv6.conf.{op.device}.disable_ipv6"] = "1"

    def remove_address(self, device: str, address: str) -> None:
        """Remove one, if it is there."""
        link = self._links.get(device)
        if link is not None and address in link.addresses:
            self._links[device] = _replace(link, addresses=tuple(one for one in link.addresses if one != address))
            self._changed()

    def _create(self, op: LinkOp) -> None:
        if op.lower and op.lower not in self._links:
            raise NotFound(f"this host has no network device {op.lower}")
        made = HostLink(
            name=op.device,
            kind=op.kind,
            alias=op.alias,
            lower=op.lower,
            vni=op.vni,
            port=op.port,
            local=op.local,
            offload=op.kind == "bridge",
        )
        self._links.setdefault(op.device, made)

    def _delete(self, device: str) -> None:
        self._links.pop(device, None)
        for name, link in self._links.items():
            if link.bridge == device:
                self._links[name] = _replace(link, bridge="")
        self._routes = {route: None for route in self._routes if route.device != device}
        self._changed()

    def _find_link(self, op: LinkOp) -> HostLink:
        if op.device not in self._links:
            raise NotFound(f"this host has no network device {op.device}")
        return self._links[op.device]

    def _change(self, op: LinkOp, **changes: object) -> None:
        self._links[op.device] = _replace(self._find_link(op), **changes)

    def _has_setting(self, key: str) -> bool:
        """Settings of one device are there with it."""
        device = key.split(".")[3] if ".conf." in key else "all"
        return device in ("all", "default") or device in self._links


class LinkClient(LinkPort):
    """The devices as one daemon reaches them."""

    def __init__(self, kernel: SimKernel, process: Process) -> None:
        self._kernel = kernel
        self._process = process

    async def read(self, sysctls: Collection[str] = ()) -> FoundLinks:
        """As ``LinkPort``."""
        return await self._call(lambda: self._kernel.read(sysctls))

    async def carry_out(self, op: LinkOp) -> None:
        """As ``LinkPort``."""
        await self._call(lambda: self._kernel.carry_out(op))

    async def list_addresses(self, device: str) -> tuple[str, ...]:
        """As ``LinkPort``."""
        return await self._call(lambda: self._kernel.list_addresses(device))

    async def add_address(self, device: str, address: str) -> None:
        """Add it, and announce it twice."""
        await self.carry_out(LinkOp(op="addAddress", device=device, value=address))
        await asyncio.sleep(ANNOUNCEMENT_PAUSE_S)
        self._process.check()

    async def remove_address(self, device: str, address: str) -> None:
        """As ``LinkPort``."""
        await self._call(lambda: self._kernel.remove_address(device, address))

    async def read_traffic(self) -> tuple[LinkTraffic, ...]:
        """Nobody counts it."""
        return ()

    async def _call(self, make: Callable[[], T]) -> T:
        async def carry() -> T:
            await asyncio.sleep(CALL_S)
            await self._kernel.answers.wait()
            return make()

        self._process.check()
        return await self._process.call(go(carry(), name="a call of the kernel", part=self._process.part))


class SimLinkNotes(LinkNotes):
    """The file on the disk of the machine."""

    def __init__(self, kernel: SimKernel, machine: Machine, process: Process) -> None:
        self._kernel = kernel
        self._machine = machine
        self._process = process

    async def load(self) -> bytes | None:
        """As ``LinkNotes``."""
        self._process.check()
        return self._kernel.notes

    async def save(self, notes: bytes) -> None:
        """As ``LinkNotes``."""
        self._process.check()
        await asyncio.sleep(DISK_S + self._machine.disk_stall)
        self._process.check()
        if self._machine.disk_full:
            raise Unavailable(f"the notes of links are not written: {os.strerror(errno.ENOSPC)}", remedy="make room")
        self._kernel.notes = notes

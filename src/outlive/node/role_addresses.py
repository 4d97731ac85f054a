"""Addresses that only the primary coordinator has: floating ones, that of the metadata server, gateways of networks.

What this host has of them is known here and to a guard that is a process of its own: it removes them where the daemon
cannot (``RoleGuardPort``). An address is remembered before it is added, and forgotten after it was removed. A bridge of
guests has IPv6 only while a gateway is there, so that the host has no other address on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ipaddress import ip_interface
from typing import Final

from outlive.base import OutliveError, Refused, deadline, get_logger
from outlive.node.handover import PHASES
from outlive.node.ports.links import LinkOp, LinkPort
from outlive.node.ports.services import RoleGuardPort
from outlive.resources import AddressPhase
from outlive.runtime import OrderedTaskGroup

AT_ONCE: Final = 8
"""Addresses that are added, or removed, at the same time: those that wait are within the limit of one call."""
CALL_S: Final = 3.0
"""How long one of them may take."""

Place = tuple[str, str]
"""Device, and address with its length."""
WantedAddresses = Callable[[], Mapping[AddressPhase, Iterable[Place]]]

_log = get_logger("node.primary")


class RoleAddresses:
    """See the module. ``wanted``: what the primary has to have now, by phase."""

    def __init__(self, links: LinkPort, guard: RoleGuardPort, wanted: WantedAddresses) -> None:
        self._links = links
        self._guard = guard
        self._wanted = wanted
        self._have: dict[Place, AddressPhase] = {}
        self._changing = asyncio.Lock()
        self._allowed = False
        """Whether this host may have any; one that is added in the very moment when it may not goes again."""
        self.failures: dict[str, str] = {}
        """What could not be done → why: such as ``add 10.0.0.1/24 to vmbr10``."""

    @property
    def have(self) -> tuple[Place, ...]:
        """Addresses that were added, or tried to be, and not removed."""
        return tuple(self._have)

    def has(self, place: Place) -> bool:
        """Whether it is one of them."""
        return place in self._have

    async def prepare(self) -> None:
        """Remove what a former run has left here, and have a guard."""
        for place in await self._guard.list_leftovers():
            _log.warning("primary.address_left", device=place[0], address=place[1])
            self._have.setdefault(place, "")
        await self.remove_all()
        await self._guard.start()

    async def extend(self, seconds: float) -> None:
        """This host has the role for so long from now, or gives its addresses up until then."""
        await self._guard.start()
        await self._guard.extend(seconds)

    @property
    def is_allowed(self) -> bool:
        """Whether this host may have addresses."""
        return self._allowed

    def allow(self) -> None:
        """This host has taken the role: it may have addresses until ``remove_all``."""
        self._allowed = True

    async def add(self, phase: AddressPhase, confirm: Callable[[], Awaitable[bool]]) -> None:
        """Bring the addresses of a phase in line with what is wanted: what is not wanted any more goes first.

        ``Refused`` if ``confirm`` says that the role is another's: it is asked before each batch; and if this host may
        have none by now.
        """
        await self._bring_in_line(phase, self._wanted(), confirm)

    async def follow(self, confirm: Callable[[], Awaitable[bool]]) -> None:
        """The same for all phases."""
        wanted = self._wanted()
        for phase in PHASES:
            await self._bring_in_line(phase, wanted, confirm)

    async def _bring_in_line(
        self,
        phase: AddressPhase,
        places: Mapping[AddressPhase, Iterable[Place]],
        confirm: Callable[[], Awaitable[bool]],
    ) -> None:
        async with self._changing:
            wanted = dict.fromkeys(places.get(phase, ()))
            old = [place for place, its in self._have.items() if its == phase and place not in wanted]
            new = [place for place in wanted if place not in self._have or f"add {_place_text(place)}" in self.failures]
            if not old and not new:
                return
            await self._remove(old)
            await self._add([(place, phase) for place in new], confirm)
            if new and self._is_revoked():
                raise Refused("this host is not fit for the role now", remedy="see whether its daemon renews")

    async def restore(self, confirm: Callable[[], Awaitable[bool]]) -> None:
        """Add again what this host should have and its kernel has not: somebody else has removed it, or its device."""
        async with self._changing:
            found = await self._links.read()
            present = {(one.name, address) for one in found.links for address in one.addresses}
            for device in {device for device, _ in self._have} - {one.name for one in found.links}:
                present |= {(device, address) for address in await self._links.list_addresses(device)}
            missing = [
                (place, phase)
                for place, phase in self._have.items()
                if (place[0], str(ip_interface(place[1]))) not in present and phase
            ]
            for place, _ in missing:
                _log.warning("primary.address_missing", device=place[0], address=place[1])
            await self._add(missing, confirm)

    async def _add(self, places: Sequence[tuple[Place, AddressPhase]], confirm: Callable[[], Awaitable[bool]]) -> None:
        for first in range(0, len(places), AT_ONCE):
            if not await confirm():
                raise Refused("another coordinator has the role", remedy="see outlive get elections primary")
            async with OrderedTaskGroup() as group:
                for place, phase in places[first : first + AT_ONCE]:
                    group.create_task(self._add_place(place, phase))

    async def remove(self, phase: AddressPhase) -> bool:
        """Remove the addresses of a phase; whether all of them are gone."""
        async with self._changing:
            await self._remove([place for place, its in self._have.items() if its == phase])
        return phase not in self._have.values()

    async def remove_all(self) -> None:
        """Remove every address. It does not wait for a change that is going on."""
        self._allowed = False
        await self._remove(list(self._have))

    async def _add_place(self, place: Place, phase: AddressPhase) -> None:
        device, address = place
        if not self._allowed:
            return
        self._have[place] = phase
        try:
            await self._guard.hold(device, address)
            with deadline(CALL_S):
                if ":" in address and phase == "gateways":
                    key = f"net.ipv6.conf.{device}.disable_ipv6"
                    await self._links.carry_out(LinkOp(op="sysctl", key=key, value="0"))
                await self._links.add_address(device, address)
        except (OutliveError, TimeoutError) as error:
            why = str(error) or f"no end within {CALL_S:g} s"
            _log.error("primary.address_not_added", device=device, address=address, why=why)
            self.failures[f"add {_place_text(place)}"] = why
        else:
            self.failures.pop(f"add {_place_text(place)}", None)
        if self._is_revoked():
            self._have[place] = phase
            await self._remove_place(place)

    def _is_revoked(self) -> bool:
        return not self._allowed

    async def _remove(self, places: Iterable[Place]) -> None:
        todo = list(places)
        for first in range(0, len(todo), AT_ONCE):
            async with OrderedTaskGroup() as group:
                for place in todo[first : first + AT_ONCE]:
                    group.create_task(self._remove_place(place))

    async def _remove_place(self, place: Place) -> None:
        device, address = place
        try:
            with deadline(CALL_S):
                await self._links.remove_address(device, address)
                if ":" in address and self._have.get(place) == "gateways":
                    await self._links.carry_out(LinkOp(op="ipv6Off", device=device))
        except (OutliveError, TimeoutError) as error:
            why = str(error) or f"no end within {CALL_S:g} s"
            _log.error("primary.address_not_removed", device=device, address=address, why=why)
            self.failures[f"remove {_place_text(place)}"] = why
            return
        for verb in ("add", "remove"):
            self.failures.pop(f"{verb} {_place_text(place)}", None)
        self._have.pop(place, None)
        try:
            await self._guard.release(device, address)
        except OutliveError as error:
            _log.warning("primary.guard_not_reached", why=str(error))

    async def close(self) -> None:
        """Let the guard go, which removes whatever is left."""
        await self._guard.close()


def _place_text(place: Place) -> str:
    return f"{place[1]} on {place[0]}"

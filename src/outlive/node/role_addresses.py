"""Addresses that only the primary coordinator has: floating ones, that of the metadata server, gateways of networks.

What this host has of them is known here and to a guard that is a process of its own: it removes them where the daemon
cannot (``RoleGuardPort``). An address is remembered before it is added, and forgotten after it was removed.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from outlive.base.deadline import deadline
from outlive.base.errors import OutliveError, Refused
from outlive.base.logging import get_logger
from outlive.node.handover import PHASES
from outlive.node.ports.links import LinkOp, LinkPort
from outlive.node.ports.services import RoleGuardPort
from outlive.resources.cluster import AddressPhase
from outlive.runtime.tasks import OrderedTaskGroup

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

    async def prepare(self, clean: bool) -> None:
        """Have a guard; ``clean``: remove what a former run has left here."""
        if clean:
            for place in await self._guard.leftovers():
                _log.warning("primary.address_left", device=place[0], address=place[1])
                self._have.setdefault(place, "gateways")
        await self._guard.start()
        if clean:
            await self.remove_all()

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
        async with self._changing:
            wanted = dict.fromkeys(self._wanted().get(phase, ()))
            old = [place for place, its in self._have.items() if its == phase and place not in wanted]
            new = [place for place in wanted if place not in self._have or f"add {_text(place)}" in self.failures]
            if not old and not new:
                return
            await self._remove(old)
            for first in range(0, len(new), AT_ONCE):
                if not await confirm():
                    raise Refused("another coordinator has the role", remedy="see outlive get elections primary")
                async with OrderedTaskGroup() as group:
                    for place in new[first : first + AT_ONCE]:
                        group.create_task(self._add_one(place, phase))
            if new and self._revoked():
                raise Refused("this host is not fit for the role now", remedy="see whether its daemon renews")

    async def follow(self, confirm: Callable[[], Awaitable[bool]]) -> None:
        """The same for all phases."""
        for phase in PHASES:
            await self.add(phase, confirm)

    async def forget_lost(self) -> None:
        """Read what the kernel has, and forget what somebody else has removed: ``follow`` adds it again."""
        async with self._changing:
            found = await self._links.read()
            present = {(link.name, ipaddress.ip_interface(one)) for link in found.links for one in link.addresses}
            for device, address in list(self._have):
                if (device, ipaddress.ip_interface(address)) not in present:
                    _log.warning("primary.address_lost", device=device, address=address)
                    self._have.pop((device, address), None)

    async def remove(self, phase: AddressPhase) -> bool:
        """Remove the addresses of a phase; whether all of them are gone."""
        async with self._changing:
            await self._remove([place for place, its in self._have.items() if its == phase])
        return phase not in self._have.values()

    async def remove_all(self) -> None:
        """Remove every address. It does not wait for a change that is going on."""
        self._allowed = False
        await self._remove(list(self._have))

    async def _add_one(self, place: Place, phase: AddressPhase) -> None:
        device, address = place
        if not self._allowed:
            return
        self._have[place] = phase
        try:
            await self._guard.hold(device, address)
            with deadline(CALL_S):
                if ":" in address and phase == "gateways":
                    await self._switch_v6(device, on=True)
                await self._links.add_address(device, address)
        except (OutliveError, TimeoutError) as error:
            why = str(error) or f"no end within {CALL_S:g} s"
            _log.error("primary.address_not_added", device=device, address=address, why=why)
            self.failures[f"add {_text(place)}"] = why
        else:
            self.failures.pop(f"add {_text(place)}", None)
        if self._revoked():
            self._have[place] = phase
            await self._remove_one(place)

    def _revoked(self) -> bool:
        return not self._allowed

    async def _remove(self, places: Iterable[Place]) -> None:
        todo = list(places)
        for first in range(0, len(todo), AT_ONCE):
            async with OrderedTaskGroup() as group:
                for place in todo[first : first + AT_ONCE]:
                    group.create_task(self._remove_one(place))

    async def _remove_one(self, place: Place) -> None:
        device, address = place
        try:
            with deadline(CALL_S):
                await self._links.remove_address(device, address)
                if ":" in address and self._have.get(place) == "gateways":
                    await self._switch_v6(device, on=False)
        except (OutliveError, TimeoutError) as error:
            why = str(error) or f"no end within {CALL_S:g} s"
            _log.error("primary.address_not_removed", device=device, address=address, why=why)
            self.failures[f"remove {_text(place)}"] = why
            return
        for verb in ("add", "remove"):
            self.failures.pop(f"{verb} {_text(place)}", None)
        self._have.pop(place, None)
        try:
            await self._guard.release(device, address)
        except OutliveError as error:
            _log.warning("primary.guard_not_told", why=str(error))

    async def _switch_v6(self, device: str, *, on: bool) -> None:
        """IPv6 on a bridge of guests is on only while the gateway is there, so that the host has no other address."""
        key = f"net.ipv6.conf.{device}.disable_ipv6"
        await self._links.carry_out(LinkOp(op="sysctl", key=key, value="0" if on else "1"))

    async def close(self) -> None:
        """Let the guard go, which removes whatever is left."""
        await self._guard.close()


def _text(place: Place) -> str:
    return f"{place[1]} on {place[0]}"

"""Programs that processes of the virtual cluster run beside the daemon: controllers, and what the primary does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outlive.base import Clock, Random, SeededIds
from outlive.failover import Inline
from outlive.resources import CONTROLLER
from outlive.roles import SECTIONS, NetworkDatabases, Ports, UpRole, role_settings
from outlive.runtime import decode_unit
from outlive.simulation.process import Process
from outlive.simulation.stores import ProcessStore

if TYPE_CHECKING:
    from outlive.simulation.world import World

HUNG_LOOK_S: Final = 0.5
"""How often a duty that hangs looks whether it may end."""


class SimDuty:
    """What the primary coordinator does; it ends with its process, or when it is stopped."""

    name = "duty"

    def __init__(self, world: World, host: str, process: Process) -> None:
        self._world = world
        self._host = host
        self._process = process

    async def start(self, term: int) -> None:
        """Begin."""
        self._process.check()
        self._world.history.add("duty", self._host, f"{self._host} does what the primary does (term {term})", loud=True)

    async def stop(self) -> None:
        """End, unless it hangs."""
        while self._host in self._world.hung_duties:  # noqa: ASYNC110 - until the story ends it
            await asyncio.sleep(HUNG_LOOK_S)
        self._process.check()
        self._world.history.add("duty", self._host, f"{self._host} does it no more", loud=True)


class ControllerRole:
    """A controller: it prepares what must be there, then runs; any error ends the process."""

    def __init__(
        self,
        store: ProcessStore,
        settings: Mapping[str, Any],
        *,
        identity: str,
        clock: Clock,
        random: Random,
        network: NetworkDatabases | None = None,
    ) -> None:
        sections = {
            name: msgspec.convert(settings.get(name, {}), kind, dec_hook=decode_unit) for name, kind in SECTIONS.items()
        }
        self.role = UpRole(
            store.with_writers(*CONTROLLER),
            role_settings(sections),
            Ports(computer=Inline(), network=network),
            identity=identity,
            clock=clock,
            random=random,
            ids=SeededIds(random.fork("ids")),
        )

    async def run(self) -> None:
        """Until killed."""
        await self.role.prepare()
        await self.role.run()

    def stop(self, *, leave_vms: bool = False, going_down: bool = False) -> None:
        """End cleanly; there are no VMs here."""
        self.role.stop()

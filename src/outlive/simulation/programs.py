"""The product's programs, put into the virtual cluster: node daemons, and controllers that place and recover.

This is the one place where the simulation says which roles there are; everything that they get are virtual ports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outlive.base.clock import Clock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.failover.ports import Inline
from outlive.node.settings import NodeSettings
from outlive.roles.node import NodePorts, NodeRole, NodeStores
from outlive.roles.settings import SECTIONS, role_settings
from outlive.roles.up import Ports, UpRole
from outlive.runtime.units import decode_unit
from outlive.simulation.stores import ProcessStore

DAEMON = ("daemon", "events", "trail")
MOVE = ("move", "daemon")
FLUSH = ("flush", "move", "daemon")
FENCER = ("fencer", "events", "trail")
CONTROLLER = (
    "failover",
    "recovery",
    "controller",
    "candidate",
    "events",
    "trail",
    "placement",
    "defaults",
)
"""Names under which each program's connections may write."""


def node_role(
    store: ProcessStore,
    settings: Mapping[str, Any],
    ports: NodePorts,
    *,
    host: str,
    clock: Clock,
    random: Random,
) -> NodeRole:
    """The node daemon of one host."""
    stores = NodeStores(
        daemon=store.named(*DAEMON), move=store.named(*MOVE), flush=store.named(*FLUSH), fencer=store.named(*FENCER)
    )
    read = msgspec.convert(settings.get("node", {}), NodeSettings, dec_hook=decode_unit)
    return NodeRole(stores, read, ports, host=host, clock=clock, random=random, ids=SeededIds(random.fork("ids")))


class ControllerRole:
    """A controller: it prepares what must be there, then runs; any error ends the process."""

    def __init__(
        self, store: ProcessStore, settings: Mapping[str, Any], *, identity: str, clock: Clock, random: Random
    ) -> None:
        sections = {
            name: msgspec.convert(settings.get(name, {}), kind, dec_hook=decode_unit) for name, kind in SECTIONS.items()
        }
        self.role = UpRole(
            store.named(*CONTROLLER),
            role_settings(sections),
            Ports(computer=Inline()),
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
        """End in good order; there are no VMs here."""
        self.role.stop()

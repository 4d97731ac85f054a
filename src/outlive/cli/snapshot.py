"""One look at a cluster as the planner sees it, and the options that say how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlive.base import Refused
from outlive.cli.access import Access
from outlive.cli.output import show_progress
from outlive.cli.settings import effective_settings

if TYPE_CHECKING:
    from outlive.drivers import SyncedTables
    from outlive.failover import FailoverSettings, Snapshot
    from outlive.roles import RoleSettings
    from outlive.store import Store

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of those of the server.")
]
Slots = Annotated[
    int | None, typer.Option("-k", "--slots", min=0, max=16, help="Slots that every VM needs, instead of the settings.")
]


async def take_snapshot(
    access: Access, store: Store, config: Path | None, k: int | None, *, settings: RoleSettings | None = None
) -> Snapshot:
    """Everything that answers are made from, by ``settings``, else by the effective ones of this cluster."""
    from outlive.failover import gather
    from outlive.recovery import build_in_flight

    settings = settings or await effective_settings(access, store, config)
    with show_progress("reading the cluster"):
        if settings.upkeep.vm_source == "resources":
            return await gather(store, settings, k=k, in_flight=build_in_flight)
        async with synced_tables(settings) as source:
            return await gather(store, settings, list_vms=source.list_vms, k=k, in_flight=build_in_flight)


@asynccontextmanager
async def synced_tables(settings: FailoverSettings) -> AsyncIterator[SyncedTables]:
    """The database that VMs come from, by the settings; ``Refused`` where they come from Nova."""
    from outlive.drivers import SyncedTables

    if settings.upkeep.vm_source == "nova":
        raise Refused(
            "the VMs come from Nova's API, which only the server asks",
            place="failoverUpkeep.vmSource",
            remedy="have the server keep them: openstack.inventory: true and vmSource: resources",
        )
    source = SyncedTables(settings.database_address, timeout_s=settings.upkeep.database_timeout_s)
    try:
        yield source
    finally:
        await source.close()

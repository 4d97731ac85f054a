"""Looking at a cluster as the planner does: the options that say how, and everything that answers are made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlive.cli.access import Access
from outlive.cli.output import progress

if TYPE_CHECKING:
    from outlive.failover.snapshot import Snapshot
    from outlive.store import Store

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of those of the server.")
]
Slots = Annotated[
    int | None, typer.Option("-k", "--slots", min=0, max=16, help="Slots that every VM needs, instead of the settings.")
]


async def look(access: Access, store: Store, config: Path | None, k: int | None) -> Snapshot:
    """Everything that answers are made from, by the settings in force for this store."""
    from outlive.cli.settings import config_file, settings_for
    from outlive.failover.observation import StoreVMs
    from outlive.roles.snapshot import gather

    file = config_file(config, access.directory) if access.state is None or config is not None else None
    settings = await settings_for(store, file)
    with progress("reading the cluster"):
        if settings.upkeep.vm_source == "resources":
            return await gather(store, StoreVMs(store, access.clock), settings, k=k)
        from outlive.drivers.synced_tables import SyncedTables

        source = SyncedTables(settings.database_address, timeout_s=settings.upkeep.database_timeout_s)
        try:
            return await gather(store, source, settings, k=k)
        finally:
            await source.close()

"""One look at a cluster as the planner sees it: the options that say how, and its reports as files (``--html``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlive.base.clock import as_datetime
from outlive.cli.access import Access
from outlive.cli.output import progress
from outlive.cli.settings import config_file, settings_for
from outlive.drivers.files import check_output, write_output

if TYPE_CHECKING:
    from outlive.drivers.synced_tables import SyncedTables
    from outlive.failover.analysis.coverage import CoverageResult
    from outlive.failover.analysis.questions import Question
    from outlive.failover.analysis.survival import FailuresInput, FailuresResult
    from outlive.failover.config import FailoverSettings
    from outlive.failover.snapshot import Snapshot
    from outlive.store import Store

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of those of the server.")
]
Slots = Annotated[
    int | None, typer.Option("-k", "--slots", min=0, max=16, help="Slots that every VM needs, instead of the settings.")
]


async def look(access: Access, store: Store, config: Path | None, k: int | None) -> Snapshot:
    """Everything that answers are made from, by the effective settings of this store."""
    from outlive.failover.observation import StoreVMs
    from outlive.failover.snapshot import gather
    from outlive.recovery.in_flight import in_flight

    file = config_file(config, access.directory) if access.state is None or config is not None else None
    settings = await settings_for(store, file)
    with progress("reading the cluster"):
        if settings.upkeep.vm_source == "resources":
            return await gather(store, StoreVMs(store, access.clock), settings, k=k, in_flight=in_flight)
        async with synced_tables(settings) as source:
            return await gather(store, source, settings, k=k, in_flight=in_flight)


@asynccontextmanager
async def synced_tables(settings: FailoverSettings) -> AsyncIterator[SyncedTables]:
    """The database that VMs come from, by the settings."""
    from outlive.drivers.synced_tables import SyncedTables

    source = SyncedTables(settings.database_address, timeout_s=settings.upkeep.database_timeout_s)
    try:
        yield source
    finally:
        await source.close()


def check_picture(path: Path | None) -> None:
    """Refuse a path that cannot become a file, before anything is computed."""
    if path is not None:
        check_output(path)


def picture_coverage(path: Path, access: Access, gathered: Snapshot, result: CoverageResult) -> None:
    """Write the report of a coverage."""
    from outlive.failover.report.html.coverage import coverage_picture

    write_output(path, coverage_picture(gathered, result, source=access.source, when=_now(access)))


def picture_survival(
    path: Path, access: Access, gathered: Snapshot, question: Question, given: FailuresInput, result: FailuresResult
) -> None:
    """Write the report of a question about failures."""
    from outlive.failover.report.html.survival import survival_picture

    content = survival_picture(gathered, question, given, result, source=access.source, when=_now(access))
    write_output(path, content)


def _now(access: Access) -> str:
    return f"{as_datetime(access.clock.now()):%Y-%m-%d %H:%M} UTC"

"""``outlive up``: store, controllers, placement and HTTP API in one process, on this machine.

Start-up order: settings, state directory (locked), example where it was asked for, then what ``cli.serving`` does.
"""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.api import parse_listen
from outlive.base import ExitCode, SystemClock, SystemIds
from outlive.cli.access import check_store_exists, default_state_dir
from outlive.cli.serving import say, serve, stop_signal
from outlive.cli.settings import config_file, load, store_settings, with_remembered_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlive.store.sqlite import SqliteStore


async def up(
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve.")] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", envvar="OUTLIVE_STATE_DIR", help="Where to keep the state."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings, instead of outlive.yaml.")
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Begin with the example inventory, if empty.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Speak plain HTTP also beyond this machine, if need be.")
    ] = False,
) -> ExitCode | None:
    """Run everything on this machine: store, controllers, HTTP API. Prints coverage and address when ready."""
    from outlive.base import configure_logging
    from outlive.cli.backup import settings_lock
    from outlive.roles import role_settings

    if listen is not None:
        parse_listen(listen, place="--listen")
    directory = state_dir if state_dir is not None else default_state_dir()
    if example:
        _write_example_settings(config, directory)
    check_store_exists(directory)
    flags = {"api.listen": listen, "api.insecure": True if insecure else None}
    sections = load(config_file(config, directory), flags)
    settings = role_settings(sections)
    settings_lock(settings.backup, directory)
    configure_logging(level=settings.log.level, form=settings.log.form, file=settings.log.file)
    return await _run_server(directory, sections, config_file(config, directory), example=example)


def _write_example_settings(config: Path | None, directory: Path) -> None:
    """The settings of the example, beside a state that is to be made; those that somebody gives stay alone."""
    from outlive.cli.example import example_files
    from outlive.cli.settings import CONFIG_NAME
    from outlive.drivers import write_output
    from outlive.store.sqlite import DATABASE_FILE

    if config_file(config, directory) is not None or (directory / DATABASE_FILE).exists():
        return
    check_store_exists(directory)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with example_files() as files:
        write_output(directory / CONFIG_NAME, files.settings.read_bytes())
    say(f"example: hosts and VMs that exist nowhere, with the settings in {directory / CONFIG_NAME}")


async def _run_server(
    directory: Path, sections: Mapping[str, Any], file: Path | None, *, example: bool
) -> ExitCode | None:
    from outlive.base import limit_collections
    from outlive.roles import role_settings
    from outlive.store.sqlite import SqliteStore

    limit_collections()
    stopped = stop_signal()
    store = await SqliteStore.open(directory, clock=SystemClock(), ids=SystemIds())
    try:
        sections = await with_remembered_slots(store, sections)
        await _prepare(store, sections, example=example)
        async with AsyncExitStack() as closing:
            await serve(store, directory, sections, file, role_settings(sections), closing, stopped)
    finally:
        await store.close()
    return ExitCode.INTERRUPTED if stopped.result() == signal.SIGINT else None


async def _prepare(store: SqliteStore, sections: Mapping[str, Any], *, example: bool) -> None:
    """The cluster's own object with the effective settings, and the example where it was asked for."""
    from outlive.resources import Hypervisor

    await store_settings(store, SystemClock(), sections)
    if not example:
        return
    if (await store.list(Hypervisor, limit=1)).items:
        say("the state is not empty: the example is not imported again")
        return
    from outlive.cli.inventory import import_example

    say("the example's hosts and VMs do not exist: room is reserved for them, and nobody fences or restarts them")
    await import_example(store)

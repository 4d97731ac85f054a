"""``outlive storage status|daemons|pools``: how the storage cluster does, as the primary coordinator last saw it."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import typer

from outlive.base.errors import ExitCode, NotFound
from outlive.base.natural import natural_key
from outlive.base.phrases import shown_bytes, shown_time
from outlive.cli.access import Access
from outlive.cli.commands import command, group
from outlive.cli.output import Output, table
from outlive.resources import Resource, StorageCluster, StorageDaemon, StoragePool
from outlive.resources.codec import to_builtins
from outlive.store import Store, list_all

R = TypeVar("R", bound=Resource)

app = group("Storage clusters, their daemons and their pools.")

Name = Annotated[str, typer.Argument(metavar="[NAME]", help="Of the StorageCluster; all if it is left out.")]


@command(app)
async def status(access: Access, output: Output, name: Name = "") -> int | None:
    """How each storage cluster does, in its own words; exit code 1 if one is in error."""
    async with access.open() as store:
        clusters = [one for one in await _listed(store, StorageCluster) if name in ("", one.name)]
    if name and not clusters:
        raise NotFound(f"there is no StorageCluster {name!r}", remedy="see outlive get storageclusters")
    documents = [{"name": one.name, "term": one.term, **to_builtins(one.status)} for one in clusters]
    output.show(documents, lambda: _texts(clusters))
    return ExitCode.NO if any(one.status.health == "error" for one in clusters) else None


@command(app)
async def daemons(access: Access, output: Output) -> None:
    """All storage daemons: where they run, whether data is placed on them, how full they are and what they do."""
    async with access.open() as store:
        found = await _listed(store, StorageDaemon)
    documents = [{"name": one.name, **_parts(one)} for one in found]
    columns = ("Id", "Host", "State", "In", "Class", "Used", "Of", "%", "PGs", "Writes/s", "Reads/s", "Device")
    rows = [_daemon(one) for one in found]
    output.show(documents, lambda: [table(columns, rows, numbers=columns[5:11])])


@command(app)
async def pools(access: Access, output: Output) -> None:
    """All pools: what lies in them, and what still fits."""
    async with access.open() as store:
        found = await _listed(store, StoragePool)
    documents = [{"name": one.name, **_parts(one)} for one in found]
    columns = ("Pool", "Stored", "Used", "Free", "%", "Objects", "Degraded", "Missing", "Unfound")
    rows = [
        (
            one.status.pool,
            shown_bytes(one.status.stored_bytes),
            shown_bytes(one.status.used_bytes),
            shown_bytes(one.status.free_bytes),
            one.status.used_percent,
            one.status.objects,
            one.status.objects_degraded,
            one.status.objects_missing_on_primary,
            one.status.objects_unfound,
        )
        for one in found
    ]
    output.show(documents, lambda: [table(columns, rows, numbers=columns[1:])])


async def _listed(store: Store, kind: type[R]) -> list[R]:
    return sorted([one async for one in list_all(store, kind)], key=lambda one: natural_key(one.name))


def _parts(one: Resource) -> dict[str, Any]:
    document: dict[str, Any] = to_builtins(one)
    return {name: document[name] for name in ("term", "status", "device") if name in document}


def _texts(clusters: list[StorageCluster]) -> list[Any]:
    if not clusters:
        return ["nothing is known of any storage: docs/operating/storage.md#statistics says what it takes"]
    lines: list[Any] = []
    for cluster in clusters:
        found = cluster.status
        figures = [
            ("storage", f"{cluster.name}, {found.id}"),
            ("health", found.health),
            *((check.code, f"{check.severity}: {check.summary}{' (muted)' * check.muted}") for check in found.checks),
            ("daemons", f"{found.daemons}, {found.daemons_up} up, {found.daemons_in} in"),
            ("used", f"{shown_bytes(found.used_bytes)} of {shown_bytes(found.total_bytes)} ({found.used_percent:g} %)"),
            ("not answered", ", ".join(found.missing)),
            ("as of", shown_time(found.sampled_at)),
        ]
        lines.append(table(("", ""), [row for row in figures if row[1]]))
        lines += ["", *(line for text in (found.text, found.utilization) for line in text.splitlines()), ""]
    return lines


def _daemon(one: StorageDaemon) -> tuple[Any, ...]:
    status, device = one.status, one.device.block_device if one.device is not None else ""
    if status is None:
        host = one.device.host if one.device is not None else ""
        return (one.name, host, "unknown", *("" for _ in range(8)), device)
    active = status.activity
    host = active.host or (one.device.host if one.device is not None else "")
    return (
        one.name,
        host,
        "up" if status.up else "down",
        status.in_,
        status.device_class,
        shown_bytes(status.used_bytes),
        shown_bytes(status.size_bytes),
        status.utilization,
        status.placement_groups,
        active.write_ops,
        active.read_ops,
        device,
    )

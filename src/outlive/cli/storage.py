"""``outlive storage status|daemons|pools``: how the storage cluster does, as the primary coordinator last saw it."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import typer

from outlive.base import ExitCode, NotFound, natural_key, shown_bytes, shown_time
from outlive.cli.access import Access
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, make_table
from outlive.resources import Resource, StorageCluster, StorageDaemon, StoragePool, to_builtins
from outlive.store import Store, list_all

R = TypeVar("R", bound=Resource)

app = make_group("Storage clusters, their daemons and their pools.")

Name = Annotated[str, typer.Argument(metavar="[NAME]", help="Of the StorageCluster; all if it is left out.")]


@command(app)
async def status(access: Access, output: Output, name: Name = "") -> int | None:
    """How each storage cluster does, in its own words; exit code 1 if one is in error."""
    async with access.open() as store:
        clusters = [one for one in await _list_sorted(store, StorageCluster) if name in ("", one.name)]
    if name and not clusters:
        raise NotFound(f"there is no StorageCluster {name!r}", remedy="see outlive get storageclusters")
    documents = [{"name": one.name, "term": one.term, **to_builtins(one.status)} for one in clusters]
    output.show(documents, lambda: _cluster_lines(clusters))
    return ExitCode.NO if any(one.status.health == "error" for one in clusters) else None


@command(app)
async def daemons(access: Access, output: Output) -> None:
    """All storage daemons: where they run, whether data is placed on them, how full they are and what they do."""
    async with access.open() as store:
        found = await _list_sorted(store, StorageDaemon)
    documents = [{"name": one.name, **_select_parts(one)} for one in found]
    columns = ("Id", "Host", "State", "In", "Class", "Used", "Of", "%", "PGs", "Writes/s", "Reads/s", "Device")
    rows: list[tuple[Any, ...]] = []
    for one in found:
        status, device = one.status, one.device.block_device if one.device is not None else ""
        host = one.device.host if one.device is not None else ""
        if status is None:
            rows.append((one.name, host, "unknown", *("" for _ in range(8)), device))
            continue
        active, state = status.activity, "up" if status.up else "down"
        used, size = shown_bytes(status.used_bytes), shown_bytes(status.size_bytes)
        room = (used, size, status.utilization, status.placement_groups)
        where = (one.name, active.host or host, state, status.in_, status.device_class)
        rows.append((*where, *room, active.write_ops, active.read_ops, device))
    output.show(documents, lambda: [make_table(columns, rows, numbers=columns[5:11])])


@command(app)
async def pools(access: Access, output: Output) -> None:
    """All pools: their data, and what still fits."""
    async with access.open() as store:
        found = await _list_sorted(store, StoragePool)
    documents = [{"name": one.name, **_select_parts(one)} for one in found]
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
    output.show(documents, lambda: [make_table(columns, rows, numbers=columns[1:])])


async def _list_sorted(store: Store, kind: type[R]) -> list[R]:
    return sorted([one async for one in list_all(store, kind)], key=lambda one: natural_key(one.name))


def _select_parts(one: Resource) -> dict[str, Any]:
    document: dict[str, Any] = to_builtins(one)
    return {name: document[name] for name in ("term", "status", "device") if name in document}


def _cluster_lines(clusters: list[StorageCluster]) -> list[Any]:
    if not clusters:
        return ["nothing is known of any storage: docs/how-to/storage.md#statistics says what it takes"]
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
        lines.append(make_table(("", ""), [row for row in figures if row[1]]))
        lines += ["", *(line for text in (found.text, found.utilization) for line in text.splitlines()), ""]
    return lines

"""``outlive failover views``: hosts, VMs and slots in tables, as the inspection tool of the reference shows them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import BadInput, OutliveError, Usage, format_bytes
from outlive.cli.access import Access
from outlive.cli.output import Output, make_table, write
from outlive.cli.settings import effective_settings
from outlive.cli.snapshot import synced_tables
from outlive.cli.values import split_words
from outlive.cli.vm_names import VmColumns, columns_of, vm_names
from outlive.drivers import read_input
from outlive.store import ObjectNames

if TYPE_CHECKING:
    from outlive.failover.report import ViewOptions, ViewSnapshot
    from outlive.failover.report import ViewTable as View
    from outlive.store import Store

OPTIONS_BYTES = 64 * 1024
"""The largest file of options."""


async def views(
    access: Access,
    output: Output,
    names: Annotated[list[str] | None, typer.Argument(metavar="VIEW", help="Only these views.")] = None,
    chosen: Annotated[str, typer.Option("--views", help="Only these views, with commas.")] = "",
    hide: Annotated[str, typer.Option("--hide", help="Not these views, with commas.")] = "",
    sort: Annotated[str, typer.Option("--sort", help="vm, vm-host or res-host.")] = "",
    filter_name: Annotated[str, typer.Option("--filter-name", help="Only hosts with this in their name.")] = "",
    filter_trait: Annotated[str, typer.Option("--filter-trait", help="Only hosts with this trait.")] = "",
    saved: Annotated[
        Path | None,
        typer.Option("--options", metavar="FILE", help="JSON with these options by name, as sort or filter_name."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the names of all views.")] = False,
) -> None:
    """Hosts, VMs and slots in tables; without names all of them."""
    from outlive.failover.report import VIEWS, make_views

    if listed:
        write("".join(f"{name}\n" for name in VIEWS))
        return
    given: dict[str, Any] = {
        "views": [*(names or ()), *split_words(chosen)],
        "hide": split_words(hide),
        "sort": sort,
        "filter_name": filter_name,
        "filter_trait": filter_trait,
    }
    options = _read_options({name: value for name, value in given.items() if value}, saved)
    async with access.open() as store:
        inventory = await _read_inventory(access, store)
    made = make_views(inventory, options)
    # the names of VMs: by the VM source, else by their hosts
    reported = [ObjectNames(one.id, one.name) for host in inventory.hypervisors for one in host.status.instances]
    named = columns_of([*reported, *vm_names(inventory.servers or ())])
    documents = [_view_document(view) for view in made]
    output.show(documents, lambda: [line for view in made for line in _view_lines(view, named)])


def _read_options(given: dict[str, Any], file: Path | None) -> ViewOptions:
    """Options of the command line over those of the file."""
    from outlive.failover.report import ViewOptions
    from outlive.resources import convert

    if file is not None:
        from outlive.resources import parse_json

        kept = parse_json(read_input(file, limit=OPTIONS_BYTES), str(file))
        if not isinstance(kept, dict):
            raise BadInput("is not a map of options", place=str(file), remedy='such as {"sort": "vm-host"}')
        given = {
            **{
                key: split_words(v) if key in ("views", "hide") and isinstance(v, str) else v for key, v in kept.items()
            },
            **given,
        }
    wire = {_to_camel(key): value for key, value in given.items()}
    try:
        options: ViewOptions = convert(ViewOptions, wire)
    except BadInput as error:
        if file is None:
            raise Usage(error.message, remedy="see outlive failover views --help") from None
        raise BadInput(error.message, place=str(file), remedy="see outlive failover views --help") from None
    return options


def _to_camel(key: str) -> str:
    head, *tail = key.split("_")
    return head + "".join(part.capitalize() for part in tail)


async def _read_inventory(access: Access, store: Store) -> ViewSnapshot:
    from outlive.failover import Demands
    from outlive.failover.report import ViewSnapshot, inventory_of
    from outlive.resources import Hypervisor, Reservation, VirtualMachine
    from outlive.store import list_all

    hosts = [host async for host in list_all(store, Hypervisor)]
    reservations = [one async for one in list_all(store, Reservation)]
    settings = await effective_settings(access, store)
    demands = Demands(settings.failover.requirements, settings.protection)
    choice = settings.topology_choice
    if settings.upkeep.vm_source == "resources":
        return inventory_of(hosts, reservations, [vm async for vm in list_all(store, VirtualMachine)], demands, choice)
    servers = None
    try:
        async with synced_tables(settings) as source:
            servers = await source.list_servers()
    except OutliveError as error:
        print(f"outlive: {error}; columns of the database are left out", file=sys.stderr)
    return ViewSnapshot(
        hypervisors=tuple(hosts),
        reservations=tuple(reservations),
        servers=servers,
        demands=demands,
        choice=choice,
    )


def _view_document(view: View) -> dict[str, Any]:
    document: dict[str, Any] = {"view": view.view, "title": view.title, "rows": view.to_records()}
    if view.totals is not None:
        document["totals"] = dict(zip(view.columns, view.totals, strict=True))
    return {**document, **({"note": view.note} if view.note else {})}


VM_COLUMNS = ("vm", "member")
"""Columns of ids of VMs; where a VM has a display name, that goes first."""
SENTENCE_COLUMNS = ("name", "otherVms", "problem")
"""Columns of texts that may name VMs."""


def _view_lines(view: View, named: VmColumns) -> list[Any]:
    kept = [name for name in view.columns if name != "name" or "vm" not in view.columns]
    titles = [
        title.replace("Bytes", "")
        for name in kept
        for title in (named.column_titles(name) if name in VM_COLUMNS else (name,))
    ]
    shown = []
    for row in (*view.rows, *((view.totals,) if view.totals is not None else ())):
        values = dict(zip(view.columns, row, strict=True))
        shown.append([cell for name in kept for cell in _view_cells(name, values, named)])
    lines: list[Any] = [f"\n{view.title}", make_table(titles, shown) if shown else "nothing"]
    return [*lines, view.note] if view.note else lines


def _view_cells(column: str, values: Mapping[str, Any], named: VmColumns) -> tuple[Any, ...]:
    text = values[column]
    if isinstance(text, list):
        text = ", ".join(map(str, text))
    elif column.endswith("Bytes") and isinstance(text, int):
        text = format_bytes(text) if abs(text) < 2**30 else f"{text / 2**30:,.1f} GiB"
    if column in VM_COLUMNS and isinstance(text, str | None):
        return named.name_cells(text or "")
    about = str(values.get("vm") or "")
    return (named.replace_ids(text, about) if column in SENTENCE_COLUMNS and isinstance(text, str) else text,)

"""``outlive failover views``: hosts, VMs and slots in tables, as the inspection tool of the reference shows them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base.errors import BadInput, OutliveError, Usage
from outlive.base.quantity import format_bytes
from outlive.cli.access import Access
from outlive.cli.output import Output, table, write
from outlive.cli.settings import effective_settings
from outlive.cli.snapshot import synced_tables
from outlive.cli.values import words
from outlive.cli.vm_names import VmColumns, columns_of, vm_names
from outlive.drivers.files import read_input
from outlive.store.naming import ObjectNames

if TYPE_CHECKING:
    from outlive.failover.report.views import Inventory, ViewOptions
    from outlive.failover.report.views import Table as View
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
    from outlive.failover.report.views import VIEWS, make_views

    if listed:
        write("".join(f"{name}\n" for name in VIEWS))
        return
    given: dict[str, Any] = {
        "views": [*(names or ()), *words(chosen)],
        "hide": words(hide),
        "sort": sort,
        "filter_name": filter_name,
        "filter_trait": filter_trait,
    }
    options = _options({name: value for name, value in given.items() if value}, saved)
    async with access.open() as store:
        inventory = await _inventory(access, store)
    made, named = make_views(inventory, options), _named(inventory)
    documents = [_document(view) for view in made]
    output.show(documents, lambda: [line for view in made for line in _lines(view, named)])


def _options(given: dict[str, Any], file: Path | None) -> ViewOptions:
    """Options of the command line over those of the file."""
    from outlive.failover.report.views import ViewOptions
    from outlive.resources.codec import convert

    if file is not None:
        from outlive.resources.documents import parse_json

        kept = parse_json(read_input(file, limit=OPTIONS_BYTES), str(file))
        if not isinstance(kept, dict):
            raise BadInput("is not a map of options", place=str(file), remedy='such as {"sort": "vm-host"}')
        given = {
            **{key: words(v) if key in ("views", "hide") and isinstance(v, str) else v for key, v in kept.items()},
            **given,
        }
    wire = {_camel(key): value for key, value in given.items()}
    try:
        options: ViewOptions = convert(ViewOptions, wire)
    except BadInput as error:
        if file is None:
            raise Usage(error.message, remedy="see outlive failover views --help") from None
        raise BadInput(error.message, place=str(file), remedy="see outlive failover views --help") from None
    return options


def _camel(key: str) -> str:
    head, *tail = key.split("_")
    return head + "".join(part.capitalize() for part in tail)


async def _inventory(access: Access, store: Store) -> Inventory:
    from outlive.failover.protection import Demands
    from outlive.failover.report.views import Inventory, inventory_of
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
    return Inventory(
        hypervisors=tuple(hosts),
        reservations=tuple(reservations),
        servers=servers,
        demands=demands,
        choice=choice,
    )


def _document(view: View) -> dict[str, Any]:
    document: dict[str, Any] = {"view": view.view, "title": view.title, "rows": view.records()}
    if view.totals is not None:
        document["totals"] = dict(zip(view.columns, view.totals, strict=True))
    return {**document, **({"note": view.note} if view.note else {})}


VM_COLUMNS = ("vm", "member")
"""Columns of ids of VMs; where a VM has a display name, that goes first."""
SENTENCE_COLUMNS = ("name", "otherVms", "problem")
"""Columns of texts that may name VMs."""


def _named(inventory: Inventory) -> VmColumns:
    """The names of VMs: by the VM source, else by their hosts."""
    reported = [ObjectNames(one.id, one.name) for host in inventory.hypervisors for one in host.status.instances]
    return columns_of([*reported, *vm_names(inventory.servers or ())])


def _lines(view: View, named: VmColumns) -> list[Any]:
    kept = [name for name in view.columns if name != "name" or "vm" not in view.columns]
    titles = [
        title.replace("Bytes", "") for name in kept for title in (named.titles(name) if name in VM_COLUMNS else (name,))
    ]
    shown = []
    for row in (*view.rows, *((view.totals,) if view.totals is not None else ())):
        values = dict(zip(view.columns, row, strict=True))
        shown.append([cell for name in kept for cell in _cells(name, values, named)])
    lines: list[Any] = [f"\n{view.title}", table(titles, shown) if shown else "nothing"]
    return [*lines, view.note] if view.note else lines


def _cells(column: str, values: Mapping[str, Any], named: VmColumns) -> tuple[Any, ...]:
    text = _text(column, values[column])
    if column in VM_COLUMNS and isinstance(text, str | None):
        return named.cells(text or "")
    about = str(values.get("vm") or "")
    return (named.sentence(text, about) if column in SENTENCE_COLUMNS and isinstance(text, str) else text,)


def _text(column: str, value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if column.endswith("Bytes") and isinstance(value, int):
        return format_bytes(value) if abs(value) < 2**30 else f"{value / 2**30:,.1f} GiB"
    return value

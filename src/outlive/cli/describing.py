"""``outlive describe``: one resource in full, with what belongs to it and what happened to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.kinds import complete_kind, kind_named
from outlive.cli.output import Output
from outlive.resources import Coverage, Event, Hypervisor, Reservation, Resource, VirtualMachine

if TYPE_CHECKING:
    from outlive.store import Store

EVENTS_SHOWN = 20
"""Events of an object that are shown, the last ones."""


async def describe(
    access: Access,
    output: Output,
    kind: Annotated[str, typer.Argument(help="Kind, such as vm or hypervisors.", autocompletion=complete_kind)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which.")],
) -> None:
    """One resource in full, with its events and what belongs to it."""
    from outlive.resources.codec import to_builtins

    async with access.open() as store:
        item = await store.get(kind_named(kind), name)
        related = [(title, items) async for title, items in _related(store, item)]
        events = await _events(store, item)
    document = {
        "object": to_builtins(item),
        "related": {title: [to_builtins(one) for one in items] for title, items in related},
        "events": [to_builtins(event) for event in events],
    }
    output.show(document, lambda: _sections(item, related, events, wide=output.wide))


def _sections(
    item: Resource, related: list[tuple[str, list[Resource]]], events: list[Event], *, wide: bool
) -> list[Any]:
    from outlive.cli.output import table, yaml_text
    from outlive.resources.columns import cells

    lines: list[Any] = [yaml_text(item).rstrip()]
    for title, items in related:
        lines.append(f"\n{title}: {len(items) or 'none'}")
        if items:
            columns = [name for name, _, priority in items[0].info.columns if wide or priority == 0]
            lines.append(table(["Name", *columns], [[one.name, *cells(one, wide=wide)] for one in items]))
    lines.append(f"\nEvents: {len(events) or 'none'}")
    if events:
        rows = [(event.last_seen.isoformat(), event.type, event.reason, event.count, event.note) for event in events]
        lines.append(table(["Last", "Type", "Reason", "Count", "Note"], rows, numbers=["Count"]))
    return lines


async def _related(store: Store, item: Resource) -> AsyncIterator[tuple[str, list[Resource]]]:
    """What belongs to the object: a VM's coverage and slots, a host's VMs and slots, a slot's members."""
    from outlive.store import list_all

    if isinstance(item, VirtualMachine):
        yield "Coverage", [told async for told in list_all(store, Coverage) if told.name == item.name]
        yield "Slots", [one async for one in list_all(store, Reservation) if item.name in _members(one)]
    elif isinstance(item, Hypervisor):
        yield "VMs", [vm async for vm in list_all(store, VirtualMachine) if _host(vm) == item.name]
        yield (
            "Reservations",
            [one async for one in list_all(store, Reservation) if item.name in (one.status.host, one.spec.target_host)],
        )
    elif isinstance(item, Reservation):
        members = _members(item)
        yield "Members", [vm async for vm in list_all(store, VirtualMachine) if vm.name in members]


def _members(reservation: Reservation) -> dict[str, str]:
    failover = reservation.status.failover_reservation
    return failover.allocations if failover is not None else {}


def _host(vm: VirtualMachine) -> str:
    return vm.status.assigned.hypervisor if vm.status.assigned is not None else ""


async def _events(store: Store, item: Resource) -> list[Event]:
    from outlive.store import list_all

    found = [
        event
        async for event in list_all(store, Event)
        if event.regarding.kind == item.kind() and event.regarding.name == item.name
    ]
    return sorted(found, key=lambda event: (event.last_seen, event.name))[-EVENTS_SHOWN:]


app = single("describe", describe)

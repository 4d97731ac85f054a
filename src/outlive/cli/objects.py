"""Resources as they are: ``get``, ``describe``, ``apply``, ``delete``, ``dump``, ``crds``.

``apply`` checks all documents of all files before the first write, also beside each other and beside what is there. A
document says what a user wants: its spec replaces the spec, its labels and annotations are added to those that are
there; the status half belongs to the observers, and is written only with ``--status``. The objects of a state file
are restored whole, with new versions and uids.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from outlive.base import (
    BadInput,
    Conflict,
    Instant,
    NotFound,
    Usage,
    as_datetime,
    as_instant,
    join_parts,
    parse_quantity,
    shown_age,
)
from outlive.cli.access import Access, WriteAccess, all_objects
from outlive.cli.arguments import Yes, names_from_server
from outlive.cli.output import (
    Form,
    ObjectOutput,
    Output,
    fault_blocks,
    make_table,
    object_tables,
    show_progress,
    write,
    yaml_text,
)
from outlive.cli.questions import ask
from outlive.cli.tables import TextTable
from outlive.cli.vm_names import VmColumns, columns_of, uuids_in
from outlive.drivers import read_input
from outlive.resources import (
    KINDS,
    Coverage,
    Event,
    Fault,
    Hypervisor,
    Reservation,
    Resource,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
)
from outlive.store import Selector, Store, find, list_all, names_by_id, read

if TYPE_CHECKING:
    from outlive.node import ClusterLiveness

ALIASES = {
    "host": "hypervisors",
    "hosts": "hypervisors",
    "vm": "virtualmachines",
    "vms": "virtualmachines",
    "slot": "reservations",
    "slots": "reservations",
}
"""Words of the vocabulary for kinds."""


def kind_named(text: str) -> type[Resource]:
    """The kind; ``Usage`` names the nearest one that there is."""
    names: dict[str, type[Resource]] = {}
    for kind in KINDS.values():
        info = kind.info
        for name in (kind.singular_name(), info.plural, *info.short_names):
            if name:
                names[name] = kind
    names.update({alias: names[plural] for alias, plural in ALIASES.items()})
    found = names.get(text.lower())
    if found is None:
        near = difflib.get_close_matches(text.lower(), names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        plurals = ", ".join(sorted(kind.info.plural for kind in KINDS.values()))
        raise Usage(f"kind {text!r} is not known", remedy=f"{hint}one of {plurals}")
    return found


def complete_kind(incomplete: str) -> list[str]:
    """Plurals that begin with what is typed so far."""
    return sorted(kind.info.plural for kind in KINDS.values() if kind.info.plural.startswith(incomplete.lower()))


def complete_object(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of objects of the kind that the command names before."""
    try:
        kind = kind_named(str(ctx.params.get("kind") or ""))
    except Usage:
        return []
    return names_from_server(ctx, kind.info.plural, incomplete)


async def get(
    access: Access,
    output: ObjectOutput,
    kind: Annotated[
        str,
        typer.Argument(help="Kind, such as hypervisors or ovm; without one, the kinds.", autocompletion=complete_kind),
    ] = "",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these.", autocompletion=complete_object)
    ] = None,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Only with these labels, such as a=b,c!=d.")] = "",
    sort_by: Annotated[
        str, typer.Option("--sort-by", metavar="PATH", help="In the order of this field, such as .spec.project.")
    ] = "",
) -> None:
    """List resources of a kind, or show some by name. Events come in the order of time."""
    from outlive.cli.liveness import read_liveness

    if not kind:
        show_kinds(output)
        return
    found = kind_named(kind)
    chosen = Selector.parse(selector) if selector else None
    # a path as kubectl takes them too: .spec.project, spec.project or {.spec.project}
    path = sort_by.removeprefix("{").removesuffix("}")
    order = path if path.startswith((".", "[")) else f".{path}"
    if not sort_by:
        order = EVENT_ORDER if found is Event else ""
    async with access.open() as store:
        if names:
            objects: list[Resource] = [await find(store, found, name) for name in names]
        else:
            objects = [item async for item in list_all(store, found, selector=chosen)]
        lives = found in (VirtualMachine, Hypervisor) and output.form in (Form.TABLE, Form.WIDE)
        cells_of = (await read_liveness(store, access)).cells_of if lives and not output.names_only else None
        blocks = found is Fault and output.form is Form.TABLE and not output.names_only
        naming = blocks or (found is Event and output.form in (Form.TABLE, Form.WIDE) and not output.names_only)
        named = await _names_of_subjects(store, objects) if naming else VmColumns()
    if order:
        objects = sort_objects(objects, order)
    if blocks and objects:
        output.render(fault_lines(objects, named))
        return
    empty = f"there are no {found.info.plural}{f' with the labels {selector}' if selector else ''}"
    tables = [event_table(objects, named, access.clock.now(), wide=output.wide)] if found is Event else None
    output.print_objects(
        objects, single=bool(names) and len(objects) == 1, empty=empty, tables=tables, cells_of=cells_of
    )


EVENT_ORDER = ".lastSeen"


async def _names_of_subjects(store: Store, found: Sequence[Any]) -> VmColumns:
    """The names of the VMs that faults or events are about, or name by UUID."""
    subjects = [one.regarding if isinstance(one, Event) else one.subject for one in found]
    texts = [one.note if isinstance(one, Event) else f"{one.message} {one.remedy}" for one in found]
    vms = [one.name for one in subjects if one.kind == VirtualMachine.kind()]
    return columns_of(await names_by_id(store, VirtualMachine, [*vms, *uuids_in(texts)]))


def fault_lines(faults: Sequence[Any], named: VmColumns) -> list[str]:
    """A block for each fault: what is wrong, what helps, and how it lowers the health no more."""
    blocks = []
    for one in faults:
        state = " (over)" if one.ended else " (acknowledged)" if one.acknowledged else ""
        message, remedy = (named.replace_ids(text, one.subject.name) for text in (one.message, one.remedy))
        blocks.append((one.code, f"{named.replace_ids(one.subject.name)}{state}", message, remedy))
    return fault_blocks(blocks)[1:]


def show_kinds(output: ObjectOutput) -> None:
    """Print the kinds that there are, with their short names."""
    aliases: dict[str, list[str]] = {}
    for alias, plural in ALIASES.items():
        aliases.setdefault(plural, []).append(alias)
    rows = [
        (info.plural, ", ".join((*info.short_names, *aliases.get(info.plural, ()))), kind.kind())
        for info, kind in sorted(((kind.info, kind) for kind in KINDS.values()), key=lambda one: one[0].plural)
    ]
    if output.names_only:
        output.print_names(plural for plural, _, _ in rows)
    elif output.form in (Form.TABLE, Form.WIDE):
        output.print_tables([make_table(["Kind", "Also", "In documents"], rows)])
    else:
        output.show([{"name": plural, "also": also, "kind": kind} for plural, also, kind in rows], tuple)


def sort_objects(objects: Sequence[Resource], path: str) -> list[Resource]:
    """The objects by the value at the path, and by name; those that have none come last. ``BadInput``."""
    from outlive.resources import check_fields, value_at

    for item in objects:
        check_fields(item, path)
    return sorted(objects, key=lambda item: (*_sort_key(value_at(item, path)), item.name))


def _sort_key(value: Any) -> tuple[int, float, str]:
    """Numbers, amounts and times by their size, before texts, before nothing."""
    if value is None or value == "":
        return 3, 0.0, ""
    if isinstance(value, datetime):
        return 0, value.timestamp(), ""
    if isinstance(value, int | float):
        return 0, float(value), ""
    text = str(value)
    try:
        return 1, float(parse_quantity(text)), ""
    except BadInput:
        return 2, 0.0, text


def event_table(events: Sequence[Any], named: VmColumns, now: Instant, *, wide: bool) -> TextTable:
    """Events, each with how long ago it was seen last."""
    rows = [
        (
            *((event.name,) if wide else ()),
            shown_age(now - as_instant(event.last_seen)),
            event.type,
            event.reason,
            f"{event.regarding.kind.lower()}/{named.replace_ids(event.regarding.name)}",
            event.count,
            named.replace_ids(event.note, event.regarding.name),
        )
        for event in events
    ]
    titles = [*(("Name",) if wide else ()), "Last seen", "Type", "Reason", "Object", "Count", "Note"]
    return make_table(titles, rows, numbers=["Count"])


EVENTS_SHOWN = 20
"""Events of an object that are shown, the last ones."""


async def describe(
    access: Access,
    output: Output,
    kind: Annotated[str, typer.Argument(help="Kind, such as vm or hypervisors.", autocompletion=complete_kind)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which.", autocompletion=complete_object)],
) -> None:
    """One resource in full, with its events and what belongs to it."""
    from outlive.cli.liveness import read_liveness
    from outlive.resources import to_builtins

    async with access.open() as store:
        item = await find(store, kind_named(kind), name)
        life = await read_liveness(store, access)
        related = [(title, items) async for title, items in _list_related(store, item)]
        events = [
            event
            async for event in list_all(store, Event)
            if event.regarding.kind == item.kind() and event.regarding.name == item.name
        ]
        events = sorted(events, key=lambda event: (event.last_seen, event.name))[-EVENTS_SHOWN:]
        named = await _names_of_subjects(store, events)
    document = {
        "object": to_builtins(item),
        "related": {title: [to_builtins(one) for one in items] for title, items in related},
        "events": [to_builtins(event) for event in events],
    }
    output.show(document, lambda: _describe_lines(item, related, events, life, named, wide=output.wide))


def _describe_lines(
    item: Resource,
    related: list[tuple[str, list[Resource]]],
    events: list[Event],
    life: ClusterLiveness,
    named: VmColumns,
    *,
    wide: bool,
) -> list[Any]:
    lines: list[Any] = yaml_text(item).splitlines()
    lines += [f"\nNow: {said}" for title, said in life.cells_of(item).items() if title == "State"]
    for title, items in related:
        lines.append(f"\n{title}: {len(items) or 'none'}")
        lines += object_tables(items, wide=wide, cells_of=life.cells_of)
    lines.append(f"\nEvents: {len(events) or 'none'}")
    if events:
        rows = [
            (
                event.last_seen.isoformat(timespec="seconds"),
                event.type,
                event.reason,
                event.count,
                named.replace_ids(event.note, item.name),
            )
            for event in events
        ]
        lines.append(make_table(["Last", "Type", "Reason", "Count", "Note"], rows, numbers=["Count"]))
    return lines


async def _list_related(store: Store, item: Resource) -> AsyncIterator[tuple[str, list[Resource]]]:
    """What belongs to the object: a VM's coverage, slots and ports, a host's VMs and slots, a slot's members, a
    network's ports."""
    if isinstance(item, VirtualMachine):
        yield "Coverage", [one async for one in list_all(store, Coverage) if one.name == item.name]
        yield "Slots", [one async for one in list_all(store, Reservation) if item.name in _slot_members(one)]
        if ports := [one async for one in list_all(store, VirtualMachinePort) if one.spec.vm == item.name]:
            yield "Ports", list[Resource](ports)
    elif isinstance(item, VirtualNetwork):
        yield "Ports", [one async for one in list_all(store, VirtualMachinePort) if one.spec.network == item.name]
    elif isinstance(item, Hypervisor):
        from outlive.placement import blocked_hosts

        yield "VMs", [vm async for vm in list_all(store, VirtualMachine) if vm.host == item.name]
        yield (
            "Reservations",
            [one async for one in list_all(store, Reservation) if item.name in blocked_hosts(one)],
        )
    elif isinstance(item, Reservation):
        members = _slot_members(item)
        yield "Members", [vm async for vm in list_all(store, VirtualMachine) if vm.name in members]


def _slot_members(reservation: Reservation) -> dict[str, str]:
    failover = reservation.status.failover_reservation
    return failover.allocations if failover is not None else {}


ATTEMPTS = 3
"""How often a document is tried again after somebody else changed the object in between."""


async def apply(
    access: Access,
    files: Annotated[list[Path], typer.Option("--file", "-f", help="YAML or JSON, - for standard input.")],
    status: Annotated[bool, typer.Option("--status", help="Write the status half as well.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the documents.")] = False,
) -> None:
    """Create or change resources from files; everything is checked before the first write."""
    from outlive.api import Neighbours
    from outlive.resources import Problems

    wanted = read_resources(files)
    async with access.open(write=not dry_run, or_empty=True) as store:
        neighbours, problems = Neighbours(store), Problems()
        for one in wanted:
            try:
                await neighbours.check(one.resource)
            except BadInput as error:
                problems.take(one.place, error)
        problems.check()
        if dry_run:
            for one in wanted:
                write(f"{_kind_and_name(one.resource)} would be applied\n")
            return
        for one in wanted:
            item = one.resource
            try:
                outcome = await write_resource(store, item, status=status or one.restored)
            except BadInput as error:
                raise BadInput(
                    f"{_kind_and_name(item)}: {error.message}", place=one.place, remedy=error.remedy
                ) from error
            write(f"{_kind_and_name(item)} {outcome}\n")


class WantedObject(NamedTuple):
    """A resource as a user wants it, where it stands, and whether it is restored with its status."""

    place: str
    resource: Resource
    restored: bool


def read_resources(files: Iterable[Path]) -> list[WantedObject]:
    """Every resource of the files, checked as the server does; raises ``BadInputs`` with every problem."""
    from outlive.resources import Problems, decode_document, parse_documents

    problems = Problems()
    found: list[WantedObject] = []
    seen: dict[tuple[str, str], str] = {}
    for path in files:
        for document in parse_documents(read_input(path), str(path)):
            try:
                item = check_resource(decode_document(document.value, KINDS))
            except BadInput as error:
                problems.take(document.place, error, "see docs/reference/resources.md")
                continue
            key = (item.kind(), item.name)
            if key in seen:
                problems.add(document.place, f"{_kind_and_name(item)} is there twice, first at {seen[key]}", "keep one")
            seen[key] = document.place
            found.append(
                WantedObject(document.place, _drop_version(item) if document.of_state else item, document.of_state)
            )
    problems.check()
    if not found:
        raise BadInput("no documents", place=", ".join(map(str, files)), remedy="write at least one resource")
    return found


def check_resource(item: Resource) -> Resource:
    """The resource as it is written, checked by itself as the server does; raises ``BadInput``."""
    from outlive.api import check_admission, fill_from_definition
    from outlive.resources import check_object

    check_object(item)
    item = fill_from_definition(item)
    check_admission(item)
    return item


def _drop_version(item: Resource) -> Resource:
    meta = msgspec.structs.replace(item.metadata, uid="", resource_version="")
    return msgspec.structs.replace(item, metadata=meta)


async def write_resource(store: Store, item: Resource, *, status: bool = False) -> str:
    """Create or change it; returns ``created``, ``configured`` or ``unchanged``. ``Conflict`` only where it carries a
    version; errors of the store."""
    for attempt in range(ATTEMPTS):
        try:
            return await _apply_once(store, item, status=status)
        except Conflict:
            if item.metadata.resource_version or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the loop returns or raises")


async def _apply_once(store: Store, item: Resource, *, status: bool) -> str:
    from outlive.api import deletion_conflict, without_finalizer

    has_status = item.info.halves and hasattr(item, "status")
    try:
        old = await store.get(type(item), item.name, fresh=True)
    except NotFound:
        new = _drop_version(item)
        written = await store.create(new if status else without_finalizer(new))
        if status and has_status:
            await store.replace_status(msgspec.structs.replace(item, metadata=written.metadata))
        return "created"
    if (taken := deletion_conflict(old)) is not None:
        raise taken
    meta = msgspec.structs.replace(
        old.metadata,
        labels={**old.metadata.labels, **item.metadata.labels},
        annotations={**old.metadata.annotations, **item.metadata.annotations},
        finalizers=item.metadata.finalizers or old.metadata.finalizers,
        resource_version=item.metadata.resource_version or old.metadata.resource_version,
    )
    kept: dict[str, Any] = {"status": _get_status(old)} if has_status else {}
    new = msgspec.structs.replace(item, metadata=meta, **kept)
    changed = new != old
    if changed:
        old = await store.replace(new)
    if status and has_status and _get_status(item) != _get_status(old):
        await store.replace_status(msgspec.structs.replace(item, metadata=old.metadata))
        changed = True
    return "configured" if changed else "unchanged"


def _get_status(item: Resource) -> Any:
    return getattr(item, "status", None)


def _kind_and_name(item: Resource) -> str:
    return f"{item.kind().lower()}/{item.name}"


OBJECTS_NAMED = 5
"""Objects that a question names."""


async def delete(
    access: WriteAccess,
    kind: Annotated[str, typer.Argument(help="Kind, such as reservations.", autocompletion=complete_kind)],
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Which.", autocompletion=complete_object)],
    ignore_missing: Annotated[bool, typer.Option("--ignore-not-found", help="Missing ones are no error.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also hosts that have VMs, and their Memberships; these VMs count as uncovered then."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete resources, and ask before. All are looked up before the first is deleted; a host with VMs is refused.

    A VM that a host may run is stopped there first; until then its name is taken.
    """
    from outlive.api import check_deletion, deletion_conflict
    from outlive.store import RestStore

    found = kind_named(kind)
    async with access.open(write=True) as store:
        objects = []
        for name in names:
            try:
                objects.append(await find(store, found, name))
            except NotFound:
                if not ignore_missing:
                    raise
        for item in objects:
            await check_deletion(item, store, force=force)
        if objects:
            ask(f"Delete {join_parts([_kind_and_name(item) for item in objects], most=OBJECTS_NAMED)}?", yes)
        for item in objects:
            if force and isinstance(store, RestStore):  # the server refuses hosts with VMs by itself
                await store.delete(item.ref, uid=item.metadata.uid, orphan=True)
            else:
                await store.delete(item.ref, uid=item.metadata.uid)
            left = deletion_conflict(await read(store, found, item.name))
            write(f"{item.kind().lower()}/{item.name} deleted{f'; {left}' if left is not None else ''}\n")


async def dump(access: Access) -> None:
    """Write the objects of a cluster to standard output, as one file for --state, which only its owner may read.

    This is no backup: its first line names the kinds that it leaves out, secrets and tokens among them.
    """
    from outlive.cli.liveness import read_sight
    from outlive.resources import State, encode_state

    async with access.open() as store:
        with show_progress("reading the cluster"):
            objects = tuple(await all_objects(store))
        sight = await read_sight(store, access, {one.name: one for one in objects if isinstance(one, Hypervisor)})
    raw = encode_state(State(taken_at=as_datetime(access.clock.now()), sight=sight, objects=objects))
    with contextlib.suppress(OSError):  # of others' files the mode stays, and of what is no file
        if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
            os.fchmod(sys.stdout.fileno(), 0o600)
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def crds(
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="KIND", help="Only these.", autocompletion=complete_kind)
    ] = None,
) -> None:
    """Print the manifests of all kinds for a Kubernetes cluster, as YAML: outlive crds | kubectl apply -f -."""
    from outlive.resources import KINDS, build_crd

    chosen = [kind_named(name) for name in kinds] if kinds else list(KINDS.values())
    write("---\n".join(yaml_text(build_crd(kind)) for kind in chosen))

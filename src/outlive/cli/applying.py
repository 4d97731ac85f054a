"""``outlive apply``: documents from files become resources, by compare-and-swap.

All documents of all files are checked before the first write. A document says what a user wants: its spec replaces
the spec, its labels and annotations are added to those that are there; the status half belongs to whoever observes,
and is written only with ``--status``. The objects of a state file are restored whole, with new versions and uids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from outlive.base.errors import BadInput, Conflict, NotFound
from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.output import write
from outlive.resources import KINDS, Resource
from outlive.store import Store

ATTEMPTS = 3
"""How often a document is tried again after somebody else changed the object in between."""


async def apply(
    access: Access,
    files: Annotated[list[Path], typer.Option("--file", "-f", help="YAML or JSON, - for standard input.")],
    status: Annotated[bool, typer.Option("--status", help="Write the status half as well.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the documents.")] = False,
) -> None:
    """Create or change resources from files; everything is checked before the first write."""
    wanted = read_resources(files)
    if dry_run:
        for one in wanted:
            write(f"{_named(one.resource)} would be applied\n")
        return
    async with access.open(write=True) as store:
        for one in wanted:
            item = one.resource
            try:
                outcome = await _apply(store, item, status=status or one.restored)
            except BadInput as error:
                raise BadInput(f"{_named(item)}: {error.message}", place=one.place, remedy=error.remedy) from error
            write(f"{_named(item)} {outcome}\n")


class Wanted(NamedTuple):
    """A resource as a user wants it, where it stands, and whether it is restored with its status."""

    place: str
    resource: Resource
    restored: bool


def read_resources(files: Iterable[Path]) -> list[Wanted]:
    """Every resource of the files; raises ``BadInputs`` with every problem."""
    from outlive.drivers.files import read_input
    from outlive.resources.codec import decode_document
    from outlive.resources.documents import Problems, parse_documents
    from outlive.resources.validity import check_object

    problems = Problems()
    found: list[Wanted] = []
    seen: dict[tuple[str, str], str] = {}
    for path in files:
        for document in parse_documents(read_input(path), str(path)):
            try:
                item = decode_document(document.value, KINDS)
                check_object(item)
                _admit(item)
            except BadInput as error:
                problems.take(document.place, error, "see docs/reference/resources.md")
                continue
            key = (item.kind(), item.name)
            if key in seen:
                problems.add(document.place, f"{_named(item)} is there twice, first at {seen[key]}", "keep one")
            seen[key] = document.place
            found.append(Wanted(document.place, _unversioned(item) if document.of_state else item, document.of_state))
    problems.check()
    if not found:
        raise BadInput("no documents", place=", ".join(map(str, files)), remedy="write at least one resource")
    return found


def _unversioned(item: Resource) -> Resource:
    meta = msgspec.structs.replace(item.metadata, uid="", resource_version="")
    return msgspec.structs.replace(item, metadata=meta)


def _admit(item: Resource) -> None:
    """Refuse what the server would refuse: a pipeline that cannot be built."""
    from outlive.resources import Pipeline

    if isinstance(item, Pipeline):
        from outlive.placement.pipelines import admit

        admission = admit(item)
        if admission.errors:
            raise BadInput(str(admission.errors[0]), remedy="see docs/reference/placement.md")


async def _apply(store: Store, item: Resource, *, status: bool) -> str:
    for attempt in range(ATTEMPTS):
        try:
            return await _apply_once(store, item, status=status)
        except Conflict:
            if item.metadata.resource_version or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the loop returns or raises")


async def _apply_once(store: Store, item: Resource, *, status: bool) -> str:
    has_status = item.info.halves and hasattr(item, "status")
    try:
        old = await store.get(type(item), item.name, fresh=True)
    except NotFound:
        meta = msgspec.structs.replace(item.metadata, uid="", resource_version="")
        written = await store.create(msgspec.structs.replace(item, metadata=meta))
        if status and has_status:
            await store.replace_status(msgspec.structs.replace(item, metadata=written.metadata))
        return "created"
    new = _merged(item, old, keep_status=has_status)
    changed = new != old
    if changed:
        old = await store.replace(new)
    if status and has_status and _status(item) != _status(old):
        await store.replace_status(msgspec.structs.replace(item, metadata=old.metadata))
        changed = True
    return "configured" if changed else "unchanged"


def _merged(item: Resource, old: Resource, *, keep_status: bool) -> Resource:
    meta = msgspec.structs.replace(
        old.metadata,
        labels={**old.metadata.labels, **item.metadata.labels},
        annotations={**old.metadata.annotations, **item.metadata.annotations},
        finalizers=item.metadata.finalizers or old.metadata.finalizers,
        resource_version=item.metadata.resource_version or old.metadata.resource_version,
    )
    changes: dict[str, Any] = {"metadata": meta}
    if keep_status:
        changes["status"] = _status(old)
    return msgspec.structs.replace(item, **changes)


def _status(item: Resource) -> Any:
    return getattr(item, "status", None)


def _named(item: Resource) -> str:
    return f"{item.kind().lower()}/{item.name}"


app = single("apply", apply)

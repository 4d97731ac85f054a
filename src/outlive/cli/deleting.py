"""``outlive delete``: resources go, by name."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.base.errors import NotFound
from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.kinds import complete_kind, kind_named
from outlive.cli.output import write


async def delete(
    access: Access,
    kind: Annotated[str, typer.Argument(help="Kind, such as reservations.", autocompletion=complete_kind)],
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Which.")],
    ignore_missing: Annotated[bool, typer.Option("--ignore-not-found", help="Missing ones are no error.")] = False,
) -> None:
    """Delete resources. All are looked up before the first is deleted."""
    found = kind_named(kind)
    async with access.open(write=True) as store:
        objects = []
        for name in names:
            try:
                objects.append(await store.get(found, name))
            except NotFound:
                if not ignore_missing:
                    raise
        for item in objects:
            await store.delete(item.ref, uid=item.metadata.uid)
            write(f"{item.kind().lower()}/{item.name} deleted\n")


app = single("delete", delete)

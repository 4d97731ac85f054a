"""``outlive get``: resources of a kind, as a table or as documents."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.kinds import complete_kind, kind_named
from outlive.cli.output import Output
from outlive.resources import Resource


async def get(
    access: Access,
    output: Output,
    kind: Annotated[str, typer.Argument(help="Kind, such as hypervisors or ovm.", autocompletion=complete_kind)],
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only these.")] = None,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Only with these labels, such as a=b,c!=d.")] = "",
) -> None:
    """List resources of a kind, or show some by name."""
    from outlive.store import Selector, list_all

    found = kind_named(kind)
    chosen = Selector.parse(selector) if selector else None
    async with access.open() as store:
        if names:
            objects: list[Resource] = [await store.get(found, name) for name in names]
        else:
            objects = [item async for item in list_all(store, found, selector=chosen)]
    output.objects(objects, single=bool(names) and len(objects) == 1)


app = single("get", get)

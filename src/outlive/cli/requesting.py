"""``outlive request``: what a user asks for a VM, once: to start, to stop, to go to another host."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from outlive.base.errors import Usage
from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.output import write
from outlive.roles.requesting import RequestVerb

VERBS = get_args(RequestVerb)


async def request(
    access: Access,
    vm: Annotated[str, typer.Argument(metavar="VM", help="Which VM.")],
    verb: Annotated[str, typer.Argument(metavar="VERB", help=f"One of {', '.join(VERBS)}.")],
    to: Annotated[str, typer.Option("--to", metavar="HOST", help="With migrate or move: where to.")] = "",
    force: Annotated[bool, typer.Option("--force", help="As the verb takes it: do not wait, or do not ask.")] = False,
) -> None:
    """Ask for a VM to be started, stopped or moved, once; its host answers. Also after it has failed."""
    from outlive.base.ids import SystemIds
    from outlive.roles.requesting import request_vm

    wanted: RequestVerb | None = next((one for one in VERBS if one == verb), None)
    if wanted is None:
        raise Usage(f"nobody can be asked to {verb[:40]!r}", place="VERB", remedy=f"write one of {', '.join(VERBS)}")
    async with access.open(write=True) as store:
        write(await request_vm(store, SystemIds(), vm, wanted, target=to, force=force) + "\n")


app = single("request", request)

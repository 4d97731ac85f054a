"""``outlive tls``: the authority that a server made itself, by which hosts and commands recognise it."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive.base import count_of, join_parts
from outlive.cli.access import WriteAccess, require_server
from outlive.cli.arguments import Yes
from outlive.cli.commands import command, make_group
from outlive.cli.output import Report
from outlive.cli.questions import ask

NAMED = 6
"""Hosts that are named."""

app = make_group("The server's own authority, by which hosts recognise it.")


@command(app)
async def rotate(
    access: WriteAccess,
    output: Report,
    finish: Annotated[
        bool, typer.Option("--finish", help="Every host believes the new authority: forget the old one.")
    ] = False,
    leave: Annotated[
        list[str] | None,
        typer.Option("--leave", metavar="HOST", help="Finish without this host, which has to join again then."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Replace the server's authority, in two steps: hosts learn to trust both automatically, then the old one goes.

    The second step asks before.
    """
    from outlive.store import ROTATION_PATH

    async with access.open(write=True) as store:
        server = require_server(store, "a server has an authority")
        if finish:
            ask("Forget the old authority? Clients and hosts that trust it alone cannot connect any more.", yes)
        said = await server.command(ROTATION_PATH, {"finish": finish, "leave": leave or []})
    lines = [
        f"the server's authority is now {said['authority']}",
        "set it wherever the old one is pinned: OUTLIVE_FINGERPRINT, /etc/outlive/drain.env",
    ]
    if not finish:
        without = said["without"]
        last = "every host believes it: outlive tls rotate --finish"
        if without:
            missing = f"{count_of(len(without), 'host')} without it yet, such as {join_parts(without[:NAMED])}"
            last = f"{missing}: ask again in two minutes"
        lines = [
            f"present authority: {said['authority']}",
            f"new authority:     {said['next']}",
            "a client that pins a fingerprint may pin both, separated by a comma: OUTLIVE_FINGERPRINT, drain.env",
            last,
        ]
    output.show(said, lambda: lines)

"""``outlive notify``: whether messages about faults arrive."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from outlive.base import ExitCode, NotFound
from outlive.cli.access import WriteAccess, require_server
from outlive.cli.commands import command, make_group
from outlive.cli.output import Report

TEST_PATH: Final = "/notify/test"
"""Where a server sends test messages."""

app = make_group("Notifications of faults (section notify of outlive.yaml).")


@command(app, "test")
async def send_test(
    access: WriteAccess,
    output: Report,
    target: Annotated[str, typer.Argument(metavar="[TARGET]", help="Which target; else all of them.")] = "",
) -> ExitCode | None:
    """Send a test message from the server, and show each target's answer."""
    async with access.open(write=True) as store:
        server = require_server(store, "a server sends messages")
        try:
            answers = await server.command(f"{TEST_PATH}/{target}" if target else TEST_PATH, {})
        except NotFound:
            raise NotFound(
                f"this server has no target {target[:80]!r}",
                remedy="targets stand in section notify of its outlive.yaml, which it reads when it starts",
            ) from None
    if not answers:
        raise NotFound("this server has no targets", remedy="name them in section notify of its outlive.yaml")
    output.show(answers, lambda: [f"{one['target']}: {one['result']}: {one['answer']}" for one in answers])
    return None if all(one["result"] == "sent" for one in answers) else ExitCode.NO

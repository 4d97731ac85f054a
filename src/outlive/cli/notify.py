"""``outlive notify``: whether messages about faults arrive."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from outlive.base.errors import ExitCode, NotFound
from outlive.cli.access import WriteAccess, require_server
from outlive.cli.commands import command, group
from outlive.cli.output import Report

TEST_PATH: Final = "/notify/test"
"""Where a server sends test messages."""

app = group("Who is notified of faults, as section notify of outlive.yaml says.")


@command(app, "test")
async def send_test(
    access: WriteAccess,
    output: Report,
    target: Annotated[str, typer.Argument(metavar="[TARGET]", help="Which target; else all of them.")] = "",
) -> ExitCode | None:
    """Have the server send a test message, and show what each target answered."""
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
    output.show(answers, lambda: _lines(answers))
    return None if all(one["result"] == "sent" for one in answers) else ExitCode.NO


def _lines(answers: list[dict[str, Any]]) -> list[str]:
    return [f"{one['target']}: {one['result']}: {one['answer']}" for one in answers]

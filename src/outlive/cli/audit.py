"""``outlive audit``: reads the audit log of a state directory, on the server's own machine."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from outlive.base import BadInput, NotFound
from outlive.cli.access import Access, WriteAccess
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, Report, make_table
from outlive.drivers import AUDIT_DIRECTORY, read_lines
from outlive.drivers.audit_files import audit_files

if TYPE_CHECKING:
    from pathlib import Path


app = make_group("Who did what to which object with which token: list, verify.")

LISTED = 1000
"""Entries that are listed, the newest."""


@command(app, "list")
async def list_entries(
    access: WriteAccess,
    output: Output,
    token: Annotated[str, typer.Option("--name", metavar="TOKEN", help="Only of this token.")] = "",
    about: Annotated[
        str, typer.Option("--object", metavar="KIND/NAME", help="Only about this object, or what begins so.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only of the last 2h, 30m, ….")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused or failed.")] = False,
) -> None:
    """List entries, oldest first; the newest 1,000 of those that fit."""
    from collections import deque

    from outlive.base import as_datetime
    from outlive.runtime import AuditFilter, Duration, select

    try:
        begin = as_datetime(access.clock.now()) - timedelta(seconds=float(Duration.parse(since))) if since else None
    except (BadInput, ValueError):
        raise BadInput(f"{since[:80]!r} is no time", place="--since", remedy="write 30m, 2h or 24h") from None
    wanted = AuditFilter(token=token, object=about, since=begin, refused=refused)
    lines = (line for _, line, _ in read_lines(_find_files(access)))
    found = deque(select(lines, wanted), maxlen=LISTED)
    columns = ("At", "Token", "Role", "From", "Verb", "Object", "Status", "What")
    rows = [
        (
            f"{one.at:%Y-%m-%d %H:%M:%S}",
            one.token,
            one.role,
            one.client,
            one.verb,
            one.object,
            one.status,
            one.code or ", ".join(one.fields or one.counts),
        )
        for one in found
    ]
    output.show(list(found), lambda: [make_table(columns, rows)] if rows else ["no such entries"])


@command(app)
async def verify(
    access: WriteAccess,
    output: Report,
    head: Annotated[
        str, typer.Option("--head", metavar="DIGEST", help="A digest that was logged before and must be among them.")
    ] = "",
    first: Annotated[
        int, typer.Option("--from", min=0, metavar="NUMBER", help="An entry that must still be among them.")
    ] = 0,
) -> None:
    """Whether each entry follows from the one before it; exit code 1 names the first that does not."""
    from outlive.runtime import verify as verify_lines

    files = _find_files(access)
    found = verify_lines(read_lines(files), head, first=first)
    document = {
        "entries": found.entries,
        "files": len(files),
        "digest": found.digest,
        "first": found.first,
        "begin": found.begin,
        "omitted": found.omitted,
    }
    begin = f", from number {found.first} of {found.begin:%Y-%m-%d %H:%M:%S} on" if found.begin is not None else ""
    lines = [f"{found.entries} entries in {len(files)} files follow from each other{begin}, up to {found.digest}"]
    if found.omitted:
        lines.append(f"{found.omitted} entries are missing; the log says where (field omitted)")
    output.show(document, lambda: lines)


def _find_files(access: Access) -> list[Path]:
    found = audit_files(access.directory / AUDIT_DIRECTORY)
    if not found:
        raise NotFound(
            f"there is no audit log in {access.directory / AUDIT_DIRECTORY}",
            remedy="name the state directory of outlive up with --state-dir, on the machine that it runs on",
        )
    return found

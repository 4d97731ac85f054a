"""``outlive token``: who may use the server. A token is shown once; the store keeps its digest."""

from __future__ import annotations

import getpass
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer

from outlive.base import BadInput, LimitExceeded, NotFound, Refused, Usage
from outlive.cli.access import Access, WriteAccess, living_server
from outlive.cli.arguments import Yes
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, Report, object_tables
from outlive.cli.questions import ask

if TYPE_CHECKING:
    from outlive.base import Instant
    from outlive.resources import Token
    from outlive.store import Store

KEPT = timedelta(days=7)
"""How long a join token that nobody can use any more is listed."""
TOKENS_LIMIT = 10_000

app = make_group("Tokens of people, programs and hosts.")


@command(app)
async def create(
    access: WriteAccess,
    output: Report,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="How it is listed.")] = "",
    join: Annotated[bool, typer.Option("--join", help="For one host, which exchanges it for its own.")] = False,
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="With --join: the host becomes a coordinator.")
    ] = False,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="With --join: the host that may use it.")] = "",
    any_new_host: Annotated[
        bool, typer.Option("--any-new-host", help="With --join: for a name that nothing refers to yet.")
    ] = False,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="admin, operator, viewer, scheduler, liquid or controller.")
    ] = "",
    lasts: Annotated[
        str,
        typer.Option("--for", metavar="TIME", help="When it ends; a join token after 1h, others 90 days."),
    ] = "",
) -> None:
    """Create a token and show it, once. With --join also the command that a host joins with."""
    from outlive.api import IN_FILES, Role, digest_of
    from outlive.base import SystemIds, as_datetime
    from outlive.resources import HOST_TOKENS, JOIN_LASTS, LASTS, ObjectMeta, Token, check_name

    if join == bool(role):
        raise Usage("say what the token is for", place="--join, --role", remedy="give --join, or --role ROLE")
    if not join and (coordinator or host or any_new_host):
        raise Usage("only join tokens are for hosts", place="--coordinator, --host", remedy="give --join as well")
    if join and bool(host) == any_new_host:
        raise Usage(
            "say which host is to join",
            place="--host, --any-new-host",
            remedy="give --host NAME, or --any-new-host for a name that nothing in the store refers to",
        )
    if coordinator and not host:
        raise Usage("a coordinator gets the cluster's key", place="--coordinator", remedy="name it: --host NAME")
    if role and role not in list(IN_FILES):
        raise BadInput(f"there is no role {role[:80]!r}", place="--role", remedy=f"one of {', '.join(IN_FILES)}")
    ids = SystemIds()
    name = name or f"{'join' if join else role}-{ids.new_suffix()}"
    check_name(name)
    if host:
        check_name(host)
    if name.startswith(HOST_TOKENS):
        raise BadInput(f"{name!r} is a name of a host's token", place="NAME", remedy="use another name")
    time, now, secret = _parse_lifetime(lasts) or (JOIN_LASTS if join else LASTS), access.clock.now(), ids.new_token()
    token = Token(
        metadata=ObjectMeta(name=name),
        role=Role.JOIN if join else role,
        digest=digest_of(secret.encode()),
        host=host,
        coordinator=coordinator,
        issued=as_datetime(now),
        expires=as_datetime(now) + time,
        created_by=f"{getpass.getuser()}@{socket.gethostname()}",
    )
    async with access.open(write=True) as store:
        await _tidy(store, now)
        made = await store.create(token)
    document = {"name": name, "role": token.role, "token": secret, "expires": made.expires}
    if join:
        document["join"] = _join_command(access, secret)
    output.show(document, lambda: _token_lines(document))


@command(app, "list")
async def list_tokens(access: Access, output: Output) -> None:
    """List the tokens in the store; their secrets are never shown again."""
    from outlive.resources import Token
    from outlive.store import list_all

    async with access.open(or_empty=True) as store:
        found = [one async for one in list_all(store, Token)]
    output.show(
        [
            {
                "name": one.name,
                "role": one.role,
                "host": one.host,
                "expires": one.expires,
                "lastUsed": one.last_used,
                "usedBy": one.used_by,
                "createdBy": one.created_by,
            }
            for one in found
        ],
        lambda: object_tables(found, wide=output.wide) if found else ["no tokens"],
    )


@command(app)
async def rotate(
    access: WriteAccess,
    output: Report,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As token list has it.")],
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="When the new one ends; else 90 days, at most 400 days.")
    ] = "",
) -> None:
    """Give a token another secret and show it, once; the old one is good until ten minutes after the new one is used.
    A host makes its own within two minutes. Revoke a stolen token instead."""
    from outlive.api import digest_of
    from outlive.base import SystemIds
    from outlive.resources import LASTS, Token
    from outlive.store import compare_and_swap

    secret, now, time = SystemIds().new_token(), access.clock.now(), _parse_lifetime(lasts)

    def change(token: Token | None) -> Token | None:
        if token is None:
            raise NotFound(f"there is no token {name[:80]!r}", remedy="see outlive token list")
        if token.role == "join":
            raise Refused(f"{token.name} is a join token", remedy="create another one: outlive token create --join")
        if token.machine_id:
            return msgspec.structs.replace(token, rotate=True)
        return token.with_next(digest_of(secret.encode()), now, time or LASTS)

    async with access.open(write=True) as store:
        found = await _find_token(store, name)
        wrote = await compare_and_swap(store, Token, found.name, change, clock=access.clock)
    assert wrote is not None
    if wrote.machine_id:
        said = f"{wrote.name}: its host renews it within two minutes, while its daemon runs"
        output.show({"name": wrote.name, "rotate": True}, lambda: [said])
        return
    document = {"name": wrote.name, "role": wrote.role, "token": secret, "expires": wrote.next_expires}
    output.show(document, lambda: _token_lines(document))


@command(app)
async def revoke(
    access: WriteAccess,
    output: Report,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As token list has it.")],
    yes: Yes = False,
) -> None:
    """Revoke a token at once, and ask before. A host is named as it is, or as host.NAME."""
    async with access.open(write=True) as store:
        found = await _find_token(store, name)
        ask(f"Revoke {found.name} ({found.role})? What uses it is refused from then on.", yes)
        await store.delete(found.ref)
    output.show({"revoked": found.name}, lambda: [f"{found.name} ({found.role}) is revoked"])


async def _find_token(store: Store, name: str) -> Token:
    """The token of that name, or of the host of that name; ``NotFound``."""
    from outlive.resources import HOST_TOKENS, Token
    from outlive.store import read

    found = await read(store, Token, name) or await read(store, Token, HOST_TOKENS + name)
    if found is None:
        raise NotFound(f"there is no token {name[:80]!r}", remedy="see outlive token list")
    return found


def _parse_lifetime(text: str) -> timedelta:
    """How long a token is to be good; nothing where nobody says so."""
    from outlive.resources import LONGEST
    from outlive.runtime import Duration

    if not text:
        return timedelta()
    try:
        time = timedelta(seconds=float(Duration.parse(text)))
    except (BadInput, ValueError, OverflowError):
        time = timedelta()
    if not timedelta() < time <= LONGEST:
        raise BadInput(
            f"{text[:80]!r} is no time that a token may last",
            place="--for",
            remedy=f"write 30m, 1h or 2160h; at most {LONGEST.days} days",
        )
    return time


async def _tidy(store: Store, now: Instant) -> None:
    """Delete join tokens that ended long ago; ``LimitExceeded`` where there are too many tokens."""
    from outlive.base import as_instant
    from outlive.resources import Token
    from outlive.store import list_all

    found = [one async for one in list_all(store, Token)]
    for one in found:
        ended = as_instant(one.expires) if one.expires is not None else now
        if one.role == "join" and now - ended > KEPT.total_seconds():
            await store.delete(one.ref)
    if len(found) >= TOKENS_LIMIT:
        raise LimitExceeded(
            f"there are {len(found)} tokens", remedy="revoke those that nobody uses: outlive token revoke"
        )


def _join_command(access: Access, secret: str) -> str:
    """What is typed on the host, as far as this machine knows the server's address and authority."""
    server = living_server(access.directory) if access.server is None else None
    url = access.server or (server.url if server is not None else "URL")
    pinned = access.fingerprint or (server.fingerprint if server is not None else "")
    parts = urlsplit(url)
    if pinned and parts.hostname in ("127.0.0.1", "::1", "localhost"):
        url = f"{parts.scheme}://{socket.gethostname()}:{parts.port}"
    return f"outlive node join {url} --token {secret}" + (f" --fingerprint {pinned}" if pinned else "")


def _token_lines(document: dict[str, Any]) -> list[str]:
    until = f", good until {document['expires']:%Y-%m-%d %H:%M} UTC" if document["expires"] else ""
    lines = [f"{document['name']} ({document['role']}{until}); shown only now:", document["token"]]
    return [*lines, f"on the host: {document['join']}"] if "join" in document else lines

"""Real receivers of notifications: a mail server with STARTTLS and a password, and an HTTPS server, on this machine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from outlive.api import AUTHORITY_FILE, ServerTls, names_of
from outlive.base import SystemClock

CLOSING_TURNS = 10
"""Turns of the loop in which connections that were aborted let go of their sockets."""


def receiver_tls(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for this machine, and the file of the authority that signed its certificate."""
    directory.mkdir(exist_ok=True)
    tls = ServerTls(directory, names_of("127.0.0.1"), SystemClock())
    return tls.context, directory / AUTHORITY_FILE


@dataclass
class Mailbox:
    """What arrived by mail, and as whom the sender logged in."""

    port: int = 0
    mails: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    refuse: str = ""
    """The answer to a recipient, such as ``550 no such user``."""


@asynccontextmanager
async def mail_server(tls: ssl.SSLContext, password: str) -> AsyncIterator[Mailbox]:
    """An SMTP server that takes mails only after STARTTLS and a login as ``outlive``."""
    mailbox, writers = Mailbox(), list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _converse(reader, writer, mailbox, tls, password)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    mailbox.port = server.sockets[0].getsockname()[1]
    async with server:
        yield mailbox
    for writer in writers:  # a client that has gone is not waited for: the loop may end before its goodbye comes
        writer.transport.abort()
    for _ in range(CLOSING_TURNS):
        await asyncio.sleep(0)


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mailbox: Mailbox, tls: ssl.SSLContext, password: str
) -> None:
    secure = known = False

    def say(line: str) -> None:
        writer.write(f"{line}\r\n".encode())

    say("220 test")
    while line := (await reader.readline()).decode().strip():
        verb = line.split()[0].upper()
        if verb == "EHLO":
            say("250-test")
            say("250 AUTH PLAIN" if secure else "250 STARTTLS")
        elif verb == "STARTTLS":
            say("220 go on")
            await writer.start_tls(tls)
            secure = True
        elif verb == "AUTH" and secure:
            _, user, given = base64.b64decode(line.split()[2]).decode().split("\0")
            known = (user, given) == ("outlive", password)
            mailbox.logins.append(user)
            say("235 welcome" if known else "535 wrong password")
        elif verb in ("MAIL", "DATA", "RCPT") and not known:
            say("530 log in first")
        elif verb == "RCPT" and mailbox.refuse:
            say(mailbox.refuse)
        elif verb == "DATA":
            say("354 go on")
            mailbox.mails.append((await reader.readuntil(b"\r\n.\r\n")).decode())
            say("250 taken")
        elif verb == "QUIT":
            say("221 bye")
            return
        else:
            say("250 ok")


@dataclass
class Hook:
    """What arrived at a webhook: the headers and the body of each request."""

    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200


@asynccontextmanager
async def https_server(tls: ssl.SSLContext) -> AsyncIterator[Hook]:
    """An HTTPS server that takes every POST, or answers ``status``."""
    hook = Hook()

    async def take(request: web.Request) -> web.Response:
        hook.requests.append((dict(request.headers), await request.read()))
        headers = {"Location": "http://127.0.0.1:1/elsewhere"} if hook.status // 100 == 3 else {}
        return web.Response(status=hook.status, text="thank you", headers=headers)

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    hook.url = f"https://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield hook
    finally:
        await runner.cleanup()

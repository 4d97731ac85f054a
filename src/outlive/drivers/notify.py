"""Targets of notifications: a webhook, a mail server, a program, and who is called while all is well.

Secrets are read from their files for each message, so that a new one counts at once, and stand in no message and no
error. Webhooks follow no redirection: a signed message goes to the address that the settings name, and nowhere else
(docs/how-to/notifications.md).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import smtplib
import ssl
from collections.abc import Callable
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from outlive.base import BadInput, OutliveError, Unavailable, read_private
from outlive.drivers.commands import run
from outlive.runtime import (
    CommandSettings,
    HeartbeatSettings,
    MailSettings,
    NotificationMessage,
    NotificationTarget,
    NotifierPorts,
    NotifySettings,
    WebhookSettings,
)

SIGNATURE_HEADER: Final = "Outlive-Signature"
"""``sha256=`` and the HMAC-SHA256 of the body, in hexadecimal digits; ``sentAt`` in the body is signed with it."""
ID_HEADER: Final = "Outlive-Message"
SECRET_BYTES: Final = 4096
ANSWER_BYTES: Final = 512
"""What is read of an answer."""
SOCKET_S: Final = 8.0
"""How long a mail server may take for one answer."""
_FAILED = "see whether it runs and takes what is sent; outlive notify test tries it"


class WebhookTarget:
    """See ``WebhookSettings``."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings

    async def send(self, message: NotificationMessage) -> str:
        """One POST; every 2xx is an answer."""
        body = msgspec.json.encode(message)
        headers = {"Content-Type": "application/json", ID_HEADER: message.id}
        if self._settings.secret_file:
            signature = hmac.new(_read_secret(self._settings.secret_file), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE_HEADER] = f"sha256={signature}"
        return await _post(self._settings.url, self._settings.ca_file, body, headers)


class HttpHeartbeat:
    """See ``HeartbeatSettings``."""

    def __init__(self, settings: HeartbeatSettings) -> None:
        self._settings = settings

    async def ping(self) -> None:
        """One empty POST."""
        try:
            async with asyncio.timeout(SOCKET_S):
                await _post(self._settings.url, self._settings.ca_file, b"", {})
        except TimeoutError:
            raise Unavailable(f"did not answer within {SOCKET_S:g} s", remedy=_FAILED) from None


async def _post(url: str, ca_file: str, body: bytes, headers: dict[str, str]) -> str:
    try:
        async with (
            aiohttp.ClientSession(trust_env=True) as session,
            session.post(
                url, data=body, headers=headers, ssl=_build_tls_context(ca_file), allow_redirects=False
            ) as answer,
        ):
            text = " ".join((await answer.content.read(ANSWER_BYTES)).decode(errors="replace").split())
            said = f"{answer.status} {answer.reason or ''}".strip() + (f": {text}" if text else "")
            if answer.status // 100 != 2:
                raise Unavailable(f"answered {said}", remedy=_FAILED)
            return said
    except aiohttp.ClientError as error:
        raise Unavailable(f"cannot be reached: {_error_reason(error)}", remedy=_FAILED) from None


def _error_reason(error: Exception) -> str:
    """What went wrong, without an address: those of webhooks may be secrets."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not believed: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error)
    return type(error).__name__


def _build_tls_context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"cannot be used: {error}", place=ca_file, remedy="name a PEM file of authorities") from None


def _read_secret(file: str) -> bytes:
    found = read_private(Path(file), limit=SECRET_BYTES).strip()
    if not found:
        raise BadInput("holds no secret", place=file, remedy="write it into it")
    return found


class MailTarget:
    """See ``MailSettings``; ``smtplib`` runs in a thread."""

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings

    async def send(self, message: NotificationMessage) -> str:
        """One mail; its ``Message-ID`` is the message's own."""
        settings = self._settings
        password = _read_secret(settings.password_file).decode(errors="replace") if settings.password_file else ""
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = message.title, settings.sender, ", ".join(settings.to)
        mail["Message-ID"] = f"<{message.id}@{settings.sender.rpartition('@')[2]}>"
        mail["Date"] = format_datetime(message.sent_at)
        mail["Auto-Submitted"] = "auto-generated"  # so that no machine answers it
        mail.set_content(message.text)
        return await asyncio.to_thread(self._deliver, mail, password)

    def _deliver(self, mail: EmailMessage, password: str) -> str:
        settings = self._settings
        host, _, port = settings.server.rpartition(":")
        context = _build_tls_context(settings.ca_file)
        connect: Callable[..., Any] = smtplib.SMTP_SSL if settings.tls == "tls" else smtplib.SMTP
        options = {"context": context} if settings.tls == "tls" else {}
        try:
            with connect(host.strip("[]"), int(port), timeout=SOCKET_S, **options) as server:
                if settings.tls == "starttls":
                    server.starttls(context=context)
                if settings.username:
                    server.login(settings.username, password)
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            raw = error.smtp_error
            text = " ".join((raw.decode(errors="replace") if isinstance(raw, bytes) else raw).split())
            raise Unavailable(f"answered {error.smtp_code} {text}", remedy=_FAILED) from None
        except (smtplib.SMTPException, OSError) as error:
            raise Unavailable(f"cannot be reached: {error}", remedy=_FAILED) from None
        if refused:
            raise Unavailable(f"took the mail, but not for {', '.join(sorted(refused))}", remedy=_FAILED)
        return f"taken by {settings.server} for {', '.join(settings.to)}"


class CommandTarget:
    """See ``CommandSettings``."""

    def __init__(self, settings: CommandSettings) -> None:
        self._settings = settings

    async def send(self, message: NotificationMessage) -> str:
        """One run; 0 is an answer."""
        limit_s = float(self._settings.timeout)
        ended = await run(self._settings.argv, limit_s=limit_s, stdin=msgspec.json.encode(message))
        said = " ".join((ended.out or ended.err).split())
        if ended.killed:
            raise Unavailable(f"{self._settings.argv[0]} was killed after {limit_s:g} s", remedy=_FAILED)
        if ended.code != 0:
            raise Unavailable(f"{self._settings.argv[0]} ended with {ended.code}: {said}", remedy=_FAILED)
        return f"ended with 0{f': {said}' if said else ''}"


def notifier_ports(settings: NotifySettings) -> NotifierPorts:
    """The targets of the settings. ``BadInput`` where a file that one names cannot be used."""
    for name, one in settings.targets.items():
        for file in (getattr(one, "secret_file", ""), getattr(one, "password_file", "")):
            if file:
                _check_file(name, file)
        if ca_file := getattr(one, "ca_file", ""):
            _build_tls_context(ca_file)
    targets: dict[str, NotificationTarget] = {
        **{name: WebhookTarget(one) for name, one in settings.webhooks.items()},
        **{name: MailTarget(one) for name, one in settings.mails.items()},
        **{name: CommandTarget(one) for name, one in settings.commands.items()},
    }
    heartbeat = HttpHeartbeat(settings.heartbeat) if settings.heartbeat.url else None
    return NotifierPorts(targets, heartbeat)


def _check_file(name: str, file: str) -> None:
    try:
        _read_secret(file)
    except OutliveError as error:
        raise BadInput(error.message, place=f"notify: {name}: {file}", remedy=error.remedy) from None

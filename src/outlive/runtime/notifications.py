"""Who is told of faults, and when: the settings, and the decision what one target is to be told now. Pure.

What a target was told stands in ``Notification`` beside the fault. So the decision needs nothing but faults, what was
told of them and the time; a process that crashes between a message and its record sends the message again, with the
same ids (docs/how-to/notifications.md).
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from outlive.base import Instant, OutliveError, as_datetime, as_instant
from outlive.resources import TARGETS_LIMIT, Delivery, Fault, ObjectMeta, ObjectRef
from outlive.resources.reasons import FaultCode, Severity, severity_of
from outlive.runtime.units import Duration
from outlive.store import check_address

NOTICES_LIMIT: Final = 100
"""Faults of one message; of more the next one tells."""
HEARTBEAT: Final = "heartbeat"
"""The name under which a heartbeat fails."""
TARGET_KIND: Final = "NotificationTarget"
"""Kind of the subject of ``notify-failing``."""
ID_DIGITS: Final = 24
REPEAT_LEAST: Final = 60.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z")
_ADDRESS = re.compile(r"[^@\s,<>\"]{1,64}@[^@\s,<>\"]{1,200}\Z")


# Settings


class TargetSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What targets of every kind are set to."""

    severities: tuple[Severity, ...] = (Severity.CRITICAL, Severity.WARNING)
    """Severities of faults that it gets."""
    repeat: Duration = Duration(4 * 3600.0)
    """Pause between messages of an active fault; 0: only one."""
    resolved: bool = True
    """Also send the end of a fault."""
    timeout: Duration = Duration(10.0)
    """Timeout of a message, at most a minute."""

    def __post_init__(self) -> None:
        if 0 < self.repeat < REPEAT_LEAST:
            raise ValueError(f"repeat {self.repeat} is less than a minute")
        if not 0 < self.timeout <= 60:
            raise ValueError(f"timeout {self.timeout} is not above 0 and at most 1m")
        if not self.severities:
            raise ValueError("severities names none: take the target out instead")


class WebhookSettings(TargetSettings, frozen=True, kw_only=True):
    """A message is one POST of JSON."""

    url: str
    """``https://…``; plain HTTP only to this machine."""
    secret_file: str = ""
    """File with the key of the signature; readable by the server's user only."""
    ca_file: str = ""
    """Trusted authorities (PEM); empty: those of the system."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_url(self.url)


class MailSettings(TargetSettings, frozen=True, kw_only=True):
    """A message is one mail, by SMTP."""

    server: str
    """Host and port of the mail server, such as ``mail.example:587``."""
    tls: Annotated[str, Meta(pattern="^(starttls|tls|none)$")] = "starttls"
    """``starttls``, ``tls``, or ``none`` (for a mail server on this machine)."""
    ca_file: str = ""
    """Trusted authorities (PEM); empty: those of the system."""
    username: str = ""
    """User name; empty: no login."""
    password_file: str = ""
    """File with the password; readable by the server's user only."""
    sender: str
    """Sender of mails."""
    to: Annotated[tuple[str, ...], Meta(min_length=1, max_length=50)]
    """Recipients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in (self.sender, *self.to):
            if not _ADDRESS.match(one):
                raise ValueError(f"{one[:80]!r} is no mail address; write one such as oncall@example.org")
        host, colon, port = self.server.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"server {self.server[:80]!r} is no HOST:PORT; write one such as mail.example:587")
        if bool(self.username) != bool(self.password_file):
            raise ValueError("username and passwordFile go together: set both or none")
        if self.tls == "none":
            _check_url(f"http://{self.server}")


class CommandSettings(TargetSettings, frozen=True, kw_only=True):
    """A message is one run of a program, which reads it as JSON from its standard input."""

    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Program and arguments, without a shell; it must exit with 0 within ``timeout``."""


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A request that is sent as long as all is well here; who gets it says when it stays away."""

    url: str = ""
    """Receiver of a POST, ``https://…``; plain HTTP only to this machine; empty: none."""
    every: Duration = Duration(60.0)
    """How often."""
    ca_file: str = ""
    """Trusted authorities (PEM); empty: those of the system."""

    def __post_init__(self) -> None:
        if self.url:
            _check_url(self.url)
        if self.every < 5:
            raise ValueError(f"every {self.every} is less than 5s")


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Notifications of faults, by names that you choose."""

    cluster: str = ""
    """Name of the cluster in messages; empty: the server's host name."""
    webhooks: dict[str, WebhookSettings] = {}
    """Targets by name that get JSON by HTTPS."""
    mails: dict[str, MailSettings] = {}
    """Targets by name that get mail."""
    commands: dict[str, CommandSettings] = {}
    """Targets by name that are programs."""
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    """What is told that the server works."""

    def __post_init__(self) -> None:
        names = [*self.webhooks, *self.mails, *self.commands]
        for name in names:
            if not _NAME.match(name) or name == HEARTBEAT:
                raise ValueError(f"{name[:80]!r} cannot be the name of a target; write small letters, digits and '-'")
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"two targets are called {twice}")
        if len(names) > TARGETS_LIMIT:
            raise ValueError(f"{len(names)} targets are more than {TARGETS_LIMIT}")

    @property
    def targets(self) -> dict[str, TargetSettings]:
        """All targets by name."""
        return {**self.webhooks, **self.mails, **self.commands}


def _check_url(url: str) -> None:
    try:
        check_address(url)
    except OutliveError as error:
        raise ValueError(f"{error.message}".replace("the token", "what is sent")) from None


# Messages


class NoticeEvent(enum.StrEnum):
    """Why a target is told."""

    OPENED = "opened"
    REPEATED = "repeated"
    RESOLVED = "resolved"
    TEST = "test"


class Notice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is told of one fault."""

    id: str
    """The same each time that this is sent, so that who gets it twice drops one."""
    event: NoticeEvent
    fault: str
    """Its name, by which it is acknowledged."""
    code: str
    severity: Severity
    subject: ObjectRef
    message: str
    remedy: str
    since: datetime


class NotificationMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One message to one target."""

    version: int = 1
    cluster: str
    target: str
    sent_at: datetime
    notices: tuple[Notice, ...]

    @property
    def id(self) -> str:
        """The same for the same notices."""
        return _compute_digest(self.target, *(one.id for one in self.notices))

    @property
    def title(self) -> str:
        """One line: the worst of it, and how much more there is."""
        order = list(Severity)
        first = min(self.notices, key=lambda one: (one.event is NoticeEvent.RESOLVED, order.index(one.severity)))
        word = "resolved" if first.event is NoticeEvent.RESOLVED else str(first.severity)
        more = f" (and {len(self.notices) - 1} more)" if len(self.notices) > 1 else ""
        return " ".join(f"[{self.cluster}] {word}: {first.code} {first.subject.name}{more}".split())

    @property
    def text(self) -> str:
        """For people: a paragraph for each notice."""
        parts = []
        for one in self.notices:
            since = f"since {one.since:%Y-%m-%d %H:%M:%S} UTC"
            state = {NoticeEvent.RESOLVED: "resolved", NoticeEvent.REPEATED: f"{one.severity}, still so"}
            lines = [f"{state.get(one.event, one.severity)}: {one.code} {one.subject.name}, {since}", one.message]
            if one.remedy and one.event is not NoticeEvent.RESOLVED:
                lines.append(f"what helps: {one.remedy}")
            parts.append("\n".join(lines))
        return "\n\n".join(parts) + "\n"


def test_message(cluster: str, target: str, now: Instant, nonce: str) -> NotificationMessage:
    """A message that says nothing but that messages arrive."""
    notice = Notice(
        id=_compute_digest(target, nonce),
        event=NoticeEvent.TEST,
        fault="test",
        code="test",
        severity=Severity.INFO,
        subject=ObjectRef(kind=TARGET_KIND, name=target),
        message=f"a test of the notifications of {cluster}: nothing is wrong",
        remedy="",
        since=as_datetime(now),
    )
    return NotificationMessage(cluster=cluster, target=target, sent_at=as_datetime(now), notices=(notice,))


# The decision

Told = Mapping[str, Mapping[str, Delivery]]
"""Fault → target → what it was last told of that fault."""


def due_notices(
    faults: Iterable[Fault],
    told: Told,
    target: str,
    settings: TargetSettings,
    now: Instant,
    is_quiet: Callable[[Fault], bool] = lambda _: False,
) -> list[Notice]:
    """What the target is to be told now, the worst first; ``faults`` are all that are recorded, ended ones too.

    A fault that comes is told once, unless somebody acknowledged it before; while it goes on and nobody acknowledges
    it, again after ``repeat``; and its end, where its beginning was told, also of one that was deleted. In maintenance
    (``is_quiet``) only ends are told. A target is never told that it fails itself.
    """
    found = list[Notice]()
    seen = set[str]()
    for fault in faults:
        seen.add(fault.name)
        before = told.get(fault.name, {}).get(target)
        event = _decide_event(fault, before, settings, now, is_quiet)
        is_own = fault.code == FaultCode.NOTIFY_FAILING and fault.subject.name == target
        if event is not None and not is_own:
            found.append(_build_notice(fault, event, before, target))
    for name, deliveries in told.items():
        if name not in seen and target in deliveries and settings.resolved:
            before, (code, _, subject) = deliveries[target], name.partition(".")
            deleted = Fault(
                metadata=ObjectMeta(name=name),
                code=code,
                subject=ObjectRef(kind="", name=subject),
                message="it is not recorded any more",
                ended=True,
                first_seen=before.since,
                last_seen=before.at,
            )
            found.append(_build_notice(deleted, NoticeEvent.RESOLVED, before, target))
    order = list(Severity)
    return sorted(found, key=lambda one: (order.index(one.severity), one.since, one.fault))


def _decide_event(
    fault: Fault,
    before: Delivery | None,
    settings: TargetSettings,
    now: Instant,
    is_quiet: Callable[[Fault], bool],
) -> NoticeEvent | None:
    if fault.ended:
        return NoticeEvent.RESOLVED if before is not None and settings.resolved else None
    if severity_of(fault.code) not in settings.severities or fault.acknowledged or is_quiet(fault):
        return None
    if before is None or before.since != fault.first_seen:
        return NoticeEvent.OPENED
    repeats = settings.repeat > 0 and now - as_instant(before.at) >= settings.repeat
    return NoticeEvent.REPEATED if repeats else None


def _build_notice(fault: Fault, event: NoticeEvent, before: Delivery | None, target: str) -> Notice:
    goes_on = before is not None and event is not NoticeEvent.OPENED
    since = before.since if before is not None and goes_on else fault.first_seen
    number = before.count if before is not None and goes_on else 0
    return Notice(
        id=_compute_digest(target, fault.name, since.isoformat(), event, str(number)),
        event=event,
        fault=fault.name,
        code=fault.code,
        severity=severity_of(fault.code),
        subject=msgspec.structs.replace(fault.subject, uid=""),
        message=fault.message,
        remedy=fault.remedy,
        since=since,
    )


def record_delivery(before: Delivery | None, notice: Notice, target: str, now: Instant) -> Delivery | None:
    """What is recorded once the target was told; ``None``: nothing more is to be said of the fault."""
    if notice.event is NoticeEvent.RESOLVED:
        return None
    count = before.count + 1 if before is not None and notice.event is NoticeEvent.REPEATED else 1
    return Delivery(target=target, since=notice.since, at=as_datetime(now), count=count)


def is_settled(fault: Fault | None, delivery: Delivery, targets: Mapping[str, TargetSettings]) -> bool:
    """Whether what was told needs no record any more: the fault has ended, and this target is not told of ends, or is
    none any more."""
    ended = fault is None or fault.ended
    settings = targets.get(delivery.target)
    return ended and (settings is None or not settings.resolved)


def _compute_digest(*parts: Any) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:ID_DIGITS]

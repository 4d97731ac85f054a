"""The audit log: who did what to which object with which token, in lines that prove each other.

Each line is a JSON document whose last member is the SHA-256 of the line before it and of the rest of the line, so a
line that was changed, left out or put in shows (``verify``). What was cut off at the end shows only to somebody who
kept a later digest: the server logs the newest one now and then (docs/operating/audit.md). Values that were written
are not in it, since some are secret; the fields that differ are.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, Protocol

import msgspec

from outlive.base.clock import Instant
from outlive.base.errors import Refused
from outlive.resources import ObjectRef
from outlive.resources.cluster import CLUSTER
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import ActiveFault
from outlive.runtime.units import Size

FIELDS: Final = 20
"""Changed fields that an entry names, each by at most ``TEXT`` characters."""
TEXT: Final = 256
"""Characters of a name or path in an entry."""
FIRST: Final = "0" * 64
"""The digest before the first entry."""
WINDOW_S: Final = 300.0
"""Over how long refusals are counted."""
SURGE: Final = 100
"""Refusals in that time that are a surge: a program with a wrong token, or somebody who tries doors."""
REFUSALS_KEPT: Final = 10_000
CLIENTS_NAMED: Final = 3
_DIGEST: Final = b',"digest":"'


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What the server writes down of who did what."""

    routine: bool = False
    """Also what hosts and controllers write all the time: renewals of leases and roles, figures, logs, events,
    decisions, faults."""
    file_size: Size = Size(16 * 2**20)
    """A larger file is followed by the next one."""
    files: int = 64
    """Files that are kept."""

    def __post_init__(self) -> None:
        if self.file_size < 4096:
            raise ValueError(f"fileSize {self.file_size} is less than 4096")
        if self.files < 2:
            raise ValueError(f"files {self.files} is less than 2")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One request, as it ended."""

    number: int = 0
    at: datetime
    token: str = ""
    """Name of the token; empty where none was known."""
    role: str = ""
    host: str = ""
    """That the token belongs to."""
    client: str = ""
    """Address that it came from."""
    verb: str
    """``create``, ``update``, ``delete``, ``read`` (of what is secret), or the method of another route; ``dry-run`` and
    one of these for what was only tried."""
    object: str
    """``Kind/name``, with ``/status`` for that half; the path of another route."""
    fields: tuple[str, ...] = ()
    """That were changed, at most ``FIELDS``."""
    version: str = ""
    """Of the object, after it."""
    status: int
    code: str = ""
    """Why it was refused."""
    request_id: str = ""
    omitted: int = 0
    """Entries before this one that were not written: the disk was slow or full, or there were too many refusals."""
    previous: str = ""
    """Digest of the entry before it."""


class AuditLog(Protocol):
    """Where entries go. ``put`` waits for nothing."""

    def put(self, entry: AuditEntry) -> None:
        """Write it soon, or count it as omitted."""
        ...


class AuditChain:
    """Makes lines of entries, each bound to the one before."""

    def __init__(self, number: int = 0, digest: str = FIRST) -> None:
        self.number = number
        """Of the last entry."""
        self.digest = digest

    def line(self, entry: AuditEntry) -> bytes:
        """The next line, with its end."""
        self.number += 1
        body = msgspec.json.encode(msgspec.structs.replace(entry, number=self.number, previous=self.digest))
        self.digest = digest_of(self.digest, body)
        return body[:-1] + _DIGEST + self.digest.encode() + b'"}\n'


class AuditLine(msgspec.Struct, frozen=True):
    """A line that was read, and what it says itself."""

    entry: AuditEntry
    digest: str
    body: bytes


def digest_of(previous: str, body: bytes) -> str:
    """Of a line: of the digest before it, and the line without its own."""
    return hashlib.sha256(previous.encode() + body).hexdigest()


def parse_line(raw: bytes) -> AuditLine | None:
    """A line of the log; ``None`` where it is none, or torn."""
    head, mark, tail = raw.rstrip(b"\n").rpartition(_DIGEST)
    if not mark or not tail.endswith(b'"}'):
        return None
    body = head + b"}"
    try:
        return AuditLine(msgspec.json.decode(body, type=AuditEntry), tail[:-2].decode(), body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def verify(lines: Iterable[tuple[str, bytes, bool]], head: str = "") -> tuple[int, str]:
    """How many entries there are, and the newest digest; ``Refused`` names the first line that does not follow from the
    one before it.

    Each line comes with the place that it stands in, and whether it ends its file: a torn line there is one that a
    crash cut short. ``head``: a digest that must be among them, so that nothing after it was cut off.
    """
    count, previous, met = 0, "", not head
    for place, raw, last in lines:
        read = parse_line(raw)
        if read is None:
            if last and not raw.endswith(b"\n"):
                continue
            raise Refused(f"{place} is no entry", remedy="the file was changed: compare it with a copy")
        if digest_of(read.entry.previous, read.body) != read.digest or (count and read.entry.previous != previous):
            raise Refused(
                f"{place} does not follow from the entry before it",
                remedy="an entry was changed, left out or put in: compare the file with a copy",
            )
        count, previous = count + 1, read.digest
        met = met or previous == head
    if not met:
        raise Refused(f"no entry has the digest {head}", remedy="the log was cut off or replaced after that entry")
    return count, previous


class Refusals:
    """Counts refused requests over ``WINDOW_S``, so that a surge is one fault and does not fill the log."""

    def __init__(self) -> None:
        self._recent: deque[tuple[Instant, str, str]] = deque()
        self._of = Counter[str]()
        """How many of them by token."""

    def add(self, at: Instant, client: str, token: str = "") -> bool:
        """Count one; false where it is one of so many with this token (empty: with none that is known) that it need
        not be written down: what is tried with a token is not hidden behind a flood without one."""
        self._forget(at)
        if len(self._recent) == REFUSALS_KEPT:
            self._drop()
        self._recent.append((at, client, token))
        self._of[token] += 1
        return self._of[token] <= SURGE

    def surge(self, at: Instant) -> str:
        """How many there were and where they came from, if they are a surge; else empty."""
        self._forget(at)
        if len(self._recent) < SURGE:
            return ""
        clients = Counter(client for _, client, _ in self._recent).most_common(CLIENTS_NAMED)
        return f"{len(self._recent)}, of them {', '.join(f'{count} from {client}' for client, count in clients)}"

    def _forget(self, at: Instant) -> None:
        while self._recent and self._recent[0][0] < at - WINDOW_S:
            self._drop()

    def _drop(self) -> None:
        """The oldest one."""
        _, _, token = self._recent.popleft()
        self._of[token] -= 1
        if not self._of[token]:
            del self._of[token]


def audit_faults(*, omitted: int, failure: str, surge: str) -> list[ActiveFault]:
    """Faults of the log itself, and of a surge of refusals (``Refusals.surge``)."""
    cluster, found = ObjectRef(kind="Cluster", name=CLUSTER), list[ActiveFault]()
    if failure:
        found.append(ActiveFault(FaultCode.AUDIT_NOT_WRITTEN, cluster, {"omitted": omitted, "why": failure}))
    if surge:
        found.append(ActiveFault(FaultCode.REFUSALS_SURGE, cluster, {"window_s": WINDOW_S, "count": surge}))
    return found


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries somebody asks for; empty members ask for all."""

    token: str = ""
    object: str = ""
    """``Kind/name`` or the beginning of it, in any case of letters."""
    since: datetime | None = None
    refused: bool = False

    def matches(self, entry: AuditEntry) -> bool:
        """Whether it is one of them."""
        return (
            self.token in ("", entry.token)
            and entry.object.lower().startswith(self.object.lower())
            and (self.since is None or entry.at >= self.since)
            and (not self.refused or entry.status >= 400)
        )


def select(lines: Iterable[bytes], wanted: AuditFilter) -> Iterator[AuditEntry]:
    """The entries that somebody asks for, in order; what is no entry is passed over."""
    for raw in lines:
        read = parse_line(raw)
        if read is not None and wanted.matches(read.entry):
            yield read.entry

"""The audit log: who did what to which object with which token, in lines that prove each other.

Each line is a JSON document whose last member is the SHA-256 of the line before it and of the rest of the line, so a
line that was changed, left out or put in shows (``verify``). What was cut off at the end shows only to somebody who
kept a later digest: the server logs the newest one now and then (docs/how-to/audit.md). Values that were written
are not in it, since some are secret; the fields that differ are.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import msgspec

from outlive.base import Instant, Refused
from outlive.resources import CLUSTER, ObjectRef
from outlive.resources.reasons import FaultCode
from outlive.runtime.faults import ActiveFault
from outlive.runtime.units import Duration, Size

FIELDS: Final = 20
"""Changed fields that an entry names, each by at most ``TEXT`` characters."""
FIELDS_BYTES: Final = 2048
"""All of them together."""
ENTRY_BYTES: Final = 8192
"""No entry is longer."""
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
DAY_S: Final = 86_400.0
SHARE_MIN_BYTES: Final = 256 * 1024
"""What each token may write in a day, however small the log is."""
SHOWN_S: Final = 3600.0
"""How long a fault names a token after its last entry that was only counted."""
SUMMARY: Final = "summary"
"""The verb of an entry that counts several."""
COUNT_TEXT: Final = 80
"""Characters of what a summary counts."""
_DIGEST: Final = b',"digest":"'
LINE_REST: Final = 200
"""Bytes of a line beside its entry: two digests, a number."""


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The audit log."""

    routine: bool = False
    """Also log routine writes of hosts and controllers."""
    file_size: Size = Size(16 * 2**20)
    """Size at which the next file begins."""
    files: int = 64
    """Files to keep; the oldest goes first."""
    keep: Duration = Duration(30 * DAY_S)
    """How long entries are kept; a fault reports if ``files`` is too small for that."""

    def __post_init__(self) -> None:
        if self.file_size < 4096:
            raise ValueError(f"fileSize {self.file_size} is less than 4096")
        if self.files < 2:
            raise ValueError(f"files {self.files} is less than 2")

    @property
    def token_bytes(self) -> int:
        """What one token may write in a day."""
        days = max(1.0, float(self.keep) / DAY_S)
        return max(SHARE_MIN_BYTES, int(self.files * self.file_size / 2 / days))


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
    """``create``, ``update``, ``delete``, ``read`` (of what is secret), ``watch`` (the same, when it begins), or the
    method of another route; ``dry-run`` and one of these for what was only tried; ``summary`` of several entries."""
    object: str
    """``Kind/name``, with ``/status`` for that half; the path of another route."""
    fields: tuple[str, ...] = ()
    """That were changed, at most ``FIELDS``, and how many more."""
    counts: tuple[str, ...] = ()
    """In a summary: ``update VirtualMachine 812``."""
    version: str = ""
    """Of the object, after it."""
    status: int
    code: str = ""
    """Why it was refused."""
    request_id: str = ""
    omitted: int = 0
    """Entries before this one that were not written: the disk was slow or full, a crash cut one short, or there were
    too many."""
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

    def next_line(self, entry: AuditEntry) -> bytes:
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


def shorten(text: str) -> str:
    """At most ``TEXT`` characters, and no control characters, of which JSON makes six bytes each."""
    return "".join(one if one.isprintable() else "?" for one in text[:TEXT])


def shorten_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """The first of the changed fields, as far as an entry names them, and how many more there are."""
    named, size = list[str](), 0
    for field in map(shorten, fields[:FIELDS]):
        size += len(field.encode())
        if size > FIELDS_BYTES:
            break
        named.append(field)
    more = len(fields) - len(named)
    return (*named, f"and {more} more") if more else tuple(named)


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


class Verified(NamedTuple):
    """What a log that holds together consists of."""

    entries: int
    """That are there."""
    digest: str
    """Of the newest."""
    first: int = 0
    """Number of the oldest."""
    begin: datetime | None = None
    """Its time."""
    omitted: int = 0
    """Entries that the log says are missing in it."""


def verify(lines: Iterable[tuple[str, bytes, bool]], head: str = "", *, first: int = 0) -> Verified:
    """What is there; ``Refused`` names the first line that does not follow from the one before it.

    Each line comes with the place that it stands in, and whether it ends its file: a torn line there is one that a
    crash cut short. ``head``: a digest that must be among them, so that nothing after it was cut off. ``first``: an
    entry that must be among them, so that nothing after it has gone at the beginning.
    """
    found, met, torn = Verified(0, ""), not head, 0
    for place, raw, last in lines:
        if last and not raw.endswith(b"\n"):
            torn = 1
            continue
        read = parse_line(raw)
        if read is None:
            raise Refused(f"{place} is no entry", remedy="the file was changed: compare it with a copy")
        entry, follows = read.entry, not found.entries or read.entry.previous == found.digest
        if digest_of(entry.previous, read.body) != read.digest or not follows:
            raise Refused(
                f"{place} does not follow from the entry before it",
                remedy="an entry was changed, left out or put in: compare the file with a copy",
            )
        if not found.entries:
            found = Verified(0, "", entry.number, entry.at)
        omitted = found.omitted + entry.omitted
        found, torn = found._replace(entries=found.entries + 1, digest=read.digest, omitted=omitted), 0
        met = met or read.digest == head
    if not met:
        raise Refused(f"no entry has the digest {head}", remedy="the log was cut off or replaced after that entry")
    if first and not found.first <= first < found.first + found.entries:
        raise Refused(
            f"entry {first} is not there: the log has {found.first} to {found.first + found.entries - 1}",
            remedy="look for it in copies of older files; see audit.files and audit.keep",
        )
    return found._replace(omitted=found.omitted + torn)


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

    def describe_surge(self, at: Instant) -> str:
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


class _TokenUse:
    """What a token has written of late."""

    def __init__(self, at: Instant) -> None:
        self.bytes = 0.0
        self.at = at
        """Of the last entry."""
        self.due = at
        """When the next summary may be written."""
        self.counts = Counter[str]()
        """What is in no summary yet."""
        self.counted = 0
        """Entries that were only counted, until a fault names the token no more."""
        self.counted_at: Instant | None = None
        """The last of them."""
        self.latest: AuditEntry | None = None


class TokenShares:
    """Gives each token a share of the log, so that none fills it until it has forgotten what others did.

    A token may write ``bytes_per_day`` at once, and it gets them back over a day; half of them are kept for what
    changed something and is no routine. Entries beyond that are counted, and one entry in ``WINDOW_S`` says which and
    how many.
    """

    def __init__(self, bytes_per_day: int) -> None:
        self._share = float(bytes_per_day)
        self._tokens: dict[str, _TokenUse] = {}

    def take(self, entry: AuditEntry, now: Instant, *, changed: bool) -> bool:
        """Whether the entry is written; else it is counted."""
        spent = self._tokens.setdefault(entry.token, _TokenUse(now))
        spent.bytes = max(0.0, spent.bytes - max(0.0, now - spent.at) * self._share / DAY_S)
        spent.at = now
        size = len(msgspec.json.encode(entry)) + LINE_REST
        if spent.bytes + size <= (self._share if changed else self._share / 2):
            spent.bytes += size
            return True
        kind = entry.object.partition("/")[0] or entry.object
        what = f"{entry.verb} {kind}"[:COUNT_TEXT]
        spent.counts[what if what in spent.counts or len(spent.counts) < FIELDS else "others"] += 1
        spent.counted += 1
        spent.counted_at, spent.latest = now, entry
        return False

    def take_summaries(self, now: Instant, *, ended: bool = False) -> list[AuditEntry]:
        """Entries of what was counted, one a token and ``WINDOW_S``; all that there is if the log ``ended``."""
        found = list[AuditEntry]()
        for name in [name for name, one in self._tokens.items() if one.at <= now - DAY_S and not one.counts]:
            del self._tokens[name]
        for spent in self._tokens.values():
            latest, counts = spent.latest, spent.counts
            if counts and latest is not None and (ended or now >= spent.due):
                found.append(
                    AuditEntry(
                        at=latest.at,
                        token=latest.token,
                        role=latest.role,
                        host=latest.host,
                        client=latest.client,
                        verb=SUMMARY,
                        object="",
                        counts=tuple(f"{what} {count}" for what, count in counts.most_common()),
                        status=0,
                        omitted=counts.total(),
                    )
                )
                spent.counts = Counter()
                spent.due = Instant(now + WINDOW_S)
        return found

    def describe(self, now: Instant) -> str:
        """Tokens whose entries were only counted of late, and how many entries those were; empty: none."""
        found = []
        for name, spent in self._tokens.items():
            if spent.counted_at is None:
                continue
            if spent.counted_at <= now - SHOWN_S:
                spent.counted, spent.counted_at = 0, None
            else:
                found.append((spent.counted, name))
        named = sorted(found, reverse=True)[:CLIENTS_NAMED]
        more = [f"{len(found) - len(named)} more tokens"] if len(found) > len(named) else []
        return ", ".join([*(f"{count} of {name or 'requests without a token'}" for count, name in named), *more])


def audit_faults(
    *, omitted: int, failure: str, surge: str, summarized: str = "", lost_before: str = ""
) -> list[ActiveFault]:
    """Faults of the log itself, of a surge of refusals (``Refusals.describe_surge``), of tokens beyond their share
    (``TokenShares.describe``), and of entries that went too early."""
    cluster, found = ObjectRef(kind="Cluster", name=CLUSTER), list[ActiveFault]()
    if failure:
        found.append(ActiveFault(FaultCode.AUDIT_NOT_WRITTEN, cluster, {"omitted": omitted, "why": failure}))
    if surge:
        found.append(ActiveFault(FaultCode.REFUSALS_SURGE, cluster, {"window_s": WINDOW_S, "count": surge}))
    if summarized:
        found.append(ActiveFault(FaultCode.AUDIT_SUMMARIZED, cluster, {"count": summarized}))
    if lost_before:
        found.append(ActiveFault(FaultCode.AUDIT_LOST, cluster, {"begin": lost_before}))
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

"""Writes the audit log to files that are only added to; reads them again.

``audit-<number of its first entry>.jsonl``, mode 600. A thread writes, so that a slow disk holds up nobody; entries for
which there is no room are counted, and the next one that is written says how many there were. A request is never
refused because it cannot be written down: leases of hosts go on when the disk is full, and a fault says so.

A line that a crash or a full disk cut short stays until the next entry is written in its place, and counts as one that
is missing. Of more files than ``AuditSettings.files`` the oldest goes, whatever its age (``find_lost_begin``).
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import BadInput, Instant, Unavailable, as_instant, get_logger
from outlive.runtime import AuditChain, AuditEntry, AuditSettings, parse_line

AUDIT_DIRECTORY: Final = "audit"
"""In the state directory."""
QUEUE: Final = 10_000
"""Entries that wait for the disk."""
HEAD_EVERY: Final = 1000
"""After so many entries the newest digest is logged, where somebody who changes the files does not reach it."""
LINE_BYTES: Final = 64 * 1024
STOP_S: Final = 5.0
"""How long the end of the process waits for the last entries."""
_log = get_logger("audit")


def audit_files(directory: Path) -> list[Path]:
    """The files of the log, oldest first."""
    return sorted(directory.glob("audit-*.jsonl"))


def read_lines(files: list[Path]) -> Iterator[tuple[str, bytes, bool]]:
    """All lines of these files: place, line, and whether it is the last one of its file. ``Unavailable``."""
    for path in files:
        try:
            with path.open("rb") as stream:
                number, line = 1, stream.readline(LINE_BYTES)
                while line:
                    after = stream.readline(LINE_BYTES)
                    yield f"{path.name}:{number}", line, not after
                    number, line = number + 1, after
        except OSError as error:
            raise Unavailable(f"cannot be read: {error.strerror}", place=str(path), remedy="run it as root") from None


class AuditFiles:
    """The audit log of one server, in a directory of its own. ``close`` writes what waits."""

    def __init__(self, directory: Path, settings: AuditSettings) -> None:
        self.omitted = 0
        """Entries that could not be written, so far."""
        self.failure = ""
        """Why the last entry could not be written; empty while they are."""
        self._directory = directory
        self._settings = settings
        self._waiting: queue.Queue[AuditEntry | None] = queue.Queue(QUEUE)
        self._unreported = 0
        self._file: int | None = None
        self._path: Path | None = None
        """The newest file."""
        self._size = 0
        """Of the whole lines in it."""
        self._torn = False
        """Whether a part of a line follows them."""
        self._first: AuditEntry | None = None
        """The oldest entry that is there."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._chain = self._read_chain()
            self._first = self._read_first()
        except OSError as error:
            raise BadInput(
                f"the audit log cannot be written: {error.strerror}", place=str(directory), remedy="see its owner"
            ) from None
        self._thread = threading.Thread(target=self._write_for_ever, name="outlive-audit", daemon=True)
        self._thread.start()

    def put(self, entry: AuditEntry) -> None:
        """Write it soon, or count it as omitted."""
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            self._omit()

    def put_all(self, entries: Iterable[AuditEntry]) -> None:
        """``put`` each."""
        for entry in entries:
            self.put(entry)

    def find_lost_begin(self, now: Instant) -> str:
        """When the log begins, if entries before that went although they are to be kept; else empty."""
        first = self._first
        if first is None or first.number == 1 or as_instant(first.at) <= now - float(self._settings.keep):
            return ""
        return f"{first.at:%Y-%m-%d %H:%M} UTC, entry {first.number}"

    def close(self) -> None:
        """Write what waits, in limited time."""
        try:
            self._waiting.put(None, timeout=STOP_S)
        except queue.Full:
            return
        self._thread.join(STOP_S)

    def _omit(self) -> None:
        self.omitted += 1
        self._unreported += 1

    def _read_chain(self) -> AuditChain:
        """The chain after the newest entry that is whole. The newest file is added to; a torn line at its end is one
        entry that is missing."""
        files = audit_files(self._directory)
        if files:
            self._path = files[-1]
            with self._path.open("rb") as stream:
                while line := stream.readline(LINE_BYTES):
                    if line.endswith(b"\n"):
                        self._size = stream.tell()
            if self._path.stat().st_size > self._size:
                self._torn = True
                self._omit()
        for path in reversed(files):
            whole = (parse_line(line) for _, line, _ in read_lines([path]) if line.endswith(b"\n"))
            last = deque(filter(None, whole), maxlen=1)
            if last:
                return AuditChain(last[0].entry.number, last[0].digest)
        return AuditChain()

    def _read_first(self) -> AuditEntry | None:
        read = (parse_line(line) for _, line, _ in read_lines(audit_files(self._directory)))
        return next((one.entry for one in read if one is not None), None)

    def _write_for_ever(self) -> None:
        while (entry := self._waiting.get()) is not None:
            try:
                self._write(entry)
                self.failure = ""
            except (OSError, ValueError, Unavailable) as error:  # also what has no form as text: the thread goes on
                self.failure = (error.strerror if isinstance(error, OSError) else "") or str(error)
                self._omit()
                self._give_up_file()
        self._give_up_file()
        _log.info("audit.closed", entries=self._chain.number, digest=self._chain.digest)

    def _write(self, entry: AuditEntry) -> None:
        if self._path is None or self._size >= self._settings.file_size:
            self._give_up_file()
            if old := audit_files(self._directory)[: -(self._settings.files - 1)]:
                for path in old:
                    path.unlink(missing_ok=True)
                self._first = self._read_first()
                begins = self._first.number if self._first is not None else 0
                _log.info("audit.dropped", files=len(old), begins=begins)
            self._path = self._directory / f"audit-{self._chain.number + 1:012d}.jsonl"
            self._size, self._torn = 0, False
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            self._size = min(self._size, os.fstat(self._file).st_size)
        if self._torn:
            os.ftruncate(self._file, self._size)
            self._torn = False
        unreported = self._unreported
        chain = AuditChain(self._chain.number, self._chain.digest)
        line = chain.next_line(msgspec.structs.replace(entry, omitted=entry.omitted + unreported))
        self._torn = True
        if os.write(self._file, line) < len(line):
            raise OSError(28, "the disk is full")
        self._torn = False
        self._size += len(line)
        self._chain = chain
        self._unreported -= unreported
        if self._first is None:
            self._first = msgspec.structs.replace(entry, number=chain.number)
        if chain.number % HEAD_EVERY == 1:
            _log.info("audit.head", entries=chain.number, digest=chain.digest)

    def _give_up_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

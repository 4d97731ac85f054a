"""Backups that a server makes by itself: when one is due, which old ones go, and what is said of it.

``BackupKeeper`` looks now and then: the newest backup in the directory says when the next one is due, so that a restart
neither repeats nor forgets one. Old ones go only after a new one was written and checked, so the last good one never
does (docs/how-to/state.md#schedule).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import Clock, Instant, OutliveError, as_datetime, get_logger
from outlive.resources import CLUSTER, ObjectRef
from outlive.resources.reasons import FaultCode
from outlive.runtime.faults import ActiveFault
from outlive.runtime.periodic import Periodic
from outlive.runtime.units import Duration

DAY_S: Final = 86_400.0
LOOK_S: Final = 3600.0
"""How often the directory is read at least, where nothing is due before."""
FIRST_S: Final = 300.0
"""How long a server runs before it makes the first backup of a directory that has none."""
RETRY_S: Final = 600.0
"""How long after one that failed it is tried again."""
LATE: Final = 2.0
"""A backup is old after so many times ``every``."""
KEEP_MOST: Final = 1_000
EVERY_LEAST_S: Final = 60.0
NAME: Final = re.compile(r"outlive-\d{8}T\d{6}Z\.tar\Z")
"""Names of backups that the server makes, and may delete; files of other names stay."""

_log = get_logger("backup")


class BackupSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Backups that the server makes."""

    enabled: bool = True
    """``false``: no backups and no fault about them."""
    directory: str = "backups"
    """Folder, relative to the state directory; better on another machine's disk."""
    every: Duration = Duration(DAY_S)
    """Time between backups."""
    keep: int = 7
    """Number of backups to keep."""
    passphrase_file: str = ""
    """File whose first line is the passphrase for the keys in a backup."""
    recipient: str = ""
    """The age recipient (``age1…``) for the keys instead. With neither, backups have no keys."""

    def __post_init__(self) -> None:
        if not 1 <= self.keep <= KEEP_MOST:
            raise ValueError(f"keep {self.keep} is not between 1 and {KEEP_MOST}")
        if self.every < EVERY_LEAST_S:
            raise ValueError(f"every {self.every} is less than a minute")
        if self.passphrase_file and self.recipient:
            raise ValueError("passphraseFile and recipient are both set; keys are encrypted in one way")
        if not self.directory:
            raise ValueError("directory is empty; to make no backups, set enabled: false")


class BackupCopy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A backup that is there."""

    name: str
    made_at: Instant
    size_bytes: int
    keys: bool
    """Whether the keys are in it."""


class BackupDirectory(Protocol):
    """The directory of backups."""

    async def list_copies(self) -> Sequence[BackupCopy]:
        """Those that are there and can be read, of names like ``NAME``; others are passed over. ``OutliveError``."""
        ...

    async def make(self, name: str) -> BackupCopy:
        """Write one and check it. ``OutliveError``."""
        ...

    async def delete(self, names: Iterable[str]) -> None:
        """Delete these. ``OutliveError``."""
        ...


def compute_due_time(copies: Sequence[BackupCopy], every_s: float, started: Instant, now: Instant) -> Instant:
    """When the next backup is due: ``every_s`` after the newest; without any, ``FIRST_S`` after the server started. One
    from the future, by a clock that was wrong, does not count."""
    past = [one.made_at for one in copies if one.made_at <= now]
    return Instant(max(past) + every_s) if past else Instant(started + FIRST_S)


def find_surplus(copies: Sequence[BackupCopy], keep: int, newest: str) -> list[str]:
    """Names of those that may go now that ``newest`` was written and checked, which never does."""
    by_age = sorted(
        (one for one in copies if one.name != newest), key=lambda one: (one.made_at, one.name), reverse=True
    )
    return [one.name for one in by_age[keep - 1 :]]


class BackupKeeper:
    """See the module."""

    def __init__(self, directory: BackupDirectory, settings: BackupSettings, clock: Clock, *, place: str) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._place = place
        self._started = clock.now()
        self._newest: BackupCopy | None = None
        self._failures: dict[str, str] = {}
        """What went wrong last, by step."""

    async def run(self) -> None:
        """Make backups when they are due, until cancelled."""
        if self._settings.enabled:
            await Periodic(self.step, LOOK_S, clock=self._clock).run()

    async def step(self) -> float:
        """Make a backup if one is due, and delete what is too many then; the seconds until the next step."""
        now = self._clock.now()
        with self._note_failure("list"):
            copies = await self._directory.list_copies()
            self._newest = max(copies, key=lambda one: one.made_at, default=None)
        if "list" in self._failures:
            return RETRY_S
        if (wait_s := compute_due_time(copies, float(self._settings.every), self._started, now) - now) > 0:
            self._failures.pop("make", None)
            return min(wait_s, LOOK_S)
        with self._note_failure("make"):
            name = f"outlive-{as_datetime(now):%Y%m%dT%H%M%SZ}.tar"  # names sort by age
            self._newest = newest = await self._directory.make(name)
            _log.info("backup.made", name=newest.name, bytes=newest.size_bytes, keys=newest.keys)
        if "make" not in self._failures:
            with self._note_failure("delete"):
                await self._directory.delete(find_surplus(copies, self._settings.keep, newest.name))
        return RETRY_S if self._failures else min(float(self._settings.every), LOOK_S)

    @contextlib.contextmanager
    def _note_failure(self, step: str) -> Iterator[None]:
        """An error of this step is what went wrong last with it; without one nothing is wrong with it."""
        try:
            yield
        except (OutliveError, OSError) as error:
            self._failures[step] = str(error)
            _log.error("backup.failed", step=step, place=self._place, error=str(error))
        else:
            self._failures.pop(step, None)

    def list_faults(self, now: Instant) -> list[ActiveFault]:
        """What is wrong with the backups now."""
        if not self._settings.enabled:
            return []
        subject, found = ObjectRef(kind="Cluster", name=CLUSTER), list[ActiveFault]()
        if failure := self._failure:
            found.append(ActiveFault(FaultCode.BACKUP_FAILED, subject, {"place": self._place, "why": failure}))
        since = self._newest.made_at if self._newest is not None else self._started
        if now - since > LATE * self._settings.every:
            what = f"of {as_datetime(since):%Y-%m-%d %H:%M}" if self._newest is not None else "missing"
            found.append(ActiveFault(FaultCode.BACKUP_OLD, subject, {"place": self._place, "what": what}))
        return found

    @property
    def _failure(self) -> str:
        return "; ".join(self._failures.values())

    def describe(self, now: Instant) -> dict[str, Any]:
        """The newest backup and the last failure, as plain values; nothing where none are made."""
        if not self._settings.enabled:
            return {}
        newest = None
        if self._newest is not None:
            newest = {**msgspec.to_builtins(self._newest), "ageS": max(0.0, now - self._newest.made_at)}
        return {"directory": self._place, "newest": newest, "failure": self._failure}

    def collect(self) -> list[Metric]:
        """``backup_age_seconds``: of the newest; without any, the time since the server started."""
        if not self._settings.enabled:
            return []
        age = GaugeMetricFamily("backup_age_seconds", "Age of the newest backup that the server made and checked")
        since = self._newest.made_at if self._newest is not None else self._started
        age.add_metric([], max(0.0, self._clock.now() - since))
        return [age]

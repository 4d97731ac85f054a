"""What an API server or an ensemble refuses: every refusal is counted, and one that lasts is a fault.

Answers that belong to the work (no such object, another version, a name that is taken, an object that is wrong) are no
trouble. Any other error of a request to a kind is, until one like it succeeds. A single one says little: it counts as
lasting once it has come again for ``LASTS_S`` (docs/how-to/kubernetes.md#refused).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from outlive.base import AlreadyExists, Clock, Conflict, Invalid, LimitExceeded, NotFound, OutliveError
from outlive.store.http_answers import WatchExpired

LASTS_S: Final = 20.0
"""How long the same request fails before that is a fault."""
OVER_S: Final = 300.0
"""After so long without another try nobody knows whether it would still fail."""
PLACE_PARTS: Final = 5
"""Parts of a path that name group, version and kind: ``/apis/GROUP/VERSION/KIND``."""
PLACES: Final = 1000
"""Kinds and verbs that are followed; those beyond are counted only."""
NORMAL: Final = (NotFound, AlreadyExists, Conflict, Invalid, WatchExpired)


class StoreFull(LimitExceeded):
    """Nothing can be written any more, whatever it is; reads go on."""


class _StoreTrouble(msgspec.Struct):
    error: OutliveError
    first_s: float
    last_s: float


class StoreTroubles:
    """See the module; of one store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], _StoreTrouble] = {}
        """Verb and kind → what is wrong with it since the last time that it succeeded."""
        self._counts: Counter[tuple[str, str]] = Counter()

    def note_success(self, verb: str, path: str) -> None:
        """A request was answered as it should be."""
        if self._found:
            self._found.pop((verb, _resource_of(path)), None)

    def note_failure(self, verb: str, path: str, error: OutliveError) -> None:
        """A request was refused, or not answered."""
        if isinstance(error, NORMAL):
            self.note_success(verb, path)
            return
        self._counts[verb, error.code] += 1
        now, key = self._clock.monotonic(), (verb, _resource_of(path))
        found = self._found.get(key)
        if found is not None and now - found.last_s <= OVER_S:
            found.error, found.last_s = error, now
        elif found is not None or len(self._found) < PLACES:
            self._found[key] = _StoreTrouble(error, now, now)

    def lasting_errors(self) -> tuple[OutliveError, ...]:
        """What has been wrong for a while and still is, each text once."""
        now = self._clock.monotonic()
        found = {
            str(one.error): one.error
            for one in self._found.values()
            if one.last_s - one.first_s >= LASTS_S and now - one.last_s <= OVER_S
        }
        return tuple(found[text] for text in sorted(found))

    def current_errors(self) -> tuple[tuple[str, str, OutliveError], ...]:
        """Verb, kind and error of what failed when it was tried last, unless that is long ago."""
        now = self._clock.monotonic()
        return tuple((*key, one.error) for key, one in sorted(self._found.items()) if now - one.last_s <= OVER_S)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Verb and code of the error → how often it was met."""
        return self._counts


def _resource_of(path: str) -> str:
    """Group, version, kind, and which half."""
    return "/".join(path.split("/")[:PLACE_PARTS]) + ("/status" if path.endswith("/status") else "")

"""Answers to requests that the caller named, so that one that is sent again is answered as before and not done again.

What a batch did is in the store with the name of its request, and a process that begins to lead reads it there. What
did nothing is remembered by the process that decided it: the next one that leads decides it anew. The rules are in
docs/reference/commitments.md#repeated.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from outlive.base import Clock, Conflict
from outlive.commitments.decision import BatchRefusal
from outlive.resources import CommitmentChange

REMEMBERED: Final = 1_000
"""Answers that are remembered at most, the latest …"""
REMEMBERED_CHARACTERS: Final = 8 * 2**20
"""… and as many as have so many characters of reasons together …"""
REMEMBERED_S: Final = 3_600.0
"""… for so long."""


class Answered(msgspec.Struct, frozen=True):
    """An answer that was given: ``None``, the batch was accepted."""

    refusal: BatchRefusal | None = None


def digest_of(asked: object) -> str:
    """The same for requests that ask for the same."""
    return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:32]


class Answers:
    """The answers of one leader, by the id of the request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._written: dict[str, str] = {}
        """Digests of batches that count: as many as the store has."""
        self._remembered: OrderedDict[str, tuple[float, str, Answered]] = OrderedDict()
        self._characters = 0

    def begin(self, changes: Iterable[CommitmentChange]) -> None:
        """Know what the store has, and nothing else."""
        self._written.clear()
        self._remembered.clear()
        self._characters = 0
        for change in changes:
            self.note(change)

    def note(self, change: CommitmentChange) -> None:
        """This change is in the store."""
        if change.request_digest and change.phase != "withdrawn":
            self._written[change.request_id] = change.request_digest

    def forget(self, change: CommitmentChange) -> None:
        """This change is not in the store any more."""
        if change.phase != "withdrawn":  # the request may have been accepted when it was sent again
            self._written.pop(change.request_id, None)

    def keep(self, request_id: str, digest: str, refusal: BatchRefusal | None) -> None:
        """Remember the answer to a batch that did nothing, and forget the oldest ones beyond the limits."""
        self._drop(request_id)
        self._remembered[request_id] = (self._clock.monotonic() + REMEMBERED_S, digest, Answered(refusal))
        self._characters += len(refusal.reason) if refusal is not None else 0
        self._drop_old()

    def get(self, request_id: str, digest: str) -> Answered | None:
        """What the request was answered, if that is known; ``Conflict`` if its name is that of another one."""
        self._drop_old()
        written, remembered = self._written.get(request_id), self._remembered.get(request_id)
        if written is not None:
            known, answer = written, Answered()
        elif remembered is not None:
            _, known, answer = remembered
        else:
            return None
        if known != digest:
            raise Conflict("the X-Request-ID was used for another batch", remedy="give each batch one of its own")
        return answer

    def _drop_old(self) -> None:
        now = self._clock.monotonic()
        while self._remembered:
            oldest = next(iter(self._remembered))
            crowded = len(self._remembered) > REMEMBERED or self._characters > REMEMBERED_CHARACTERS
            if not crowded and self._remembered[oldest][0] > now:
                return
            self._drop(oldest)

    def _drop(self, request_id: str) -> None:
        known = self._remembered.pop(request_id, None)
        if known is not None and known[2].refusal is not None:
            self._characters -= len(known[2].refusal.reason)

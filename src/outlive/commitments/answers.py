"""Answers to requests that the caller named, so that one that is sent again is answered as before and not done again.

What a batch did is in the store under a name that follows from the request's name, so the store itself keeps a second
batch from counting, also where two processes think that they lead. What did nothing is remembered by the process that
decided it: whoever else is asked decides anew. The rules are in docs/reference/commitments.md#repeated.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import Conflict
from outlive.commitments.decision import Refusal
from outlive.resources import CommitmentChange

REMEMBERED: Final = 1_000
"""Answers that are remembered at most, the latest …"""
REMEMBERED_CHARACTERS: Final = 8 * 2**20
"""… and as many as have so many characters of reasons together …"""
REMEMBERED_S: Final = 3_600.0
"""… for so long."""
DIGEST_CHARACTERS: Final = 32


class RequestKey(msgspec.Struct, frozen=True):
    """A request that its caller named, and a digest of what is asked for."""

    id: str
    digest: str


class Answered(msgspec.Struct, frozen=True):
    """An answer that was given: ``None``, the batch was accepted."""

    refusal: Refusal | None = None


def digest_of(asked: object) -> str:
    """The same for requests that ask for the same."""
    return _digest(msgspec.json.encode(asked, order="sorted"))


def change_name(key: RequestKey) -> str:
    """The name of the ``CommitmentChange`` of a request."""
    return f"change-{_digest(key.id.encode())}"


def answer_of(change: CommitmentChange, key: RequestKey | None) -> Answered:
    """What the caller was told of a change that is in the store; ``Conflict`` if it is that of another request."""
    if key is not None and change.request_digest != key.digest:
        raise _reused(key)
    return Answered(Refusal(change.refusal, timed_out=True) if change.phase == "withdrawn" else None)


class Answers:
    """Remembers answers to batches that did nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, str, Answered]] = OrderedDict()
        self._characters = 0

    def get(self, key: RequestKey) -> Answered | None:
        """The answer, if it is remembered; ``Conflict`` if something else was asked for under this name."""
        self._forget()
        known = self._known.get(key.id)
        if known is None:
            return None
        if known[1] != key.digest:
            raise _reused(key)
        return known[2]

    def keep(self, key: RequestKey, answered: Answered) -> None:
        """Remember an answer, and forget the oldest ones beyond the limits."""
        self._drop(key.id)
        self._known[key.id] = (self._clock.monotonic() + REMEMBERED_S, key.digest, answered)
        self._characters += _size(answered)
        self._forget()

    def _forget(self) -> None:
        now = self._clock.monotonic()
        while self._known:
            oldest = next(iter(self._known))
            crowded = len(self._known) > REMEMBERED or self._characters > REMEMBERED_CHARACTERS
            if not crowded and self._known[oldest][0] > now:
                return
            self._drop(oldest)

    def _drop(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._characters -= _size(known[2])


def _size(answered: Answered) -> int:
    return len(answered.refusal.reason) if answered.refusal is not None else 0


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:DIGEST_CHARACTERS]


def _reused(key: RequestKey) -> Conflict:
    return Conflict(
        f"the request id {key.id} was used for another batch", remedy="give each batch an X-Request-ID of its own"
    )

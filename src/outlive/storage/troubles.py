"""What keeps the agent from knowing something, or from doing it: in words, for explanations and the log.

A trouble never is a reason to act. What the API server refuses is named with the server's own words, which have the
verb and the resource of a right that is missing (docs/roles/storage-agent.md#troubles).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from outlive.base.errors import Forbidden, OutliveError

STALLED_S: Final = 10.0
"""A cache may be in doubt so long, as at its start and whenever a watch begins anew."""
RIGHTS_REMEDY: Final = "apply deploy/kubernetes/storage-agent/account.yaml"
MALFORMED_NAMED: Final = 3
"""Objects that are not understood, of which explanations of others say why."""


class CacheState(NamedTuple):
    """How well the agent knows one kind."""

    plural: str
    filled: bool
    """Whether it was listed once."""
    stalled_s: float
    """For how long it is in doubt; 0: it follows."""
    error: OutliveError | None
    """Why it was lost the last time, until it is listed again."""
    malformed: int
    """Objects that are not understood."""


class ApiFailure(NamedTuple):
    """A kind of request that failed when it was tried last."""

    verb: str
    place: str
    error: OutliveError


def describe_troubles(caches: Sequence[CacheState], failures: Iterable[ApiFailure]) -> tuple[str, ...]:
    """A sentence for each cache that does not follow, then one for each other kind of request that fails."""
    return (*_cache_troubles(caches), *_failures(caches, failures))


def _cache_troubles(caches: Sequence[CacheState]) -> Iterator[str]:
    for one in caches:
        if one.error is not None and isinstance(one.error, Forbidden):
            yield f"{one.plural} cannot be listed and watched: {_reason(one.error)}"
        elif one.stalled_s > STALLED_S:
            why = f": {_reason(one.error)}" if one.error is not None else ""
            known = "what is known of them is old" if one.filled else "nothing is known of them, and nothing is done"
            yield f"{one.plural} are not followed, {known}{why}"


def _failures(caches: Sequence[CacheState], failures: Iterable[ApiFailure]) -> Iterator[str]:
    seen = {one.error.message for one in caches if one.error is not None}
    for failure in failures:
        if failure.error.message not in seen:
            seen.add(failure.error.message)
            yield f"{failure.verb} {failure.place} fails: {_reason(failure.error)}"


def _reason(error: OutliveError) -> str:
    remedy = RIGHTS_REMEDY if isinstance(error, Forbidden) else error.remedy
    return f"{error.message} ({remedy})" if remedy else error.message

"""Lists of records that somebody extracts, and when they last became others (docs/reference/placement.md#knowledge).

The time of the last change of the flavor groups is the version of all that is sold: who asks for the same version twice
gets the same answer. So it rises with every change, also when the clock goes back.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from outlive.base import Clock, Unavailable, as_datetime, as_instant
from outlive.resources import Condition, Knowledge, ObjectMeta, encode_canonical, find_condition, with_condition
from outlive.store import Store, compare_and_swap

FLAVOR_GROUPS: Final = "flavor-groups"
"""The name of what says when flavor groups last changed."""
NEVER: Final = -1
"""The version of what has never changed."""


def is_ready(knowledge: Knowledge) -> bool:
    """Whether its records can be used."""
    found = find_condition(knowledge.status.conditions, "Ready")
    return found is not None and found.status == "True"


def version_of(knowledge: Knowledge | None) -> int | None:
    """Unix seconds of the last change of its records, ``NEVER`` where they have never changed.

    Three outcomes: ``Unavailable`` where it is missing, ``None`` where it is not ready, and the version.
    """
    if knowledge is None:
        raise Unavailable("flavor groups are not known yet", remedy="import flavors, and see outlive get knowledges")
    if not is_ready(knowledge):
        return None
    changed = knowledge.status.last_content_change
    return NEVER if changed is None else math.floor(as_instant(changed))


def digest_of(records: Iterable[object]) -> str:
    """The same for the same records in the same order."""
    digest = hashlib.sha256()
    for one in records:
        digest.update(encode_canonical(one))
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def with_records(kept: Knowledge | None, name: str, records: Sequence[object], now: float) -> Knowledge | None:
    """The knowledge after somebody has looked and found these; ``None`` where nothing is to be written.

    Other records are a change of the content, and its time is at least one second later than that of the one before.
    Without any records nothing has changed yet.
    """
    base = kept if kept is not None else Knowledge(metadata=ObjectMeta(name=name))
    status, found = base.status, digest_of(records)
    if kept is not None and status.digest == found and is_ready(kept):
        return None
    changed = status.last_content_change
    if found != status.digest and (records or status.digest):
        moment = as_datetime(now).replace(microsecond=0)
        changed = moment if changed is None else max(moment, changed.replace(microsecond=0) + timedelta(seconds=1))
    before = find_condition(status.conditions, "Ready")
    same = before is not None and before.status == "True"
    since = before.last_transition_time if before is not None and same else as_datetime(now)
    ready = Condition(type="Ready", status="True", reason="Extracted", last_transition_time=since)
    return msgspec.structs.replace(
        base,
        status=msgspec.structs.replace(
            status,
            raw_length=len(records),
            digest=found,
            last_content_change=changed,
            last_extracted=as_datetime(now),
            conditions=with_condition(status.conditions, ready),
        ),
    )


async def record(store: Store, name: str, records: Sequence[object], *, clock: Clock) -> Knowledge:
    """Say that these are the records now; written only when they are others than before. What is known then."""

    def change(kept: Knowledge | None) -> Knowledge | None:
        return with_records(kept, name, records, clock.now())

    known = await compare_and_swap(store, Knowledge, name, change, clock=clock)
    assert known is not None
    return known

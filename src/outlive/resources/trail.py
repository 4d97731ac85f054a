"""``DecisionRecord``: a decision of the safety protocol that was acted on, with what went in and what came out.

It is what ``outlive why`` tells a story from, and what ``outlive decide`` replays (docs/operating/why.md). Nothing is
decided by it.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from outlive.resources.meta import KindInfo, Resource, Writers


class DecisionRecord(Resource, frozen=True, kw_only=True, tag="DecisionRecord"):
    """One use of a decision. One document; kept for a week, at most 20,000 of them."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="decisionrecords",
        short_names=("odec",),
        halves=False,
        writers=Writers(fields={"": ("trail",)}, labels="refused"),
        columns=(
            ("At", ".at", 0),
            ("Decision", ".decision", 0),
            ("Subject", ".subject", 0),
            ("By", ".by", 0),
        ),
    )

    decision: str
    """Its name, as ``outlive decide --list`` shows it."""
    subject: str = ""
    """The host or VM that it is about."""
    by: str
    """The process that decided."""
    at: datetime
    request_id: str = ""
    input: str = ""
    """As JSON; empty where it was larger than a record may be, and then only the digest says what it was."""
    output: str = ""
    input_digest: str = ""

"""Trusting kinds of proof again that turned out wrong for a host, because an operator says so.

A host that comes back although it was proven dead takes that kind of proof away from itself (row J4). Only an
operator gives it back, by changing a word in the host's settings after the cause was removed
(docs/operating/fencing.md#trust). The word that stood when the kind was distrusted is in the Membership, so that a
change is seen whoever looks, and whenever.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.fencing.condemning import FenceOutcome
from outlive.resources import MemberRecord, Part
from outlive.runtime.steps import Precondition, ProtocolStep


class TrustView(Part, frozen=True, kw_only=True):
    """A host whose distrusted kinds an operator wants trusted again."""

    host: str
    record: MemberRecord
    word: str
    """That the operator has set."""


TRUST_AGAIN: Final = ProtocolStep(
    "safety.trust-again",
    "An operator lets distrusted kinds of proof count again",
    TrustView,
    FenceOutcome,
    (
        Precondition[TrustView](
            "asked",
            lambda view: view.word not in ("", view.record.trust_word),
            lambda view: f"nobody has asked for it since {view.record.trust_word!r}",
        ),
        Precondition[TrustView](
            "distrusted", lambda view: len(view.record.distrusted) > 0, lambda view: f"{view.host} is trusted"
        ),
    ),
    lambda view: FenceOutcome(record=msgspec.structs.replace(view.record, distrusted=(), trust_word=view.word)),
)

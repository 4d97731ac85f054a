"""Which commitments a cluster can fulfil: those that are there, as they are, and then further ones in their order.

The cluster is a ``Trial``, in which hosts may be gone and flavors others (docs/reference/commitments.md#what-if).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.commitments.explanation import explain, shown_size
from outlive.commitments.state import SLOT_STATES, Commitment, from_spec, is_over, spec_of
from outlive.commitments.trial import Trial
from outlive.placement import MILLI
from outlive.resources import CommittedResource, ObjectMeta


class CommitmentOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What becomes of one commitment."""

    uuid: str
    project: str
    group: str
    zone: str
    amount: str
    hypothetical: bool
    """Whether it is one of the question."""
    accepted: bool
    new_slots: int = 0
    """Slots that are made for it; those that it has stay."""
    reason: str = ""
    """Why it cannot be had."""


class WhatIfResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of them."""

    accepted: tuple[CommitmentOutcome, ...]
    refused: tuple[CommitmentOutcome, ...]


async def ask(made: Trial, wanted: Iterable[Commitment], *, now: float) -> WhatIfResult:
    """Try one after the other. What is promised already goes first, the oldest first, as it keeps its slots."""
    outcomes: list[CommitmentOutcome] = []
    there = made.view.informers.commitments.items()
    for cr in sorted(there, key=_age_key):
        if cr.spec.state in SLOT_STATES and not is_over(cr.spec, now):
            commitment = from_spec(cr.spec, cr.metadata.generation)
            outcomes.append(await _test_commitment(made, commitment, cr, hypothetical=False))
    for commitment in wanted:
        facts = made.collect_facts(commitment)
        if facts.refusal:
            outcomes.append(_build_outcome(commitment, hypothetical=True, reason=facts.refusal))
            continue
        spec = spec_of(commitment, allow_rejection=True)
        cr = CommittedResource(metadata=ObjectMeta(name=commitment.uuid), spec=spec)
        outcomes.append(await _test_commitment(made, commitment, cr, hypothetical=True))
    return WhatIfResult(
        accepted=tuple(one for one in outcomes if one.accepted),
        refused=tuple(one for one in outcomes if not one.accepted),
    )


def _age_key(cr: CommittedResource) -> tuple[float, str]:
    start = cr.spec.start_time
    return start.timestamp() if start is not None else 0.0, cr.spec.commitment_uuid


async def _test_commitment(
    made: Trial, commitment: Commitment, cr: CommittedResource, *, hypothetical: bool
) -> CommitmentOutcome:
    before = {slot.name for slot in made.view.list_slots(commitment.uuid)}
    reason = await made.keep(cr)
    if reason:
        found = explain(made.collect_facts(commitment))
        told = found.text if not found.possible else reason
        more = f" ({found.helps[0]})" if found.helps else ""
        return _build_outcome(commitment, hypothetical=hypothetical, reason=f"{told}{more}")
    new = sum(slot.name not in before for slot in made.view.list_slots(commitment.uuid))
    return _build_outcome(commitment, hypothetical=hypothetical, accepted=True, new_slots=new)


def _build_outcome(
    commitment: Commitment, *, hypothetical: bool, accepted: bool = False, new_slots: int = 0, reason: str = ""
) -> CommitmentOutcome:
    return CommitmentOutcome(
        uuid=commitment.uuid,
        project=commitment.project,
        group=commitment.group,
        zone=commitment.zone,
        amount=shown_size(commitment.cores * MILLI, commitment.memory_bytes),
        hypothetical=hypothetical,
        accepted=accepted,
        new_slots=new_slots,
        reason=reason,
    )

"""When a proof was written down, for whoever reads it; nothing is decided by it, and steps know no time."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlive.resources import MemberRecord, Proof

_replace = msgspec.structs.replace


def dated(record: MemberRecord, before: MemberRecord | None, at: datetime) -> MemberRecord:
    """The record with this time on the proofs that ``before`` does not have."""
    old = _proofs(before) if before is not None else ()

    def stamped(proof: Proof) -> Proof:
        return proof if proof.at is not None or proof in old else _replace(proof, at=at)

    findings = tuple(map(stamped, record.fence.findings))
    proof = stamped(record.proof) if record.proof is not None else None
    cut_proof = stamped(record.cut.proof) if record.cut.proof is not None else None
    former = tuple(_replace(one, proof=stamped(one.proof)) for one in record.former)
    changed = _replace(
        record,
        proof=proof,
        fence=_replace(record.fence, findings=findings),
        cut=_replace(record.cut, proof=cut_proof),
        former=former,
    )
    return record if changed == record else changed


def _proofs(record: MemberRecord) -> tuple[Proof | None, ...]:
    former = (one.proof for one in record.former)
    return (record.proof, record.cut.proof, *record.fence.findings, *former)

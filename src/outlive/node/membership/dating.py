"""When a proof was written down, for whoever reads it; nothing is decided by it, and steps know no time."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlive.resources import MemberRecord, Proof


def dated(record: MemberRecord, before: MemberRecord | None, at: datetime) -> MemberRecord:
    """The record with this time on the proofs that ``before`` does not have."""
    old = (before.proof, *before.fence.findings) if before is not None else ()

    def stamped(proof: Proof) -> Proof:
        return proof if proof.at is not None or proof in old else msgspec.structs.replace(proof, at=at)

    findings = tuple(map(stamped, record.fence.findings))
    proof = stamped(record.proof) if record.proof is not None else None
    if proof == record.proof and findings == record.fence.findings:
        return record
    return msgspec.structs.replace(record, proof=proof, fence=msgspec.structs.replace(record.fence, findings=findings))

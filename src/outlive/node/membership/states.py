"""What counts as dead, and what counts as fenced: the two facts that everything else rests on.

``is_proven_dead`` says that an epoch of a host runs nothing any more. ``is_fenced`` says that this one VM can do no
harm there, because the epoch is dead or cut off from all that the VM could touch. Both only ever turn true, never back,
so a stale reading of a Membership errs on the safe side. A Membership that is missing, or that is another one of the
same name, proves nothing, except where the other one says that exactly this lost one, through this epoch, is over
(docs/concepts/safety.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from outlive.resources import FencePhase, FenceRecord, Holder, MemberRecord, Membership, Part, Proof


class MemberView(Part, frozen=True, kw_only=True):
    """One Membership as a step sees it."""

    host: str
    uid: str
    record: MemberRecord


class Reach(Part, frozen=True, kw_only=True):
    """What a VM could do harm to: the disks and ports by which it reaches the world."""

    disks: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    accept_duplicate: bool = False
    """Being cut off from the disks suffices, by the VM's own policy."""


def member_view(membership: Membership) -> MemberView:
    """A stored Membership as steps see it."""
    return MemberView(host=membership.name, uid=membership.metadata.uid, record=membership.record)


def find_member(holder: Holder, members: Iterable[MemberView]) -> MemberView | None:
    """The Membership that the holder's entry was written under; ``None`` for a missing or another one.

    Of a lost one in whose place another says that it is over, through this very epoch: what is known of it.
    """
    for one in members:
        if one.host != holder.hypervisor:
            continue
        if one.uid == holder.member_uid:
            return one
        for former in one.record.former:
            if former.uid == holder.member_uid and former.dead_through >= holder.epoch:
                through, proof = former.dead_through, former.proof
                record = MemberRecord(
                    machine_id="",
                    boot_id="",
                    epoch=through,
                    state="Revoked",
                    dead_through=through,
                    proof=proof,
                    fence=FenceRecord(id=proof.fence, epoch=through, phase=FencePhase.PROVEN, by=proof.by),
                )
                return MemberView(host=one.host, uid=former.uid, record=record)
    return None


def is_dead(record: MemberRecord) -> bool:
    """Whether every epoch of the Membership is proven dead, so that the host runs nothing before it comes back."""
    return record.dead_through >= record.epoch


def is_proven_dead(holder: Holder, members: Iterable[MemberView]) -> bool:
    """Whether the holder's epoch is proven dead."""
    member = find_member(holder, members)
    return member is not None and member.record.dead_through >= holder.epoch


def cut_off(holder: Holder, members: Iterable[MemberView], reach: Reach) -> bool:
    """Whether the holder's epoch is cut off from all disks and ports of the VM (or all disks, by its policy).

    A VM whose disks are not known is never cut off: nobody can say from what.
    """
    member = find_member(holder, members)
    if member is None or member.record.cut.through < holder.epoch or not reach.disks:
        return False
    scope = frozenset(member.record.cut.scope)
    ports = () if reach.accept_duplicate else reach.ports
    return all(f"disk:{disk}" in scope for disk in reach.disks) and all(f"port:{port}" in scope for port in ports)


def is_fenced(holder: Holder, members: Iterable[MemberView], reach: Reach) -> bool:
    """Whether the VM can do no harm at this holder any more."""
    members = tuple(members)
    return is_proven_dead(holder, members) or cut_off(holder, members, reach)


def proof_of(holder: Holder, members: Iterable[MemberView], reach: Reach) -> Proof | None:
    """What proves that the holder is fenced; ``None`` while it is not."""
    members = tuple(members)
    member = find_member(holder, members)
    if member is None:
        return None
    if is_proven_dead(holder, members):
        return member.record.proof or Proof(kind="operator", evidence="recorded without a proof", epoch=holder.epoch)
    if cut_off(holder, members, reach):
        cut = member.record.cut
        return cut.proof or Proof(kind="cut", evidence=", ".join(cut.scope), epoch=cut.through)
    return None


_replace = msgspec.structs.replace


def date_proofs(record: MemberRecord, before: MemberRecord | None, at: datetime) -> MemberRecord:
    """The record with this time on the proofs that ``before`` does not have."""
    old = frozenset(_list_proofs(before)) if before is not None else frozenset()

    def stamp(proof: Proof) -> Proof:
        return proof if proof.at is not None or proof in old else _replace(proof, at=at)

    findings = tuple(map(stamp, record.fence.findings))
    proof = stamp(record.proof) if record.proof is not None else None
    cut_proof = stamp(record.cut.proof) if record.cut.proof is not None else None
    former = tuple(_replace(one, proof=stamp(one.proof)) for one in record.former)
    changed = _replace(
        record,
        proof=proof,
        fence=_replace(record.fence, findings=findings),
        cut=_replace(record.cut, proof=cut_proof),
        former=former,
    )
    return record if changed == record else changed


def _list_proofs(record: MemberRecord) -> tuple[Proof | None, ...]:
    former = (one.proof for one in record.former)
    return (record.proof, record.cut.proof, *record.fence.findings, *former)

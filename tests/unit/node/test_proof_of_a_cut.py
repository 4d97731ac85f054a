"""What proves a cut is kept for as long as the cut is."""

from __future__ import annotations

import msgspec

from outlive.node.fencing import CONDEMN, PROVE_CUT, CondemnView, CutView
from outlive.node.membership import MemberView, Reach, is_fenced, proof_of
from outlive.resources import FenceRecord, Holder, MemberRecord

DISK = ("disk:d",)
HOLDER = Holder(hypervisor="a", member_uid="u", epoch=1, run_id="r")
REACH = Reach(disks=("d",))


def _cut_off() -> MemberRecord:
    fence = FenceRecord(id="a.1.x", epoch=1, phase="condemned", by="c")
    record = MemberRecord(machine_id="m", boot_id="b", epoch=1, state="Revoked", fence=fence)
    view = CutView(
        host="a", record=record, observer="c", epoch=1, scope=DISK, written=DISK, read_back=DISK, evidence="read back"
    )
    outcome = PROVE_CUT.attempt(view)
    assert outcome.record is not None
    return outcome.record


def test_the_proof_of_a_cut_is_there_after_the_host_came_back_and_was_condemned_again() -> None:
    back = msgspec.structs.replace(_cut_off(), state="Held", epoch=2, seq=7)
    again = CONDEMN.attempt(CondemnView(host="a", record=back, unchanged_s=9.0, silence_s=5.0, observer="c"))
    assert again.record is not None
    assert again.record.fence.findings == ()
    members = (MemberView(host="a", uid="u", record=again.record),)
    assert is_fenced(HOLDER, members, REACH)
    proof = proof_of(HOLDER, members, REACH)
    assert proof is not None
    assert (proof.kind, proof.evidence, proof.epoch, proof.fence) == ("cut", "read back", 1, "a.1.x")

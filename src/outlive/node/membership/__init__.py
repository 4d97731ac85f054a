"""A host's membership: joining, renewing, holding VMs, and what it means to be dead."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.node.membership.guard import record_of
    from outlive.node.membership.holders import CREATE, ENTER, HOLD, NOT_PAUSED, REHOLD, RESUME, SEND, CreateView
    from outlive.node.membership.holders import HoldView, Me, MoveView, ReholdView, ReleaseView, may_run_unknown
    from outlive.node.membership.join import FORMER_LIMIT, NOBODYS, claim_membership, close_lost_membership, is_nobodys
    from outlive.node.membership.join import lift_epoch, take_membership, takes_nobodys
    from outlive.node.membership.lease import LeaseRenewer
    from outlive.node.membership.pause import PauseGate, waits_for
    from outlive.node.membership.states import MemberView, Reach, cut_off, date_proofs, find_member, is_dead, is_fenced
    from outlive.node.membership.states import is_proven_dead, member_view, proof_of
    from outlive.node.membership.steps import J2, LEAVE, RENEW, ROWS, SELF_CLEAN, CleanedView, JoinOutcome, JoinView
    from outlive.node.membership.steps import LeaseState, LeaseView, LeaveView, RecordOutcome, RememberedMembership
    from outlive.node.membership.steps import RenewView, lease_state
else:
    __getattr__ = load_exports(__name__)

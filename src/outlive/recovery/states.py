"""The states of a recovery: the protocol steps of row R, and the record that a VM keeps of it.

First the slot gets the VM as its consumer, then the VM loses its fenced holders and is assigned to the slot's host: two
objects, two compare-and-swaps, safe to stop between. Nothing here starts anything; the assigned host does, by holding
the VM (``outlive.node.membership.holders``) or rejects it with a reason. Records are for people and for ``outlive
why``; they are written in the same compare-and-swap as the step that they report.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from outlive.base import Transitions, follow
from outlive.node.membership import NOT_PAUSED, MemberView, Reach, find_member, is_fenced, proof_of
from outlive.node.vm import current_order, current_rejection
from outlive.recovery.model import RecoveryAction
from outlive.resources import (
    RECOVERY_STEPS,
    Assigned,
    Consumer,
    Holder,
    HostFailure,
    MemberRecord,
    ObjectRef,
    Part,
    Proof,
    Recovery,
    RecoveryPhase,
    RecoveryStep,
    Rejection,
    VirtualMachine,
    is_to_run,
)
from outlive.resources.reasons import (
    HoldReason,
    Message,
    PlanReason,
    Reason,
    StepReason,
    StoryReason,
    Value,
    VmReason,
    make_reason,
    render,
)
from outlive.runtime import Decision, Outcome, Precondition, ProtocolStep


class ClaimView(Part, frozen=True, kw_only=True):
    """A slot that is to take a VM."""

    vm: str
    fence: str
    slot: str
    members: dict[str, str] = {}
    """VM → host: the slot's allocations."""
    consumer: Consumer | None = None
    host_held: bool = False
    """Whether the slot's host holds its membership and is not silent."""


class ClaimOutcome(Outcome, frozen=True, kw_only=True):
    """The consumer to write."""

    consumer: Consumer | None = None


CLAIM: Final = ProtocolStep(
    "safety.claim",
    "A slot is given to one of the VMs that it was promised to",
    ClaimView,
    ClaimOutcome,
    (
        Precondition[ClaimView](
            "promised",
            lambda view: view.vm in view.members,
            lambda view: f"slot {view.slot} was not promised to {view.vm}",
        ),
        Precondition[ClaimView](
            "unclaimed",
            lambda view: view.consumer is None or (view.consumer.vm, view.consumer.fence) == (view.vm, view.fence),
            lambda view: f"slot {view.slot} is taken by {view.consumer.vm if view.consumer else ''}",
        ),
        Precondition[ClaimView](
            "host-lives", lambda view: view.host_held, lambda view: f"the host of slot {view.slot} may be dead as well"
        ),
    ),
    lambda view: ClaimOutcome(consumer=Consumer(vm=view.vm, fence=view.fence)),
)


class AssignView(Part, frozen=True, kw_only=True):
    """A VM that is to leave its dead host."""

    vm: str
    fence: str
    wanted: bool = True
    holders: tuple[Holder, ...] = ()
    assigned: Assigned | None = None
    members: tuple[MemberView, ...] = ()
    reach: Reach = Reach()
    target: str
    slot: str = ""
    slot_uid: str = ""
    consumer: Consumer | None = None
    """Of that slot, as the store acknowledged it."""
    paused: bool = False
    """Whether the cluster is paused, read fresh after this version of the VM."""


class AssignOutcome(Outcome, frozen=True, kw_only=True):
    """What to write: no holders, and where the VM goes."""

    assigned: Assigned | None = None
    proofs: tuple[Proof, ...] = ()
    """One for every holder that is dropped."""


def _list_unfenced(view: AssignView) -> list[Holder]:
    return [one for one in view.holders if not is_fenced(one, view.members, view.reach)]


def _explain_not_fenced(view: AssignView) -> str:
    first = _list_unfenced(view)[0]
    known = find_member(first, view.members)
    if known is None:
        return f"{first.hypervisor} may still run {view.vm}: its Membership is not there"
    return f"{first.hypervisor} may still run {view.vm}: its epoch {first.epoch} is not proven dead"


def _assign(view: AssignView) -> AssignOutcome:
    slot = ObjectRef(kind="Reservation", name=view.slot, uid=view.slot_uid) if view.slot else None
    found = (proof_of(one, view.members, view.reach) for one in view.holders)
    return AssignOutcome(
        assigned=Assigned(hypervisor=view.target, slot=slot, fence=view.fence),
        proofs=tuple(one for one in found if one is not None),
    )


ASSIGN: Final = ProtocolStep(
    "safety.assign",
    "A VM whose holders are all fenced is assigned to another host",
    AssignView,
    AssignOutcome,
    (
        Precondition[AssignView]("wanted", lambda view: view.wanted, lambda view: f"nobody wants {view.vm} to run"),
        NOT_PAUSED,
        Precondition[AssignView]("holders-fenced", lambda view: not _list_unfenced(view), _explain_not_fenced),
        Precondition[AssignView](
            "slot-claimed",
            lambda view: (
                not view.slot
                or (view.consumer is not None and (view.consumer.vm, view.consumer.fence) == (view.vm, view.fence))
            ),
            lambda view: f"slot {view.slot} is not claimed for {view.vm}",
        ),
    ),
    _assign,
)


class DropOutcome(Outcome, frozen=True, kw_only=True):
    """What goes."""

    proofs: tuple[Proof, ...] = ()
    """One for every holder that is dropped."""


DROP: Final = ProtocolStep(
    "safety.drop",
    "A VM that nobody wants to run loses its holders, which are all fenced",
    AssignView,
    DropOutcome,
    (
        Precondition[AssignView](
            "not-wanted", lambda view: not view.wanted, lambda view: f"somebody wants {view.vm} to run"
        ),
        NOT_PAUSED,
        Precondition[AssignView]("holders-fenced", lambda view: not _list_unfenced(view), _explain_not_fenced),
    ),
    lambda view: DropOutcome(proofs=_assign(view).proofs),
)


class RemoveView(Part, frozen=True, kw_only=True):
    """A VM that was deleted."""

    vm: str
    holders: tuple[Holder, ...] = ()
    paused: bool = False
    """Whether the cluster is paused, read fresh after this version of the VM."""


REMOVE: Final = ProtocolStep(
    "safety.remove",
    "A VM that was deleted goes, and its name is free, once nobody may run it",
    RemoveView,
    Outcome,
    (
        Precondition[RemoveView](
            "no-holder",
            lambda view: not view.holders,
            lambda view: f"{view.holders[0].hypervisor} may still run {view.vm}",
        ),
        NOT_PAUSED,
    ),
    lambda view: Outcome(),
)


def is_recovered(vm: VirtualMachine, members: Iterable[MemberView]) -> bool:
    """Whether it is seen running on its target, in the target's present epoch, and held by nobody else.

    ``members``: the Memberships of its holders.
    """
    if len(vm.status.holders) != 1:
        return False
    (holder,) = vm.status.holders
    member = find_member(holder, members)
    here = holder.hypervisor == vm.host and holder.role == "" and holder.seen == "running"
    return here and member is not None and (member.record.epoch, member.record.state) == (holder.epoch, "Held")


def find_losing_fence(record: MemberRecord) -> str | None:
    """The fence by which a host is lost, empty where it is not, ``None`` where that is not clear."""
    if record.state == "Held" and record.dead_through < record.epoch:
        return ""
    if record.state == "Released":  # stopped on purpose: what was promised on it waits for it
        return None
    if record.dead_through >= record.epoch:
        return record.fence.id or f"{record.proof.kind if record.proof else 'proof'}.{record.epoch}"
    return None


STEPS: Final[tuple[ProtocolStep[Any, Any], ...]] = (CLAIM, ASSIGN, DROP, REMOVE)
PROTOCOL_DECISIONS: Final[tuple[Decision[Any, Any], ...]] = tuple(step.decision for step in STEPS)
REJECTIONS_LIMIT: Final = 16
"""Refusals that a record remembers; older ones are forgotten, and their hosts may be asked again."""
NO_REASON: Final = {"reason": "", "message": "", "remedy": ""}

P = RecoveryPhase
PHASES: Final[Transitions[RecoveryPhase]] = {
    P.WAITING: frozenset({P.HELD, P.ASSIGNED, P.RECOVERED, P.DROPPED}),
    P.HELD: frozenset({P.ASSIGNED, P.RECOVERED, P.DROPPED}),
    P.ASSIGNED: frozenset({P.HELD, P.RECOVERED, P.DROPPED}),
    P.RECOVERED: frozenset(),
    P.DROPPED: frozenset(),
}
"""Which phase may follow which. A recovery that is over is followed by a new one, which begins as ``waiting``."""

_replace = msgspec.structs.replace


def is_unfinished(vm: VirtualMachine) -> bool:
    """Whether a recovery of the VM was begun and has not ended."""
    return vm.status.recovery is not None and vm.status.recovery.unfinished


def is_waiting(vm: VirtualMachine) -> bool:
    """Whether its recovery does not go on for a reason that is written there."""
    return vm.status.recovery is not None and vm.status.recovery.phase is RecoveryPhase.HELD


def record_of(vm: VirtualMachine, fence: str, before: Recovery | None = None) -> Recovery:
    """The record of the recovery under way, or a new one.

    ``before``: the last one, where what it tried still counts.
    """
    known, answered = vm.status.recovery, vm.status.answered
    if known is not None and known.unfinished:
        return known
    # the host that it was lost on: its own holder's, else where it was assigned
    origin = next((holder.hypervisor for holder in vm.status.holders if holder.role == ""), vm.host)
    record = Recovery(
        fence=fence,
        origin=origin,
        request=answered.id if answered is not None else "",
        host_failures=known.host_failures if known is not None else (),
    )
    if rejection_of(vm) is None or vm.status.holders:
        return record
    record = _replace(record, cause="not-started")
    return _replace(record, rejected=before.rejected, relocations=before.relocations) if before is not None else record


def enter_asked(vm: VirtualMachine, fence: str, at: datetime) -> Recovery:
    """A user asks for it while its host is not there."""
    request, record = vm.spec.request, record_of(vm, fence)
    assert request is not None
    step = make_reason(StepReason.ASKED, request=request.id, verb=request.verb)
    cause = record.cause or ("asked" if not record.steps and not vm.status.holders else "")
    return _advance(record, record.phase, at, step, cause=cause)


def _advance(record: Recovery, phase: RecoveryPhase, at: datetime, *steps: Reason, **changes: Any) -> Recovery:
    """The record in this phase, with these steps more; of too many steps the ones in the middle go."""
    done = (*record.steps, *(RecoveryStep(at=at, what=one.code, message=render(one).text) for one in steps))
    left_out = max(0, len(done) - RECOVERY_STEPS)
    first = RECOVERY_STEPS // 2
    follow(PHASES, record.phase, phase, what=f"the recovery by fence {record.fence}")
    return _replace(record, phase=phase, steps=(*done[:first], *done[first + left_out :]), **changes)


def _fence_steps(proofs: Iterable[Proof]) -> list[Reason]:
    return [make_reason(StepReason.FENCED, kind=proof.kind) for proof in proofs]


def enter_held(
    vm: VirtualMachine,
    action: RecoveryAction,
    at: datetime,
    *,
    before: Recovery | None = None,
    failures: tuple[HostFailure, ...] = (),
) -> Recovery:
    """The VM waits, for this reason.

    ``failures``: hosts that died under it by now. The record keeps them, because a host that comes back removes the
    entry by which they were counted.
    """
    why = action.message
    return _advance(
        record_of(vm, action.fence, before),
        RecoveryPhase.HELD,
        at,
        make_reason(StepReason.HELD, why=why.text),
        reason=action.reason.code,
        message=why.text,
        remedy=why.remedy,
        host_failures=failures,
    )


def is_held_so(record: Recovery | None, action: RecoveryAction, failures: tuple[HostFailure, ...]) -> bool:
    """Whether the record says already what the hold says, and which hosts died under the VM."""
    if record is None or record.phase is not RecoveryPhase.HELD or record.reason != action.reason.code:
        return False
    return action.message == Message(record.message, record.remedy) and record.host_failures == failures


def enter_assigned(
    vm: VirtualMachine,
    action: RecoveryAction,
    proofs: Iterable[Proof],
    at: datetime,
    *,
    forgiven: bool,
    before: Recovery | None = None,
    failures: tuple[HostFailure, ...] = (),
) -> Recovery:
    """The VM was sent to another host; ``forgiven``: it was held long enough to be tried again.

    ``before``: its last recovery, where what it tried still counts. ``failures``: hosts that died under it by now.
    """
    proofs = tuple(proofs)
    record, code = record_of(vm, action.fence, before), action.reason.code
    refusal, moved_there = refusal_of(vm, record), code == PlanReason.MOVED_THERE
    steps = _fence_steps(proofs)
    if refusal is not None:
        why = refusal.message or "it gave no reason"
        steps.insert(0, make_reason(StepReason.REJECTED, host=refusal.hypervisor, why=why))
    if action.slot:
        steps.append(make_reason(StepReason.CLAIMED, slot=action.slot))
    if moved_there:
        steps.append(make_reason(StepReason.MOVED_ON, why=action.message.text))
    rejected = (*record.rejected, *((refusal,) if refusal is not None else ()))
    relocations = (0 if forgiven else record.relocations) + int(code == PlanReason.PLACED and rejected != ())
    if forgiven and record.reason == HoldReason.REFUSED:
        rejected = ()
    return _advance(
        record,
        RecoveryPhase.ASSIGNED,
        at,
        *steps,
        make_reason(StepReason.ASSIGNED, host=action.host),
        *(make_reason(StepReason.AGAINST_RULE, why=render(one).text) for one in action.against),
        fence=action.fence,
        slot=action.slot,
        host=action.host,
        promised=code in (PlanReason.PROMISED, PlanReason.CONTESTED),
        contested=code == PlanReason.CONTESTED,
        moved_there=moved_there,
        proofs=proofs or record.proofs,
        host_failures=failures,
        rejected=rejected[-REJECTIONS_LIMIT:],
        relocations=relocations,
        wanted_there=code == PlanReason.ASKED_THERE,
        **NO_REASON,
    )


def rejection_of(vm: VirtualMachine) -> Rejection | None:
    """The word of the host that it is assigned to that it does not start it, and that another one may."""
    said = current_rejection(vm)
    return said if said is not None and not said.stays else None


def refusal_of(vm: VirtualMachine, record: Recovery) -> Rejection | None:
    """Why the VM leaves the host that it was sent to before: it refused, or did not start it."""
    now, said = vm.status.assigned, rejection_of(vm)
    if said is not None:
        return said
    if record.phase not in (RecoveryPhase.ASSIGNED, RecoveryPhase.HELD) or now is None or record.host != now.hypervisor:
        return None
    why = make_reason(VmReason.NOT_STARTED, host=now.hypervisor)
    return Rejection(hypervisor=now.hypervisor, fence=now.fence, reason=why.code, message=render(why).text)


def enter_recovered(
    vm: VirtualMachine, action: RecoveryAction, at: datetime, *, failures: tuple[HostFailure, ...] = ()
) -> Recovery:
    """The VM was seen running; ``failures``: hosts that died under it, and still count."""
    record = record_of(vm, action.fence)
    sent = record.host == action.host
    return _advance(
        record,
        RecoveryPhase.RECOVERED,
        at,
        make_reason(StepReason.SEEN_RUNNING, host=action.host),
        host=action.host,
        slot=record.slot if sent else "",
        promised=record.promised and sent,
        contested=record.contested and sent,
        moved_there=record.moved_there and sent,
        wanted_there=record.wanted_there and sent,
        host_failures=failures,
        **NO_REASON,
    )


def enter_dropped(vm: VirtualMachine, action: RecoveryAction, proofs: Iterable[Proof], at: datetime) -> Recovery:
    """Nobody wants it to run, and nothing of it is left. Where a person stopped it, a person starts it: no host that
    died under it counts any more."""
    proofs = tuple(proofs)
    record = record_of(vm, action.fence)
    failures = record.host_failures if is_to_run(vm) else ()
    steps = (*_fence_steps(proofs), make_reason(StepReason.DROPPED, why=action.message.text))
    return _advance(
        record, RecoveryPhase.DROPPED, at, *steps, proofs=proofs or record.proofs, host_failures=failures, **NO_REASON
    )


def waits_for(vm: VirtualMachine) -> tuple[str, ...]:
    """VMs for which it waits where it is assigned."""
    said = current_order(vm)
    return said.waits_for if said is not None else ()


def summary_of(vm: VirtualMachine) -> Reason:
    """What became of a VM that lost its host."""
    recovery, waits = vm.status.recovery, waits_for(vm)
    assert recovery is not None
    lost: dict[str, Value] = {"vm": vm.name, "origin": recovery.origin or "its host", "fence": recovery.fence}
    lost |= {"host": recovery.host, "slot": recovery.slot, "cause": recovery.cause}
    match recovery.phase:
        case RecoveryPhase.RECOVERED:
            return make_reason(_story_reason(recovery), **lost)
        case RecoveryPhase.HELD:
            return make_reason(StoryReason.HELD, **lost, why=recovery.message)
        case RecoveryPhase.ASSIGNED if waits:
            return make_reason(StoryReason.WAITS_FOR_OTHERS, **lost, others=waits)
        case RecoveryPhase.ASSIGNED:
            return make_reason(StoryReason.ASSIGNED, **lost)
        case RecoveryPhase.DROPPED if vm.spec.recovery.mode == "ignore" and is_to_run(vm):
            return make_reason(StoryReason.IGNORED, **lost)
        case RecoveryPhase.DROPPED:
            return make_reason(StoryReason.DROPPED, **lost)
        case RecoveryPhase.WAITING:
            return make_reason(StoryReason.WAITS_FOR_PROOF, **lost)


def was_sent(recovery: Recovery) -> bool:
    """Whether it was assigned to another host; else it runs again where it was lost."""
    return any(step.what == StepReason.ASSIGNED for step in recovery.steps)


def _story_reason(recovery: Recovery) -> StoryReason:
    if not was_sent(recovery):
        return StoryReason.BACK_ON_ITS_HOST
    if recovery.moved_there:
        return StoryReason.WHERE_IT_WAS_MOVED
    if recovery.wanted_there:
        return StoryReason.ASKED_THERE
    if recovery.contested:
        return StoryReason.IN_CONTESTED_SLOT
    if recovery.promised:
        return StoryReason.IN_PROMISED_SLOT
    return StoryReason.IN_OTHER_SLOT if recovery.slot else StoryReason.PLACED

"""Row R: the two writes by which a VM leaves its dead host, and the condition under which it counts as recovered.

First the slot gets the VM as its consumer, then the VM loses its mute holders and is assigned to the slot's host: two
objects, two compare-and-swaps, safe to stop between. Nothing here starts anything; the assigned host does, by holding
the VM (``outlive.node.membership.holding``) or rejects it with a reason.
"""

from __future__ import annotations

from typing import Any, Final

from outlive.node.membership.death import MemberView, Reach, mute, of_holder, proof_of
from outlive.resources import Assigned, Consumer, Holder, ObjectRef, Part, Proof
from outlive.runtime.decisions import Decision
from outlive.runtime.steps import Outcome, Precondition, ProtocolStep


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
    settled: bool = True
    """Every host has joined under the store's present incarnation, or an operator vouches for it."""


class AssignOutcome(Outcome, frozen=True, kw_only=True):
    """What to write: no holders, and where the VM goes."""

    assigned: Assigned | None = None
    proofs: tuple[Proof, ...] = ()
    """One for every holder that is dropped."""


def _loud(view: AssignView) -> list[Holder]:
    return [one for one in view.holders if not mute(one, view.members, view.reach)]


def _why_loud(view: AssignView) -> str:
    first = _loud(view)[0]
    known = of_holder(first, view.members)
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
    "A VM whose holders are all mute is assigned to another host",
    AssignView,
    AssignOutcome,
    (
        Precondition[AssignView]("wanted", lambda view: view.wanted, lambda view: f"nobody wants {view.vm} to run"),
        Precondition[AssignView](
            "store-settled",
            lambda view: view.settled,
            lambda view: "the store was restored from a backup, and not every host has joined again since",
        ),
        Precondition[AssignView]("holders-mute", lambda view: not _loud(view), _why_loud),
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
    "A VM that nobody wants to run loses its holders, which are all mute",
    AssignView,
    DropOutcome,
    (
        Precondition[AssignView](
            "not-wanted", lambda view: not view.wanted, lambda view: f"somebody wants {view.vm} to run"
        ),
        Precondition[AssignView]("holders-mute", lambda view: not _loud(view), _why_loud),
    ),
    lambda view: DropOutcome(proofs=_assign(view).proofs),
)


class DoneView(Part, frozen=True, kw_only=True):
    """A VM that was assigned, as its own document shows it."""

    vm: str
    assigned: Assigned | None = None
    holders: tuple[Holder, ...] = ()
    members: tuple[MemberView, ...] = ()


class DoneResult(Part, frozen=True, kw_only=True):
    """Whether it is recovered."""

    recovered: bool


def done(view: DoneView) -> DoneResult:
    """Recovered means: seen running on the target, in the target's present epoch, and held by nobody else."""
    if view.assigned is None or len(view.holders) != 1:
        return DoneResult(recovered=False)
    (holder,) = view.holders
    member = of_holder(holder, view.members)
    here = holder.hypervisor == view.assigned.hypervisor and holder.role == "" and holder.seen == "running"
    present = member is not None and member.record.epoch == holder.epoch and member.record.state == "Held"
    return DoneResult(recovered=here and present)


STEPS: Final[tuple[ProtocolStep[Any, Any], ...]] = (CLAIM, ASSIGN, DROP)
DONE: Final = Decision("recovery.done", done, DoneView, DoneResult, "Whether a VM is recovered")
PROTOCOL_DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (*(step.decision for step in STEPS), DONE)

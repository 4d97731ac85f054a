"""Which host may run a VM: rows H, X and the re-holding of J3, as changes of ``VirtualMachine.status.holders``.

An entry in ``holders`` is written before a domain is created and goes after it is seen to be absent, so a process that
writes a VM's disk always has an entry that is not fenced. All answers are the new tuple of holders, to be written by
compare-and-swap on the VM that was looked at; that one object orders all hosts that want the same VM.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outlive.node.membership.states import MemberView, Reach, find_member, is_dead, is_fenced, proof_of
from outlive.resources import Holder, MemberRecord, Part, Proof
from outlive.runtime import Outcome, Precondition, ProtocolStep

PAUSED: Final = "the cluster is paused: the store went back, and not every host has registered since what it runs"

_replace = msgspec.structs.replace


class Me(Part, frozen=True, kw_only=True):
    """The host that wants something, as its daemon knows itself."""

    host: str
    uid: str
    epoch: int
    held: bool = True
    """Whether its Membership is held, as far as it knows."""


class HoldView(Part, frozen=True, kw_only=True):
    """A VM that its host wants to start."""

    vm: str
    me: Me
    assigned: str = ""
    """``status.assigned.hypervisor``."""
    wanted: bool = True
    """Whether anybody wants it to run."""
    holders: tuple[Holder, ...] = ()
    members: tuple[MemberView, ...] = ()
    """Memberships of the other holders; older readings are fine."""
    reach: Reach = Reach()
    gate_open: bool = True
    run_id: str
    """New for every attempt."""
    here: bool = False
    """Whether a domain of this VM exists on this host, or a create of it is under way."""
    paused: bool = False
    """Whether the cluster is paused, read fresh after this version of the VM."""
    deleting: bool = False
    """Whether it was deleted."""
    guarded: bool = True
    """Whether deleting it only marks it: it has the finalizer ``RUN_FINALIZER``."""
    unknown_run: str = ""
    """Where nobody holds it: what a host reports of a domain of its name that the store did not know, read fresh after
    ``paused``; empty: nothing that may still run."""


class HoldersOutcome(Outcome, frozen=True, kw_only=True):
    """The holders to write."""

    holders: tuple[Holder, ...] = ()
    proofs: tuple[Proof, ...] = ()
    """One for every holder that is dropped."""
    assigned: str = ""
    """Who is assigned from now on; empty: who was."""


class RunOutcome(Outcome, frozen=True, kw_only=True):
    """The run to create, or to start the transfer to."""

    run_id: str = ""


def may_run_unknown(reporter: MemberRecord | None) -> bool:
    """Whether a domain that this host reported, and the store did not know, may still run. A missing Membership proves
    nothing."""
    return reporter is None or not is_dead(reporter)


def is_mine(holder: Holder, me: Me) -> bool:
    """Whether it is an entry of my present epoch."""
    return holder.hypervisor == me.host and holder.member_uid == me.uid and holder.epoch == me.epoch


def _unfenced_holders(view: HoldView | MoveView) -> list[Holder]:
    """Entries under which it may still run."""
    return [one for one in view.holders if not is_fenced(one, view.members, view.reach)]


def _unfenced_others(view: HoldView) -> list[Holder]:
    return [one for one in _unfenced_holders(view) if not is_mine(one, view.me)]


def _explain_unfenced(view: HoldView) -> str:
    first = _unfenced_others(view)[0]
    known = find_member(first, view.members)
    found = "whose Membership is not there" if known is None else f"proven dead through {known.record.dead_through}"
    return f"{first.hypervisor} may still run it in epoch {first.epoch}, {found}"


_MEMBER: Final = Precondition[Any](
    "membership-held", lambda view: view.me.held, lambda view: f"{view.me.host} does not hold its membership"
)
GATE_OPEN: Final = Precondition[Any](
    "gate-open", lambda view: view.gate_open, lambda view: f"the guard of {view.me.host} has shut the gate"
)
NAME_NOT_RUNNING: Final = Precondition[HoldView](
    "name-not-running", lambda view: not view.unknown_run, lambda view: view.unknown_run
)
NOT_PAUSED: Final = Precondition[Any]("not-paused", lambda view: not view.paused, lambda view: PAUSED)
_NOT_DELETED: Final = Precondition[Any](
    "not-deleted", lambda view: not view.deleting, lambda view: f"{view.vm} is being deleted"
)
_HELD_HERE: Final = Precondition[Any](
    "held-here",
    lambda view: any(is_mine(one, view.me) for one in view.holders),
    lambda view: f"{view.me.host} does not hold {view.vm}",
)
"""Preconditions of more than one step."""


def _hold(view: HoldView) -> HoldersOutcome:
    mine = Holder(hypervisor=view.me.host, member_uid=view.me.uid, epoch=view.me.epoch, run_id=view.run_id)
    found = (proof_of(one, view.members, view.reach) for one in view.holders if not is_mine(one, view.me))
    return HoldersOutcome(holders=(mine,), proofs=tuple(one for one in found if one is not None))


HOLD: Final = ProtocolStep(
    "safety.hold",
    "A host makes itself the one that may run a VM",
    HoldView,
    HoldersOutcome,
    (
        Precondition[HoldView](
            "assigned-to-me",
            lambda view: view.assigned == view.me.host,
            lambda view: f"{view.vm} is assigned to {view.assigned or 'nobody'}",
        ),
        Precondition[HoldView]("wanted", lambda view: view.wanted, lambda view: f"nobody wants {view.vm} to run"),
        _MEMBER,
        GATE_OPEN,
        Precondition[HoldView](
            "nothing-here",
            lambda view: not view.here,
            lambda view: f"a domain of {view.vm} is on {view.me.host} already",
        ),
        NOT_PAUSED,
        _NOT_DELETED,
        Precondition[HoldView](
            "deletion-waits",
            lambda view: view.guarded,
            lambda view: f"{view.vm} could be deleted, and another one of its name be made, while it runs",
        ),
        NAME_NOT_RUNNING,
        Precondition[HoldView](
            "others-fenced",
            lambda view: not _unfenced_others(view),
            _explain_unfenced,
        ),
    ),
    _hold,
)


class CreateView(Part, frozen=True, kw_only=True):
    """What a host sees between the answer to its hold and the creation of the domain."""

    vm: str
    me: Me
    run_id: str
    holders: tuple[Holder, ...] = ()
    """As the store acknowledged them."""
    gate_open: bool = True
    """Looked at after the answer."""
    held_in: str = ""
    """The store's incarnation before the hold was decided on …"""
    incarnation: str = ""
    """… and the present one."""


CREATE: Final = ProtocolStep(
    "safety.create",
    "A host creates the domain of a VM that it holds",
    CreateView,
    RunOutcome,
    (
        Precondition[CreateView](
            "entry-acknowledged",
            lambda view: any(is_mine(one, view.me) and one.run_id == view.run_id for one in view.holders),
            lambda view: f"run {view.run_id} of {view.vm} is not among its holders",
        ),
        Precondition[CreateView](
            "membership-still-held",
            lambda view: view.me.held,
            lambda view: f"{view.me.host} has lost its membership meanwhile",
        ),
        Precondition[CreateView](
            "gate-still-open",
            lambda view: view.gate_open,
            lambda view: f"the guard of {view.me.host} has shut the gate meanwhile",
        ),
        Precondition[CreateView](
            "same-store",
            lambda view: view.held_in in ("", view.incarnation),
            lambda view: f"the store was restored from a backup meanwhile, and may not know that {view.vm} is held",
        ),
    ),
    lambda view: RunOutcome(run_id=view.run_id),
)


class ReleaseView(Part, frozen=True, kw_only=True):
    """A VM of which nothing is left on this host."""

    vm: str
    host: str
    uid: str
    run_ids: tuple[str, ...]
    """Own runs that are to be released, of whatever epoch."""
    holders: tuple[Holder, ...] = ()
    domain_absent: bool = False
    """Verified after the last create of these runs ended."""
    creates_under_way: tuple[str, ...] = ()


def _release(view: ReleaseView) -> HoldersOutcome:
    kept = tuple(
        one
        for one in view.holders
        if not (one.hypervisor == view.host and one.member_uid == view.uid and one.run_id in view.run_ids)
    )
    return HoldersOutcome(holders=kept)


RELEASE: Final = ProtocolStep(
    "safety.release",
    "A host withdraws its own entry",
    ReleaseView,
    HoldersOutcome,
    (
        Precondition[ReleaseView](
            "domain-absent",
            lambda view: view.domain_absent,
            lambda view: f"a domain of {view.vm} may still be on {view.host}",
        ),
        Precondition[ReleaseView](
            "no-create-under-way",
            lambda view: not set(view.creates_under_way) & set(view.run_ids),
            lambda view: f"a create of {view.vm} is still under way on {view.host}",
        ),
    ),
    _release,
)


class ReholdView(Part, frozen=True, kw_only=True):
    """A running domain whose host has a new epoch, or whose entry the store has lost."""

    vm: str
    me: Me
    old_epoch: int = 0
    holders: tuple[Holder, ...] = ()
    run_id: str
    """Of the run whose domain is here."""
    runs: bool = False
    """Whether the domain is really there."""
    register: bool = False
    """After a restored backup: the entry is added though it is missing, because the domain runs whatever anybody
    says, and an entry too many only makes everybody more careful."""


def _rehold(view: ReholdView) -> HoldersOutcome:
    kept = tuple(one for one in view.holders if one.hypervisor != view.me.host or one.run_id != view.run_id)
    before = next((one for one in view.holders if one.hypervisor == view.me.host and one.run_id == view.run_id), None)
    role = before.role if before is not None else ""
    seen = before.seen if before is not None else ""
    mine = Holder(
        hypervisor=view.me.host,
        member_uid=view.me.uid,
        epoch=view.me.epoch,
        run_id=view.run_id,
        role=role,
        seen=seen,
    )
    return HoldersOutcome(holders=(*kept, mine))


def _is_run_held_here(view: ReholdView) -> bool:
    """Whether the run is held in the old epoch, or in the present one already: an answer may have been lost."""
    return any(
        one.hypervisor == view.me.host
        and one.member_uid == view.me.uid
        and one.epoch in (view.old_epoch, view.me.epoch)
        and one.run_id == view.run_id
        for one in view.holders
    )


REHOLD: Final = ProtocolStep(
    "safety.rehold",
    "A host takes a running VM over into its new epoch",
    ReholdView,
    HoldersOutcome,
    (
        Precondition[ReholdView](
            "runs-here", lambda view: view.runs, lambda view: f"no domain of {view.vm} runs on {view.me.host}"
        ),
        Precondition[ReholdView](
            "entry-still-mine",
            lambda view: view.register or _is_run_held_here(view),
            lambda view: f"run {view.run_id} of {view.vm} is not held in epoch {view.old_epoch} any more: destroy it",
        ),
        _MEMBER,
    ),
    _rehold,
)


class MoveView(Part, frozen=True, kw_only=True):
    """A VM with a move under way, as one of its two sides sees it."""

    vm: str
    me: Me
    id: str = ""
    """Of the move; empty where there is none any more."""
    source: str = ""
    target: str = ""
    holders: tuple[Holder, ...] = ()
    """Read fresh."""
    members: tuple[MemberView, ...] = ()
    reach: Reach = Reach()
    gate_open: bool = True
    run_id: str = ""
    """Of the side that asks: new for the target."""
    here: bool = False
    """Whether a domain of the VM exists here, or a create is under way."""
    runs: bool = False
    """Whether it exists here and has the right to run: it is running, or was handed over completely."""
    sent_to: str = ""
    """Run of the target to which the domain here was sent last, as this very process knows."""
    declined: str = ""
    """Run of the target of which its host says that it ended before it ever ran."""
    paused: bool = False
    """Whether the cluster is paused, read fresh after this version of the VM."""
    deleting: bool = False
    """Whether it was deleted."""


def _unfenced_on(view: MoveView, host: str) -> list[Holder]:
    return [one for one in _unfenced_holders(view) if one.hypervisor == host]


def _other_holders(view: MoveView) -> list[Holder]:
    return [one for one in _unfenced_holders(view) if one.hypervisor not in (view.source, view.target)]


_NO_STRANGERS: Final = Precondition[MoveView](
    "no-third-holder",
    lambda view: not _other_holders(view),
    lambda view: f"{_other_holders(view)[0].hypervisor} may still run {view.vm}",
)


def _enter(view: MoveView) -> HoldersOutcome:
    mine = Holder(
        hypervisor=view.me.host, member_uid=view.me.uid, epoch=view.me.epoch, run_id=view.run_id, role="incoming"
    )
    kept = tuple(one for one in view.holders if one.hypervisor != view.me.host)
    return HoldersOutcome(holders=(*kept, mine))


ENTER: Final = ProtocolStep(
    "safety.move.enter",
    "The target of a move enters itself before it listens",
    MoveView,
    HoldersOutcome,
    (
        Precondition[MoveView](
            "target-is-me",
            lambda view: view.id != "" and view.target == view.me.host and view.source != view.me.host,
            lambda view: f"no move of {view.vm} names {view.me.host} as its target",
        ),
        _MEMBER,
        GATE_OPEN,
        Precondition[MoveView](
            "source-lives",
            lambda view: len(_unfenced_on(view, view.source)) > 0,
            lambda view: f"{view.source} does not hold {view.vm} any more",
        ),
        Precondition[MoveView](
            "nothing-here", lambda view: not view.here, lambda view: f"a domain of {view.vm} is on {view.me.host}"
        ),
        NOT_PAUSED,
        _NOT_DELETED,
        _NO_STRANGERS,
    ),
    _enter,
)


SEND: Final = ProtocolStep(
    "safety.move.send",
    "The source of a move starts the transfer",
    MoveView,
    RunOutcome,
    (
        Precondition[MoveView](
            "source-is-me",
            lambda view: view.id != "" and view.source == view.me.host,
            lambda view: f"no move of {view.vm} names {view.me.host} as its source",
        ),
        _MEMBER,
        Precondition[MoveView](
            "target-entered",
            lambda view: any(one.role == "incoming" for one in _unfenced_on(view, view.target)),
            lambda view: f"{view.target} has not entered itself for {view.vm}",
        ),
        NOT_PAUSED,
        _NO_STRANGERS,
    ),
    lambda view: RunOutcome(
        run_id=next(one.run_id for one in _unfenced_on(view, view.target) if one.role == "incoming")
    ),
)


def _adopt(view: MoveView) -> HoldersOutcome:
    may_run = _unfenced_holders(view)
    kept = tuple(
        _replace(one, role="") if is_mine(one, view.me) else one
        for one in view.holders
        if is_mine(one, view.me) or one in may_run
    )
    return HoldersOutcome(holders=kept, assigned=view.me.host)


ADOPT: Final = ProtocolStep(
    "safety.move.adopt",
    "The target of a move becomes the owner of what it runs",
    MoveView,
    HoldersOutcome,
    (
        Precondition[MoveView](
            "runs-here", lambda view: view.runs, lambda view: f"{view.vm} does not run on {view.me.host}"
        ),
        _MEMBER,
        _HELD_HERE,
    ),
    _adopt,
)


RESUME: Final = ProtocolStep(
    "safety.move.resume",
    "The source of a failed move lets its paused VM run on from its memory",
    MoveView,
    Outcome,
    (
        _MEMBER,
        _HELD_HERE,
        Precondition[MoveView](
            "target-never-ran",
            lambda view: view.sent_to != "" and view.declined == view.sent_to,
            lambda view: f"{view.target or 'the target'} may have run {view.vm}, and written its disks",
        ),
    ),
    lambda view: Outcome(),
)

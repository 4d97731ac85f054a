"""Row M: two hosts at once in ``holders`` while QEMU carries a VM from one to the other.

The target enters itself before it listens, the source starts only after a fresh read shows the entry, and afterwards
each side takes back its own. At every moment each host that could write has an entry that is not mute; which of the two
really writes is QEMU's own hand-over. Recovery never touches a VM of which one side still lives: that side decides.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.membership.death import MemberView, Reach, mute
from outlive.node.membership.holding import HoldersOutcome, Me, is_mine
from outlive.resources import Holder, Part
from outlive.runtime.steps import Outcome, Precondition, ProtocolStep

_replace = msgspec.structs.replace


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


def _of(view: MoveView, host: str) -> list[Holder]:
    return [one for one in view.holders if one.hypervisor == host and not mute(one, view.members, view.reach)]


def _loud_strangers(view: MoveView) -> list[Holder]:
    known = (view.source, view.target)
    return [one for one in view.holders if one.hypervisor not in known and not mute(one, view.members, view.reach)]


_NO_STRANGERS: Final = Precondition[MoveView](
    "no-third-holder",
    lambda view: not _loud_strangers(view),
    lambda view: f"{_loud_strangers(view)[0].hypervisor} may still run {view.vm}",
)
_MEMBER: Final = Precondition[MoveView](
    "membership-held", lambda view: view.me.held, lambda view: f"{view.me.host} does not hold its membership"
)
_GATE: Final = Precondition[MoveView](
    "gate-open", lambda view: view.gate_open, lambda view: f"the guard of {view.me.host} has shut the gate"
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
        _GATE,
        Precondition[MoveView](
            "source-lives",
            lambda view: len(_of(view, view.source)) > 0,
            lambda view: f"{view.source} does not hold {view.vm} any more",
        ),
        Precondition[MoveView](
            "nothing-here", lambda view: not view.here, lambda view: f"a domain of {view.vm} is on {view.me.host}"
        ),
        _NO_STRANGERS,
    ),
    _enter,
)


def _loud(holder: Holder, view: MoveView) -> bool:
    return not mute(holder, view.members, view.reach)


class SendOutcome(Outcome, frozen=True, kw_only=True):
    """Start the transfer to that run."""

    run_id: str = ""


SEND: Final = ProtocolStep(
    "safety.move.send",
    "The source of a move starts the transfer",
    MoveView,
    SendOutcome,
    (
        Precondition[MoveView](
            "source-is-me",
            lambda view: view.id != "" and view.source == view.me.host,
            lambda view: f"no move of {view.vm} names {view.me.host} as its source",
        ),
        _MEMBER,
        Precondition[MoveView](
            "target-entered",
            lambda view: any(one.role == "incoming" for one in _of(view, view.target)),
            lambda view: f"{view.target} has not entered itself for {view.vm}",
        ),
        _NO_STRANGERS,
    ),
    lambda view: SendOutcome(run_id=next(one.run_id for one in _of(view, view.target) if one.role == "incoming")),
)


class AdoptOutcome(HoldersOutcome, frozen=True, kw_only=True):
    """The holders, and who is assigned from now on."""

    assigned: str = ""


def _adopt(view: MoveView) -> AdoptOutcome:
    changed = tuple(_replace(one, role="") if is_mine(one, view.me) else one for one in view.holders)
    kept = tuple(one for one in changed if is_mine(one, view.me) or _loud(one, view))
    return AdoptOutcome(holders=kept, assigned=view.me.host)


ADOPT: Final = ProtocolStep(
    "safety.move.adopt",
    "The target of a move becomes the owner of what it runs",
    MoveView,
    AdoptOutcome,
    (
        Precondition[MoveView](
            "runs-here", lambda view: view.runs, lambda view: f"{view.vm} does not run on {view.me.host}"
        ),
        _MEMBER,
        Precondition[MoveView](
            "held-here",
            lambda view: any(is_mine(one, view.me) for one in view.holders),
            lambda view: f"{view.me.host} does not hold {view.vm}",
        ),
    ),
    _adopt,
)


class ResumeOutcome(Outcome, frozen=True, kw_only=True):
    """Let the paused source run on."""


RESUME: Final = ProtocolStep(
    "safety.move.resume",
    "The source of a failed move lets its paused VM run on from its memory",
    MoveView,
    ResumeOutcome,
    (
        _MEMBER,
        Precondition[MoveView](
            "held-here",
            lambda view: any(is_mine(one, view.me) for one in view.holders),
            lambda view: f"{view.me.host} does not hold {view.vm}",
        ),
        Precondition[MoveView](
            "target-never-ran",
            lambda view: view.sent_to != "" and view.declined == view.sent_to,
            lambda view: f"{view.target or 'the target'} may have run {view.vm}, and written its disks",
        ),
    ),
    lambda view: ResumeOutcome(),
)

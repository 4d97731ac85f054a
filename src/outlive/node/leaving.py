"""Whether the virtual machines of a host that degrades leave it now, and which of them may.

A live move is cheap and a mass of them is not, so every doubt keeps them where they are: many hosts that degrade
together share a cause, and it is not theirs; a host that is no slower than the others has nothing of its own; one host
is left at a time. Whatever is decided here, nothing is safe because of it, and nothing unsafe either: moves have their
own protocol (docs/reference/node-decisions.md#hostleave).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from outlive.base.natural import natural_key
from outlive.node.numbers import Amount, Count
from outlive.node.scoring import FULL, Gauged
from outlive.node.vm.states import (
    VmState,
)

WORSE_BY: Final = 25
"""Points by which a host must be below the middle one of the others for the trouble to be its own."""
SAME_TROUBLE: Final[dict[Gauged, str]] = {
    Gauged.KEEPALIVE: "store",
    Gauged.STORE: "store",
    Gauged.DISK: "disk",
    Gauged.HYPERVISOR: "hypervisor",
}
"""Renewals are writes to the store: they are late where it is slow."""


class Answer(enum.StrEnum):
    """Why virtual machines do not leave, in the order in which it is looked at."""

    GO = ""
    WELL = "well"
    """The host does not degrade."""
    OFF = "off"
    """The policy does not say ``leave``."""
    DRAINING = "draining"
    """Somebody empties the host anyway."""
    MAINTENANCE = "maintenance"
    """Somebody works on it."""
    UNSETTLED = "unsettled"
    """It degrades for too short a time for the others to have said how they do."""
    FAILING = "failing"
    """Moves failed one after the other."""
    ALONE = "alone"
    """No other host works and does well."""
    COMMON_CAUSE = "common_cause"
    """Too many hosts have the same trouble."""
    LIKE_OTHERS = "like_others"
    """The others are hardly faster."""
    IN_LINE = "in_line"
    """Others are left first."""
    NO_ROOM = "no_room"
    """They may leave, and no other host takes those that are still there …"""
    LEFT = "left"
    """… or nobody is there any more who may: found out by trying, and no answer of the decision."""


WAITS: Final = frozenset({Answer.UNSETTLED, Answer.IN_LINE})
"""Answers that change by themselves soon: the host stands in line."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another host, as it has published itself."""

    name: str
    works: bool = True
    degrading: bool = False
    causes: tuple[Gauged, ...] = ()
    leaving: Literal["", "waits", "leaves", "stays"] = ""
    scores: dict[str, int] = {}


class LeaveInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host that degrades, the policy, and the other hosts. Times in seconds."""

    host: str
    action: Literal["leave", "tell", "off"] = "leave"
    degrading_for: Amount | None
    """Null: it does well."""
    settle: Amount = 30
    common_share: Amount = 0.25
    leaving_share: Amount = 0
    failures_limit: Count = 3
    causes: tuple[Gauged, ...] = ()
    scores: dict[str, int] = {}
    leaves: bool = False
    """Whether it is being left already."""
    draining: bool = False
    maintenance: bool = False
    failures: Count = 0
    """Live moves in a row that failed."""
    peers: tuple[Peer, ...] = ()


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether they leave, else why not; and how many hosts count as having the same trouble, of how many."""

    go: bool
    why: Answer
    together: int = 0
    working: int = 0


def decide_leave(given: LeaveInput) -> LeaveResult:
    """Look at each reason to stay in turn."""
    working = [peer for peer in given.peers if peer.works]
    together = 1 + sum(_shares(given.causes, peer) for peer in working)
    why = _why(given, working, together)
    return LeaveResult(go=why is Answer.GO, why=why, together=together, working=len(working) + 1)


def same_cause(together: int, working: int, share: float | int) -> bool:
    """Whether so many hosts with the same trouble have it from outside."""
    return together > 1 and together > share * working


def _why(given: LeaveInput, working: Sequence[Peer], together: int) -> Answer:
    own = _own(given)
    if own is not Answer.GO:
        return own
    if not any(not peer.degrading for peer in working):
        return Answer.ALONE if together == 1 else Answer.COMMON_CAUSE
    if same_cause(together, len(working) + 1, given.common_share):
        return Answer.COMMON_CAUSE
    if all(_alike(cause, given, working) for cause in given.causes):
        return Answer.LIKE_OTHERS
    return Answer.IN_LINE if _ahead(given, working) >= _places(given, len(working) + 1) else Answer.GO


def _own(given: LeaveInput) -> Answer:
    """Reasons of the host itself, for which nobody else is looked at."""
    if given.degrading_for is None:
        return Answer.WELL
    if given.action != "leave":
        return Answer.OFF
    if given.draining:
        return Answer.DRAINING
    if given.maintenance:
        return Answer.MAINTENANCE
    if given.degrading_for < given.settle:
        return Answer.UNSETTLED
    return Answer.FAILING if given.failures_limit and given.failures >= given.failures_limit else Answer.GO


def _shares(causes: Sequence[Gauged], peer: Peer) -> bool:
    troubles = {SAME_TROUBLE[cause] for cause in causes}
    return peer.degrading and any(SAME_TROUBLE[cause] in troubles for cause in peer.causes)


def _alike(cause: Gauged, given: LeaveInput, working: Sequence[Peer]) -> bool:
    """Whether the others do hardly better in this; where nobody says how he does, they do."""
    others = sorted(peer.scores[cause] for peer in working if cause in peer.scores)
    if not others:
        return False
    return given.scores.get(cause, FULL) > others[(len(others) - 1) // 2] - WORSE_BY


def _places(given: LeaveInput, working: int) -> int:
    return max(1, int(given.leaving_share * working))


def _ahead(given: LeaveInput, working: Sequence[Peer]) -> int:
    """Hosts that are left already, and then those that wait, by name."""
    leaving = sum(peer.leaving == "leaves" for peer in working)
    if given.leaves:
        return sum(peer.leaving == "leaves" and natural_key(peer.name) < natural_key(given.host) for peer in working)
    waiting = sum(peer.leaving == "waits" and natural_key(peer.name) < natural_key(given.host) for peer in working)
    return leaving + waiting


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine on such a host."""

    state: str
    power: str = "running"
    method: str = ""
    moving: bool = False
    required: Count | None = None
    """Slots that it needs; null: nobody has said."""


def stays(vm: Leaver) -> str:
    """Why this virtual machine does not leave, in a stable word; empty if it may."""
    if vm.moving:
        return "moving"
    if vm.state != VmState.START or vm.power != "running":
        return "not_running"
    if vm.method == "shutdown":
        return "cold_only"
    return "unprotected" if vm.required == 0 else ""

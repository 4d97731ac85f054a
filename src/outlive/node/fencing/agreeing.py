"""Whether one coordinator's sight of a silent host suffices, or a second one, on another network switch, has to see it.

What an observer takes for a silent host may be its own switch. So coordinators publish whom they see silent, and since
which renewal, each in its own Membership with its next renewal, and a host is condemned once two of them on different
switches saw the same last one. This can only delay: silence proves nothing, whoever sees it, and where nobody else can
say anything, or does not in time, one observer goes on alone and tells why (docs/concepts/safety.md#two-observers).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from outlive.base.natural import natural_key
from outlive.node.numbers import Amount, Count

SURVIVAL: Final = 2
"""With so many coordinators left, each judges alone: the other may be the one that died."""


class Agreed(enum.StrEnum):
    """What became of asking for a second observer."""

    NOT_CONFIGURED = "not_configured"
    """No coordinator has a switch: one observer is what is wanted."""
    TWO_OBSERVERS = "two_observers"
    WAITING = "waiting"
    """Somebody on another switch lives and has not said that it sees the host silent."""
    TWO_NODE_SURVIVAL = "two_node_survival"
    NOBODY_ELSE = "nobody_else"
    """No other coordinator lives."""
    TOPOLOGY_UNKNOWN = "topology_unknown"
    NO_OTHER_SWITCH = "no_other_switch"
    NO_ANSWER = "no_answer"
    """Somebody on another switch lives and did not say so in time."""


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """A silent host as one observer sees it."""

    uid: str = ""
    """Of its membership."""
    epoch: Count
    seq: Count
    """Of the last renewal that was seen."""
    silent_s: Amount
    """On the observer's own clock."""

    def same(self, other: Sight) -> bool:
        """Whether both saw the same last renewal."""
        return (self.uid, self.epoch, self.seq) == (other.uid, other.epoch, other.seq)


class Colleague(msgspec.Struct, frozen=True, kw_only=True):
    """Another coordinator that holds its membership, and is not the suspect."""

    name: str
    switch: str | None = None
    """None: not known."""
    lives: bool = True
    """Whether it is not silent itself."""
    fresh: bool = True
    """Whether what it publishes is of now."""
    sees: Sight | None = None
    """What it publishes of the suspect; none: nothing."""


class AgreeInput(msgspec.Struct, frozen=True, kw_only=True):
    """May this observer have the suspect condemned? Times in seconds."""

    observer: str
    switch: str | None = None
    suspect: Sight
    silence_s: Amount
    """Silence that counts for the suspect."""
    coordinators: Count
    """Those that hold their membership, the observer and, if it is one, the suspect counted."""
    colleagues: tuple[Colleague, ...] = ()
    waited_s: Amount = 0
    """Since the observer had had all its looks."""
    wait_s: Amount = 0
    """How long it waits for a second one at most."""


class AgreeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to go on, who the second observer is, and why one suffices where there is none."""

    go: bool
    reason: Agreed
    second: str | None = None
    why: str = ""
    """In words; empty where nothing is configured."""


def agree(given: AgreeInput) -> AgreeResult:
    """Go on with two observers, wait for the second, or say why one suffices."""
    if given.switch is None and all(one.switch is None for one in given.colleagues):
        return AgreeResult(go=True, reason=Agreed.NOT_CONFIGURED)
    if given.coordinators <= SURVIVAL:
        return _alone(Agreed.TWO_NODE_SURVIVAL, f"of the coordinators {given.coordinators} are left")
    living = sorted((one for one in given.colleagues if one.lives), key=lambda one: natural_key(one.name))
    if not living:
        return _alone(Agreed.NOBODY_ELSE, "no other coordinator lives")
    if given.switch is None:
        return _alone(Agreed.TOPOLOGY_UNKNOWN, f"the switch of {given.observer} is not known")
    if all(one.switch is None for one in living):
        return _alone(Agreed.TOPOLOGY_UNKNOWN, "the switches of the other coordinators are not known")
    elsewhere = [one for one in living if one.switch not in (None, given.switch)]
    if not elsewhere:
        return _alone(Agreed.NO_OTHER_SWITCH, f"no coordinator lives on another switch than {given.switch}")
    for one in elsewhere:
        if _sees(one, given):
            why = f"{one.name} on switch {one.switch} saw nothing after renewal {given.suspect.seq} either"
            return AgreeResult(go=True, reason=Agreed.TWO_OBSERVERS, second=one.name, why=why)
    names = _names(elsewhere)
    if given.waited_s < given.wait_s:
        return AgreeResult(go=False, reason=Agreed.WAITING, why=f"{names} is still to say that it sees the silence")
    return _alone(Agreed.NO_ANSWER, f"{names} did not say within {given.wait_s:g} s that it sees the silence")


def _sees(one: Colleague, given: AgreeInput) -> bool:
    return one.fresh and one.sees is not None and one.sees.same(given.suspect) and one.sees.silent_s >= given.silence_s


def _names(elsewhere: list[Colleague]) -> str:
    first, others = elsewhere[0], len(elsewhere) - 1
    said = f"{first.name} on switch {first.switch}"
    return f"{said}, or one of {others} others," if others else said


def _alone(reason: Agreed, why: str) -> AgreeResult:
    return AgreeResult(go=True, reason=reason, why=f"judged by one observer: {why}")

"""What this coordinator publishes of silent hosts, and what it reads of the others' publications.

Published is with the own renewals, so that nothing more is written; a host that has just fallen silent brings the next
renewal forward, at most twice in a renewal's time. Only where the switches of coordinators are known is anything
published or asked at all (docs/concepts/safety.md#two-observers).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from outlive.base import natural_key
from outlive.node.fencing.context import FencerContext
from outlive.node.fencing.watcher import SeenHost
from outlive.resources import SILENT_PEERS, SilentPeer
from outlive.runtime import Amount, Count, Decision

FRESH_RENEWALS: Final = 2
"""Renewals of its own for which counts what a coordinator publishes."""
EARLY_SHARE: Final = 0.5
"""Of the own renewal interval: two renewals that were brought forward lie at least so far apart."""
KNOWN_S: Final = 60.0
"""A silence that was published within so long brings no renewal forward: in a storm suspicions begin ever again."""


class PeerConfirmation:
    """See the module."""

    def __init__(self, context: FencerContext) -> None:
        self._context = context
        self._known: dict[tuple[str, str, int, int], float] = {}
        """Silences for which a renewal was brought forward, and when they were last published."""
        self._publishes = False
        """Whether anything is published."""
        self._early_at = float("-inf")
        """When the last renewal was brought forward."""

    def publish(self, suspected: Iterable[str]) -> None:
        """Say who of those that are suspected is silent; to be called at every round."""
        rules, others = self._context.rules, self._context.others
        mine = rules.switch_of(self._context.me)
        # only a coordinator on another switch asks for what is published
        needed = mine is not None and any(rules.switch_of(one) not in (None, mine) for one in others)
        silent = self._find_silent(suspected) if rules.has_sight and needed else ()
        if not silent and not self._publishes:
            return
        self._publishes = bool(silent)
        now = self._context.clock.monotonic()
        found = [(one.host, one.uid, one.epoch, one.seq) for one in silent]
        news = any(one not in self._known for one in found)
        soon = news and now - self._early_at >= EARLY_SHARE * self._context.rules.renew_s(self._context.me)
        if soon:
            self._early_at = now
        if soon or not news:
            self._known = {one: at for one, at in self._known.items() if now - at < KNOWN_S}
            self._known |= dict.fromkeys(found, now)
        self._context.observer.publish_silent(silent, soon=soon)

    def end(self) -> None:
        """Publish nothing any more."""
        self._publishes = False
        self._context.observer.publish_silent((), soon=False)

    def ask(self, host: str, seen: SeenHost, waited_s: float) -> AgreeResult:
        """Whether ``host`` may be condemned for its silence, which this observer has seen through ``waited_s`` ago."""
        rules, now = self._context.rules, self._context.clock.monotonic()
        policy, colleagues = rules.cluster_spec().fencing, list[Colleague]()
        for name in self._context.others:
            other = self._context.watcher.get(name)
            if name == host or other is None or other.record.state != "Held":
                continue
            age_s = now - other.since
            sights = (
                Sight(uid=one.uid, epoch=one.epoch, seq=one.seq, silent_s=one.silent_s)
                for one in other.record.silent
                if one.host == host
            )
            one = Colleague(
                name=name,
                switch=rules.switch_of(name),
                lives=age_s <= rules.silence_s(name, other),
                fresh=age_s <= FRESH_RENEWALS * rules.renew_s(name),
                sees=next(sights, None),
            )
            colleagues.append(one)
        given = AgreeInput(
            observer=self._context.me,
            switch=rules.switch_of(self._context.me),
            suspect=self._sight_of(seen),
            silence_s=rules.silence_s(host, seen),
            coordinators=len(colleagues) + 1 + (host in self._context.others),
            colleagues=tuple(colleagues),
            waited_s=max(0.0, waited_s),
            wait_s=max(0.0, policy.second_observer_s),
        )
        return self._context.decisions.use(FENCE_AGREE, given, subject=host)

    def _find_silent(self, suspected: Iterable[str]) -> tuple[SilentPeer, ...]:
        found: list[SilentPeer] = []
        for host in suspected:
            seen = self._context.watcher.get(host)
            if seen is None or seen.record.state != "Held":
                continue
            one = self._sight_of(seen)
            found.append(SilentPeer(host=host, uid=one.uid, epoch=one.epoch, seq=one.seq, silent_s=one.silent_s))
        found.sort(key=lambda one: (-one.silent_s, one.host))
        return tuple(found[:SILENT_PEERS])

    def _sight_of(self, seen: SeenHost) -> Sight:
        silent_s = round(self._context.clock.monotonic() - seen.since, 3)
        return Sight(uid=seen.membership.metadata.uid, epoch=seen.record.epoch, seq=seen.record.seq, silent_s=silent_s)


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

    def is_same(self, other: Sight) -> bool:
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
        return _judge_alone(Agreed.TWO_NODE_SURVIVAL, f"of the coordinators {given.coordinators} are left")
    living = sorted((one for one in given.colleagues if one.lives), key=lambda one: natural_key(one.name))
    if not living:
        return _judge_alone(Agreed.NOBODY_ELSE, "no other coordinator lives")
    if given.switch is None:
        return _judge_alone(Agreed.TOPOLOGY_UNKNOWN, f"the switch of {given.observer} is not known")
    if all(one.switch is None for one in living):
        return _judge_alone(Agreed.TOPOLOGY_UNKNOWN, "the switches of the other coordinators are not known")
    elsewhere = [one for one in living if one.switch not in (None, given.switch)]
    if not elsewhere:
        return _judge_alone(Agreed.NO_OTHER_SWITCH, f"no coordinator lives on another switch than {given.switch}")
    for one in elsewhere:
        sees = one.sees
        same = sees is not None and sees.is_same(given.suspect) and sees.silent_s >= given.silence_s
        if one.fresh and same:
            why = f"{one.name} on switch {one.switch} saw nothing after renewal {given.suspect.seq} either"
            return AgreeResult(go=True, reason=Agreed.TWO_OBSERVERS, second=one.name, why=why)
    first, others = elsewhere[0], len(elsewhere) - 1
    names = f"{first.name} on switch {first.switch}" + (f", or one of {others} others," if others else "")
    if given.waited_s < given.wait_s:
        return AgreeResult(go=False, reason=Agreed.WAITING, why=f"{names} is still to say that it sees the silence")
    return _judge_alone(Agreed.NO_ANSWER, f"{names} did not say within {given.wait_s:g} s that it sees the silence")


def _judge_alone(reason: Agreed, why: str) -> AgreeResult:
    return AgreeResult(go=True, reason=reason, why=f"judged by one observer: {why}")


FENCE_AGREE: Final = Decision(
    "fence.agree",
    agree,
    AgreeInput,
    AgreeResult,
    "Whether a second observer sees a host silent",
    lambda output: output.reason in (Agreed.NOT_CONFIGURED, Agreed.WAITING),
)

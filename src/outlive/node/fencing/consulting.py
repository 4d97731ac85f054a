"""What this coordinator publishes of silent hosts, and what it reads of the others' publications.

Published is with the own renewals, so that nothing more is written; a host that has just fallen silent brings the next
renewal forward, at most twice in a renewal's time. Only where the switches of coordinators are known is anything
published or asked at all (docs/concepts/safety.md#two-observers).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from outlive.base.clock import Clock
from outlive.node.decisions import FENCE_AGREE
from outlive.node.fencing.agreeing import AgreeInput, AgreeResult, Colleague, Sight
from outlive.node.fencing.rules import Rules
from outlive.node.fencing.watching import Seen, Watching
from outlive.resources import SilentPeer
from outlive.resources.memberships import SILENT_PEERS
from outlive.runtime.decisions import DecisionLog

FRESH_RENEWALS: Final = 2
"""Renewals of its own for which counts what a coordinator publishes."""
EARLY_SHARE: Final = 0.5
"""Of the own renewal interval: two renewals that were brought forward lie at least so far apart."""
KNOWN_S: Final = 60.0
"""A silence that was published within so long brings no renewal forward: in a storm suspicions begin ever again."""


class Publisher(Protocol):
    """Who renews this host's membership."""

    def publish_silent(self, silent: tuple[SilentPeer, ...], *, soon: bool) -> None:
        """Say this with every renewal from now on; ``soon``: bring the next one forward."""
        ...


class Consulting:
    """See the module. ``others``: the other coordinators by name, as they are known at each moment."""

    def __init__(
        self,
        me: str,
        publisher: Publisher,
        watching: Watching,
        rules: Rules,
        others: Iterable[str],
        clock: Clock,
        decisions: DecisionLog,
    ) -> None:
        self._me = me
        self._publisher = publisher
        self._watching = watching
        self._rules = rules
        self._others = others
        self._clock = clock
        self._decisions = decisions
        self._known: dict[tuple[str, str, int, int], float] = {}
        """Silences for which a renewal was brought forward, and when they were last published."""
        self._says = False
        """Whether anything is published."""
        self._early_at = float("-inf")
        """When the last renewal was brought forward."""

    def publish(self, suspected: Iterable[str]) -> None:
        """Say who of those that are suspected is silent; to be called at every round."""
        silent = self._silent(suspected) if self._rules.sighted and self._needed() else ()
        if not silent and not self._says:
            return
        self._says = bool(silent)
        now = self._clock.monotonic()
        found = [(one.host, one.uid, one.epoch, one.seq) for one in silent]
        news = any(one not in self._known for one in found)
        soon = news and now - self._early_at >= EARLY_SHARE * self._rules.renew_s(self._me)
        if soon:
            self._early_at = now
        if soon or not news:
            self._known = {one: at for one, at in self._known.items() if now - at < KNOWN_S}
            self._known |= dict.fromkeys(found, now)
        self._publisher.publish_silent(silent, soon=soon)

    def end(self) -> None:
        """Publish nothing any more."""
        self._says = False
        self._publisher.publish_silent((), soon=False)

    def ask(self, host: str, seen: Seen, waited_s: float) -> AgreeResult:
        """Whether ``host`` may be condemned for its silence, which this observer has seen through ``waited_s`` ago."""
        policy, colleagues = self._rules.cluster().fencing, tuple(self._colleagues(host))
        held = len(colleagues) + 1 + (host in set(self._others))
        given = AgreeInput(
            observer=self._me,
            switch=self._rules.switch(self._me),
            suspect=self._sight(seen),
            silence_s=self._rules.silence_s(host, seen),
            coordinators=held,
            colleagues=colleagues,
            waited_s=max(0.0, waited_s),
            wait_s=max(0.0, policy.second_observer_s),
        )
        return self._decisions.use(FENCE_AGREE, given, subject=host)

    def _needed(self) -> bool:
        """Whether anybody on another switch could ask for what is published."""
        mine = self._rules.switch(self._me)
        return mine is not None and any(self._rules.switch(one) not in (None, mine) for one in self._others)

    def _silent(self, suspected: Iterable[str]) -> tuple[SilentPeer, ...]:
        found: list[SilentPeer] = []
        for host in suspected:
            seen = self._watching.get(host)
            if seen is None or seen.record.state != "Held":
                continue
            one = self._sight(seen)
            found.append(SilentPeer(host=host, uid=one.uid, epoch=one.epoch, seq=one.seq, silent_s=one.silent_s))
        found.sort(key=lambda one: (-one.silent_s, one.host))
        return tuple(found[:SILENT_PEERS])

    def _sight(self, seen: Seen) -> Sight:
        silent_s = round(self._clock.monotonic() - seen.since, 3)
        return Sight(uid=seen.membership.metadata.uid, epoch=seen.record.epoch, seq=seen.record.seq, silent_s=silent_s)

    def _colleagues(self, suspect: str) -> Iterator[Colleague]:
        now = self._clock.monotonic()
        for name in self._others:
            seen = self._watching.get(name)
            if name == suspect or seen is None or seen.record.state != "Held":
                continue
            age_s = now - seen.since
            yield Colleague(
                name=name,
                switch=self._rules.switch(name),
                lives=age_s <= self._rules.silence_s(name, seen),
                fresh=age_s <= FRESH_RENEWALS * self._rules.renew_s(name),
                sees=next((_seen(one) for one in seen.record.silent if one.host == suspect), None),
            )


def _seen(one: SilentPeer) -> Sight:
    return Sight(uid=one.uid, epoch=one.epoch, seq=one.seq, silent_s=one.silent_s)

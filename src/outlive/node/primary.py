"""The role of primary: who wins it, and how it changes hands, step by step. Models, not the machinery.

What makes the role safe is that the winner's name and its term are one conditional write; the lock, the waits and the
lock-step modelled here only avoid noise. Tests hold the machinery to these models
(docs/reference/node-decisions.md#primarycontend, #primaryhandover).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from outlive.base.errors import BadInput
from outlive.base.natural import natural_key
from outlive.node.numbers import Amount, Count, Number

NOBODY: Final = frozenset({"none", "None", ""})
"""Spellings of nobody, as a value of the key."""
LOCK_TIMEOUT_MS: Final = 400
"""How long a contender waits for the lock."""
TAKEOVER_DELAY_MS: Final = 500
"""After winning; longer than any contender waits, so that all others have given up by then."""
HOLD_MS: Final = 50
"""How long a contender keeps the lock, to look and to write."""
DB_TRIES: Final = 5
"""Tries to make the local database the leader."""


class PrimaryKey(msgspec.Struct, frozen=True, kw_only=True):
    """Who is primary, as every contender saw it."""

    value: str | None
    version: Count


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A host that heard of it."""

    name: str
    mode: str
    daemon_state: str
    router_state: str
    react_ms: Amount
    """When it asks for the lock."""


class ContendInput(msgspec.Struct, frozen=True, kw_only=True):
    """A contest for the role. Times in milliseconds."""

    key: PrimaryKey
    contenders: tuple[Contender, ...]
    lock_timeout_ms: Amount = LOCK_TIMEOUT_MS
    takeover_delay_ms: Amount = TAKEOVER_DELAY_MS
    hold_ms: Amount = HOLD_MS


class ContendOutcome(enum.StrEnum):
    """What became of a contender."""

    WON = "won"
    LOST_LOCK = "lost_lock"
    """It did not get the lock in time."""
    LOST_VERSION = "lost_version"
    """It got the lock and found that somebody had won."""
    NOT_ELIGIBLE = "not_eligible"


class ContendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Who won, and what became of everybody."""

    winner: str | None
    outcomes: dict[str, ContendOutcome]
    key_version: int
    takeover_at_ms: Number | None


def contend(given: ContendInput) -> ContendResult:
    """The first in the queue writes; whoever comes after finds its write, or no lock. ``BadInput`` for a name twice."""
    _unlike([each.name for each in given.contenders])
    free = (given.key.value or "") in NOBODY
    outcomes = dict.fromkeys((each.name for each in given.contenders), ContendOutcome.NOT_ELIGIBLE)
    queue = sorted(
        (each for each in given.contenders if free and _eligible(each)),
        key=lambda each: (each.react_ms, natural_key(each.name)),
    )
    if not queue:
        return ContendResult(winner=None, outcomes=outcomes, key_version=given.key.version, takeover_at_ms=None)
    winner = queue[0]
    written_at = winner.react_ms + given.hold_ms
    takeover_at = written_at + given.takeover_delay_ms
    outcomes[winner.name] = ContendOutcome.WON
    for loser in queue[1:]:
        outcomes[loser.name] = _lost(loser, written_at, takeover_at, given.lock_timeout_ms)
    return ContendResult(
        winner=winner.name, outcomes=outcomes, key_version=given.key.version + 1, takeover_at_ms=takeover_at
    )


def _eligible(contender: Contender) -> bool:
    return contender.mode == "coordinator" and contender.daemon_state == "run" and contender.router_state == "secondary"


def _lost(loser: Contender, written_at: Number, takeover_at: Number, timeout: Amount) -> ContendOutcome:
    """Losers let go of the lock at once, so nobody waits for another loser."""
    if loser.react_ms > takeover_at:
        return ContendOutcome.LOST_LOCK
    waits = max(written_at - loser.react_ms, 0)
    return ContendOutcome.LOST_VERSION if waits <= timeout else ContendOutcome.LOST_LOCK


def _unlike(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadInput(f"{name!r} is named twice", remedy="name every host once")
        seen.add(name)


HandoverPhase = Literal["A", "B", "C", "D", "E", "F", "G"]
PHASES: Final[tuple[HandoverPhase, ...]] = ("A", "B", "C", "D", "E", "F", "G")
_WRITTEN_BY_LEAVER: Final = "B"
_LATE: Final[dict[HandoverPhase, tuple[HandoverPhase, ...]]] = {
    "A": ("C",),
    "B": ("B", "C"),
    "C": ("D",),
    "D": ("E",),
    "E": ("F",),
    "F": ("G",),
    "G": (),
}
"""By the phase in which the leaver hangs: those in which the candidate waits in vain. After that it waits no more."""


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """The primary until now."""

    name: str
    daemon_state: str

    @property
    def takes_part(self) -> bool:
        """Whether it still does anything."""
        return self.daemon_state in ("run", "shutdown")


class HandedNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A network of virtual machines; only managed ones have gateways and DHCP."""

    vni: int | str
    type: str


class HandoverInput(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes over from whom, and what goes wrong."""

    new: str
    networks: tuple[HandedNetwork, ...]
    enable_api: bool
    old: Leaver | None = None
    db: Annotated[tuple[Literal["fail", "ok", "same"], ...], Meta(min_length=1)] = ("ok",)
    """Outcomes of tries to make the local database the leader; the last one repeats."""
    leaver_stalls_in: HandoverPhase | None = None
    """The leaver hangs just after it was granted its lock of this phase."""


class HandoverResult(msgspec.Struct, frozen=True, kw_only=True):
    """All steps as ``phase:node:step``, in order, and how it ended."""

    steps: tuple[str, ...]
    dns_started: bool
    db_attempts: int
    timeouts: tuple[HandoverPhase, ...]
    final: dict[str, str]


def handover(given: HandoverInput) -> HandoverResult:
    """Walk the phases; in each the writer's steps come first. ``BadInput`` if both sides are one host."""
    old = given.old
    if old is not None and old.name == given.new:
        raise BadInput(f"{given.new!r} takes over from itself", remedy="name two hosts, or no old one")
    attempts, leads = _database(given.db)
    leaver = old if old is not None and old.takes_part else None
    stalls_in = given.leaver_stalls_in if leaver is not None else None
    steps: list[str] = []
    for phase in PHASES:
        candidate_steps = [f"{phase}:{given.new}:{step}" for step in _candidate(phase, given, dns=leads)]
        leaver_steps = []
        if leaver is not None and (stalls_in is None or phase < stalls_in):
            leaver_steps = [f"{phase}:{leaver.name}:{step}" for step in _leaver(phase, given)]
        first, second = candidate_steps, leaver_steps
        if phase == _WRITTEN_BY_LEAVER:
            first, second = second, first
        steps += [*first, *second]
    final = {given.new: "primary"}
    if old is not None:
        final[old.name] = "secondary" if stalls_in is None else "relinquish"
    return HandoverResult(
        steps=tuple(steps),
        dns_started=leads,
        db_attempts=attempts,
        timeouts=() if stalls_in is None else _LATE[stalls_in],
        final=final,
    )


def _database(outcomes: Sequence[str]) -> tuple[int, bool]:
    """How often the database is tried for, and whether it leads in the end."""
    for attempt in range(1, DB_TRIES + 1):
        if outcomes[min(attempt, len(outcomes)) - 1] != "fail":
            return attempt, True
    return DB_TRIES, False


def _managed(given: HandoverInput) -> list[int | str]:
    managed = [network.vni for network in given.networks if network.type == "managed"]
    return sorted(managed, key=lambda vni: natural_key(str(vni)))


def _leaver(phase: HandoverPhase, given: HandoverInput) -> Iterator[str]:
    match phase:
        case "B":
            yield "stop_dns"
            yield from (f"stop_dhcp:{vni}" for vni in _managed(given))
            yield "stop_metadata"
            if given.enable_api:
                yield "stop_api"
        case "C":
            yield "del_upstream"
        case "D":
            yield from ("del_cluster", "del_storage")
        case "E":
            yield "del_metadata_ip"
        case "F":
            yield from (f"del_gateways:{vni}" for vni in _managed(given))
        case _:
            return


def _candidate(phase: HandoverPhase, given: HandoverInput, *, dns: bool) -> Iterator[str]:
    match phase:
        case "C":
            yield "add_upstream"
        case "D":
            yield from ("add_cluster", "add_storage")
        case "E":
            yield "add_metadata_ip"
        case "F":
            yield from (f"add_gateways:{vni}" for vni in _managed(given))
        case "G":
            yield "db_leader"
            if given.enable_api:
                yield "start_api"
            yield "start_metadata"
            yield from (f"start_dhcp:{vni}" for vni in _managed(given))
            if dns:
                yield "start_dns"
        case _:
            return

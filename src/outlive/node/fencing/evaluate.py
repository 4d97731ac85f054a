"""Which peers an observer suspects, which fences of others it takes up, and when it holds back altogether.

Ages are measured by the observer, on its own monotonic clock, since it last saw a host's membership change. Most of
the rules guard against the observer being the one that is broken. A suspicion proves nothing and harms nobody: it
only starts the search for a proof (docs/reference/node-decisions.md#fenceevaluate).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from outlive.base.natural import natural_key
from outlive.node.numbers import Amount, Count, Number, Positive

STORM_FRACTION: Final = 0.5
"""More than this part of all working hosts silent at once is a storm."""
TRANSITION_GRACE_S: Final = 300.0
"""How long a host with virtual machines may start or stop in silence."""
STALE_INTERVALS: Final = 2
"""An observer whose own last stamp is as old as this many intervals does not judge others."""


class Why(enum.StrEnum):
    """Why nobody is suspected."""

    MAINTENANCE = "maintenance"
    NOT_COORDINATOR = "not_coordinator"
    DISABLED = "disabled"
    OBSERVER_STALE = "observer_stale"
    OBSERVER_GRACE = "observer_grace"
    STORM = "storm"


class EvaluateConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When silence counts. Times in seconds."""

    keepalive_interval: Positive
    fence_intervals: Amount
    """Intervals of silence; 0 turns fencing off."""
    storm_fraction: Amount = STORM_FRACTION
    transition_grace: Amount = TRANSITION_GRACE_S


class Observer(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks. Times in seconds."""

    name: str
    mode: str
    connected: bool
    own_age: Number
    """Since its own last acknowledged stamp."""
    uptime: Number
    """Since it began to observe."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A host as the observer sees it."""

    name: str
    daemon_state: str
    age: Number
    """Seconds since the observer last saw it change."""
    assigned_vms: Count = 0
    fence_owner: str | None = None
    fence_owner_live: bool = False
    domain: str | None = None
    """What fails together with it; none: it fails alone."""
    silence: Amount | None = None
    """Seconds of silence that count for this host; none: as the intervals say."""


class EvaluateInput(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to suspect?"""

    config: EvaluateConfig
    observer: Observer
    nodes: tuple[Peer, ...]
    maintenance: bool = False
    primary: str | None = None
    """Who carries the role of primary: suspected before all others, so that a limit of fences is spent on it first.
    Fencers leave it out as long as no host carries that role, which comes with floating addresses and gateways."""


class EvaluateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts to suspect and fences to take up, in this order; or why nobody is suspected."""

    suspects: tuple[str, ...]
    adopt: tuple[str, ...]
    reason: Why | None


def evaluate(given: EvaluateInput) -> EvaluateResult:
    """Suspect what is silent or stuck, the primary first, unless the observer had better not judge."""
    unfit = _unfit(given)
    if unfit is not None:
        return EvaluateResult(suspects=(), adopt=(), reason=unfit)
    config, me = given.config, given.observer.name
    others = sorted((peer for peer in given.nodes if peer.name != me), key=lambda peer: natural_key(peer.name))
    adopt = tuple(peer.name for peer in others if peer.daemon_state == "dead" and not _owned(peer))
    limit = config.keepalive_interval * config.fence_intervals
    running = [peer for peer in others if peer.daemon_state == "run"]
    silent = [peer for peer in running if peer.age > (limit if peer.silence is None else peer.silence)]
    if _storm(given, silent):
        return EvaluateResult(suspects=(), adopt=adopt, reason=Why.STORM)
    stuck = [peer for peer in others if _stuck(peer, config.transition_grace)]
    names = sorted((peer.name for peer in (*silent, *stuck)), key=natural_key)
    first = sorted(names, key=lambda name: name != given.primary)
    return EvaluateResult(suspects=tuple(first), adopt=adopt, reason=None)


def _unfit(given: EvaluateInput) -> Why | None:
    observer, interval = given.observer, given.config.keepalive_interval
    if given.maintenance:
        return Why.MAINTENANCE
    if observer.mode != "coordinator":
        return Why.NOT_COORDINATOR
    if given.config.fence_intervals == 0:
        return Why.DISABLED
    if not observer.connected or observer.own_age >= STALE_INTERVALS * interval:
        return Why.OBSERVER_STALE
    if observer.uptime < interval * given.config.fence_intervals:
        return Why.OBSERVER_GRACE
    return None


def _owned(peer: Peer) -> bool:
    return peer.fence_owner is not None and peer.fence_owner_live


def _stuck(peer: Peer, grace: Amount) -> bool:
    return peer.daemon_state in ("init", "shutdown") and peer.assigned_vms > 0 and peer.age > grace


def _storm(given: EvaluateInput, silent: Sequence[Peer]) -> bool:
    """Whether too much is silent, by hosts and by failure domains: one rack that dies is one failure, not a storm."""
    me = given.observer.name
    working = [peer for peer in given.nodes if peer.daemon_state == "run" and peer.name != me]
    domain = next((peer.domain for peer in given.nodes if peer.name == me), None)
    counted = {*_units(working), _unit(me, domain)}
    fraction = given.config.storm_fraction
    too_many_hosts = len(silent) > fraction * (len(working) + 1)
    return too_many_hosts and len(_units(silent)) > fraction * len(counted)


def _units(peers: Iterable[Peer]) -> set[tuple[bool, str]]:
    return {_unit(peer.name, peer.domain) for peer in peers}


def _unit(name: str, domain: str | None) -> tuple[bool, str]:
    return (domain is not None, name if domain is None else domain)

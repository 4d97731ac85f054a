"""Deaths of hosts that repeat: of VMs that bring hosts down, and of hosts that flap. Pure.

A host has *died* when an epoch of it was proven dead by anything but its own word: by power, watchdog, isolation or an
operator, or by a boot that nobody announced. Hosts that die together share a cause from outside, such as the power of
a rack, and that cause is neither a VM's nor the host's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from outlive.base import Clock, Instant, NotFound, Refused, as_datetime, as_instant
from outlive.resources import (
    FencingPolicy,
    Holder,
    HostDeath,
    HostFailure,
    Hypervisor,
    Limits,
    MemberRecord,
    Membership,
    Proof,
    Quarantine,
)
from outlive.store import Store, compare_and_swap

EVENT_S: Final = 60.0
"""Hosts that die within so long of each other die together."""
OWN_WORD: Final = "self-cleaned"
"""The proof of a host that left cleanly, or came back by itself with all its VMs seen to."""
DYING_S: Final = 5.0
"""What a VM brings down it brings down no sooner than so long after its start, beside the silence of its host."""
DEATHS_KEPT: Final = 16
"""Of one host."""
FAILURES_KEPT: Final = 16
"""Hosts that died under one VM."""
MOST_QUARANTINED: Final = 0.5
"""No more of the hosts than this are in quarantine: then it is hardly they."""
_replace = msgspec.structs.replace


class Death(NamedTuple):
    """One host that died, or seems to be dying."""

    host: str
    at: datetime | None
    """When it was proven; ``None``: it is condemned or silent, and not proven dead yet."""


def death_of(host: str, record: MemberRecord, *, silent: bool = False) -> Death | None:
    """The last death of a host, or that it is going on now; ``None``: there is none that anybody knows of."""
    proof = record.proof
    if record.state == "Revoked" and record.dead_through < record.epoch:
        return Death(host, None)
    if silent and record.state == "Held":
        return Death(host, None)
    return Death(host, proof.at) if proof is not None and proof.kind != OWN_WORD and proof.at is not None else None


def find_died_together(host: str, at: datetime, deaths: Iterable[Death], now: datetime) -> list[str]:
    """Other hosts that died at about that time, or are dying if that is now."""
    return [one.host for one in deaths if one.host != host and abs(_seconds_between(at, one.at or now)) <= EVENT_S]


def _seconds_between(begin: datetime, end: datetime) -> float:
    """Between two times, of which a host may have written either without its zone."""
    return as_instant(end) - as_instant(begin)


def failures_of(
    before: tuple[HostFailure, ...],
    holders: Collection[Holder],
    proofs: Mapping[str, Proof],
    together: Callable[[str, datetime], Collection[str]],
    silence_s: Callable[[str], float],
    limits: Limits,
) -> tuple[HostFailure, ...]:
    """Hosts that died under a VM soon after it was started there, one after the other.

    ``proofs``: by run, of its holders that are dead. ``together``: who died with a host at that time. ``silence_s``:
    for how long a host is silent before it is condemned. ``before``: those that its record knows. Where it ran for
    long before its host died, nothing of before counts; where others died with its host, that death does not count.
    A death that the record knows is judged again while its proof is there: others may turn out to have died with it.
    """
    proven = {(one.hypervisor, one.epoch) for one in holders if one.since is not None and _is_of(one, proofs)}
    found = [one for one in before if (one.host, one.epoch) not in proven]
    for holder in holders:
        proof = proofs.get(holder.run_id)
        if proof is None or holder.since is None or not _is_of(holder, proofs):
            continue
        if proof.kind == OWN_WORD or proof.at is None:
            continue
        if _seconds_between(holder.since, proof.at) > limits.start_window_s:
            found = []
            continue
        if _seconds_between(holder.since, proof.at) < silence_s(holder.hypervisor) + DYING_S:
            continue  # the host was dying when it was started there
        counted = {one.host for one in found}
        if any(one not in counted for one in together(holder.hypervisor, proof.at)):
            continue
        found.append(HostFailure(host=holder.hypervisor, epoch=holder.epoch, at=proof.at))
    return tuple(found[-FAILURES_KEPT:])


def _is_of(holder: Holder, proofs: Mapping[str, Proof]) -> bool:
    """Whether the proof says when and how this run ended; that of a later epoch does not."""
    proof = proofs.get(holder.run_id)
    return proof is not None and proof.epoch <= holder.epoch


class FlapView(NamedTuple):
    """What is known when a host's deaths are counted."""

    policy: FencingPolicy
    together: Callable[[str, datetime], Collection[str]]
    """Who died with a host at that time."""
    hosts: int
    """How many hosts with our daemon there are, …"""
    quarantined: int
    """… and how many of them are in quarantine."""


def update_quarantine(
    host: Hypervisor, member: Membership, view: FlapView, now: Instant, *, resting: bool
) -> tuple[tuple[HostDeath, ...], Quarantine | None]:
    """Its deaths and its quarantine as they are to be written; the same where nothing changes.

    ``resting``: somebody works on the host, or on the cluster.
    """
    status, policy, uid = host.status, view.policy, member.metadata.uid
    window_s, at_now, proof = policy.flap_window_s, as_datetime(now), member.record.proof
    kept = tuple(one for one in status.deaths if now - as_instant(one.at) <= window_s)
    if proof is not None and proof.kind != OWN_WORD and proof.at is not None and now - as_instant(proof.at) <= window_s:
        known = any((one.uid, one.epoch) == (uid, proof.epoch) for one in kept)
        if not known:
            together = 1 + len(view.together(host.name, proof.at))
            outage = together > 1 and together > policy.storm_fraction * view.hosts
            counts = not (outage or resting)
            new = HostDeath(at=proof.at, uid=uid, epoch=proof.epoch, proof=proof.kind, counts=counts)
            kept = (*kept, new)[-DEATHS_KEPT:]
    word, quarantine = host.spec.quarantine_release, status.quarantine
    if quarantine is not None:
        if policy.flap_deaths > 0 and now < as_instant(quarantine.until) and word == quarantine.word:
            return kept, quarantine
        return tuple(_replace(one, counts=False) for one in kept), None
    count = sum(one.counts for one in kept)
    room = view.quarantined + 1 <= MOST_QUARANTINED * view.hosts
    if 0 < policy.flap_deaths <= count and room:
        until = as_datetime(now + policy.quarantine_s)
        return kept, Quarantine(since=at_now, until=until, deaths=count, word=word)
    return kept, None


async def release_host(store: Store, clock: Clock, host: str, *, word: str) -> str:
    """Let a host out of its quarantine, by a word that it was not let out by before; what was done. ``NotFound``;
    ``Refused`` where it is in none."""

    def release(found: Hypervisor | None) -> Hypervisor | None:
        if found is None:
            raise NotFound(f"there is no host {host}", remedy="see outlive host list")
        if found.status.quarantine is None:
            raise Refused(f"{host} is not in quarantine", remedy="nothing is to be done")
        return _replace(found, spec=_replace(found.spec, quarantine_release=word))

    await compare_and_swap(store, Hypervisor, host, release, clock=clock, half="spec")
    return f"{host} is let out of its quarantine"

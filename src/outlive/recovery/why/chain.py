"""What both answers are made of: links of the chain, its decisions, and what holds of hosts and the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from outlive.base import as_datetime, as_instant, shown_time
from outlive.node.fencing import CondemnView, Departure, HostSettings, departure_of
from outlive.node.membership import RecordOutcome
from outlive.resources import (
    CLUSTER,
    Cluster,
    DecisionRecord,
    Fault,
    Hypervisor,
    Membership,
    Proof,
    decode_as,
)
from outlive.resources.reasons import FaultCode
from outlive.store import Store, list_all, read

DECISIONS_LIMIT: Final = 200
"""Decisions that one answer shows, the last ones."""
ANY_TIME: Final = float("-inf")
"""A moment before the end of all announced work."""
_ORDER: Final = ("safety.condemn", "safety.attempt", "safety.claim", "safety.assign", "safety.hold", "safety.create")
"""In this order decisions follow each other, whatever clocks say."""


class Link(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One link of the chain."""

    at: datetime | None = None
    text: str
    decision: str = ""
    """Name of the ``DecisionRecord`` that it comes from."""


class RecordedDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A decision as it was taken: ``outlive decide NAME`` on the input gives the output again."""

    name: str
    decision: str
    at: datetime
    by: str
    subject: str
    input: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"null")
    input_digest: str = ""


class WhyAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole answer."""

    subject: str
    summary: str
    settled: bool
    """Whether nothing is left to be done: the VM runs, the host lives or everything on it is recovered."""
    chain: tuple[Link, ...]
    remedy: str = ""
    decisions: tuple[RecordedDecision, ...] = ()


class DepartedHost(NamedTuple):
    """A host that said that it goes, and has not come back."""

    said: str
    waits: str
    """For whom its VMs wait, or for how long."""
    remedy: str


async def find_departed(store: Store, host: str) -> DepartedHost | None:
    """What a VM waits for whose host went cleanly; ``None``: it did not, or was condemned since.

    Announced work counts here until somebody ends it, also past its time: no clock is read.
    """
    hypervisor, member = await read(store, Hypervisor, host), await read(store, Membership, host)
    if hypervisor is None or member is None or member.record.state == "Revoked":
        return None
    how = departure_of(hypervisor, released=member.record.state == "Released")
    if how is Departure.NONE:
        return None
    said = {
        Departure.DAEMON: f"the daemon of {host} was stopped",
        Departure.MACHINE: f"{host} went down cleanly",
        Departure.LEFT: f"{host} was stopped cleanly",
    }[how]
    settings = HostSettings(await read(store, Cluster, CLUSTER), hypervisor)
    planned = settings.planned_work(ANY_TIME, how)
    if settings.is_awaited(how):
        return DepartedHost(
            said,
            "its VMs wait for it, by its shutdown policy (freeze)",
            f"switch {host} on; or, to have them recovered elsewhere: outlive host shutdown-policy {host} failover",
        )
    if planned:
        return DepartedHost(
            said,
            f"its VMs wait for it because work is announced ({planned})",
            f"switch {host} on, or end the work (outlive maintenance off, outlive ready {host}): "
            "then they are recovered elsewhere",
        )
    return DepartedHost(
        said, "unless it is soon back, its VMs are recovered elsewhere", f"start its daemon or switch {host} on"
    )


async def list_disarmed(store: Store) -> list[Link]:
    """That somebody disarmed the cluster, and until when."""
    cluster = await read(store, Cluster, CLUSTER)
    if cluster is None or not cluster.spec.disarmed:
        return []
    spec = cluster.spec
    end = f"until {shown_time(spec.disarmed_until)}" if spec.disarmed_until else "until it is armed again"
    text = f"the cluster was disarmed ({spec.disarmed}): {end} no host is condemned and nothing is recovered"
    return [Link(at=spec.disarmed_since, text=text)]


async def list_rate_faults(store: Store) -> list[Fault]:
    """Faults that say that silent hosts are not condemned now: that a host holds its membership says little then."""
    codes = (FaultCode.STORM_HOLD, FaultCode.RATE_HOLD)
    return [one async for one in list_all(store, Fault) if one.code in codes and not one.ended]


def first_remedy(faults: list[Fault]) -> str:
    """What helps against the first of them; empty without any."""
    return faults[0].remedy if faults else ""


def link_condemnation(records: Iterable[DecisionRecord], by: str) -> Iterator[Link]:
    """The last renewal that was seen, and who condemned the host for it.

    Of several who decided so at the same time the store let one through: ``by``, unless the fence was taken over.
    """
    found = [
        (record, decode_as(CondemnView, record.input.encode()))
        for record in records
        if record.decision == "safety.condemn" and record.input
    ]
    through = [one for one in found if one[1].observer == by]
    for record, view in through or found:
        at_version = f", version {view.version}" if view.version else ""
        yield Link(
            at=as_datetime(as_instant(record.at) - view.unchanged_s),
            text=f"the last renewal of {view.host} that {view.observer} saw is number {view.record.seq} "
            f"of epoch {view.record.epoch}{at_version}",
            decision=record.name,
        )
        yield Link(
            at=record.at,
            text=f"{view.observer} had seen it unchanged for {view.unchanged_s:.1f} s (limit {view.silence_s:g} s) "
            f"and condemned {view.host} on exactly that version",
            decision=record.name,
        )
        for note in (view.observers, view.looks):
            if note:
                yield Link(at=record.at, text=note, decision=record.name)


def is_of_fence(record: DecisionRecord, fence: str) -> bool:
    """Whether the decision was taken for that fence."""
    if record.decision == "safety.condemn":
        outcome = decode_as(RecordOutcome, record.output.encode()) if record.output else None
        return outcome is not None and outcome.record is not None and outcome.record.fence.id == fence
    return record.decision.startswith("safety.") and f'"{fence}"' in record.input


def link_proofs(proofs: Iterable[Proof]) -> Iterator[Link]:
    """A link for each proof."""
    for proof in proofs:
        by = f", recorded by {proof.by}" if proof.by else ""
        yield Link(at=proof.at, text=f"proof of epoch {proof.epoch} by {proof.kind}: {proof.evidence}{by}")


def show_decisions(records: Iterable[DecisionRecord]) -> tuple[RecordedDecision, ...]:
    """The last of these decisions, the oldest first."""
    ordered = sorted(records, key=_sort_key)[-DECISIONS_LIMIT:]
    return tuple(
        RecordedDecision(
            name=one.name,
            decision=one.decision,
            at=one.at,
            by=one.by,
            subject=one.subject,
            input=msgspec.Raw(one.input.encode() or b"null"),
            output=msgspec.Raw(one.output.encode() or b"null"),
            input_digest=one.input_digest,
        )
        for one in ordered
    )


def _sort_key(record: DecisionRecord) -> tuple[datetime, int, datetime, str]:
    """By time; those of different processes in one millisecond as the protocol goes on."""
    moment = record.at.replace(microsecond=record.at.microsecond // 1000 * 1000)
    place = _ORDER.index(record.decision) if record.decision in _ORDER else len(_ORDER)
    return moment, place, record.at, record.name

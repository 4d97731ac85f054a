"""``outlive status``: one look at everything: what is known, what is covered, who runs, what went wrong lately."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from outlive.base.duration import format_duration
from outlive.base.errors import NotFound
from outlive.base.phrases import count_of, listing, shown_time, until
from outlive.cli.access import Access
from outlive.cli.output import Output, table
from outlive.node.disarm import enforcing_hosts
from outlive.resources import (
    FAILOVER,
    Cluster,
    Coverage,
    Election,
    Event,
    Fault,
    Flavor,
    Hypervisor,
    MemberRecord,
    Membership,
    Reservation,
    StorageCluster,
    VirtualMachine,
)
from outlive.resources.cluster import CLUSTER
from outlive.resources.codec import convert
from outlive.resources.reasons.failover_events import FULL_PROTECTION
from outlive.resources.vm_states import is_down_for_good
from outlive.resources.vms import RecoveryPhase
from outlive.runtime.faults import health
from outlive.store import list_all

if TYPE_CHECKING:
    from outlive.store import Store

WARNINGS_SHOWN = 5
"""Warnings that are shown, the last ones."""
UNCOVERED_SHOWN = 10
"""VMs without all their slots that are named."""
HOSTS_SHOWN = 5
"""Hosts in maintenance, and such that degrade, that are named."""
FAULTS_SHOWN = 20
"""Faults that are shown, the worst ones."""


async def status(access: Access, output: Output) -> None:
    """What is known, whether every VM is covered, who runs, and what is wrong."""
    async with access.open() as store:
        document = await _document(store, access.clock.now(), await _unrecorded(store))
        document["backup"] = await _answer(store, "/backups") or {}
    document = {"source": access.source, **document}
    output.show(document, lambda: _lines(document))


async def _unrecorded(store: Store) -> list[Fault]:
    """Faults of the server that its store cannot hold, such as a full disk."""
    return [convert(Fault, one) for one in await _answer(store, "/faults") or ()]


async def _answer(store: Store, question: str) -> Any:
    """What the server says; ``None`` without one, and from one that does not know the question."""
    ask = getattr(store, "question", None)
    try:
        return await ask(question) if ask is not None else None
    except NotFound:
        return None


async def _document(store: Store, now: float, unrecorded: list[Fault]) -> dict[str, Any]:
    hosts = [host async for host in list_all(store, Hypervisor)]
    vms = [vm async for vm in list_all(store, VirtualMachine)]
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == FAILOVER]
    reported = [one async for one in list_all(store, Coverage)]
    recorded = [event async for event in list_all(store, Event)]
    warnings = sorted((one for one in recorded if one.type == "Warning"), key=lambda one: (one.last_seen, one.name))
    elections = [election async for election in list_all(store, Election)]
    faults = [*unrecorded, *[fault async for fault in list_all(store, Fault)]]
    open_faults = sorted((one for one in faults if not one.ended), key=lambda one: (-one.delta, one.name))
    members = [member async for member in list_all(store, Membership)]
    clusters = [one async for one in list_all(store, Cluster) if one.name == CLUSTER]
    coverage = reported_coverage(reported)
    return {
        "hosts": len(hosts),
        "vms": len(vms),
        "unplacedVms": sum(not vm.host for vm in vms),
        "slots": len(slots),
        "flavors": len([flavor async for flavor in list_all(store, Flavor)]),
        "known": len(vms),
        "protected": coverage["required"],
        "covered": coverage["covered"],
        "unreportedVms": len({vm.name for vm in vms if not is_down_for_good(vm)} - {one.name for one in reported}),
        "coverage": coverage,
        "fullProtection": _full_protection(recorded, reported),
        "health": health(faults),
        "maintenance": any(one.spec.in_maintenance(now) for one in clusters),
        "disarmed": _disarmed(clusters, members, now),
        "hostsInMaintenance": [one.name for one in hosts if one.spec.fencing.in_maintenance(now)],
        "hostsDegrading": [one.name for one in hosts if one.status.degrading is not None and not one.status.lost],
        "memberships": _memberships(members),
        "recovering": sum(vm.status.recovery is not None and vm.status.recovery.unfinished for vm in vms),
        "held": _held(vms),
        "faults": [
            {
                "fault": one.code,
                "subject": one.subject.name,
                "delta": 0 if one.acknowledged else one.delta,
                "message": one.message,
                "remedy": one.remedy,
            }
            for one in open_faults[:FAULTS_SHOWN]
        ],
        "storage": [
            {
                "name": one.name,
                "health": one.status.health,
                "daemons": one.status.daemons,
                "daemonsUp": one.status.daemons_up,
                "usedPercent": one.status.used_percent,
            }
            async for one in list_all(store, StorageCluster)
        ],
        "elections": [{"role": one.name, "holder": one.record.holder, "term": one.record.term} for one in elections],
        "warnings": [_warning(event) for event in warnings[-WARNINGS_SHOWN:]],
    }


def _disarmed(clusters: list[Cluster], members: list[Membership], now: float) -> str:
    """How the cluster is disarmed, since when and until when, and whose guards enforce all the same; empty: armed."""
    for spec in (one.spec for one in clusters if one.spec.disarmed_mode(now)):
        enforcing = enforcing_hosts(members)
        still = f"; guards of {listing(enforcing, most=HOSTS_SHOWN)} enforce all the same" if enforcing else ""
        since = shown_time(spec.disarmed_since)
        return f"{spec.disarmed}, since {since}, {until(spec.disarmed_until)}{still}"
    return ""


def _memberships(members: list[Membership]) -> dict[str, int]:
    """State → how many hosts; dead ones apart from those that are only condemned."""
    states: Counter[str] = Counter()
    states.update(member_state(member.record) for member in members)
    return dict(sorted(states.items()))


def member_state(record: MemberRecord) -> str:
    """What is said of a host by its membership, in one word."""
    if record.state == "Revoked":
        return "dead" if record.dead_through >= record.fence.epoch else "condemned"
    return "alive" if record.state == "Held" else "stopped"


def _held(vms: list[VirtualMachine]) -> dict[str, int]:
    """Why VMs are held → how many."""
    recoveries = [vm.status.recovery for vm in vms if vm.status.recovery is not None]
    return dict(sorted(Counter(one.reason for one in recoveries if one.phase is RecoveryPhase.HELD).items()))


def reported_coverage(reported: list[Coverage]) -> dict[str, Any]:
    """What failover last reported; VMs that it has not looked at yet are in no figure."""
    uncovered = [one for one in reported if not one.status.covered]
    return {
        "reported": len(reported),
        "required": sum(1 for one in reported if one.status.required > 0),
        "covered": sum(1 for one in reported if one.status.required > 0 and one.status.covered),
        "reasons": dict(sorted(Counter(one.status.reason for one in uncovered).items())),
        "uncovered": [
            {"vm": one.name, "reason": one.status.reason, "remedy": one.status.remedy}
            for one in uncovered[:UNCOVERED_SHOWN]
        ],
    }


def _full_protection(events: list[Event], reported: list[Coverage]) -> str:
    """What failover last forecast; empty where every VM is covered, or it has said nothing."""
    if all(one.status.covered for one in reported):
        return ""
    forecasts = [event for event in events if event.reason == FULL_PROTECTION]
    return max(forecasts, key=lambda one: (one.last_seen, one.name)).note if forecasts else ""


def _warning(event: Event) -> dict[str, Any]:
    return {
        "at": event.last_seen,
        "reason": event.reason,
        "object": f"{event.regarding.kind.lower()}/{event.regarding.name}",
        "count": event.count,
        "note": event.note,
    }


def _maintenance(document: dict[str, Any]) -> str:
    if document["maintenance"]:
        return "all hosts: nobody is condemned"
    return _listed(document["hostsInMaintenance"], "not condemned")


def _listed(hosts: list[str], what: str) -> str:
    return f"{listing(hosts, most=HOSTS_SHOWN)}: {what}" if hosts else ""


def _count(vms: int) -> str:
    return count_of(vms, "VM") if vms else ""


def _vms(document: dict[str, Any]) -> str:
    """How many there are, how many of them need slots, and how many of these have all of them."""
    unplaced = f" ({document['unplacedVms']} on no host)" if document["unplacedVms"] else ""
    known = f"{document['known']} known{unplaced}"
    if not document["coverage"]["reported"]:
        return known
    return f"{known}, {document['protected']} protected, {document['covered']} covered"


def _backup(found: dict[str, Any]) -> str:
    """The newest backup that the server made, and its age; empty where it makes none."""
    if not found:
        return ""
    newest, failure = found["newest"], f"; the last try failed: {found['failure']}" if found["failure"] else ""
    if newest is None:
        return f"none in {found['directory']} yet{failure}"
    keys = "with" if newest["keys"] else "without"
    return f"{newest['name']}, {format_duration(newest['ageS'] // 60 * 60)} old, {keys} keys{failure}"


def _lines(document: dict[str, Any]) -> list[Any]:
    """What is empty has no line."""
    coverage = document["coverage"]
    members = ", ".join(f"{count} {state}" for state, count in document["memberships"].items())
    leaders = [
        (f"leader of {one['role']}", f"{one['holder'] or 'nobody'}, term {one['term']}")
        for one in document["elections"]
    ]
    storage = [
        (
            f"storage {one['name']}",
            f"{one['health']}, {one['daemonsUp']} of {one['daemons']} daemons up, {one['usedPercent']:g} % used",
        )
        for one in document["storage"]
    ]
    figures = [
        ("state", document["source"]),
        ("health", f"{document['health']} of 100"),
        ("maintenance", _maintenance(document)),
        ("disarmed", document["disarmed"]),
        ("hosts", f"{document['hosts']}{f' ({members})' if members else ''}"),
        ("degrading", _listed(document["hostsDegrading"], "see outlive why HOST")),
        ("VMs", _vms(document)),
        *((f"  {reason}", _count(count)) for reason, count in coverage["reasons"].items()),
        ("not judged yet", _count(document["unreportedVms"]) if coverage["reported"] else ""),
        ("recovering", _count(document["recovering"])),
        *((f"  held: {reason}", _count(count)) for reason, count in document["held"].items()),
        ("slots", f"{document['slots']}"),
        ("full protection", document["fullProtection"]),
        ("backup", _backup(document["backup"])),
        *storage,
        *leaders,
    ]
    rows = [row for row in figures if row[1]]
    lines: list[Any] = [table(("", ""), rows)]
    if not coverage["reported"] and document["vms"]:
        lines.append(
            "which VMs are covered has not been worked out yet: outlive up does, outlive failover plan tries it"
        )
    faults = [(one["fault"], one["subject"], one["message"], one["remedy"]) for one in document["faults"]]
    tables = (
        (("VM", "Reason", "Remedy"), [tuple(one.values()) for one in coverage["uncovered"]]),
        (("Fault", "Of", "What is wrong", "What helps"), faults),
        (("Last", "Reason", "Object", "Count", "Note"), [tuple(one.values()) for one in document["warnings"]]),
    )
    return [*lines, *(table(titles, rows) for titles, rows in tables if rows)]

"""``outlive status``: one look at everything: what is known, what is covered, who runs, what went wrong lately."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from outlive.base.errors import NotFound
from outlive.base.wording import listing
from outlive.cli.access import Access
from outlive.cli.commands import single
from outlive.cli.output import Output, table

if TYPE_CHECKING:
    from outlive.resources import Coverage, Event, Fault, Membership, VirtualMachine
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
    document = {"source": access.source, **document}
    output.show(document, lambda: _lines(document))


async def _unrecorded(store: Store) -> list[Fault]:
    """Faults of the server that its store cannot hold, such as a full disk."""
    from outlive.resources import Fault
    from outlive.resources.codec import convert
    from outlive.store.http import HttpStore

    if not isinstance(store, HttpStore):
        return []
    try:
        return [convert(Fault, one) for one in await store.question("/faults")]
    except NotFound:
        return []


async def _document(store: Store, now: float, unrecorded: list[Fault]) -> dict[str, Any]:
    from outlive.resources import (
        Cluster,
        Coverage,
        Election,
        Event,
        Fault,
        Flavor,
        Hypervisor,
        Membership,
        Reservation,
        VirtualMachine,
    )
    from outlive.resources.maintenance import cluster_maintenance, host_maintenance
    from outlive.runtime.faults import health
    from outlive.store import list_all

    hosts = [host async for host in list_all(store, Hypervisor)]
    vms = [vm async for vm in list_all(store, VirtualMachine)]
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == "FailoverReservation"]
    reported = [one async for one in list_all(store, Coverage)]
    recorded = [event async for event in list_all(store, Event)]
    events = [event for event in recorded if event.type == "Warning"]
    elections = [election async for election in list_all(store, Election)]
    faults = [*unrecorded, *[fault async for fault in list_all(store, Fault)]]
    open_faults = sorted((one for one in faults if not one.ended), key=lambda one: (-one.delta, one.name))
    members = [member async for member in list_all(store, Membership)]
    clusters = [one async for one in list_all(store, Cluster) if one.name == "default"]
    return {
        "hosts": len(hosts),
        "vms": len(vms),
        "unplacedVms": sum(1 for vm in vms if vm.status.assigned is None),
        "slots": len(slots),
        "flavors": len([flavor async for flavor in list_all(store, Flavor)]),
        "known": len(vms),
        "protected": sum(1 for one in reported if one.status.required > 0),
        "covered": sum(1 for one in reported if one.status.required > 0 and one.status.covered),
        "unreportedVms": len(
            {vm.name for vm in vms if vm.spec.power_state == "running"} - {one.name for one in reported}
        ),
        "coverage": _coverage(reported),
        "fullProtection": _full_protection(recorded, reported),
        "health": health(faults),
        "maintenance": any(cluster_maintenance(one.spec, now) for one in clusters),
        "hostsInMaintenance": [one.name for one in hosts if host_maintenance(one.spec.fencing, now)],
        "hostsDegrading": [one.name for one in hosts if one.status.degrading is not None and not one.status.lost],
        "memberships": _memberships(members),
        "recovering": sum(1 for vm in vms if _unfinished(vm)),
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
        "elections": [{"role": one.name, "holder": one.record.holder, "term": one.record.term} for one in elections],
        "warnings": [
            _warning(event) for event in sorted(events, key=lambda e: (e.last_seen, e.name))[-WARNINGS_SHOWN:]
        ],
    }


def _memberships(members: list[Membership]) -> dict[str, int]:
    """State → how many hosts; dead ones apart from those that are only condemned."""
    states: Counter[str] = Counter()
    for member in members:
        record = member.record
        dead = record.state == "Revoked" and record.dead_through >= record.fence.epoch
        states["dead" if dead else {"Held": "alive", "Revoked": "condemned", "Released": "stopped"}[record.state]] += 1
    return dict(sorted(states.items()))


def _unfinished(vm: VirtualMachine) -> bool:
    recovery = vm.status.recovery
    return recovery is not None and recovery.unfinished


def _coverage(reported: list[Coverage]) -> dict[str, Any]:
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
    from outlive.failover.report.reporter import FULL_PROTECTION

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
    return f"{listing(document['hostsInMaintenance'], most=HOSTS_SHOWN)}: not condemned"


def _degrading(hosts: list[str]) -> str:
    return f"{listing(hosts, most=HOSTS_SHOWN)}: see outlive why HOST"


def _vms(document: dict[str, Any]) -> str:
    """How many there are, how many of them need slots, and how many of these have all of them."""
    unplaced = f" ({document['unplacedVms']} on no host)" if document["unplacedVms"] else ""
    known = f"{document['known']} known{unplaced}"
    if not document["coverage"]["reported"]:
        return known
    return f"{known}, {document['protected']} protected, {document['covered']} covered"


def _lines(document: dict[str, Any]) -> list[Any]:
    coverage = document["coverage"]
    members = ", ".join(f"{count} {state}" for state, count in document["memberships"].items())
    rows = [
        ("state", document["source"]),
        ("health", f"{document['health']} of 100"),
        *(
            (("maintenance", _maintenance(document)),)
            if document["maintenance"] or document["hostsInMaintenance"]
            else ()
        ),
        ("hosts", f"{document['hosts']}{f' ({members})' if members else ''}"),
        *((("degrading", _degrading(document["hostsDegrading"])),) if document["hostsDegrading"] else ()),
        ("VMs", _vms(document)),
        *((f"  {reason}", f"{count} VMs") for reason, count in coverage["reasons"].items()),
        *(
            (("not judged yet", f"{document['unreportedVms']} VMs"),)
            if coverage["reported"] and document["unreportedVms"]
            else ()
        ),
        *((("recovering", f"{document['recovering']} VMs"),) if document["recovering"] else ()),
        ("slots", document["slots"]),
        *((("full protection", document["fullProtection"]),) if document["fullProtection"] else ()),
        *(
            (f"leader of {one['role']}", f"{one['holder'] or 'nobody'}, term {one['term']}")
            for one in document["elections"]
        ),
    ]
    lines: list[Any] = [table(("", ""), rows)]
    if not coverage["reported"] and document["vms"]:
        lines.append(
            "which VMs are covered has not been worked out yet: outlive up does, outlive failover plan tries it"
        )
    if coverage["uncovered"]:
        lines.append(table(("VM", "Reason", "Remedy"), [tuple(one.values()) for one in coverage["uncovered"]]))
    if document["faults"]:
        rows = [(one["fault"], one["subject"], one["message"], one["remedy"]) for one in document["faults"]]
        lines.append(table(("Fault", "Of", "What is wrong", "What helps"), rows))
    if document["warnings"]:
        lines.append(
            table(("Last", "Reason", "Object", "Count", "Note"), [tuple(one.values()) for one in document["warnings"]])
        )
    return lines


app = single("status", status)

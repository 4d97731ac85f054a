"""``outlive status``: one look at everything: what is known, what is covered, who runs, what went wrong lately."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from outlive.cli.access import Access, running_server
from outlive.cli.commands import single
from outlive.cli.output import Output

if TYPE_CHECKING:
    from outlive.resources import Coverage, Event
    from outlive.store import Store

WARNINGS_SHOWN = 5
"""Warnings that are shown, the last ones."""
UNCOVERED_SHOWN = 10
"""VMs without all their slots that are named."""


async def status(access: Access, output: Output) -> None:
    """What is known, whether every VM is covered, and who runs."""
    async with access.open() as store:
        document = await _document(store)
    document = {"source": _source(access), **document}
    output.show(document, lambda: _lines(document))


def _source(access: Access) -> str:
    if access.state is not None:
        return f"state file {access.state}"
    address = access.server or running_server(access.directory)
    return f"server {address}" if address else f"store in {access.directory}"


async def _document(store: Store) -> dict[str, Any]:
    from outlive.resources import Coverage, Election, Event, Flavor, Hypervisor, Reservation, VirtualMachine
    from outlive.store import list_all

    hosts = [host async for host in list_all(store, Hypervisor)]
    vms = [vm async for vm in list_all(store, VirtualMachine)]
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == "FailoverReservation"]
    told = [one async for one in list_all(store, Coverage)]
    events = [event async for event in list_all(store, Event) if event.type == "Warning"]
    elections = [election async for election in list_all(store, Election)]
    return {
        "hosts": len(hosts),
        "vms": len(vms),
        "unplacedVms": sum(1 for vm in vms if vm.status.assigned is None),
        "slots": len(slots),
        "flavors": len([flavor async for flavor in list_all(store, Flavor)]),
        "coverage": _coverage(told),
        "elections": [{"role": one.name, "holder": one.record.holder, "term": one.record.term} for one in elections],
        "warnings": [
            _warning(event) for event in sorted(events, key=lambda e: (e.last_seen, e.name))[-WARNINGS_SHOWN:]
        ],
    }


def _coverage(told: list[Coverage]) -> dict[str, Any]:
    """What failover last reported; VMs that it has not looked at yet are in no figure."""
    uncovered = [one for one in told if not one.status.covered]
    return {
        "reported": len(told),
        "required": sum(1 for one in told if one.status.required > 0),
        "covered": sum(1 for one in told if one.status.required > 0 and one.status.covered),
        "reasons": dict(sorted(Counter(one.status.reason for one in uncovered).items())),
        "uncovered": [
            {"vm": one.name, "reason": one.status.reason, "remedy": one.status.remedy}
            for one in uncovered[:UNCOVERED_SHOWN]
        ],
    }


def _warning(event: Event) -> dict[str, Any]:
    return {
        "at": event.last_seen,
        "reason": event.reason,
        "object": f"{event.regarding.kind.lower()}/{event.regarding.name}",
        "count": event.count,
        "note": event.note,
    }


def _lines(document: dict[str, Any]) -> list[Any]:
    from outlive.cli.output import table

    coverage = document["coverage"]
    rows = [
        ("state", document["source"]),
        ("hosts", document["hosts"]),
        ("VMs", f"{document['vms']} ({document['unplacedVms']} on no host)"),
        ("slots", document["slots"]),
        ("covered", f"{coverage['covered']} of {coverage['required']} VMs that need slots"),
        *((f"  {reason}", f"{count} VMs") for reason, count in coverage["reasons"].items()),
        *(
            (f"leader of {one['role']}", f"{one['holder'] or 'nobody'}, term {one['term']}")
            for one in document["elections"]
        ),
    ]
    lines: list[Any] = [table(("", ""), rows)]
    if not coverage["reported"]:
        lines.append("failover has reported nothing yet: see outlive failover coverage")
    if coverage["uncovered"]:
        lines.append(table(("VM", "Reason", "Remedy"), [tuple(one.values()) for one in coverage["uncovered"]]))
    if document["warnings"]:
        lines.append(
            table(("Last", "Reason", "Object", "Count", "Note"), [tuple(one.values()) for one in document["warnings"]])
        )
    return lines


app = single("status", status)

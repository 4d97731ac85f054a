"""``outlive status``: one look at everything: what is known, what is covered, who runs, what went wrong lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from outlive.base import ExitCode, NotFound, as_instant, count_of, format_duration, format_until, join_parts, shown_time
from outlive.cli.access import Access, offline_notice
from outlive.cli.liveness import read_liveness
from outlive.cli.output import Output, fault_blocks, make_table
from outlive.cli.vm_names import VmColumns, columns_of
from outlive.node import (
    ROLE,
    ClusterLiveness,
    HostLife,
    HostLiveness,
    VmLife,
    VmLiveness,
    describe_handover,
    enforcing_hosts,
)
from outlive.recovery import (
    NOT_HEARD,
    CoverageView,
    count_issues,
    covered_by_hosts,
    is_provable,
    judge_health,
    view_coverage,
)
from outlive.resources import (
    CLUSTER,
    FAILOVER,
    Cluster,
    Coverage,
    CoveredBy,
    Election,
    Event,
    Fault,
    Flavor,
    Hypervisor,
    Membership,
    Reservation,
    StorageCluster,
    VirtualMachine,
    convert,
    is_down_for_good,
)
from outlive.resources.reasons import FULL_HEALTH, FULL_PROTECTION
from outlive.store import list_all, names_of

if TYPE_CHECKING:
    from outlive.store import Store

WARNINGS_SHOWN = 5
"""Warnings that are shown, the last ones."""
UNCOVERED_SHOWN = 10
"""VMs without all their slots that are named."""
HOSTS_SHOWN = 5
"""Hosts in maintenance, and such that degrade, that are named."""
WARNING_S = 600.0
"""How long a warning is shown of which nothing says that it is over."""
FAULTS_SHOWN = 20
"""Faults that are shown, the worst ones."""


async def status(access: Access, output: Output) -> ExitCode:
    """Show coverage, running processes and faults; exit code 1 if something is wrong, 6 if no server runs."""
    access.warns = False  # its answer says it
    async with access.open() as store:
        life = await read_liveness(store, access)
        vms = [vm async for vm in list_all(store, VirtualMachine)]
        # faults of the server that its store cannot hold, such as a full disk
        unrecorded = [convert(Fault, one) for one in await _answer(store, "/faults") or ()]
        document = await _build_document(store, life, vms, unrecorded)
        document["backup"] = await _answer(store, "/backups") or {}
    away = access.no_server
    written = life.sight.written or (access.store_written() if away else None)
    document = {"noServer": away, "written": written, "source": access.source, **document}
    if away:
        document |= {"health": None, "healthIssues": {}}
    output.show(document, lambda: _render_lines(document, columns_of(map(names_of, vms))))
    if away:
        return ExitCode.UNAVAILABLE
    return ExitCode.YES if document["health"] == FULL_HEALTH else ExitCode.NO


async def _answer(store: Store, question: str) -> Any:
    """What the server says; ``None`` without one, and from one that does not know the question."""
    ask = getattr(store, "question", None)
    try:
        return await ask(question) if ask is not None else None
    except NotFound:
        return None


async def _build_document(
    store: Store, life: ClusterLiveness, vms: list[VirtualMachine], unrecorded: list[Fault]
) -> dict[str, Any]:
    now = as_instant(life.sight.at)
    hosts = [host async for host in list_all(store, Hypervisor)]
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == FAILOVER]
    reported = [one async for one in list_all(store, Coverage)]
    recorded = [event async for event in list_all(store, Event)]
    elections = [election async for election in list_all(store, Election)]
    moving = [one.record for one in elections if one.name == ROLE and one.record.phase]
    faults = [*unrecorded, *[fault async for fault in list_all(store, Fault)]]
    open_faults = sorted((one for one in faults if not one.ended), key=lambda one: (-one.delta, one.name))
    members = [member async for member in list_all(store, Membership)]
    clusters = [one async for one in list_all(store, Cluster) if one.name == CLUSTER]
    host_lives = {one.name: life.liveness_of_host(one.name) for one in hosts}
    vm_lives = {one.name: life.liveness_of_vm(one) for one in vms}
    provable = provable_hosts(hosts, members, clusters[0] if clusters else None, now)
    by_host = covered_by_hosts([*hosts, *members, *clusters], now)
    view = view_coverage(reported, {one.name: one.status.host for one in slots}, host_lives, by_host)
    coverage = reported_coverage(reported, view)
    unprovable = sorted(name for name, able in provable.items() if not able)
    issues = count_issues(
        host_lives.values(),
        (one.state for one in vm_lives.values()),
        uncovered=coverage["required"] - coverage["covered"],
        unprovable=len(unprovable),
        still_s=now - as_instant(life.sight.written) if life.sight.written is not None else 0.0,
    )
    judged = judge_health(faults, issues)
    warnings = sorted((one for one in recorded if one.type == "Warning"), key=lambda one: (one.last_seen, one.name))
    warnings = [one for one in warnings if not _is_over(one, host_lives, vm_lives, coverage, now)]
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
        "health": judged.health,
        "healthIssues": {str(issue): count for issue, count in judged.counts.items()},
        "maintenance": any(one.spec.is_in_maintenance(now) for one in clusters),
        "disarmed": _disarmed_text(clusters, members, now),
        "hostsInMaintenance": [one.name for one in hosts if one.spec.fencing.is_in_maintenance(now)],
        "hostsDegrading": [one.name for one in hosts if one.status.degrading is not None and not one.status.lost],
        "hostStates": _count_words(str(one.state) if one.watched else "not watched" for one in host_lives.values()),
        "hostsNotAlive": {
            name: one.text
            for name, one in host_lives.items()
            if one.watched and one.state not in (HostLife.ALIVE, HostLife.STOPPED)
        },
        "hostsUnprovable": unprovable,
        "vmStates": _count_words(str(one.state) for one in vm_lives.values()),
        "recovering": sum(vm.status.recovery is not None and vm.status.recovery.unfinished for vm in vms),
        "waiting": _count_words(one.reason for one in vm_lives.values() if one.state in (VmLife.WAITING, VmLife.DOWN)),
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
        "handover": next(map(describe_handover, moving), ""),
        "warnings": [_warning_document(event) for event in warnings[-WARNINGS_SHOWN:]],
    }


async def read_coverage_view(store: Store, life: ClusterLiveness) -> CoverageView:
    """By what the VMs are covered that failover last reported as covered, and which of them are in doubt now."""
    hosts = [host async for host in list_all(store, Hypervisor)]
    members = [member async for member in list_all(store, Membership)]
    clusters = [one async for one in list_all(store, Cluster) if one.name == CLUSTER]
    slots = {one.name: one.status.host async for one in list_all(store, Reservation)}
    reported = [one async for one in list_all(store, Coverage)]
    by_host = covered_by_hosts([*hosts, *members, *clusters], as_instant(life.sight.at))
    return view_coverage(reported, slots, {one.name: life.liveness_of_host(one.name) for one in hosts}, by_host)


def provable_hosts(
    hosts: list[Hypervisor], members: list[Membership], cluster: Cluster | None, now: float
) -> dict[str, bool]:
    """Host with our daemon that has not been proven dead → whether it could be, if it died now."""
    known = {one.name: one for one in hosts}
    return {
        one.name: is_provable(known[one.name], one, cluster, now)
        for one in members
        if one.name in known and one.record.state != "Released" and one.record.dead_through < one.record.epoch
    }


def _count_words(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _is_over(
    event: Event,
    hosts: dict[str, HostLiveness],
    vms: dict[str, VmLiveness],
    coverage: dict[str, Any],
    now: float,
) -> bool:
    """Whether what an event warned of is not so any more, by how its object is now."""
    name = event.regarding.name
    match event.regarding.kind:
        case "VirtualMachine":
            return name not in vms or vms[name].state in (VmLife.RUNNING, VmLife.STOPPED)
        case "Hypervisor" | "Membership":
            return name not in hosts or hosts[name].state is HostLife.ALIVE
        case _ if event.reason == FULL_PROTECTION:
            return bool(coverage["covered"] == coverage["required"])
    return now - as_instant(event.last_seen) > WARNING_S


def _disarmed_text(clusters: list[Cluster], members: list[Membership], now: float) -> str:
    """How the cluster is disarmed, since when and until when, and whose guards enforce all the same; empty: armed."""
    for spec in (one.spec for one in clusters if one.spec.disarmed_mode(now)):
        enforcing = enforcing_hosts(members)
        still = f"; guards of {join_parts(enforcing, most=HOSTS_SHOWN)} enforce all the same" if enforcing else ""
        since = shown_time(spec.disarmed_since)
        return f"{spec.disarmed}, since {since}, {format_until(spec.disarmed_until)}{still}"
    return ""


def reported_coverage(reported: list[Coverage], view: CoverageView | None = None) -> dict[str, Any]:
    """What failover last reported; VMs that it has not looked at yet are in no figure. ``view``: against how hosts are
    now; without one, as it was reported."""
    doubtful = view.doubtful if view is not None else {}
    uncovered = [
        {"vm": one.name, "reason": one.status.reason, "remedy": one.status.remedy}
        for one in reported
        if not one.status.covered
    ]
    uncovered += [
        {"vm": vm, "reason": NOT_HEARD, "remedy": f"see outlive why {host}"} for vm, host in sorted(doubtful.items())
    ]
    required = [one for one in reported if one.status.required > 0]
    return {
        "reported": len(reported),
        "required": len(required),
        "covered": sum(1 for one in required if one.status.covered and one.name not in doubtful),
        "by": {str(by): count for by, count in view.by.items() if count} if view is not None else {},
        "reasons": _count_words(one["reason"] for one in uncovered),
        "uncovered": uncovered[:UNCOVERED_SHOWN],
    }


def _full_protection(events: list[Event], reported: list[Coverage]) -> str:
    """What failover last forecast; empty where every VM is covered, or it has said nothing."""
    if all(one.status.covered for one in reported):
        return ""
    forecasts = [event for event in events if event.reason == FULL_PROTECTION]
    return max(forecasts, key=lambda one: (one.last_seen, one.name)).note if forecasts else ""


def _warning_document(event: Event) -> dict[str, Any]:
    return {
        "at": event.last_seen,
        "reason": event.reason,
        "object": f"{event.regarding.kind.lower()}/{event.regarding.name}",
        "count": event.count,
        "note": event.note,
    }


def _maintenance_text(document: dict[str, Any]) -> str:
    if document["maintenance"]:
        return "all hosts: nobody is condemned"
    return _hosts_text(document["hostsInMaintenance"], "not condemned")


def _hosts_text(hosts: list[str], what: str) -> str:
    return f"{join_parts(hosts, most=HOSTS_SHOWN)}: {what}" if hosts else ""


def _count_text(vms: int) -> str:
    return count_of(vms, "VM") if vms else ""


def _vms_text(document: dict[str, Any]) -> str:
    """How many there are, how many of them need slots, and how many of these have all of them."""
    unplaced = f" ({document['unplacedVms']} on no host)" if document["unplacedVms"] else ""
    known = f"{document['known']} known{unplaced}"
    if not document["coverage"]["reported"]:
        return known
    return f"{known}, {document['protected']} protected, {document['covered']} covered"


def _health_text(document: dict[str, Any]) -> str:
    if document["health"] is None:
        return ""
    issues = ", ".join(f"{issue}: {count}" for issue, count in document["healthIssues"].items())
    return f"{document['health']} of 100{f' ({issues})' if issues else ''}"


def _backup_text(found: dict[str, Any]) -> str:
    """The newest backup that the server made, and its age; empty where it makes none."""
    if not found:
        return ""
    newest, failure = found["newest"], f"; the last try failed: {found['failure']}" if found["failure"] else ""
    if newest is None:
        return f"none in {found['directory']} yet{failure}"
    keys = "with" if newest["keys"] else "without"
    return f"{newest['name']}, {format_duration(newest['ageS'] // 60 * 60)} old, {keys} keys{failure}"


def _render_lines(document: dict[str, Any], named: VmColumns) -> list[Any]:
    """What is empty has no line."""
    coverage = document["coverage"]
    states = ", ".join(f"{count} {state}" for state, count in document["hostStates"].items())
    by = ", ".join(f"{count} {CoveredBy(by).text}" for by, count in coverage["by"].items())
    leaders = [
        (f"leader of {one['role']}", f"{one['holder'] or 'nobody'}, term {one['term']}")
        for one in document["elections"]
    ]
    leaders += [("hand-over", document["handover"])] if document["handover"] else []
    storage = [
        (
            f"storage {one['name']}",
            f"{one['health']}, {one['daemonsUp']} of {one['daemons']} daemons up, {one['usedPercent']:g} % used",
        )
        for one in document["storage"]
    ]
    figures = [
        ("state", document["source"]),
        ("health", _health_text(document)),
        ("maintenance", _maintenance_text(document)),
        ("disarmed", document["disarmed"]),
        ("hosts", f"{document['hosts']}{f' ({states})' if states else ''}"),
        *((f"  {name}", text) for name, text in list(document["hostsNotAlive"].items())[:HOSTS_SHOWN]),
        ("could not be proven dead", _hosts_text(document["hostsUnprovable"], "no rehearsed BMC, no armed guard")),
        ("degrading", _hosts_text(document["hostsDegrading"], "see outlive why HOST")),
        ("VMs", _vms_text(document)),
        ("  now", ", ".join(f"{count} {state}" for state, count in document["vmStates"].items())),
        ("  covered", by),
        *((f"  {reason}", _count_text(count)) for reason, count in coverage["reasons"].items()),
        ("not judged yet", _count_text(document["unreportedVms"]) if coverage["reported"] else ""),
        ("recovering", _count_text(document["recovering"])),
        *((f"  waiting: {reason}", _count_text(count)) for reason, count in document["waiting"].items()),
        ("slots", f"{document['slots']}"),
        ("full protection", document["fullProtection"]),
        ("backup", _backup_text(document["backup"])),
        *storage,
        *leaders,
    ]
    rows = [row for row in figures if row[1]]
    lines: list[Any] = [make_table(("", ""), rows)]
    if document["noServer"]:
        lines = [offline_notice(document["noServer"], document["written"]), *lines]
    if not coverage["reported"] and document["vms"]:
        lines.append(
            "which VMs are covered has not been worked out yet: outlive up does, outlive failover plan tries it"
        )
    faults = [
        (one["fault"], *(named.replace_ids(one[part]) for part in ("subject", "message", "remedy")))
        for one in document["faults"]
    ]
    uncovered = [
        (*named.name_cells(one["vm"]), one["reason"], named.replace_ids(one["remedy"], one["vm"]))
        for one in coverage["uncovered"]
    ]
    warnings = [
        (one["at"], one["reason"], named.replace_ids(one["object"]), one["count"], named.replace_ids(one["note"]))
        for one in document["warnings"]
    ]
    tables = (
        ((*named.column_titles(), "Reason", "Remedy"), uncovered),
        (("Last", "Reason", "Object", "Count", "Note"), warnings),
    )
    return [*lines, *fault_blocks(faults), *(make_table(titles, rows, advice=True) for titles, rows in tables if rows)]

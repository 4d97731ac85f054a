"""``outlive commitments``: what is sold, who uses it, why something cannot be sold, and whether everybody agrees.

Answers are worked out on a copy of the cluster, from a server or from a state file, so that anybody can repeat them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive.base import ExitCode, Usage, count_of, shown_bytes, shown_time
from outlive.cli.access import Access
from outlive.cli.commands import command, make_group
from outlive.cli.commitments_ask import (
    Amount,
    Group,
    Project,
    Uuid,
    Zone,
    check_zone,
    commitment_of,
    hypothetical_commitment,
    objects_of,
    unknown_commitment,
)
from outlive.cli.commitments_check import check
from outlive.cli.commitments_whatif import answer_whatif
from outlive.cli.liquid import delete, request, run_e2e
from outlive.cli.output import Output, cut_table, make_table, show_progress
from outlive.cli.snapshot import Config, take_snapshot
from outlive.cli.values import instant_of

if TYPE_CHECKING:
    from outlive.cli.access import Access
    from outlive.commitments import CommitmentExplanation, CoverageShare, GroupOverview, ProjectUsage, Trial
    from outlive.resources import CommittedResource, Reservation
    from outlive.store import Store

SHOWN = 50
"""Slots that a table names; wide and JSON name all."""

app = make_group("What customers committed to: list, explain, request, usage, capacity, checks and whatif.")


@command(app, "list")
async def list_commitments(
    access: Access,
    output: Output,
    project: Project = "",
    flavor_group: Group = "",
    zone: Zone = "",
) -> None:
    """All commitments, or those of a project, a flavor group or a zone."""
    from outlive.resources import CommittedResource
    from outlive.store import list_all

    async with access.open() as store:
        found = [
            one
            async for one in list_all(store, CommittedResource)
            if project in ("", one.spec.project_id)
            and flavor_group in ("", one.spec.flavor_group_name)
            and zone in ("", one.spec.availability_zone)
        ]
        projects = await _project_names(store) if found else {}
    documents = [commitment_document(one) for one in found]

    def render_lines() -> list[Any]:
        if not found:
            return ["there are no commitments: see outlive commitments request --help"]
        rest = ("Commitment", "Group", "Zone", "Amount", "State", "Ready", "VMs", "Ends")
        columns = ("Project", *(("Project ID",) if output.wide and projects else ()), *rest)
        rows = [
            (
                projects.get(one["project"]) or one["project"],
                *((one["project"],) if output.wide and projects else ()),
                one["uuid"],
                one["group"],
                one["zone"],
                one["amount"],
                one["state"],
                one["reason"] or "-",
                len(one["vms"]),
                shown_time(of.spec.end_time) if of.spec.end_time else "never",
            )
            for one, of in zip(documents, found, strict=True)
        ]
        return [make_table(columns, rows, numbers=("Amount", "VMs"))]

    output.show(documents, render_lines)


@command(app)
async def show(access: Access, output: Output, uuid: Uuid) -> ExitCode | None:
    """One commitment with its slots and the VMs in them; exit code 1 if it is not accepted."""
    from outlive.resources import Reservation, VirtualMachine
    from outlive.store import list_all, read

    async with access.open() as store:
        found = await commitment_of(store, uuid)
        wanted = found.spec.commitment_uuid
        slots = [
            one
            async for one in list_all(store, Reservation)
            if (details := one.spec.committed_resource_reservation) is not None and details.commitment_uuid == wanted
        ]
        projects = await _project_names(store)
        charged = {*found.status.assigned_instances, *(vm for one in slots for vm in slot_document(one)["vms"])}
        vms = [vm for vm in [await read(store, VirtualMachine, name) for name in sorted(charged)] if vm is not None]
    names = {vm.name: vm.spec.display_name or vm.name for vm in vms}
    document = {**commitment_document(found), "slots": [slot_document(one) for one in slots]}
    project = projects.get(document["project"], "")
    output.show(document, lambda: _show_lines(document, names, project, wide=output.wide))
    return None if document["reason"] == "Accepted" else ExitCode.NO


@command(app)
async def explain(
    access: Access,
    output: Output,
    uuid: Annotated[str, typer.Argument(metavar="[UUID]", help="Of a commitment that is there.")] = "",
    project: Project = "",
    flavor_group: Group = "",
    zone: Zone = "",
    amount: Amount = "",
    config: Config = None,
) -> ExitCode | None:
    """Explain why there is no capacity for a commitment, and what would help; exit code 1 if there is none.

    For an existing commitment, or for a new one: --project, --group, --zone and --amount.
    """
    from outlive.commitments import explain as explained
    from outlive.commitments import from_spec

    if bool(uuid) == bool(flavor_group or amount):
        raise Usage("which commitment?", remedy="name one by its uuid, or give --project, --group, --zone and --amount")
    async with copy_cluster(access, config) as made:
        if uuid:
            found = made.view.find_commitment(uuid)
            if found is None:
                raise unknown_commitment(uuid)
            wanted = from_spec(found.spec, found.metadata.generation)
        else:
            check_zone(zone, zones_of(made))
            wanted = hypothetical_commitment(
                made.view.groups_by_name(), made.settings, project, flavor_group, zone, amount
            )
        answer = explained(made.collect_facts(wanted))
    output.show(answer, lambda: explanation_lines(answer))
    return None if answer.possible else ExitCode.NO


@command(app)
async def usage(
    access: Access,
    output: Output,
    project: Project = "",
    zone: Zone = "",
    history: Annotated[
        str,
        typer.Option("--history", metavar="MONTH", help="How long VMs were charged to each commitment, in 2026-11."),
    ] = "",
    config: Config = None,
) -> None:
    """Show what projects use in each zone, what commitments cover of it, and what is paid as used.

    With --history: of a month, for how long VMs were charged to each commitment; in JSON also which, and when.
    """
    if history:
        if zone:
            raise Usage("the history is that of projects", place="--zone", remedy="leave it out, or give --project")
        shares = await history_of(access, history, project)
        output.show(shares, lambda: history_lines(shares, history))
        return
    from msgspec.structs import replace

    from outlive.commitments import project_usage, unit_of
    from outlive.resources import ProjectQuota
    from outlive.store import list_all

    async with access.open() as store:
        quotas = [one async for one in list_all(store, ProjectQuota)]
    async with copy_cluster(access, config) as made:
        view, groups = made.view, list(made.view.groups_by_name().values())
        rows = project_usage(
            vms=[replace(vm, zone=view.zone_of_vm(vm)) for vm in view.vms.vms_by_id().values()],
            commitments=view.informers.commitments.items(),
            quotas=quotas,
            groups=groups,
            units={one.group_name: unit_of(one, made.settings) for one in groups},
            zones=zones_of(made),
            now=access.state_clock.now(),
            states=made.settings.quota_state_filter,
        )
    rows = tuple(one for one in rows if project in ("", one.project) and zone in ("", one.zone))
    output.show(rows, lambda: usage_lines(rows))


@command(app)
async def capacity(
    access: Access,
    output: Output,
    flavor_group: Group = "",
    zone: Zone = "",
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="Once the commitments have ended that end until then.")
    ] = "",
    config: Config = None,
) -> None:
    """What each flavor group has in each zone: used, committed, kept for failover, and free for it alone."""
    from outlive.commitments import Overview
    from outlive.resources import ZONE_LABEL

    instant = instant_of("--at", at) if at else None
    async with copy_cluster(access, config) as made:
        if instant is not None:
            await made.end_until(instant)
        informers = made.view.informers
        zones = {host.name: host.metadata.labels.get(ZONE_LABEL, "") for host in informers.hypervisors.items()}
        counted = Overview(made.view.groups_by_name().values(), zones)
        for slot in informers.reservations.items():
            counted.add(slot)
        found = counted.list_rows(made.compute_capacities())
    rows = tuple(one for one in found if flavor_group in ("", one.group) and zone in ("", one.zone))
    output.show(rows, lambda: capacity_lines(rows))


# -- what several commands need ---------------------------------------------------------------------------------


@asynccontextmanager
async def copy_cluster(access: Access, config: Any) -> AsyncIterator[Trial]:
    """A copy of the cluster, on which commitments are decided."""
    from outlive.base import SystemIds
    from outlive.commitments import open_trial
    from outlive.roles import RoleSettings

    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, None)
        settings = gathered.settings
        assert isinstance(settings, RoleSettings), "commands load all sections"
        with show_progress("reading commitments"):
            objects = await objects_of(store, settings)
    async with open_trial(
        objects,
        engine=gathered.engine,
        vms=gathered.observation.listing.vms,
        settings=settings.commitments,
        clock=access.state_clock,
        ids=SystemIds(),
    ) as made:
        yield made


def commitment_document(one: CommittedResource) -> dict[str, Any]:
    """A commitment for programs."""
    from outlive.commitments import READY
    from outlive.resources import find_condition, to_builtins

    spec, status = one.spec, one.status
    ready = find_condition(status.conditions, READY)
    return {
        "uuid": spec.commitment_uuid,
        "project": spec.project_id,
        "domain": spec.domain_id,
        "group": spec.flavor_group_name,
        "zone": spec.availability_zone,
        "type": spec.resource_type,
        "amount": spec.amount if spec.resource_type == "memory" else f"{spec.amount} cores",
        "state": spec.state,
        "accepted": status.accepted_spec is not None and status.accepted_spec == spec,
        "reason": ready.reason if ready is not None else "",
        "message": ready.message if ready is not None else "",
        "summary": status.status_summary,
        "vms": list(status.assigned_instances),
        "used": to_builtins(status.used_resources) if status.used_resources is not None else {},
        "startTime": spec.start_time,
        "endTime": spec.end_time,
    }


def slot_document(one: Reservation) -> dict[str, Any]:
    """A slot for programs."""
    from outlive.placement import placed_on
    from outlive.resources import find_condition, to_builtins

    details, seen = one.spec.committed_resource_reservation, one.status.committed_resource_reservation
    ready = find_condition(one.status.conditions, "Ready")
    return {
        "name": one.name,
        "host": placed_on(one),
        "flavor": details.resource_name if details is not None else "",
        "size": to_builtins(one.spec.resources),
        "ready": ready is not None and ready.status == "True",
        "reason": ready.reason if ready is not None else "",
        "vms": sorted(details.allocations) if details is not None else [],
        "confirmed": sorted(seen.allocations) if seen is not None else [],
    }


def zones_of(made: Trial) -> set[str]:
    """The zones of all hosts."""
    from outlive.resources import ZONE_LABEL

    return {host.metadata.labels.get(ZONE_LABEL, "") for host in made.view.informers.hypervisors.items()}


async def _project_names(store: Store) -> dict[str, str]:
    """Id → name of the projects that have one."""
    from outlive.resources import ProjectQuota
    from outlive.store import list_all

    quotas = [one.spec async for one in list_all(store, ProjectQuota)]
    return {one.project_id: one.project_name for one in quotas if one.project_name}


# -- for people -------------------------------------------------------------------------------------------------


def _show_lines(document: dict[str, Any], names: dict[str, str], project: str, *, wide: bool) -> list[Any]:
    slots = document["slots"]
    rows = [
        (one["name"], one["host"] or "-", one["flavor"], one["size"].get("memory", "0"), one["size"].get("cpu", "0"),
         one["ready"], ", ".join(names.get(vm, vm) for vm in one["vms"]))
        for one in slots
    ]  # fmt: skip
    facts = [
        ("commitment", document["uuid"]),
        ("project", f"{project} ({document['project']})" if project else document["project"]),
        ("what", f"{document['amount']} of {document['group']} in {document['zone']}"),
        ("state", document["state"]),
        ("ready", f"{document['reason'] or 'nobody has looked yet'}: {document['message']}".rstrip(": ")),
        ("ends", shown_time(document["endTime"]) if document["endTime"] else "never"),
        ("VMs charged", ", ".join(f"{names[vm]} ({vm})" if names.get(vm, vm) != vm else vm for vm in document["vms"])),
    ]
    columns = ("Slot", "Host", "Flavor", "Memory", "Cores", "Ready", "VMs")
    head = make_table(("", ""), [row for row in facts if row[1]])
    return [head, *cut_table(columns, rows, None if wide else SHOWN, title=count_of(len(slots), "slot"), noun="slots")]


def explanation_lines(found: CommitmentExplanation) -> list[Any]:
    """The verdict, what would help, and what each step of placement made of the hosts."""
    lines: list[Any] = [f"{found.text[0].upper()}{found.text[1:]}."]
    if found.helps:
        lines += ["", "What would help:", *(f"- {one}" for one in found.helps)]
    for one in found.slots:
        title = f"{count_of(one.count, f'slot of {one.flavor}')}, of {count_of(one.hosts, 'host')}"
        lines += cut_table(("Refused", "By"), [(step.hosts, step.step) for step in one.steps], title=title)
    rows = [(one.commitment, one.project, shown_time(one.end)) for one in found.ends]
    return [*lines, *cut_table(("Commitment", "Project", "Ends"), rows, title="Commitments that end", noun="of them")]


def usage_lines(rows: Iterable[ProjectUsage]) -> list[Any]:
    """A line for each resource; memory in GiB."""
    columns = ("Project", "Zone", "Group", "Resource", "Used", "Committed", "Covered", "PAYG", "Quota")
    cells = [
        (
            one.project,
            one.zone or "-",
            one.group,
            {"ram": "GiB", "cores": "cores", "instances": "VMs"}[one.kind],
            one.used,
            "" if one.kind == "instances" else one.committed,
            "" if one.kind == "instances" else one.covered,
            "" if one.kind == "instances" else one.payg,
            "-" if one.quota < 0 else one.quota,
        )
        for one in rows
    ]
    if not cells:
        return ["nobody uses anything of a flavor group: flavors belong to one by their extra spec quota:hw_version"]
    return [make_table(columns, cells, numbers=columns[4:])]


def capacity_lines(rows: Iterable[GroupOverview]) -> list[Any]:
    """A line for each group and zone."""
    columns = ("Zone", "Group", "Used", "Committed, unused", "Failover", "Free", "Promised")
    cells = [
        (
            one.zone or "-",
            one.group or "(no group)",
            *map(shown_bytes, (one.used_bytes, one.committed_bytes, one.failover_bytes, one.free_bytes)),
            shown_bytes(one.promised_bytes),
        )
        for one in rows
    ]
    if not cells:
        return ["there are no flavor groups: give flavors the extra spec quota:hw_version"]
    return [make_table(columns, cells, numbers=columns[2:])]


command(app, "whatif")(answer_whatif)
command(app, "check")(check)
command(app, "request")(request)
command(app, "delete")(delete)
command(app, "e2e")(run_e2e)


async def history_of(access: Access, month: str, project: str) -> tuple[CoverageShare, ...]:
    """Every commitment of the month, of a project or of all; ``BadInput`` for a text that is no month."""
    from outlive.commitments import history_name, list_shares, month_begin
    from outlive.resources import UsageHistory
    from outlive.store import list_all, read

    month_begin(month)
    async with access.open() as store:
        if project:
            one = await read(store, UsageHistory, history_name(project, month))
            found = [one] if one is not None else []
        else:
            found = [one async for one in list_all(store, UsageHistory) if one.month == month]
        now = access.state_clock.now()
    return tuple(share for one in sorted(found, key=lambda one: one.project_id) for share in list_shares(one, now))


def history_lines(shares: tuple[CoverageShare, ...], month: str) -> list[Any]:
    """A line for each commitment, in hours."""
    columns = ("Project", "Commitment", "Type", "Hours covered", "VM hours", "VMs")
    rows = [
        (
            one.project,
            one.commitment,
            one.type,
            f"{one.covered_seconds / 3600:.2f}",
            f"{one.vm_seconds / 3600:.2f}",
            len(one.vms),
        )
        for one in shares
    ]
    if not rows:
        return [f"no VM was charged to a commitment in {month}, or its history is not kept any more"]
    return [make_table(columns, rows, numbers=columns[3:])]

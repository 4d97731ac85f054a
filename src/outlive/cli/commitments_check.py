"""``outlive commitments check``: where commitments, slots, hosts and the list of VMs say different things."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outlive.base import ExitCode
from outlive.cli.access import Access, require_server
from outlive.cli.output import Report, cut_table
from outlive.cli.snapshot import Config, take_snapshot
from outlive.cli.vm_names import VmColumns, vm_columns

REPAIR_PATH = "/commitments/consistency/repair"
"""Where a server repairs what is safe."""
LOOKS = 5
"""How often commitments are compared after a repair, which takes its controllers a moment …"""
LOOK_S = 1.0
"""… and the pause between two looks."""


async def check(
    access: Access,
    output: Report,
    apply: Annotated[bool, typer.Option("--apply", help="Have the server do all safe repairs.")] = False,
    config: Config = None,
) -> ExitCode | None:
    """Compare commitments, slots, allocations, hosts and VMs; exit code 1 if any disagree. Limes is not asked.

    With --apply the server first repairs the safe classes.
    """
    from outlive.commitments import compare

    repaired: Any = ()
    if apply:
        repaired = await _request_repair(access)
    facts, named = await _gather_facts(access, config)
    result = compare(facts)
    keys = {(one["kind"], one["subject"], one.get("vm", "")) for one in repaired}
    for _ in range(LOOKS - 1):
        if not any((one.kind, one.subject, one.vm) in keys for one in result.disagreements):
            break
        await access.clock.sleep(LOOK_S)
        result = compare((await _gather_facts(access, config))[0])
    document = {
        "agrees": not result.disagreements,
        "disagreements": result.disagreements,
        "counts": result.counts,
        "repaired": repaired,
    }

    def render_lines() -> list[Any]:
        found = result.disagreements
        rows = [
            (
                one.kind,
                one.subject,
                *named.name_cells(one.vm),
                named.replace_ids(one.detail),
                one.owner,
                one.repair or "people judge",
            )
            for one in found
        ]
        head = f"{len(found)} disagree" if found else "commitments, slots, hosts and VMs agree"
        done = [f"{len(repaired)} were repaired"] * bool(apply)
        columns = ("Class", "What", *named.column_titles(), "Who says what", "Whose business", "Repair")
        return [*done, head, *cut_table(columns, rows)]

    output.show(document, render_lines)
    return ExitCode.NO if result.disagreements else None


async def _gather_facts(access: Access, config: Any) -> tuple[Any, VmColumns]:
    """One look at everything that the comparison reads, and what VMs are called."""
    from outlive.commitments import ConsistencyInput, VmFacts
    from outlive.resources import (
        COMMITTED,
        CommitmentChange,
        CommittedResource,
        Hypervisor,
        Reservation,
        VirtualMachine,
    )
    from outlive.roles import RoleSettings
    from outlive.store import list_all

    async with access.open() as store:
        gathered = await take_snapshot(access, store, config, None)
        commitments = [one async for one in list_all(store, CommittedResource)]
        slots = [one async for one in list_all(store, Reservation) if one.spec.type == COMMITTED]
        changes = [one async for one in list_all(store, CommitmentChange) if one.phase == "decided" and not one.part_of]
        hosts = [one async for one in list_all(store, Hypervisor)]
        moving = [one.name async for one in list_all(store, VirtualMachine) if one.status.migration is not None]
    settings = gathered.settings
    assert isinstance(settings, RoleSettings), "commands load all sections"
    now, grace_s = access.state_clock.now(), settings.commitments.allocation_grace_period
    old = [one for one in changes if one.decided_at is None or now - one.decided_at.timestamp() > grace_s]
    given = ConsistencyInput(
        unapplied={one.name: f"it was decided at {one.decided_at}" for one in old},
        commitments=tuple(commitments),
        slots=tuple(slots),
        instances={host.name: tuple(one.id for one in host.status.instances) for host in hosts},
        vms={vm.id: VmFacts(host=vm.host, project=vm.project) for vm in gathered.observation.listing.vms},
        moving=tuple(moving),
        now=now,
        grace_s=grace_s,
    )
    return given, vm_columns(gathered.observation.listing.vms)


async def _request_repair(access: Access) -> Any:
    """What the server has repaired; ``Usage`` where none is asked."""
    async with access.open(write=True) as store:
        server = require_server(store, "a server repairs", place="--apply")
        return await server.command(REPAIR_PATH, {})

"""``outlive placement``: which hosts would take a VM, best first, and why the others would not."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import ExitCode, NotFound, Usage
from outlive.cli.access import Access
from outlive.cli.arguments import OneVm
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, cut_table, make_table
from outlive.cli.snapshot import Config, take_snapshot
from outlive.cli.values import flavor_named, parse_amounts, split_words, unknown_flavor
from outlive.failover import Caller, pipeline_for
from outlive.inventory import creation_request
from outlive.placement import Intent, PlacementRequest, VmView, describe_network_limits
from outlive.resources import Amounts, PlacementHistory, find_condition, history_name
from outlive.store import find_vm, read

if TYPE_CHECKING:
    from outlive.placement import RankingDocument
    from outlive.store import Store

app = make_group("Rank hosts for a VM, and say why each other host is not among them.")

REJECTED_SHOWN = 40
"""Refused hosts that a table names; wide and JSON name all."""


@command(app, "rank")
async def rank(
    access: Access,
    output: Output,
    vm: Annotated[str, typer.Option("--vm", metavar="NAME", help="Place a VM like this one.")] = "",
    cpu: Annotated[str, typer.Option("--cpu", help="Cores, such as 4 or 500m.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory, such as 16Gi.")] = "",
    flavor: Annotated[str, typer.Option("--flavor", help="Place a VM of this flavor.")] = "",
    zone: Annotated[str, typer.Option("--zone", help="Only in this zone.")] = "",
    project: Annotated[str, typer.Option("--project", help="For this project.")] = "",
    intent: Annotated[str, typer.Option("--intent", help="What for: create, evacuate, reserve_for_failover, …")] = "",
    pipeline: Annotated[str, typer.Option("--pipeline", help="By this pipeline.")] = "",
    hosts: Annotated[
        list[str] | None, typer.Option("--among", metavar="HOST,…", help="Only among these hosts.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="The reason against every other host.")] = False,
    config: Config = None,
) -> ExitCode | None:
    """Which hosts would take a VM, best first; exit code 1 if none would."""

    async with access.open() as store:
        try:
            wanted = Intent(intent) if intent else Intent.CREATE
        except ValueError:
            remedy = f"one of {', '.join(Intent)}"
            raise Usage(f"intent {intent!r} is not known", place="--intent", remedy=remedy) from None
        request = await _build_request(store, vm=vm, flavor=flavor, cpu=cpu, memory=memory, intent=wanted)
        state = await take_snapshot(access, store, config, None)
        limits = describe_network_limits(await find_vm(store, vm)) if vm and explain else []
    given = {"zone": zone, "project": project, "pipeline": pipeline, "hosts": tuple(split_words(*hosts or ()))}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    request = msgspec.structs.replace(request, **changes)
    document = state.engine.rank(request, why=explain).to_document()
    output.show(document, lambda: [*_render_lines(document, explain=explain, wide=output.wide), *limits])
    return None if document.ordered_hosts else ExitCode.NO


@command(app, "history")
async def show_history(
    access: Access,
    output: Output,
    vm: OneVm,
) -> None:
    """Where placement sent a VM, last and before, and why it chose this host."""
    async with access.open() as store:
        found = await read(store, PlacementHistory, history_name(vm))
        if found is None:
            with contextlib.suppress(NotFound):
                found = await read(store, PlacementHistory, history_name((await find_vm(store, vm)).name))
    if found is None:
        raise NotFound(
            f"placement has no history of {vm[:80]!r}",
            remedy="it keeps what Nova's calls were answered, for VMs that exist; see outlive get placementhistories",
        )
    current, ready = found.status.current, find_condition(found.status.conditions, "Ready")
    lines: list[Any] = [f"{found.spec.resource_id}: placement has answered nothing yet"]
    if current is not None:
        said = current.target_host or (ready.message if ready is not None else "no host")
        rows = [
            (f"{one.timestamp:%F %T}", one.intent, one.pipeline_ref.name, ", ".join(one.ordered_hosts) or "none")
            for one in (current, *reversed(found.status.history))
        ]
        table = cut_table(["When", "Intent", "Pipeline", "Best hosts"], rows, title="answers, the last first")
        lines = [f"{found.spec.resource_id}: {said}", current.explanation, *table]
    output.show(found, lambda: lines)


async def _build_request(
    store: Store, *, vm: str, flavor: str, cpu: str, memory: str, intent: Intent
) -> PlacementRequest:
    if vm:
        found = await find_vm(store, vm)
        request = creation_request(found)
        ignored = (found.status.assigned.hypervisor,) if found.status.assigned is not None else ()
        return msgspec.structs.replace(request, intent=intent, ignore_hosts=ignored)
    spec = await flavor_named(store, flavor) if flavor else None
    if flavor and spec is None:
        raise unknown_flavor(flavor)
    need = dict(spec.resources) if spec is not None else {}
    need |= parse_amounts(cpu, memory)
    if not need.get("cpu") or not need.get("memory"):
        raise Usage("how large is the VM?", remedy="give --vm NAME, --flavor NAME, or --cpu and --memory")
    view = VmView(id="", host="", flavor=flavor, extra_specs=spec.extra_specs if spec is not None else {})
    return PlacementRequest(
        need=Amounts(need),
        flavor_name=flavor,
        extra_specs=Caller().extra_specs(view),
        intent=intent,
        pipeline=pipeline_for(view),
    )


def _render_lines(document: RankingDocument, *, explain: bool, wide: bool) -> list[Any]:
    weighers = [step for step in document.step_results if step.kind == "weigher" and step.activations]
    columns = ["", "Host", "Weight", *([step.step_name for step in weighers] if wide or explain else [])]
    rows = []
    for position, host in enumerate(document.ordered_hosts, start=1):
        parts = [f"{step.activations.get(host, 0.0) * step.multiplier:+.3f}" for step in weighers]
        weight = f"{document.aggregated_out_weights[host]:.4f}"
        rows.append([position, host, weight, *(parts if wide or explain else [])])
    lines: list[Any] = [f"pipeline {document.pipeline}: {len(rows)} hosts would take it"]
    if document.refusal is not None:
        lines.append(f"a step failed and refused everybody: {document.refusal.step}: {document.refusal.message}")
    if rows:
        lines.append(make_table(columns, rows, numbers=columns[2:]))
    if explain and document.rejected:
        refused = [(host, why.step, why.message) for host, why in sorted(document.rejected.items())]
        title, most = f"{len(refused)} hosts would not", None if wide else REJECTED_SHOWN
        lines += cut_table(["Host", "Step", "Why"], refused, most, title=title)
    return lines

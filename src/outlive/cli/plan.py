"""``outlive failover plan``: what would be done so that every VM has its slots, or so that these hold less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import ExitCode, SystemIds, Usage, count_of, parse_duration
from outlive.cli.access import Access
from outlive.cli.coverage import coverage_document, coverage_lines, level_costs_lines
from outlive.cli.output import Report, show_progress
from outlive.cli.settings import remember_slots
from outlive.cli.snapshot import Config, Slots, take_snapshot
from outlive.cli.vm_names import vm_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlive.failover import FailoverSettings, Snapshot
    from outlive.failover.analysis import CoverageResult, PlanCost
    from outlive.failover.planner import PlanInput, PlanResult, Reserves
    from outlive.store import Store

LONGEST_S = 86_400.0
"""The longest search."""
REPACK_S = 5.0
"""How long repacking searches without ``--effort``."""
CHANGES_LIMIT = 1_000_000
"""The most memberships that one repacking may change."""


async def make_plan(
    access: Access,
    output: Report,
    k: Slots = None,
    effort: Annotated[
        str, typer.Option(metavar="DURATION", help="Time to search for a plan that reserves less, such as 60s.")
    ] = "0",
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another search.")] = 0,
    repack: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=CHANGES_LIMIT,
            help="Instead: change at most N allocations of a covered state so that less is reserved.",
        ),
    ] = 0,
    levels: Annotated[
        bool, typer.Option("--levels", help="Also price one slot for every VM, two and three in a large fleet.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the plan out.")] = False,
    config: Config = None,
) -> ExitCode | None:
    """Plan slots for every VM; exit code 1 if some VM lacks slots."""

    from outlive.failover.analysis import AT_ONCE_VMS, level_costs

    effort_s = parse_duration(0 if effort == "0" else effort)
    if not 0 <= effort_s <= LONGEST_S:
        raise Usage(f"--effort {effort} is out of range", remedy="from 0 to 24h")
    async with access.open(write=apply) as store:
        gathered = await take_snapshot(access, store, config, k)
        if apply and k is not None:
            await remember_slots(access, store, config, k)
        if repack:
            return await _repack(access, output, store, gathered, (repack, effort_s or REPACK_S, seed), apply=apply)
        small = len(gathered.vms) <= AT_ONCE_VMS
        choosing = levels or (k is None and not apply)
        costs = await level_costs(gathered) if levels or (choosing and small) else ()
        more = level_costs_lines(costs, len(gathered.required)) if choosing else []
        return await _plan(access, output, store, gathered, (effort_s, seed), costs, more, apply=apply)


async def _plan(
    access: Access,
    output: Report,
    store: Store,
    gathered: Snapshot,
    search: tuple[float, int],
    costs: Sequence[PlanCost],
    more: list[Any],
    *,
    apply: bool,
) -> ExitCode | None:
    """``costs`` of each level, and ``more`` lines about them for people."""
    from outlive.failover import coverage_of, plan_input
    from outlive.failover.planner import Fail
    from outlive.failover.planner.replan import replan
    from outlive.failover.reconciler import write_plan

    effort_s, seed = search
    with show_progress("planning") as bar:
        given = msgspec.structs.replace(await plan_input(gathered, anew=True), effort_s=effort_s, seed=seed)
        if given.effort_s > 0:
            from outlive.drivers import search_plan

            result = await search_plan(given, bar.advance_to)  # in a child process
        else:
            result = replan(given)
        fails = tuple(one for one in result.actions if isinstance(one, Fail))
        after = coverage_of(gathered, result.slots, fails)
    if apply:
        with show_progress("slots written") as bar:
            await write_plan(
                _make_writer(access, store, gathered.settings),
                result.actions,
                gathered.observation.objects,
                progress=bar.advance_to,
            )
    document = {**plan_document(gathered, given, result, after, applied=apply), "levels": costs}

    def render_lines() -> list[Any]:
        return [
            *plan_head(document, result, after),
            *_format_coverage_after(gathered, after, apply, wide=output.wide),
            *more,
        ]

    output.show(document, render_lines)
    return None if after.covered == after.required else ExitCode.NO


async def _repack(
    access: Access, output: Report, store: Store, gathered: Snapshot, search: tuple[int, float, int], *, apply: bool
) -> ExitCode | None:
    from outlive.drivers import search_repacking
    from outlive.failover import coverage_of, repack_input
    from outlive.failover.planner import apply_moves
    from outlive.failover.reconciler import actions_of, write_plan

    limit, effort_s, seed = search
    observation = gathered.observation
    with show_progress("repacking") as bar:
        given = await repack_input(gathered, limit=limit, effort_s=effort_s, seed=seed)
        result = await search_repacking(given, bar.advance_to)
        slots = apply_moves(observation.slots, result.actions)
        before, after = coverage_of(gathered, observation.slots), coverage_of(gathered, slots)
    if apply:
        writer = _make_writer(access, store, gathered.settings)
        await write_plan(
            writer, actions_of(result.actions, {slot.name: slot for slot in observation.slots}), observation.objects
        )
    document = {
        "applied": apply,
        "changes": sum(2 if move.joins else 1 for move in result.actions),
        "moves": result.actions,
        "before": coverage_document(before),
        "after": coverage_document(after),
    }
    then = _format_coverage_after(gathered, after, apply, wide=output.wide)
    output.show(document, lambda: [repack_head(document, after), *then])
    return None


def _format_coverage_after(gathered: Snapshot, after: CoverageResult, applied: bool, *, wide: bool) -> list[Any]:
    """For people: the coverage that is now, or would be."""
    verb = "done, and now" if applied else "nothing was written; with --apply"
    return [
        f"{verb}:",
        *coverage_lines(after, vm_columns(gathered.vms), wide=wide, unit=gathered.settings.topology_choice.unit),
    ]


def _make_writer(access: Access, store: Store, settings: FailoverSettings) -> Any:
    from outlive.failover.reconciler import SlotWriter

    creator = settings.failover.creator
    return SlotWriter(store, clock=access.clock, ids=SystemIds(), creator=creator)


def plan_document(
    gathered: Snapshot, given: PlanInput, result: PlanResult, after: CoverageResult, *, applied: bool
) -> dict[str, Any]:
    """A plan for programs: every action in order, and the coverage that it leads to."""
    from outlive.failover.planner import sum_reserves

    document = {
        "applied": applied,
        "missing": result.missing,
        "reused": result.reused,
        "created": result.created,
        "failed": result.failed,
        "actions": result.actions,
        "before": _reserved_document(sum_reserves(gathered.observation.slots)),
        "after": coverage_document(after),
    }
    if given.effort_s > 0:
        document["search"] = {
            "effortSeconds": given.effort_s,
            "seed": given.seed,
            "cutShort": result.cut_short,
            "without": None if result.without_search is None else _reserved_document(result.without_search),
        }
    return document


def _reserved_document(what: Reserves) -> dict[str, Any]:
    return {"slots": what.slots, "reserved": {"cpuMilli": what.cpu_milli, "memoryBytes": what.memory_bytes}}


def plan_head(document: dict[str, Any], result: PlanResult, after: CoverageResult) -> list[str]:
    """The same for people."""
    head = [
        f"{count_of(document['missing'], 'VM')} {'misses' if document['missing'] == 1 else 'miss'} slots: "
        f"{count_of(document['created'], 'slot')} to open, "
        f"{count_of(document['reused'], 'time')} a VM joins one, {count_of(document['failed'], 'VM')} left short"
    ]
    if result.without_search is not None:
        was = result.without_search
        head.append(
            f"the search brought {was.slots} slots with {was.memory_bytes / 2**30:,.0f} GiB down to "
            f"{after.slots} with {after.reserved.memory_bytes / 2**30:,.0f} GiB"
            + ("; the clock ended it early" if result.cut_short else "")
        )
    return head


def repack_head(document: dict[str, Any], after: CoverageResult) -> str:
    """The same for people."""
    from outlive.resources.reasons import CoverageReason

    was = document["before"]
    head = (
        f"{len(document['moves'])} moves: {was['slots']} slots with {was['reserved']['memoryBytes'] / 2**30:,.0f} GiB "
        f"become {after.slots} with {after.reserved.memory_bytes / 2**30:,.0f} GiB"
    )
    if not document["moves"]:
        clashing = any(one.reason == CoverageReason.MEMBERSHIPS_CLASH for one in after.uncovered)
        why = ": nobody moves while a rule is broken (outlive failover check)" if clashing else ""
        head = f"nothing was found to repack{why}"
    return head

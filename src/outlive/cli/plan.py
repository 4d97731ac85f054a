"""``outlive failover plan``: what would be done so that every VM has its slots, or so that these hold less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base.duration import parse_duration
from outlive.base.errors import ExitCode, Usage
from outlive.base.ids import SystemIds
from outlive.base.phrases import count_of
from outlive.cli.access import Access
from outlive.cli.coverage import coverage_document, coverage_lines, level_costs_lines
from outlive.cli.output import Report, progress
from outlive.cli.settings import remember_slots
from outlive.cli.snapshot import Config, Slots, look
from outlive.cli.vm_names import vm_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlive.failover.analysis.costs import PlanCost
    from outlive.failover.analysis.coverage import CoverageResult
    from outlive.failover.config import FailoverSettings
    from outlive.failover.planner.plan import PlanInput, PlanResult, Reserves
    from outlive.failover.planner.repack import RepackResult
    from outlive.failover.snapshot import Snapshot
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
        str, typer.Option(metavar="DURATION", help="Search so long for a plan that reserves less, such as 60s.")
    ] = "0",
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another search.")] = 0,
    repack: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=CHANGES_LIMIT,
            help="Instead: change at most N memberships of a covered state so that less is held.",
        ),
    ] = 0,
    levels: Annotated[
        bool, typer.Option("--levels", help="Also price one slot for every VM, two and three in a large fleet.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the plan out.")] = False,
    config: Config = None,
) -> ExitCode | None:
    """What would be done so that every VM has its slots; exit code 1 if some VM is left short of slots."""

    from outlive.failover.analysis.costs import AT_ONCE_VMS, level_costs

    effort_s = _effort(effort)
    async with access.open(write=apply) as store:
        gathered = await look(access, store, config, k)
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
    from outlive.failover.planner.actions import Fail
    from outlive.failover.reconciler.plan_writes import write_plan
    from outlive.failover.snapshot import coverage_of, plan_input

    effort_s, seed = search
    with progress("planning") as bar:
        given = msgspec.structs.replace(await plan_input(gathered, anew=True), effort_s=effort_s, seed=seed)
        result = await _searched(given, bar.at)
        fails = tuple(one for one in result.actions if isinstance(one, Fail))
        after = coverage_of(gathered, result.slots, fails)
    if apply:
        with progress("slots written") as bar:
            await write_plan(
                _writer(access, store, gathered.settings), result.actions, gathered.observation.objects, progress=bar.at
            )
    document = {**plan_document(gathered, given, result, after, applied=apply), "levels": costs}

    def lines() -> list[Any]:
        return [*plan_head(document, result, after), *_then(gathered, after, apply, wide=output.wide), *more]

    output.show(document, lines)
    return None if after.covered == after.required else ExitCode.NO


async def _searched(given: PlanInput, at: Any) -> PlanResult:
    """Small plans at once, searches in a child process."""
    from outlive.failover.planner.replan import replan

    if given.effort_s <= 0:
        return replan(given)
    from outlive.drivers.child import search_plan

    return await search_plan(given, at)


async def _repack(
    access: Access, output: Report, store: Store, gathered: Snapshot, search: tuple[int, float, int], *, apply: bool
) -> ExitCode | None:
    from outlive.drivers.child import search_repacking
    from outlive.failover.planner.repack import after_moves
    from outlive.failover.reconciler.plan_writes import actions_of, write_plan
    from outlive.failover.snapshot import coverage_of, repack_input

    limit, effort_s, seed = search
    observation = gathered.observation
    with progress("repacking") as bar:
        given = await repack_input(gathered, limit=limit, effort_s=effort_s, seed=seed)
        result = await search_repacking(given, bar.at)
        slots = after_moves(observation.slots, result.actions)
        before, after = coverage_of(gathered, observation.slots), coverage_of(gathered, slots)
    if apply:
        writer = _writer(access, store, gathered.settings)
        await write_plan(
            writer, actions_of(result.actions, {slot.name: slot for slot in observation.slots}), observation.objects
        )
    document = repack_document(result, before, after, applied=apply)
    then = _then(gathered, after, apply, wide=output.wide)
    output.show(document, lambda: [repack_head(document, after), *then])
    return None


def _then(gathered: Snapshot, after: CoverageResult, applied: bool, *, wide: bool) -> list[Any]:
    """For people: the coverage that is now, or would be."""
    verb = "done, and now" if applied else "nothing was written; with --apply"
    return [
        f"{verb}:",
        *coverage_lines(after, vm_columns(gathered.vms), wide=wide, unit=gathered.settings.topology_choice.unit),
    ]


def _effort(text: str) -> float:
    seconds = parse_duration(0 if text == "0" else text)
    if not 0 <= seconds <= LONGEST_S:
        raise Usage(f"--effort {text} is out of range", remedy="from 0 to 24h")
    return seconds


def _writer(access: Access, store: Store, settings: FailoverSettings) -> Any:
    from outlive.failover.reconciler.writes import SlotWriter

    creator = settings.failover.creator
    return SlotWriter(store, clock=access.clock, ids=SystemIds(), creator=creator)


def plan_document(
    gathered: Snapshot, given: PlanInput, result: PlanResult, after: CoverageResult, *, applied: bool
) -> dict[str, Any]:
    """A plan for programs: every action in order, and the coverage that it leads to."""
    from outlive.failover.planner.plan import reserves

    document = {
        "applied": applied,
        "missing": result.missing,
        "reused": result.reused,
        "created": result.created,
        "failed": result.failed,
        "actions": result.actions,
        "before": _held(reserves(gathered.observation.slots)),
        "after": coverage_document(after),
    }
    if given.effort_s > 0:
        document["search"] = {
            "effortSeconds": given.effort_s,
            "seed": given.seed,
            "cutShort": result.cut_short,
            "without": None if result.without_search is None else _held(result.without_search),
        }
    return document


def _held(what: Reserves) -> dict[str, Any]:
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


def repack_document(
    result: RepackResult, before: CoverageResult, after: CoverageResult, *, applied: bool
) -> dict[str, Any]:
    """Moves for programs, and the coverage before and after."""
    return {
        "applied": applied,
        "changes": sum(2 if move.joins else 1 for move in result.actions),
        "moves": result.actions,
        "before": coverage_document(before),
        "after": coverage_document(after),
    }


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

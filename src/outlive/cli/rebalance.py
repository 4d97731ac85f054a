"""``outlive rebalance``: which VMs would move from full hosts to emptier ones, and why; and to have them moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from outlive.base import ExitCode, Refused, SystemIds, count_of
from outlive.cli.access import Access
from outlive.cli.output import Output, cut_table, show_progress
from outlive.cli.snapshot import Config, take_snapshot
from outlive.cli.vm_names import VmColumns, vm_columns

if TYPE_CHECKING:
    from outlive.failover import RebalanceResult
    from outlive.store import Store


async def rebalance(
    access: Access,
    output: Output,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the moves out, one after the other.")] = False,
    moves: Annotated[
        int | None, typer.Option("--moves", min=1, max=100, help="At most this many moves, instead of the policy's.")
    ] = None,
    threshold: Annotated[
        int | None,
        typer.Option(
            "--threshold", min=1, max=100, metavar="PERCENT", help="Move above this imbalance, instead of the policy's."
        ),
    ] = None,
    config: Config = None,
) -> ExitCode | None:
    """Which VMs to move so that hosts are evenly full, with the figures before and after; nothing is written.

    No VM loses coverage, and all rules apply. Exit code 1 if the hosts are uneven and no move helps. With --apply VMs
    move live one after the other, up to the first failure.
    """
    from outlive.failover import BalanceReason
    from outlive.failover.rebalance import rebalance as decide
    from outlive.node import cluster_spec
    from outlive.recovery import explain_unfinished, rebalance_input, resting_reason
    from outlive.resources import CLUSTER, Cluster, VirtualMachine
    from outlive.store import list_all, read

    async with access.open(write=apply) as store:
        changes = {"moves": moves, "threshold": None if threshold is None else threshold / 100}
        policy = msgspec.structs.replace(
            (await cluster_spec(store)).rebalance, **{name: one for name, one in changes.items() if one is not None}
        )
        gathered = await take_snapshot(access, store, config, None)
        vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
        cluster = await read(store, Cluster, CLUSTER)
        if apply and (waits := resting_reason(cluster, access.clock.now()) or explain_unfinished(vms.values())):
            raise Refused(f"nothing is moved for balance now: {waits}", remedy="repeat it once that is over")
        given = rebalance_input(gathered, vms, policy, ours_only=apply)
        if apply and not given.hosts:
            remedy = "leave --apply out, and move the VMs there as that cloud does it"
            raise Refused("no schedulable host has our daemon, so nobody would carry the moves out", remedy=remedy)
        with show_progress("planning"):
            result = decide(given)
        moved = await _move_vms(access, store, result) if apply else None
    document = {**msgspec.to_builtins(result), **({} if moved is None else {"moved": moved})}
    output.show(document, lambda: rebalance_lines(result, moved, vm_columns(gathered.vms)))
    return ExitCode.NO if result.why is BalanceReason.NOTHING_HELPS and not result.moves else None


async def _move_vms(access: Access, store: Store, result: RebalanceResult) -> list[str]:
    """Move one VM after the other, as the plan has tried them; those that moved, up to the first that did not."""
    from outlive.recovery import is_moved, request_move

    ids, moved = SystemIds(), list[str]()
    for move in result.moves:
        with show_progress(f"moving {move.vm} to {move.host}"):
            asked = await request_move(store, access.clock, ids, move)
            if not asked or not await is_moved(store, access.clock, move):
                break
        moved.append(move.vm)
    return moved


_WHY = {
    "even": "the hosts are even enough",
    "balanced": "then they are even",
    "limit": "that is as many as one plan has; repeat it to go on",
    "nothing-helps": "no other VM may move, or helps by it",
}


def rebalance_lines(result: RebalanceResult, moved: list[str] | None, named: VmColumns) -> list[Any]:
    """The imbalance before and after, and each move with the shares of its hosts."""
    figures = f"{result.before:.0%}"
    if result.moves:
        figures += f", and {result.after:.0%} after {count_of(len(result.moves), 'move')}"
    rows = [
        (
            *named.name_cells(move.vm),
            move.source,
            f"{move.source_before:.0%} → {move.source_after:.0%}",
            move.host,
            f"{move.host_before:.0%} → {move.host_after:.0%}",
        )
        for move in result.moves
    ]
    lines: list[Any] = [f"imbalance {figures}: {_WHY[result.why.value]}"]
    lines += cut_table((*named.column_titles(), "From", "Full", "To", "Full"), rows)
    if moved is not None:
        left = [move.vm for move in result.moves[len(moved) :]]
        lines += ["", f"moved: {', '.join(map(named.display_name, moved)) or 'nothing'}"]
        lines += (
            [f"not moved: {', '.join(map(named.display_name, left))}; see outlive describe vm {left[0]}, and repeat"]
            if left
            else []
        )
    elif result.moves:
        lines += ["", "nothing is written: --apply carries these moves out, one after the other"]
    return lines

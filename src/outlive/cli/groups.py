"""``outlive group``: groups of VMs that are to be together or apart, and the move of all of an affinity group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlive.base.errors import ExitCode, Refused
from outlive.base.ids import SystemIds
from outlive.cli.access import Access
from outlive.cli.commands import command, group
from outlive.cli.output import Output, Report, cut_table, progress
from outlive.cli.snapshot import Config, look

if TYPE_CHECKING:
    from outlive.recovery.groups import GroupView

app = group("Groups of VMs that are to be together or apart: which there are, and the move of all of one.")


@command(app, "list")
async def list_groups(access: Access, output: Output) -> None:
    """All groups: policy, VMs, hosts, and of affinity groups whether they are together."""
    from outlive.recovery.groups import groups_in
    from outlive.resources import VirtualMachine
    from outlive.store import list_all

    async with access.open() as store:
        found = groups_in([vm async for vm in list_all(store, VirtualMachine)])
    output.show(
        msgspec.to_builtins(found), lambda: cut_table(("Group", "Policy", "Together", "VMs", "Hosts"), _rows(found))
    )


def _rows(groups: tuple[GroupView, ...]) -> list[tuple[str, ...]]:
    shown = {True: "yes", False: "no", None: ""}
    return [
        (one.group, one.policy, shown[one.together], str(len(one.members)), ", ".join(one.hosts) or "none")
        for one in groups
    ]


@command(app)
async def move(
    access: Access,
    output: Report,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="An affinity group.")],
    host: Annotated[str, typer.Argument(metavar="HOST", help="Where all of it is to be.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and say what would move; nothing is written.")
    ] = False,
    config: Config = None,
) -> ExitCode | None:
    """Move all VMs of an affinity group to a host: all or none. Rules, room and the host are checked for all first.

    They move one after the other, live or not at all, and a VM that is down goes along. If one does not move those
    before it are brought back, and the exit code is 1.
    """
    from outlive.node.operator import check_request
    from outlive.recovery.balance import move_together, rests
    from outlive.recovery.groups import group_moves
    from outlive.resources import Cluster, VirtualMachine
    from outlive.resources.cluster import CLUSTER
    from outlive.store import list_all
    from outlive.store.access import read

    async with access.open(write=not dry_run) as store:
        await check_request(store, access.clock, name, "move", host)
        if waits := rests(await read(store, Cluster, CLUSTER), access.clock.now()):
            raise Refused(f"no group is moved now: {waits}", remedy="repeat it once that is over")
        gathered = await look(access, store, config, None)
        vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
        moves = group_moves(gathered, vms, name, host)
        stayed = ""
        if moves and not dry_run:
            with progress(f"moving {len(moves)} VMs to {host}"):
                stayed = await move_together(store, access.clock, SystemIds(), moves)
    document = {"group": name, "host": host, "moves": msgspec.to_builtins(moves), "stayed": stayed}
    output.show(document, lambda: [_outcome(name, host, [one.vm for one in moves], stayed, dry_run=dry_run)])
    return ExitCode.NO if stayed else None


def _outcome(group: str, host: str, vms: list[str], stayed: str, *, dry_run: bool) -> str:
    """What came of a move, in a line."""
    if not vms:
        return f"nothing of group {group} is to be moved to {host}"
    if stayed:
        remedy = f"outlive describe vm {stayed} shows the answer of its host"
        return f"{stayed} did not move, so the group stays where it was ({remedy})"
    return f"{', '.join(vms)} {'would move' if dry_run else 'moved'} to {host}"

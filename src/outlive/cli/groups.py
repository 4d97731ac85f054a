"""``outlive group``: groups of VMs that are to be together or apart, their rules, and the move of an affinity group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from outlive.base import ExitCode, Refused, SystemIds, Usage
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import Vms
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, Report, cut_table, show_progress, write
from outlive.cli.snapshot import Config, take_snapshot
from outlive.cli.values import split_words

if TYPE_CHECKING:
    pass

NO_RULE: Final = "none"
"""Written for a policy, the VMs are in the group no more."""

app = make_group(
    "Groups of VMs that are to be together or apart: which there are, their rules, and the move of all of one."
)


@command(app, "list")
async def list_groups(access: Access, output: Output) -> None:
    """All groups: policy, VMs, hosts, and of affinity groups whether they are together."""
    from outlive.recovery import groups_in
    from outlive.resources import VirtualMachine
    from outlive.store import list_all

    async with access.open() as store:
        found = groups_in([vm async for vm in list_all(store, VirtualMachine)])
    columns = ("Group", "Policy", "Together", "VMs", "Hosts")
    shown = {True: "yes", False: "no", None: ""}
    rows = [
        (one.group, one.policy, shown[one.together], str(len(one.members)), ", ".join(one.hosts) or "none")
        for one in found
    ]
    output.show(
        msgspec.to_builtins(found),
        lambda: cut_table(columns, rows) if rows else ["no VM is in a group: see outlive group set --help"],
    )


@command(app, "set")
async def set_policy(
    access: WriteAccess,
    name: Annotated[str, typer.Argument(metavar="GROUP", help="A group; one that is not there is made.")],
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="[soft-]affinity, [soft-]anti-affinity, or none: not in it.")
    ],
    vms: Vms,
) -> None:
    """Put VMs into a group with a policy, change the policy that they are in it with, or take them out.

    VMs that name the group with another policy are another group: to soften a rule for all, name all of its VMs.
    """
    from msgspec.structs import replace

    from outlive.cli.objects import check_resource
    from outlive.node.vm import change_vm, display_name_of
    from outlive.resources import POLICIES, VirtualMachine, with_rule
    from outlive.store import find_vm

    if policy not in (*POLICIES, NO_RULE):
        known = ", ".join((*POLICIES, NO_RULE))
        raise Usage(f"{policy[:40]!r} is no policy", place="POLICY", remedy=f"write one of {known}")

    def set_rule(vm: VirtualMachine) -> VirtualMachine:
        if vm.spec.server_group == name:
            raise Refused(
                f"group {name} of {display_name_of(vm)} comes from where the VM does", remedy="change it there"
            )
        rules = with_rule(vm.spec.affinity, name, POLICIES.get(policy))
        after = check_resource(replace(vm, spec=replace(vm.spec, affinity=rules)))
        assert isinstance(after, VirtualMachine), "it is of the same kind"
        return after

    async with access.open(write=True) as store:
        found = [await find_vm(store, vm) for vm in split_words(*vms)]
        for vm in found:
            set_rule(vm)
        for vm in found:
            after = await change_vm(store, access.clock, vm, set_rule)
            outcome = "unchanged" if after.spec == vm.spec else f"{policy} in group {name}"
            write(f"{display_name_of(vm)}: {outcome if policy != NO_RULE else f'not in group {name}'}\n")


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
    from outlive.node import check_request
    from outlive.recovery import group_moves, move_together, resting_reason
    from outlive.resources import CLUSTER, Cluster, VirtualMachine
    from outlive.store import list_all, read

    async with access.open(write=not dry_run) as store:
        await check_request(store, access.clock, name, "move", host)
        if waits := resting_reason(await read(store, Cluster, CLUSTER), access.clock.now()):
            raise Refused(f"no group is moved now: {waits}", remedy="repeat it once that is over")
        gathered = await take_snapshot(access, store, config, None)
        vms = {vm.name: vm async for vm in list_all(store, VirtualMachine)}
        moves = group_moves(gathered, vms, name, host)
        stayed = ""
        if moves and not dry_run:
            with show_progress(f"moving {len(moves)} VMs to {host}"):
                stayed = await move_together(store, access.clock, SystemIds(), moves)
    document = {"group": name, "host": host, "moves": msgspec.to_builtins(moves), "stayed": stayed}
    output.show(document, lambda: [_describe_outcome(name, host, [one.vm for one in moves], stayed, dry_run=dry_run)])
    return ExitCode.NO if stayed else None


def _describe_outcome(group: str, host: str, vms: list[str], stayed: str, *, dry_run: bool) -> str:
    """What came of a move, in a line."""
    if not vms:
        return f"nothing of group {group} is to be moved to {host}"
    if stayed:
        remedy = f"outlive describe vm {stayed} shows the answer of its host"
        return f"{stayed} did not move, so the group stays where it was ({remedy})"
    return f"{', '.join(vms)} {'would move' if dry_run else 'moved'} to {host}"

"""What an operator asks of hosts and VMs: ``fence``, ``maintenance``, ``drain``, ``arm``, ``protect``; ``guard``."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outlive.base import ExitCode, Refused, Usage, duration_of_flag, format_duration, join_parts
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import By, Hosts, MaybeHosts, OneHost, OneVm, Reason, Wait, Yes, host_names
from outlive.cli.commands import command, default_group, make_group
from outlive.cli.output import write
from outlive.cli.questions import ask
from outlive.cli.values import instant_of, split_words
from outlive.node import (
    NAMED,
    arm_cluster,
    call_off_fence,
    describe_release,
    disarm_cluster,
    find_host,
    follow_guards,
    hosts_of_domains,
    is_embedded,
    list_spared,
    refuse_arming,
    release_fencing,
    request_fence,
    set_armed,
    set_drain,
    set_maintenance,
    set_power_maintenance,
    set_protected,
)
from outlive.node import confirm_off as assert_off
from outlive.node import maintenance_status as status
from outlive.resources import Hypervisor
from outlive.runtime import acknowledge as acknowledge_fault
from outlive.store import find, find_vm

if TYPE_CHECKING:
    from outlive.store import Store

MODES: Final = ("freeze", "ignore")
"""How a cluster can be disarmed."""
ONE_SERVER: Final = (
    " The store is one server: if it stops, or nobody reaches it, for longer than the guard's limit, all armed hosts "
    "kill their VMs at the same time."
)
WAIT_LIMIT_S = 4 * 3600.0
"""How long ``--wait`` waits at most."""
HOSTS_NAMED = 5
"""Hosts that a question names."""
LOOK_S = 1.0
"""Pause between two looks while waiting."""

WholeCluster = Annotated[bool, typer.Option("--cluster", help="All of high availability, for planned work.")]

SomeDomains = Annotated[
    list[str] | None,
    typer.Option("--domain", metavar="rack=r3", help="Only for the hosts of this failure domain."),
]

OnlyPower = Annotated[bool, typer.Option("--power", help="Only their BMCs; hosts are still condemned.")]


fence = default_group("Fence a host, or let fencing continue: outlive fence HOST, outlive fence release.")


@command(fence, "host")
async def fence_host(
    access: WriteAccess,
    host: OneHost,
    reason: Reason = "",
    confirm_off: Annotated[
        bool,
        typer.Option("--confirm-off", help="Confirm that the condemned host is off: its VMs restart."),
    ] = False,
    membership: Annotated[
        str,
        typer.Option("--membership", metavar="UID", help="With --confirm-off: about this lost membership of it."),
    ] = "",
    call_off: Annotated[
        bool, typer.Option("--call-off", help="Retract the order: a host that is not off by then comes back.")
    ] = False,
    by: By = "",
    yes: Yes = False,
) -> None:
    """Fence a host, or confirm that a condemned one is off: outlive fence HOST.

    To let fencing continue after a storm: outlive fence release.
    """
    if membership and not confirm_off:
        raise Usage("it is about an assertion", place="--membership", remedy="add --confirm-off")
    if call_off and (confirm_off or reason):
        raise Usage("it retracts an order and does nothing else", place="--call-off", remedy="give it alone")
    if not (call_off or reason):
        raise Usage("there is no reason", place="--reason", remedy="add --reason ...")
    who = by or getpass.getuser()
    async with access.open(write=True) as store:
        if call_off:
            message = await call_off_fence(store, access.clock, host)
        elif confirm_off:
            await find_host(store, host)
            what = f"what {host} ran as {membership}" if membership else host
            ask(f"If {what} still runs, its VMs will be corrupted. Is it off, by your own eyes?", yes)
            message = await assert_off(store, access.clock, host, name=who, reason=reason, membership=membership)
        else:
            message = await request_fence(store, access.clock, host, name=who, reason=reason)
        write(message + "\n")


@command(fence, "release")
async def release(access: WriteAccess, reason: Reason = "", by: By = "", yes: Yes = False) -> None:
    """Let fencing continue after a storm or its limit stopped it (spec.fencing.release of the cluster)."""
    if not reason:
        raise Usage("there is no reason", place="--reason", remedy="add --reason ...")
    async with access.open(write=True) as store:
        ask(await describe_release(store), yes)
        write(await release_fencing(store, access.clock, name=by or getpass.getuser(), reason=reason) + "\n")


async def acknowledge(
    access: WriteAccess,
    faults: Annotated[list[str], typer.Argument(metavar="FAULT", help="As outlive get faults names it.")],
    undo: Annotated[bool, typer.Option("--undo", help="It lowers the health again.")] = False,
) -> None:
    """Acknowledge faults: they no longer lower the cluster's health, and remain listed until their causes are gone."""
    async with access.open(write=True) as store:
        for one in faults:
            write(await acknowledge_fault(store, access.clock, one, acknowledged=not undo) + "\n")


maintenance = make_group("Whether silent hosts are condemned.")


@command(maintenance, "on")
async def maintenance_on(
    access: WriteAccess,
    hosts: MaybeHosts = None,
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="End by itself after this time.")] = "",
    domain: SomeDomains = None,
    power: OnlyPower = False,
    yes: Yes = False,
) -> None:
    """Condemn no host, or none of these, from now on. Without --for this has no end, and it asks."""
    for_s = duration_of_flag("--for", duration) if duration else None
    if for_s is not None and for_s <= 0:
        raise Usage(f"{duration} is no time to work in", place="--for", remedy="write a duration such as 2h or 90m")
    async with access.open(write=True) as store:
        chosen = await hosts_of_domains(store, tuple(domain or ()), hosts=tuple(split_words(*hosts or ())))
        if for_s is None:
            which = join_parts(chosen, most=HOSTS_NAMED) if chosen else "all hosts"
            what = "BMCs prove nothing" if power else "no silent host is condemned, so its VMs stay down"
            ask(f"Until somebody ends it, for {which} {what}. Begin without an end?", yes)
        setting = set_power_maintenance if power else set_maintenance
        write(await setting(store, access.clock, True, for_s=for_s, hosts=chosen) + "\n")


@command(maintenance, "off")
async def maintenance_off(
    access: WriteAccess, hosts: MaybeHosts = None, domain: SomeDomains = None, power: OnlyPower = False
) -> None:
    """Condemn silent hosts again; shows which would have been condemned meanwhile."""
    async with access.open(write=True) as store:
        chosen = await hosts_of_domains(store, tuple(domain or ()), hosts=tuple(split_words(*hosts or ())))
        if power:
            write(await set_power_maintenance(store, access.clock, False, hosts=chosen) + "\n")
            return
        write(await set_maintenance(store, access.clock, False, hosts=chosen) + "\n")
        write(await list_spared(store, access.clock, chosen) + "\n")


@command(maintenance, "status")
async def maintenance_status(access: Access) -> None:
    """Show what is in maintenance, until when, and which hosts it saved from being condemned."""
    async with access.open() as store:
        write(await status(store, access.clock) + "\n")


async def drain(access: WriteAccess, hosts: Hosts, wait: Wait = False) -> ExitCode | None:
    """Empty hosts: their VMs move away, and they are not schedulable."""
    return await _set_drain(access, host_names(hosts), wait, drained=True)


async def ready(access: WriteAccess, hosts: Hosts, wait: Wait = False) -> ExitCode | None:
    """Make hosts schedulable again; VMs that were moved away come home."""
    return await _set_drain(access, host_names(hosts), wait, drained=False)


async def _set_drain(access: Access, hosts: list[str], wait: bool, *, drained: bool) -> ExitCode | None:
    async with access.open(write=True) as store:
        for host in hosts:
            await find(store, Hypervisor, host)
        for host in hosts:
            write(await set_drain(store, access.clock, host, drained) + "\n")
        began = access.clock.monotonic()
        while hosts and wait and access.clock.monotonic() - began < WAIT_LIMIT_S:
            waiting = []
            for host in hosts:
                found = await store.get(Hypervisor, host, fresh=True)
                if found.spec.drain is not drained:
                    remedy = "find out by whom, and ask again"
                    raise Refused(f"{host} was asked for the opposite meanwhile", remedy=remedy)
                if found.status.domain_state == _state_of(drained):
                    write(f"{host} is {_state_of(drained)}, with {found.status.num_instances} VMs\n")
                else:
                    waiting.append(host)
            hosts = waiting
            if hosts:
                await access.clock.sleep(LOOK_S)
    if not wait or not hosts:
        return None
    for host in hosts:
        write(
            f"{host} is still not {_state_of(drained)} after {format_duration(WAIT_LIMIT_S)}, and goes on; "
            f"outlive describe hypervisor {host} says which VMs it has\n"
        )
    return ExitCode.NO


def _state_of(drained: bool) -> str:
    return "flushed" if drained else "ready"


async def arm(
    access: WriteAccess,
    hosts: MaybeHosts = None,
    cluster: WholeCluster = False,
    accept_single_store: Annotated[
        bool,
        typer.Option(
            "--accept-single-store",
            help="Arm also on the embedded store: an outage of that one server kills the VMs of all armed hosts.",
        ),
    ] = False,
    yes: Yes = False,
) -> ExitCode | None:
    """Arm the guards of hosts: a host empties itself when it can no longer prove that it is alive.

    With --cluster: end what outlive disarm --cluster began, and report each host whose guard enforces again.
    """
    chosen = _hosts_or_cluster(hosts, cluster)
    if not cluster:
        await _set_armed(access, chosen, armed=True, yes=yes, single=accept_single_store)
        return None
    if accept_single_store:
        raise Usage("it is about one host", place="--accept-single-store", remedy="leave --cluster out")
    async with access.open(write=True) as store:
        write(await arm_cluster(store, access.clock) + "\n")
        return await _follow(access, store, armed=True)


async def disarm(
    access: WriteAccess,
    hosts: MaybeHosts = None,
    cluster: WholeCluster = False,
    mode: Annotated[
        str, typer.Option("--mode", metavar="freeze|ignore", help="With --cluster: whether VMs stay as they are.")
    ] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="With --cluster: armed again after this time.")
    ] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="With --cluster: armed again at this time, in UTC.")
    ] = "",
    yes: Yes = False,
) -> ExitCode | None:
    """Disarm the guards of hosts.

    With --cluster, for planned work on networks or the store: no host is condemned, nothing is recovered, and all
    guards are disarmed. --mode freeze: VMs stay as they are, and requests are refused; --mode ignore: requests are
    carried out. Returns once all guards are disarmed, or says which are not.
    """
    chosen = _hosts_or_cluster(hosts, cluster)
    if not cluster:
        if mode or duration or until:
            raise Usage("it is about the whole cluster", place="--mode, --for, --until", remedy="add --cluster")
        await _set_armed(access, chosen, armed=False, yes=yes)
        return None
    wanted = next((one for one in MODES if one == mode), None)
    if wanted is None:
        raise Usage(f"{mode[:40]!r} is no mode", place="--mode", remedy="write freeze or ignore")
    if duration and until:
        raise Usage("both say when it ends", place="--for, --until", remedy="give one of them")
    for_s = duration_of_flag("--for", duration) if duration else None
    if until:
        for_s = instant_of("--until", until) - access.clock.now()
    async with access.open(write=True) as store:
        write(await disarm_cluster(store, access.clock, wanted, for_s=for_s) + "\n")
        return await _follow(access, store, armed=False)


def _hosts_or_cluster(hosts: list[str] | None, cluster: bool) -> list[str]:
    chosen = split_words(*hosts or ())
    if bool(chosen) is cluster:
        raise Usage("name hosts, or the whole cluster", place="HOST", remedy="write hosts, or --cluster")
    return chosen


async def _follow(access: Access, store: Store, *, armed: bool) -> ExitCode | None:
    left = await follow_guards(store, access.clock, armed=armed, report=lambda line: write(line + "\n"))
    for host in left:
        wrong = "does not enforce yet" if armed else "enforces all the same: do not cut this host off from the store"
        write(f"{host}: its guard {wrong}; outlive why {host} says more\n")
    return ExitCode.NO if left else None


async def _set_armed(access: Access, hosts: list[str], *, armed: bool, yes: bool, single: bool = False) -> None:
    async with access.open(write=True) as store:
        for host in hosts:
            await find(store, Hypervisor, host)
        if armed:
            for host in hosts:
                await refuse_arming(store, host, accept_single_store=single)
            only = ONE_SERVER if await is_embedded(store) else ""
            ask(
                f"An armed host kills its VMs when its renewals are not acknowledged, also when it is only the store "
                f"that is away.{only} Arm {join_parts(hosts, most=NAMED)}?",
                yes,
            )
            if only and yes:
                write(f"{only.strip()}\n")
        for host in hosts:
            write(await set_armed(store, access.clock, host, armed, accept_single_store=single) + "\n")


async def protect(
    access: WriteAccess,
    vm: OneVm,
    hold: Annotated[
        bool, typer.Option("--hold", help="If its host dies it stays down until its start is requested.")
    ] = False,
    reason: Reason = "",
) -> None:
    """Take a VM back into protection: it gets slots, and restarts elsewhere if its host dies."""
    async with access.open(write=True) as store:
        write(
            await set_protected(store, access.clock, (await find_vm(store, vm)).name, True, hold=hold, reason=reason)
            + "\n"
        )


async def unprotect(
    access: WriteAccess,
    vm: OneVm,
    reason: Reason = "",
) -> None:
    """Take a VM out of protection: it loses its slots and is not restarted elsewhere."""
    async with access.open(write=True) as store:
        write(await set_protected(store, access.clock, (await find_vm(store, vm)).name, False, reason=reason) + "\n")


def _guard_of(context: typer.Context) -> None:
    """Empty this host when it can no longer prove that it is alive: a small process beside the daemon.

    It feeds the hardware watchdog only while renewals are acknowledged, and does nothing until it is armed. Its options
    are in docs/reference/guard.md#options; of the guard that runs, `outlive guard --status` prints the state.
    """
    # Never called from a shell: outlive.__main__ runs the guard before anything of the command line is imported. This
    # is for help, completion and the reference, and for callers that start the command line in another way.
    from outlive.guard.main import main

    raise typer.Exit(main(context.args))


guard = typer.Typer(rich_markup_mode=None)
guard.command("guard", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(_guard_of)

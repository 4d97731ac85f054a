"""What an operator asks of hosts and VMs: ``fence``, ``maintenance``, ``drain``, ``arm``, ``request``; ``guard``."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from outlive.base.duration import duration_of_flag, format_duration
from outlive.base.errors import ExitCode, Refused, Usage
from outlive.base.ids import SystemIds
from outlive.cli.access import Access
from outlive.cli.commands import command, group
from outlive.cli.output import write
from outlive.cli.values import instant_of
from outlive.node.disarm import arm_cluster, disarm_cluster, follow_guards
from outlive.node.operator import (
    call_off_fence,
    find_host,
    hidden,
    hosts_of_domains,
    refuse_arming,
    request_fence,
    request_vm,
    set_armed,
    set_drain,
    set_maintenance,
    set_power_maintenance,
    set_protected,
)
from outlive.node.operator import confirm_off as assert_off
from outlive.node.operator import maintenance_status as status
from outlive.resources import Hypervisor
from outlive.resources.vms import RequestVerb
from outlive.runtime.faults import acknowledge as acknowledge_fault

if TYPE_CHECKING:
    from outlive.store import Store

VERBS: Final[tuple[RequestVerb, ...]] = tuple(one for one in get_args(RequestVerb) if one not in ("attach", "detach"))
"""What can be requested of a VM without naming a device of it."""
MODES: Final = ("freeze", "ignore")
"""How a cluster can be disarmed."""
ONE_SERVER: Final = (
    " The store is one server: if it stops, or nobody reaches it, for longer than the guard's limit, all armed hosts "
    "kill their VMs at the same time."
)
WAIT_LIMIT_S = 4 * 3600.0
"""How long ``--wait`` waits at most."""
LOOK_S = 1.0
"""Pause between two looks while waiting."""

Host = Annotated[str, typer.Argument(metavar="HOST", help="Which host.")]
OneVm = Annotated[str, typer.Argument(metavar="VM", help="Which VM.")]
OneHost = Annotated[str, typer.Argument(metavar="[HOST]", help="Which host.")]
WholeCluster = Annotated[bool, typer.Option("--cluster", help="All of high availability, for planned work.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done.")]

SomeHosts = Annotated[list[str] | None, typer.Option("--host", metavar="HOST", help="Only for this host.")]
SomeDomains = Annotated[
    list[str] | None,
    typer.Option("--domain", metavar="rack=r3", help="Only for the hosts of this failure domain."),
]

OnlyPower = Annotated[bool, typer.Option("--power", help="Only their power controllers; hosts are still condemned.")]


async def fence(
    access: Access,
    host: Host,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the fence.")] = "",
    confirm_off: Annotated[
        bool,
        typer.Option("--confirm-off", help="Assert that the condemned host is off: its VMs restart."),
    ] = False,
    membership: Annotated[
        str,
        typer.Option("--membership", metavar="UID", help="With --confirm-off: about this lost membership of it."),
    ] = "",
    call_off: Annotated[
        bool, typer.Option("--call-off", help="Retract the order: a host that is not off by then comes back.")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="Who asks; otherwise the login name.")] = "",
    yes: Yes = False,
) -> None:
    """Have a host declared dead, or assert that a condemned one is off."""
    if membership and not confirm_off:
        raise Usage("it is about an assertion", place="--membership", remedy="add --confirm-off")
    if call_off and (confirm_off or reason):
        raise Usage("it retracts an order and does nothing else", place="--call-off", remedy="give it alone")
    if not (call_off or reason):
        raise Usage("there is no reason", place="--reason", remedy='add --reason "..."')
    who = name or getpass.getuser()
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


async def acknowledge(
    access: Access,
    faults: Annotated[list[str], typer.Argument(metavar="FAULT", help="As outlive get faults names it.")],
    undo: Annotated[bool, typer.Option("--undo", help="It lowers the health again.")] = False,
) -> None:
    """Have faults lower the cluster's health no more; they remain in the list until their causes are gone."""
    async with access.open(write=True) as store:
        for one in faults:
            write(await acknowledge_fault(store, access.clock, one, acknowledged=not undo) + "\n")


maintenance = group("Whether silent hosts are condemned.")


@command(maintenance, "on")
async def maintenance_on(
    access: Access,
    duration: Annotated[str, typer.Option("--for", metavar="2h", help="End by itself after this time.")] = "",
    host: SomeHosts = None,
    domain: SomeDomains = None,
    power: OnlyPower = False,
) -> None:
    """No host is condemned from now on."""
    for_s = duration_of_flag("--for", duration) if duration else None
    if for_s is not None and for_s <= 0:
        raise Usage(f"{duration} is no time to work in", place="--for", remedy="write a duration such as 2h or 90m")
    async with access.open(write=True) as store:
        hosts = await hosts_of_domains(store, tuple(domain or ()), hosts=tuple(host or ()))
        setting = set_power_maintenance if power else set_maintenance
        write(await setting(store, access.clock, True, for_s=for_s, hosts=hosts) + "\n")


@command(maintenance, "off")
async def maintenance_off(
    access: Access, host: SomeHosts = None, domain: SomeDomains = None, power: OnlyPower = False
) -> None:
    """Silent hosts are condemned again; shows who would have been meanwhile."""
    async with access.open(write=True) as store:
        hosts = await hosts_of_domains(store, tuple(domain or ()), hosts=tuple(host or ()))
        if power:
            write(await set_power_maintenance(store, access.clock, False, hosts=hosts) + "\n")
            return
        write(await set_maintenance(store, access.clock, False, hosts=hosts) + "\n")
        write(await hidden(store, access.clock, hosts) + "\n")


@command(maintenance, "status")
async def maintenance_status(access: Access) -> None:
    """What is in maintenance, until when, and who would have been condemned but for it."""
    async with access.open() as store:
        write(await status(store, access.clock) + "\n")


async def drain(access: Access, host: Host, wait: Wait = False) -> ExitCode | None:
    """Empty a host: its VMs move away, and it is not schedulable."""
    return await _set_drain(access, host, wait, drained=True)


async def ready(access: Access, host: Host, wait: Wait = False) -> ExitCode | None:
    """Make a host schedulable again; VMs that were moved away come home."""
    return await _set_drain(access, host, wait, drained=False)


async def _set_drain(access: Access, host: str, wait: bool, *, drained: bool) -> ExitCode | None:
    wanted = "flushed" if drained else "ready"
    async with access.open(write=True) as store:
        write(await set_drain(store, access.clock, host, drained) + "\n")
        began = access.clock.monotonic()
        while wait and access.clock.monotonic() - began < WAIT_LIMIT_S:
            found = await store.get(Hypervisor, host, fresh=True)
            if found.spec.drain is not drained:
                raise Refused(f"{host} was asked for the opposite meanwhile", remedy="find out by whom, and ask again")
            if found.status.domain_state == wanted:
                write(f"{host} is {wanted}, with {found.status.num_instances} VMs\n")
                return None
            await access.clock.sleep(LOOK_S)
    if not wait:
        return None
    write(
        f"{host} is still not {wanted} after {format_duration(WAIT_LIMIT_S)}, and goes on; "
        f"outlive describe hypervisor {host} says which VMs it has\n"
    )
    return ExitCode.NO


async def arm(
    access: Access,
    host: OneHost = "",
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
    """Have a host's guard armed: the host empties itself when it cannot prove any more that it lives.

    With --cluster: end what outlive disarm --cluster began, and report each host whose guard enforces again.
    """
    _one_of(host, cluster)
    if not cluster:
        await _set_armed(access, host, armed=True, yes=yes, single=accept_single_store)
        return None
    if accept_single_store:
        raise Usage("it is about one host", place="--accept-single-store", remedy="leave --cluster out")
    async with access.open(write=True) as store:
        write(await arm_cluster(store, access.clock) + "\n")
        return await _follow(access, store, armed=True)


async def disarm(
    access: Access,
    host: OneHost = "",
    cluster: WholeCluster = False,
    mode: Annotated[
        str, typer.Option("--mode", metavar="freeze|ignore", help="With --cluster: whether VMs stay as they are.")
    ] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="2h", help="With --cluster: armed again by itself after this time.")
    ] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="With --cluster: armed again by itself at this time, in UTC.")
    ] = "",
    yes: Yes = False,
) -> ExitCode | None:
    """Have a host's guard disarmed.

    With --cluster, for planned work on networks or the store: no host is condemned, nothing is recovered, and all
    guards are disarmed. --mode freeze: VMs stay as they are, and requests are refused; --mode ignore: requests are
    carried out. Returns once all guards are disarmed, or says which are not.
    """
    _one_of(host, cluster)
    if not cluster:
        if mode or duration or until:
            raise Usage("it is about the whole cluster", place="--mode, --for, --until", remedy="add --cluster")
        await _set_armed(access, host, armed=False, yes=yes)
        return None
    wanted = next((one for one in MODES if one == mode), None)
    if wanted is None:
        raise Usage(f"{mode[:40]!r} is no mode", place="--mode", remedy="write freeze or ignore")
    for_s = _time_left(access, duration, until)
    async with access.open(write=True) as store:
        write(await disarm_cluster(store, access.clock, wanted, for_s=for_s) + "\n")
        return await _follow(access, store, armed=False)


def _one_of(host: str, cluster: bool) -> None:
    if bool(host) is cluster:
        raise Usage("name a host, or the whole cluster", place="HOST", remedy="write one host, or --cluster")


def _time_left(access: Access, duration: str, until: str) -> float | None:
    if duration and until:
        raise Usage("both say when it ends", place="--for, --until", remedy="give one of them")
    if duration:
        return duration_of_flag("--for", duration)
    return instant_of("--until", until) - access.clock.now() if until else None


async def _follow(access: Access, store: Store, *, armed: bool) -> ExitCode | None:
    left = await follow_guards(store, access.clock, armed=armed, report=lambda line: write(line + "\n"))
    for host in left:
        wrong = "does not enforce yet" if armed else "enforces all the same: do not cut this host off from the store"
        write(f"{host}: its guard {wrong}; outlive why {host} says more\n")
    return ExitCode.NO if left else None


async def _set_armed(access: Access, host: str, *, armed: bool, yes: bool, single: bool = False) -> None:
    async with access.open(write=True) as store:
        if armed:
            await refuse_arming(store, host, accept_single_store=single)
            only = ONE_SERVER if store.embedded else ""
            ask(
                f"An armed host kills its VMs when its renewals are not acknowledged, also when it is only the store "
                f"that is away.{only} Arm {host}?",
                yes,
            )
            if only and yes:
                write(f"{only.strip()}\n")
        write(await set_armed(store, access.clock, host, armed, accept_single_store=single) + "\n")


def ask(question: str, yes: bool) -> None:
    """Go on only if somebody agrees; a program has to say ``--yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage("this asks before it acts, and nobody is there to answer", remedy="give --yes")
    sys.stderr.write(f"{question} [yes/no] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was done", remedy="answer yes, or give --yes")


async def protect(
    access: Access,
    vm: OneVm,
    hold: Annotated[
        bool, typer.Option("--hold", help="If its host dies it stays down until its start is requested.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; outlive why shows it.")] = "",
) -> None:
    """Take a VM back into protection: it gets slots, and restarts elsewhere if its host dies."""
    async with access.open(write=True) as store:
        write(await set_protected(store, access.clock, vm, True, hold=hold, reason=reason) + "\n")


async def unprotect(
    access: Access,
    vm: OneVm,
    reason: Annotated[str, typer.Option("--reason", help="Why; outlive why and its coverage show it.")] = "",
) -> None:
    """Take a VM out of protection: its slots are released, and nobody restarts it elsewhere."""
    async with access.open(write=True) as store:
        write(await set_protected(store, access.clock, vm, False, reason=reason) + "\n")


async def request(
    access: Access,
    vm: OneVm,
    verb: Annotated[str, typer.Argument(metavar="VERB", help=f"One of {', '.join(VERBS)}.")],
    to: Annotated[str, typer.Option("--to", metavar="HOST", help="With migrate or move: where to.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="As the verb's own command takes it: outlive vm VERB --help.")
    ] = False,
) -> None:
    """Ask for a VM to be started, stopped or moved, once; its host answers. Also after it has failed."""
    wanted = next((one for one in VERBS if one == verb), None)
    if wanted is None:
        raise Usage(f"nobody can be asked to {verb[:40]!r}", place="VERB", remedy=f"write one of {', '.join(VERBS)}")
    async with access.open(write=True) as store:
        asked = await request_vm(store, access.clock, SystemIds(), vm, wanted, target=to, force=force)
        write(f"{asked.text}\n")


def _guard_of(context: typer.Context) -> None:
    """Empty this host when it cannot prove any more that it is alive: a small process beside the daemon.

    It feeds the hardware watchdog only while renewals are acknowledged, and does nothing until it is armed. Its options
    are in docs/operating/guard.md#options; of the guard that runs, `outlive guard --status` prints the state.
    """
    # Never called from a shell: outlive.__main__ runs the guard before anything of the command line is imported. This
    # is for help, completion and the reference, and for callers that start the command line in another way.
    from outlive.guard.main import main

    raise typer.Exit(main(context.args))


guard = typer.Typer(rich_markup_mode=None)
guard.command("guard", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(_guard_of)

"""``outlive host``: hosts as they are, and which coordinator has the duties of the primary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from outlive.base import ExitCode, NotFound, SystemIds, Unavailable, Usage, escape_controls, join_parts, natural_key
from outlive.cli import host_functions, operator
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import Hosts, MaybeHost, OneHost, Wait, Yes, host_names
from outlive.cli.commands import command, make_group
from outlive.cli.liveness import read_liveness
from outlive.cli.output import Follow, Lines, Output, cell_text, follow, make_table, write
from outlive.cli.questions import ask
from outlive.cli.values import split_words
from outlive.node import (
    DEFAULT,
    ROLE,
    SHUTDOWN_POLICIES,
    HostLife,
    HostLiveness,
    describe_handover,
    lines_since,
    primary_is_settled,
    request_primary,
    role_of,
    set_mode,
    set_shutdown_policy,
    trust_proofs,
)
from outlive.node.fencing import DAEMON_CONDITION
from outlive.recovery import release_host
from outlive.resources import (
    ZONE_LABEL,
    Amounts,
    Election,
    ElectionRecord,
    Fault,
    HostLog,
    HostUsage,
    Hypervisor,
    HypervisorUsage,
    Resource,
    find_condition,
)
from outlive.store import Store, list_all, read

WAIT_S = 60.0
"""How long ``--wait`` waits at most."""
LOOK_S = 0.2
MEBIBYTE: Final = 1 << 20
R = TypeVar("R", bound=Resource)

app = make_group("Hosts, and the role of the primary coordinator.")

SAME_AS: Final = {"drain": "drain", "ready": "ready", "arm": "arm", "disarm": "disarm", "fence": "fence host"}
"""Commands of hosts → the same command as it also is without ``host``, where the reference describes it."""
command(app, "drain")(operator.drain)
command(app, "ready")(operator.ready)
command(app, "arm")(operator.arm)
command(app, "disarm")(operator.disarm)
command(app, "fence")(operator.fence_host)


@command(app, "list")
async def list_hosts(access: Access, output: Output) -> None:
    """All hosts: whether they live, which VMs and how much memory they have."""
    async with access.open() as store:
        hosts = sorted([one async for one in list_all(store, Hypervisor)], key=lambda host: natural_key(host.name))
        life = await read_liveness(store, access)
        usages = {one.name: one async for one in list_all(store, HypervisorUsage)}
        record = await _read_election(store)
    documents = [_host_facts(host, life.liveness_of_host(host.name), usages.get(host.name), record) for host in hosts]
    columns = ["Name", "State", "Role", "Takes VMs", "VMs", "vCPUs", "Memory (MiB)", "Provisioned", "Load"]
    rows = [
        [
            one["name"],
            one["state"],
            one["role"],
            one["takesVms"],
            one["vms"],
            _format_allocated(one["vcpus"]),
            _format_allocated(one["memoryMib"]),
            _format_provisioned(one["memoryMib"]),
            one["load"],
            *((one["version"], one["kernel"], one["os"]) if output.wide else ()),
        ]
        for one in documents
    ]
    more = ["Version", "Kernel", "System"] if output.wide else []
    output.show(documents, lambda: [make_table([*columns, *more], rows, numbers=columns[4:])])


async def _read_election(store: Store) -> ElectionRecord:
    election = await read(store, Election, ROLE)
    return election.record if election is not None else ElectionRecord()


def _format_allocated(amounts: dict[str, Any]) -> str:
    return f"{cell_text(amounts['allocated'])} of {cell_text(amounts['total'])}"


def _format_provisioned(memory: dict[str, Any]) -> str:
    too_much = " (more than it has)" if memory["overProvisioned"] else ""
    return f"{cell_text(memory['provisioned'])}{too_much}"


@command(app)
async def info(access: Access, output: Output, host: OneHost) -> None:
    """One host: its state and role, what it is, what its VMs take, and what is wrong with it."""
    async with access.open() as store:
        found = await store.get(Hypervisor, host)
        life, usage = await read_liveness(store, access), await read(store, HypervisorUsage, host)
        facts = _host_facts(found, life.liveness_of_host(host), usage, await _read_election(store))
        faults = [one async for one in list_all(store, Fault) if one.subject.name == host and not one.ended]
    document = {**facts, "faults": [one.message for one in faults]}
    rows = [(_TITLES.get(key, key.capitalize()), _format_cell(key, value)) for key, value in document.items()]
    output.show(document, lambda: [make_table(("", ""), rows)])


_TITLES: Final = {
    "takesVms": "Takes VMs",
    "vms": "VMs",
    "vcpus": "vCPUs",
    "memoryMib": "Memory (MiB)",
    "os": "System",
    "cpus": "Processors",
}


def _format_cell(key: str, value: Any) -> str:
    if key == "memoryMib":
        used = f", {cell_text(value['used'])} in use" if value["used"] is not None else ""
        return f"{_format_allocated(value)} allocated, {_format_provisioned(value)} provisioned{used}"
    if key == "vcpus":
        return f"{_format_allocated(value)} allocated"
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell_text(one)}" for name, one in value.items())
    return "; ".join(value) if isinstance(value, list) else cell_text(value)


def _host_facts(
    host: Hypervisor, life: HostLiveness, published: HypervisorUsage | None, record: ElectionRecord
) -> dict[str, Any]:
    """What is shown of a host; memory in MiB."""
    status, usage = host.status, published.usage if published is not None else HostUsage()
    has, taken = host.effective_capacity() or Amounts(), status.allocation or Amounts()
    ready = find_condition(status.conditions, DAEMON_CONDITION)
    total, provisioned = _to_mib(has.memory_bytes), _to_mib(max(taken.memory_bytes, usage.provisioned.memory_bytes))
    ours = host.spec.management == "node"
    is_alive = life.state is HostLife.ALIVE or not life.watched
    takes_vms = "yes" if is_alive else f"no: it is {life.text}"
    if why := host.closed_reason():
        takes_vms = f"no: it {why}"
    return {
        "name": host.name,
        "state": life.text,
        "reason": ready.message if ready is not None else "",
        "management": host.spec.management,
        "role": role_of(host.name, host.spec.mode, record) if ours else "",
        "takesVms": takes_vms,
        "vms": status.num_instances,
        "vcpus": {"allocated": taken.cpu_milli / 1000, "total": has.cpu_milli / 1000},
        "memoryMib": {
            "allocated": _to_mib(taken.memory_bytes),
            "provisioned": provisioned,
            "used": _to_mib(usage.used.memory_bytes) if published is not None else None,
            "total": total,
            "overProvisioned": provisioned > total > 0,
        },
        "load": round(usage.load, 2) if published is not None else None,
        "health": dict(usage.scores) if is_alive else {},
        "zone": host.metadata.labels.get(ZONE_LABEL, ""),
        "addresses": dict(status.addresses),
        "cpus": status.capabilities.cpus or None,
        "architecture": status.capabilities.cpu_arch,
        "kernel": status.capabilities.kernel,
        "os": status.capabilities.os,
        "version": status.version,
        "stale": list(usage.stale),
    }


def _to_mib(amount: int) -> int:
    return amount // MEBIBYTE


@command(app)
async def log(
    access: Access,
    host: OneHost,
    lines: Lines = None,
    following: Follow = False,
) -> None:
    """What a daemon has logged, as far as it keeps that in the store (node.logLines)."""
    async with access.open() as store:
        await store.get(Hypervisor, host)
        found = await read(store, HostLog, host)
        if found is None:
            remedy = f"set node.logLines in its node.yaml; or on {host}: journalctl -u outlive-node"
            raise NotFound(f"the daemon of {host} keeps no log in the store", remedy=remedy)
        _write_lines(found.lines[-lines:] if lines is not None else found.lines)

        def show(now: HostLog) -> None:
            nonlocal found
            assert found is not None, "it was shown"
            _write_lines(lines_since(now, found.process, found.last))
            found = now

        if following:
            await follow(access.clock, lambda: read(store, HostLog, host), show)


def _write_lines(lines: Iterable[str]) -> None:
    write("".join(f"{escape_controls(line)}\n" for line in lines))


@command(app, "is-primary")
async def is_primary(
    access: Access,
    host: MaybeHost = "",
) -> ExitCode:
    """Whether a host is the primary coordinator: exit code 0 or 1, for programs that are to run there only."""
    from outlive.cli.node_settings import own_name

    name = host or own_name()
    async with access.open() as store:
        record = await _read_election(store)
    write(f"{record.holder or 'nobody'} is the primary coordinator{f' ({record.phase})' if record.phase else ''}\n")
    return ExitCode.YES if record.holder == name and not record.phase else ExitCode.NO


@command(app)
async def primary(access: WriteAccess, host: OneHost, wait: Wait = False) -> None:
    """Make a coordinator the primary: the one that has the role stops its duties and hands it over."""
    await _request(access, "primary", host, wait=wait)


@command(app)
async def secondary(access: WriteAccess, host: OneHost, wait: Wait = False) -> None:
    """Make the primary hand its role to another coordinator."""
    await _request(access, "secondary", host, wait=wait)


@command(app)
async def release(access: WriteAccess, host: OneHost) -> None:
    """Release a host from its quarantine: it takes VMs again."""
    async with access.open(write=True) as store:
        write(f"{await release_host(store, access.clock, host, word=SystemIds().new_uuid())}\n")


command(app, "functions")(host_functions.list_functions)
app.add_typer(host_functions.app, name="function")


@command(app)
async def trust(
    access: WriteAccess,
    host: OneHost,
    kinds: Annotated[list[str], typer.Argument(metavar="KIND", help="Kinds of proof: power, watchdog, cut.")],
    yes: Yes = False,
) -> None:
    """Make kinds of proof that were wrong for a host count again (spec.fencing.trustAgain)."""
    chosen = split_words(*kinds)
    async with access.open(write=True) as store:
        question = f"A wrong proof lets VMs run twice. Is it mended what made {join_parts(chosen)} of {host} wrong?"
        ask(question, yes)
        write(f"{await trust_proofs(store, access.clock, host, chosen)}\n")


@command(app)
async def promote(access: WriteAccess, hosts: Hosts) -> None:
    """Make hosts coordinators: their daemons, once restarted, watch the others and fence them (spec.mode)."""
    async with access.open(write=True) as store:
        for host in host_names(hosts):
            write(f"{await set_mode(store, access.clock, host, 'coordinator')}\n")


@command(app)
async def demote(access: WriteAccess, hosts: Hosts) -> None:
    """Make hosts plain hypervisors again (spec.mode). The last coordinator is refused."""
    async with access.open(write=True) as store:
        for host in host_names(hosts):
            write(f"{await set_mode(store, access.clock, host, 'hypervisor')}\n")


@command(app, "shutdown-policy")
async def shutdown_policy(
    access: WriteAccess,
    texts: Annotated[
        list[str],
        typer.Argument(metavar="[HOST…] POLICY", help=f"Hosts, and one of {', '.join((*SHUTDOWN_POLICIES, DEFAULT))}."),
    ],
    cluster: Annotated[bool, typer.Option("--cluster", help="For all hosts that have none of their own.")] = False,
) -> None:
    """Set what happens to the VMs of hosts that shut down cleanly (spec.shutdownPolicy)."""
    *hosts, policy = split_words(*texts)
    if bool(hosts) is cluster:
        raise Usage("name hosts, or the whole cluster", place="HOST", remedy="write hosts and a policy, or --cluster")
    async with access.open(write=True) as store:
        write(f"{await set_shutdown_policy(store, access.clock, hosts, policy)}\n")


async def _request(access: Access, verb: Literal["primary", "secondary"], host: str, *, wait: bool) -> None:
    clock = access.clock
    async with access.open(write=True) as store:
        asked = await request_primary(store, clock, SystemIds().new_uuid(), verb, host)
        write(f"{asked.text}\n")
        if not wait or asked.id == "":
            return
        until, told = clock.monotonic() + WAIT_S, ""
        while (holder := await primary_is_settled(store, asked.id)) is None:
            record = await _read_election(store)
            if (record.phase or not record.holder) and (now := describe_handover(record)) != told:
                write(f"{now}\n")
                told = now
            if clock.monotonic() > until:
                raise Unavailable(
                    f"the role was not handed over within {WAIT_S:g} s",
                    remedy="see outlive get election primary -o yaml, and the daemon's log on both hosts",
                )
            await clock.sleep(LOOK_S)
        write(f"{holder} is the primary coordinator\n")

"""``outlive host``: hosts as they are, and which coordinator has the duties of the primary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from outlive.base.errors import ExitCode, NotFound, Unavailable, Usage
from outlive.base.ids import SystemIds
from outlive.base.natural import natural_key
from outlive.base.phrases import listing, visible
from outlive.cli import host_functions, operator
from outlive.cli.access import Access, WriteAccess
from outlive.cli.arguments import Hosts, MaybeHost, OneHost, Wait, Yes, host_names
from outlive.cli.commands import command, group
from outlive.cli.liveness import read_liveness
from outlive.cli.output import Follow, Lines, Output, cell_text, follow, table, write
from outlive.cli.questions import ask
from outlive.cli.values import words
from outlive.node.fencing.policy import DAEMON_CONDITION
from outlive.node.host_log import lines_since
from outlive.node.interventions import DEFAULT, SHUTDOWN_POLICIES, set_mode, set_shutdown_policy, trust_proofs
from outlive.node.liveness import HostLife, HostLiveness
from outlive.node.primary_elector import ROLE
from outlive.node.primary_requests import describe_handover, primary_is_settled, request_primary, role_of
from outlive.recovery.deaths import release_host
from outlive.resources import (
    Amounts,
    Election,
    ElectionRecord,
    Fault,
    HostLog,
    Hypervisor,
    HypervisorUsage,
    Resource,
)
from outlive.resources.hosts import HostUsage
from outlive.resources.meta import ZONE_LABEL, condition
from outlive.store import Store, list_all, read

WAIT_S = 60.0
"""How long ``--wait`` waits at most."""
LOOK_S = 0.2
MEBIBYTE: Final = 1 << 20
R = TypeVar("R", bound=Resource)

app = group("Hosts, and the role of the primary coordinator.")

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
        usages = await _by_name(store, HypervisorUsage)
        record = await _election(store)
    documents = [_facts(host, life.host(host.name), usages.get(host.name), record) for host in hosts]
    output.show(documents, lambda: [_listing(documents, wide=output.wide)])


async def _by_name(store: Store, kind: type[R]) -> dict[str, R]:
    return {one.name: one async for one in list_all(store, kind)}


async def _election(store: Store) -> ElectionRecord:
    election = await read(store, Election, ROLE)
    return election.record if election is not None else ElectionRecord()


def _listing(documents: list[dict[str, Any]], *, wide: bool) -> Any:
    columns = ["Name", "State", "Role", "Takes VMs", "VMs", "vCPUs", "Memory (MiB)", "Provisioned", "Load"]
    rows = [
        [
            one["name"],
            one["state"],
            one["role"],
            one["takesVms"],
            one["vms"],
            _of(one["vcpus"]),
            _of(one["memoryMib"]),
            _provisioned(one["memoryMib"]),
            one["load"],
            *((one["version"], one["kernel"], one["os"]) if wide else ()),
        ]
        for one in documents
    ]
    more = ["Version", "Kernel", "System"] if wide else []
    return table([*columns, *more], rows, numbers=["VMs", "vCPUs", "Memory (MiB)", "Provisioned", "Load"])


def _of(amounts: dict[str, Any]) -> str:
    return f"{cell_text(amounts['allocated'])} of {cell_text(amounts['total'])}"


def _provisioned(memory: dict[str, Any]) -> str:
    too_much = " (more than it has)" if memory["overProvisioned"] else ""
    return f"{cell_text(memory['provisioned'])}{too_much}"


@command(app)
async def info(access: Access, output: Output, host: OneHost) -> None:
    """One host: its state and role, what it is, what its VMs take, and what is wrong with it."""
    async with access.open() as store:
        found = await store.get(Hypervisor, host)
        life, usage = await read_liveness(store, access), await read(store, HypervisorUsage, host)
        facts = _facts(found, life.host(host), usage, await _election(store))
        faults = [one async for one in list_all(store, Fault) if one.subject.name == host and not one.ended]
    document = {**facts, "faults": [one.message for one in faults]}
    rows = [(_TITLES.get(key, key.capitalize()), _cell(key, value)) for key, value in document.items()]
    output.show(document, lambda: [table(("", ""), rows)])


_TITLES: Final = {
    "takesVms": "Takes VMs",
    "vms": "VMs",
    "vcpus": "vCPUs",
    "memoryMib": "Memory (MiB)",
    "os": "System",
    "cpus": "Processors",
}


def _cell(key: str, value: Any) -> str:
    if key == "memoryMib":
        used = f", {cell_text(value['used'])} in use" if value["used"] is not None else ""
        return f"{_of(value)} allocated, {_provisioned(value)} provisioned{used}"
    if key == "vcpus":
        return f"{_of(value)} allocated"
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell_text(one)}" for name, one in value.items())
    return "; ".join(value) if isinstance(value, list) else cell_text(value)


def _facts(
    host: Hypervisor, life: HostLiveness, published: HypervisorUsage | None, record: ElectionRecord
) -> dict[str, Any]:
    """What is shown of a host; memory in MiB."""
    status, usage = host.status, published.usage if published is not None else HostUsage()
    has, taken = host.effective_capacity() or Amounts(), status.allocation or Amounts()
    ready = condition(status.conditions, DAEMON_CONDITION)
    total, provisioned = _mib(has.memory_bytes), _mib(max(taken.memory_bytes, usage.provisioned.memory_bytes))
    ours = host.spec.management == "node"
    return {
        "name": host.name,
        "state": life.text,
        "reason": ready.message if ready is not None else "",
        "management": host.spec.management,
        "role": role_of(host.name, host.spec.mode, record) if ours else "",
        "takesVms": _takes_vms(host, life),
        "vms": status.num_instances,
        "vcpus": {"allocated": taken.cpu_milli / 1000, "total": has.cpu_milli / 1000},
        "memoryMib": {
            "allocated": _mib(taken.memory_bytes),
            "provisioned": provisioned,
            "used": _mib(usage.used.memory_bytes) if published is not None else None,
            "total": total,
            "overProvisioned": provisioned > total > 0,
        },
        "load": round(usage.load, 2) if published is not None else None,
        "health": dict(usage.scores) if life.state is HostLife.ALIVE or not life.watched else {},
        "zone": host.metadata.labels.get(ZONE_LABEL, ""),
        "addresses": dict(status.addresses),
        "cpus": status.capabilities.cpus or None,
        "architecture": status.capabilities.cpu_arch,
        "kernel": status.capabilities.kernel,
        "os": status.capabilities.os,
        "version": status.version,
        "stale": list(usage.stale),
    }


def _takes_vms(host: Hypervisor, life: HostLiveness) -> str:
    if why := host.closed():
        return f"no: it {why}"
    return "yes" if life.state is HostLife.ALIVE or not life.watched else f"no: it is {life.text}"


def _mib(amount: int) -> int:
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
    write("".join(f"{visible(line)}\n" for line in lines))


@command(app, "is-primary")
async def is_primary(
    access: Access,
    host: MaybeHost = "",
) -> ExitCode:
    """Whether a host is the primary coordinator: exit code 0 or 1, for programs that are to run there only."""
    from outlive.cli.node_settings import own_name

    name = host or own_name()
    async with access.open() as store:
        record = await _election(store)
    write(f"{record.holder or 'nobody'} is the primary coordinator{f' ({record.phase})' if record.phase else ''}\n")
    return ExitCode.YES if record.holder == name and not record.phase else ExitCode.NO


@command(app)
async def primary(access: WriteAccess, host: OneHost, wait: Wait = False) -> None:
    """Make a coordinator the primary: the one that has the role stops its duties and hands it over."""
    await _request(access, "primary", host, wait=wait)


@command(app)
async def secondary(access: WriteAccess, host: OneHost, wait: Wait = False) -> None:
    """Have the primary give up its role to another coordinator."""
    await _request(access, "secondary", host, wait=wait)


@command(app)
async def release(access: WriteAccess, host: OneHost) -> None:
    """Let a host that died too often out of its quarantine: it takes VMs again."""
    async with access.open(write=True) as store:
        write(f"{await release_host(store, access.clock, host, word=SystemIds().uuid())}\n")


command(app, "functions")(host_functions.list_functions)
app.add_typer(host_functions.app, name="function")


@command(app)
async def trust(
    access: WriteAccess,
    host: OneHost,
    kinds: Annotated[list[str], typer.Argument(metavar="KIND", help="Kinds of proof: power, watchdog, cut.")],
    yes: Yes = False,
) -> None:
    """Let kinds of proof count again that turned out wrong for a host (spec.fencing.trustAgain)."""
    chosen = words(*kinds)
    async with access.open(write=True) as store:
        question = f"A wrong proof lets VMs run twice. Is it mended what made {listing(chosen)} of {host} wrong?"
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
    """Have hosts be coordinators no more (spec.mode). The last one is refused."""
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
    """Say what becomes of the VMs of hosts that go down in good order (spec.shutdownPolicy)."""
    *hosts, policy = words(*texts)
    if bool(hosts) is cluster:
        raise Usage("name hosts, or the whole cluster", place="HOST", remedy="write hosts and a policy, or --cluster")
    async with access.open(write=True) as store:
        write(f"{await set_shutdown_policy(store, access.clock, hosts, policy)}\n")


async def _request(access: Access, verb: Literal["primary", "secondary"], host: str, *, wait: bool) -> None:
    clock = access.clock
    async with access.open(write=True) as store:
        asked = await request_primary(store, clock, SystemIds().uuid(), verb, host)
        write(f"{asked.text}\n")
        if not wait or asked.id == "":
            return
        until, told = clock.monotonic() + WAIT_S, ""
        while (holder := await primary_is_settled(store, asked.id)) is None:
            record = await _election(store)
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

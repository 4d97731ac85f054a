"""``outlive network``: whether OVN is as it should be, what becomes of a VM's packets, and what a node announces."""

from __future__ import annotations

import contextlib
import signal
from typing import Annotated, Any

import typer

from outlive.base.clock import SystemClock
from outlive.base.errors import BadInput, ExitCode, NotFound, Usage
from outlive.base.logging import configure_logging
from outlive.base.random import system_random
from outlive.cli.access import WriteAccess, require_server
from outlive.cli.commands import command, group
from outlive.cli.output import Output, Report, fault_blocks, table, write
from outlive.network.names import CHECK_PATH, TRACE_PATH
from outlive.resources import VirtualMachinePort, VirtualNetwork
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store, read
from outlive.store.naming import find_vm

app = group("Networks of VMs: those that hosts make, and those in OVN.")


@command(app, "check")
async def check(
    access: WriteAccess,
    output: Output,
    name: Annotated[str, typer.Argument(metavar="[NETWORK|VM]", help="Only this one; else all.")] = "",
) -> ExitCode | None:
    """Compare OVN with what should be: rows, bindings, chassis; exit code 1 if something differs. Changes nothing."""
    async with access.open() as store:
        server = require_server(store, "this asks the server that programs OVN")
        if name and await read(store, VirtualNetwork, name) is None:
            with contextlib.suppress(NotFound):  # rows may name a VM that is gone
                name = (await find_vm(store, name)).name
        found = await server.question(CHECK_PATH, {"name": name})
    output.show(found, lambda: check_lines(found, wide=output.wide))
    return ExitCode.NO if found["findings"] else None


def check_lines(found: dict[str, Any], *, wide: bool) -> list[Any]:
    """The answer for people."""
    looked = f"{found['networks']} networks and {found['ports']} ports of {found['vms']} VMs"
    findings, more = found["findings"], found["more"]
    if not findings:
        return [f"OVN is as it should be: {looked}, change {found['change']}"]
    lines: list[Any] = [f"{len(findings) + more} findings in {looked}"]
    lines += fault_blocks((one["code"], one["about"], one["text"], one.get("remedy", "")) for one in findings)
    differences = [
        (one["row"], part["column"], _shown(part["found"]), _shown(part["wanted"]))
        for one in findings
        for part in one.get("columns", ())
    ]
    if wide and differences:
        lines += ["", table(("Row", "Column", "Found", "Wanted"), differences)]
    elif differences:
        lines += ["", "what rows have and should have: -o wide or -o json"]
    return [*lines, f"and {more} more"] if more else lines


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)


@command(app, "trace")
async def trace(
    access: WriteAccess,
    output: Report,
    name: Annotated[str, typer.Argument(metavar="VM|PORT", help="The VM, or one of its ports.")],
    to: Annotated[
        str, typer.Option("--to", "-t", metavar="ADDRESS", help="Where it sends to; else all that must work.")
    ] = "",
    sender: Annotated[str, typer.Option("--from", metavar="VM|PORT", help="Who sends to it.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="What ovn-trace prints, as it is.")] = False,
) -> ExitCode | None:
    """Follow packets of a VM through OVN; exit code 1 if one does not end where it should. Changes nothing.

    OVN's logical flows are all that is looked at: bindings and tunnels are not (outlive network check).
    """
    async with access.open() as store:
        server = require_server(store, "this asks the server that programs OVN")
        subjects = [await _find(store, one) if one else "" for one in (name, sender)]
        found = await server.question(TRACE_PATH, {"name": subjects[0], "to": to, "from": subjects[1]})
    if not found:
        raise BadInput(f"nothing can be traced of {name}: it has no addresses", remedy="give --to ADDRESS")
    output.show(found, lambda: raw_lines(found) if raw else trace_lines(found))
    return ExitCode.NO if any(one["passed"] is False for one in found) else None


async def _find(store: Store, name: str) -> str:
    """A port, else a VM by any of its names."""
    return name if await read(store, VirtualMachinePort, name) is not None else (await find_vm(store, name)).name


def trace_lines(found: list[dict[str, Any]]) -> list[Any]:
    """Each packet with its way and its end."""
    lines: list[Any] = []
    for one in found:
        verdict = {True: "ok", False: "FAILS", None: "-"}[one["passed"]]
        lines.append(f"{verdict:<6}{one['packet']}: {one['text']}")
        ways = []
        for hop in one["hops"]:
            ways.append(f"{hop['kind']} {hop['name']} ({hop['inport']} > {', '.join(hop['outports']) or 'nowhere'})")
        lines += [f"        {way}" for way in ways]
    return lines


def raw_lines(found: list[dict[str, Any]]) -> list[Any]:
    """What ovn-trace printed."""
    lines: list[Any] = []
    for one in found:
        lines += [f"# {one['packet']}", *one["raw"].splitlines(), ""]
    return lines


@command(app)
async def announce(
    node: Annotated[str, typer.Option("--node", metavar="NAME", envvar="NODE_NAME", help="Name of this node.")],
    pod: Annotated[
        str, typer.Option("--pod", metavar="NAMESPACE/NAME", help="Send what lies at this pod, once, and end.")
    ] = "",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", metavar="FILE", help="Access to the cluster.")] = "",
    context: Annotated[str, typer.Option("--context", metavar="NAME", help="Its context.")] = "",
) -> ExitCode | None:
    """Send what the network controller has this node announce after VMs have moved, as a DaemonSet does.

    It needs the node's own network and the right to open raw sockets (NET_RAW), and to list pods.
    """
    from outlive.cli.serving import stop_signal
    from outlive.drivers.ovn.announcer import PacketAnnouncer
    from outlive.drivers.ovn.pod_announcer import PodAnnouncer
    from outlive.network.pod_cache import PodCache
    from outlive.store.kubernetes import KubernetesStore, cluster_access

    if pod and pod.count("/") != 1:
        raise Usage(f"{pod[:200]!r} is no pod", place="--pod", remedy="write NAMESPACE/NAME")
    clock, random = SystemClock(), system_random()
    store = KubernetesStore(cluster_access(kubeconfig, context), clock=clock, random=random)
    sender = PodAnnouncer(PodCache(store, clock, random), store, PacketAnnouncer(clock), node, clock)
    try:
        if pod:
            write(f"{await sender.send_pod(pod)} frames sent on {node}\n")
            return None
        configure_logging(level="info", form="json")
        stopped = stop_signal()
        async with OrderedTaskGroup() as running:
            task = running.create_task(sender.run(), name="announcer")
            number = await stopped
            task.cancel()
        return ExitCode.INTERRUPTED if number == signal.SIGINT else None
    finally:
        await store.close()

"""``outlive network``: whether OVN is as it should be, what becomes of a VM's packets, and what a node announces."""

from __future__ import annotations

import contextlib
import signal
from typing import Annotated, Any

import typer

from outlive.base import BadInput, ExitCode, NotFound, SystemClock, Usage, configure_logging, system_random
from outlive.cli.access import WriteAccess, require_server
from outlive.cli.commands import command, make_group
from outlive.cli.output import Output, Report, fault_blocks, make_table, write
from outlive.network import CHECK_PATH, TRACE_PATH
from outlive.resources import VirtualMachinePort, VirtualNetwork
from outlive.runtime import OrderedTaskGroup
from outlive.store import find_vm, read

app = make_group("Networks of VMs: those that hosts make, and those in OVN.")


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
        (one["row"], part["column"], _format_cell(part["found"]), _format_cell(part["wanted"]))
        for one in findings
        for part in one.get("columns", ())
    ]
    if wide and differences:
        lines += ["", make_table(("Row", "Column", "Found", "Wanted"), differences)]
    elif differences:
        lines += ["", "what rows have and should have: -o wide or -o json"]
    return [*lines, f"and {more} more"] if more else lines


def _format_cell(value: Any) -> str:
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

    It follows OVN's logical flows only; for bindings and tunnels see outlive network check.
    """
    async with access.open() as store:
        server = require_server(store, "this asks the server that programs OVN")
        subjects = []
        for one in (name, sender):  # a port, else a VM by any of its names
            is_vm = one and await read(store, VirtualMachinePort, one) is None
            subjects.append((await find_vm(store, one)).name if is_vm else one)
        found = await server.question(TRACE_PATH, {"name": subjects[0], "to": to, "from": subjects[1]})
    if not found:
        raise BadInput(f"nothing can be traced of {name}: it has no addresses", remedy="give --to ADDRESS")
    printed = [line for one in found for line in (f"# {one['packet']}", *one["raw"].splitlines(), "")]
    output.show(found, lambda: printed if raw else trace_lines(found))
    return ExitCode.NO if any(one["passed"] is False for one in found) else None


def trace_lines(found: list[dict[str, Any]]) -> list[Any]:
    """Each packet with its way and its end."""
    lines: list[Any] = []
    for one in found:
        verdict = {True: "ok", False: "FAILS", None: "-"}[one["passed"]]
        lines.append(f"{verdict:<6}{one['packet']}: {one['text']}")
        for hop in one["hops"]:
            ends = ", ".join(hop["outports"]) or "nowhere"
            lines.append(f"        {hop['kind']} {hop['name']} ({hop['inport']} > {ends})")
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
    from outlive.drivers.ovn import PacketAnnouncer, PodAnnouncer
    from outlive.network import PodCache
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

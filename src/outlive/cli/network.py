"""``outlive network check|trace``: whether OVN is as it should be, and what becomes of packets. Changes nothing."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final

import typer

from outlive.base.errors import BadInput, ExitCode, NotFound
from outlive.cli.access import WriteAccess, require_server
from outlive.cli.commands import command, group
from outlive.cli.output import Output, Report, fault_blocks, table
from outlive.resources import VirtualMachinePort, VirtualNetwork
from outlive.store import Store, read
from outlive.store.naming import find_vm

CHECK_PATH: Final = "/network/check"
TRACE_PATH: Final = "/network/trace"

app = group("Networks of VMs in OVN: check, trace.")


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

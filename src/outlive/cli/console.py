"""``outlive console`` and ``outlive vm log``: what a guest wrote to its serial console, and the console itself.

The console is attached as ``virsh`` does it: on the VM's host, from elsewhere over ssh. No daemon listens for that, and
the server forwards nothing: a user who may log in on the host may attach.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Final

import typer

from outlive.base import NotFound, OutliveError, Refused, Usage, escape_controls
from outlive.cli.access import Access
from outlive.cli.arguments import OneVm
from outlive.cli.output import Follow, Lines, follow, write
from outlive.node.vm import display_name_of, running_entry, shown_state
from outlive.resources import Console, Hypervisor
from outlive.store import find_vm, read

if TYPE_CHECKING:
    from outlive.resources import VirtualMachine
    from outlive.store import Store

LIBVIRT: Final = "qemu:///system"
ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\-~])")
"""What steers a terminal."""


async def console(
    access: Access,
    vm: OneVm,
    log: Annotated[bool, typer.Option("--log", help="Print what the guest wrote last instead of attaching.")] = False,
    lines: Lines = None,
    following: Follow = False,
    ssh: Annotated[
        str, typer.Option("--ssh", metavar="[USER@]HOST", help="Where its host is logged in to; otherwise by its name.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Take the console over from its present user.")] = False,
) -> None:
    """Attach to the serial console of a VM, on its host or by ssh (Ctrl-] leaves it); or print its log."""
    if log or following or lines is not None:
        await print_log(access, vm, lines=lines, following=following)
        return
    async with access.open() as store:
        found = await find_vm(store, vm)
        await read(store, Console, found.name)  # Forbidden for those who may not read what is on it
        entry = running_entry(found)
        if entry is None:
            why = f"{display_name_of(found)} does not run: it is in {shown_state(found)}"
            raise Refused(why, remedy=f"outlive vm log {found.name} shows what it wrote last")
        host = entry.hypervisor
        words = await _attach_command(store, found, host, ssh, force=force)
    if not sys.stdin.isatty():
        raise Usage("a console needs a terminal", remedy=f"run {' '.join(words)} on one, or see --log")
    sys.stderr.write(f"{display_name_of(found)} on {host}: {' '.join(words)} (Ctrl-] leaves)\n")
    try:
        os.execvp(words[0], words)  # noqa: S606 - a program by its name, and words that are checked
    except OSError as error:
        package = "libvirt-clients" if words[0] == "virsh" else "openssh-client"
        raise Refused(f"{words[0]}: {error.strerror}", remedy=f"install {package}") from None


async def _attach_command(store: Store, vm: VirtualMachine, host: str, ssh: str, *, force: bool) -> list[str]:
    """The program that attaches, and its arguments; each is a name that no shell changes."""
    from outlive.cli.node_settings import load_node, node_file

    how = "--force" if force else "--safe"
    if not ssh:
        with contextlib.suppress(OutliveError, OSError):
            config = load_node(node_file(None))
            if config.name == host and config.libvirt.uri:
                return ["virsh", "--connect", config.libvirt.uri, "console", how, vm.name]
    if ssh.startswith("-") or not (ssh.isprintable() and ssh.isascii()) or " " in ssh:
        raise Usage(f"{ssh[:80]!r} is no host", place="--ssh", remedy="write HOST or USER@HOST")
    to = ssh or await _ssh_address(store, host)
    return ["ssh", "-t", "--", to, "virsh", "--connect", LIBVIRT, "console", how, vm.name]


async def _ssh_address(store: Store, host: str) -> str:
    """Its name where that is known here, else its address in the cluster."""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, "ssh")
    except (socket.gaierror, UnicodeError):
        found = await read(store, Hypervisor, host)
        address = found.status.addresses.get("cluster", "") if found is not None else ""
        with contextlib.suppress(ValueError):
            return str(ip_address(address))
    return host


# The log


async def print_log(access: Access, name: str, *, lines: int | None, following: bool) -> None:
    """What the guest wrote last, or that many lines of it, and with ``following`` what it writes from then on."""
    async with access.open() as store:
        vm = await find_vm(store, name)
        found = await read(store, Console, vm.name)
        if found is None and not following:
            remedy = "it has not written anything, its host does not log it, or nothing was written for 30 days"
            raise NotFound(f"there is no log of the console of {display_name_of(vm)}", remedy=remedy)
        text = found.text if found is not None else ""
        _print("".join(text.splitlines(keepends=True)[-lines:]) if lines is not None else text)

        def show(now: Console) -> None:
            nonlocal text
            if now.text != text:
                _print(added_text(text, now.text))
                text = now.text

        if following:
            await follow(access.clock, lambda: read(store, Console, vm.name), show)


def added_text(before: str, after: str) -> str:
    """What was written between two readings of the end of a log; all of it where they have nothing in common."""
    at = 0  # of the first line of the earlier reading that is still there: older ones are left out as whole lines
    while not after.startswith(before[at:]):
        at = before.find("\n", at) + 1 or len(before)
    return after[len(before) - at :]


def _print(text: str) -> None:
    if not sys.stdout.isatty():
        write(text)
        return
    plain = ESCAPES.sub("", text).replace("\r\n", "\n").expandtabs()
    write("\n".join(escape_controls(line) for line in plain.split("\n")))

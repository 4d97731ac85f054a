"""The ``outlive`` command: which commands there are, and how each of them ends.

Modules of commands are imported when their command runs, so that help and completion stay fast. Every end is an
exit code of docs/reference/exit-codes.md; an error is one line on standard error, with the place and the remedy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand

from outlive import __version__
from outlive.base import ExitCode
from outlive.cli.errors import report, take_debug
from outlive.cli.parameters import PlainGroup


class CommandEntry(NamedTuple):
    """A command: the module that has it, and its line in the list of commands."""

    module: str
    help: str
    attribute: str = ""
    """The function or group in the module, where it is not called like the command."""

    def load(self, name: str) -> Any:
        """The command itself; imports its module."""
        from outlive.cli.commands import single_command

        found = getattr(importlib.import_module(f"outlive.cli.{self.module}"), self.attribute or name)
        return typer.main.get_command(found if isinstance(found, typer.Typer) else single_command(name, found))


COMMANDS: Final[dict[str, CommandEntry]] = {
    "up": CommandEntry("up", "Run everything on this machine: store, controllers, HTTP API."),
    "controller": CommandEntry(
        "controller", "Run the controllers on a Kubernetes API server or ZooKeeper, as one of several processes."
    ),
    "node": CommandEntry("node", "Run the daemon of this host: its membership, its VMs, fencing.", "app"),
    "import": CommandEntry(
        "inventory", "Read an inventory of hosts and VMs: csv, openstack, proxmox, libvirt and more.", "app"
    ),
    "assess": CommandEntry(
        "assess", "Whether a cluster of another system is N+1, from its files, and what that would cost."
    ),
    "status": CommandEntry("status", "What is known, whether every VM is covered, and who runs."),
    "failover": CommandEntry("failover", "Coverage, plans, checks and views of failover reservations.", "app"),
    "survive": CommandEntry("survive", "Whether every VM keeps a slot of its own when hosts fail."),
    "whatif": CommandEntry("whatif", "What would happen if hosts or VMs came or went.", "app"),
    "capacity": CommandEntry(
        "capacity", "How many more VMs of a flavor fit with every promise kept, and what limits it."
    ),
    "commitments": CommandEntry(
        "commitments", "Capacity that is sold: request, explain, usage, capacity, checks.", "app"
    ),
    "simulate": CommandEntry("simulate", "Play a failure in virtual time, and show what happens to every VM."),
    "guard": CommandEntry("operator", "Empty this host when it cannot prove any more that it is alive."),
    "why": CommandEntry("why", "How a VM came to run where it runs, or why a host is thought dead."),
    "fence": CommandEntry(
        "operator", "Have a host declared dead, assert that it is off; or let fencing go on: release."
    ),
    "acknowledge": CommandEntry("operator", "Have faults lower the cluster's health no more."),
    "notify": CommandEntry("notify", "Who is notified of faults: send a test message.", "app"),
    "maintenance": CommandEntry("operator", "Stop condemning silent hosts, or start it again."),
    "protect": CommandEntry("operator", "Take a VM back into protection."),
    "unprotect": CommandEntry("operator", "Take a VM out of protection: nobody restarts it elsewhere."),
    "vm": CommandEntry("vm", "VMs: define, list, info, start, stop, move, migrate, rename, undefine and more.", "app"),
    "group": CommandEntry("groups", "Groups of VMs that are to be together or apart: list, move.", "app"),
    "console": CommandEntry("console", "Attach to the serial console of a VM, or print its log."),
    "rebalance": CommandEntry("rebalance", "Which VMs to move so that hosts are evenly full; --apply has them moved."),
    "drain": CommandEntry("operator", "Empty hosts of their VMs."),
    "host": CommandEntry("host", "Hosts: list, info, log, and which coordinator is the primary.", "app"),
    "network": CommandEntry("network_own", "Networks of VMs: add, modify, acl, dhcp, check, trace and more.", "app"),
    "storage": CommandEntry("storage", "Storage clusters, their daemons and pools, as the primary saw them.", "app"),
    "storage-agent": CommandEntry(
        "storage_agent", "Have pods leave Kubernetes nodes whose DRBD volumes lost quorum: the agent, explain.", "app"
    ),
    "ready": CommandEntry("operator", "Make hosts schedulable again."),
    "arm": CommandEntry("operator", "Let hosts empty themselves when they cannot prove that they live."),
    "disarm": CommandEntry("operator", "Disarm hosts again."),
    "placement": CommandEntry(
        "placement", "Rank hosts for a VM, and say why each other host is not among them.", "app"
    ),
    "secret": CommandEntry("secrets", "Credentials that only coordinators can read, such as of BMCs."),
    "get": CommandEntry("objects", "List resources of a kind, or show some by name."),
    "describe": CommandEntry("objects", "One resource in full, with its events and what belongs to it."),
    "apply": CommandEntry("objects", "Create or change resources from files."),
    "delete": CommandEntry("objects", "Delete resources."),
    "dump": CommandEntry("objects", "Write the objects of a cluster as one file, for --state; this is no backup."),
    "backup": CommandEntry("backup", "Write everything that a lost server needs into one file, and check it."),
    "restore": CommandEntry("backup", "Put a backup back; the cluster is paused until its hosts have registered."),
    "schema": CommandEntry(
        "schema", "The storage schema: status, plan, upgrade and back; the tree of ZooKeeper as a file.", "app"
    ),
    "migrate-store": CommandEntry(
        "migrate_store", "Move a cluster from its state directory to a Kubernetes API server.", "migrate_store"
    ),
    "zookeeper": CommandEntry("zookeeper", "ZooKeeper as the store: make what a new cluster needs there.", "app"),
    "restored": CommandEntry(
        "controller", "Say that the data of etcd or ZooKeeper was put back: the cluster is paused."
    ),
    "audit": CommandEntry("audit", "Who did what to which object with which token: list, verify.", "app"),
    "tls": CommandEntry("tls", "The server's own authority: replace it.", "app"),
    "token": CommandEntry("tokens", "Tokens of people, programs and hosts: create, list, rotate, revoke.", "app"),
    "decide": CommandEntry("decide", "Replay a decision on data from a file."),
    "admission": CommandEntry("controller", "Print the webhook by which an API server asks before it writes."),
    "cluster-roles": CommandEntry(
        "controller", "Print the roles of those who write to a Kubernetes API server directly.", "cluster_roles"
    ),
    "crds": CommandEntry("objects", "Print the manifests of all kinds for a Kubernetes cluster."),
    "config": CommandEntry("decide", "Show the effective settings, or the reference of all settings."),
}


class LazyGroup(PlainGroup):
    """A group that knows its commands by name and help, and imports one when it is called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_markup_mode=None), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command itself instead of the line that stands for it in listings."""
        name, _, rest = super().resolve_command(ctx, args)
        if name is None:
            return None, None, rest
        loaded = COMMANDS[name].load(name)
        loaded.name = name
        return name, loaded, rest


app = typer.Typer(
    cls=LazyGroup,
    name="outlive",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 yes, 1 the answer is no, 2 usage, 3 bad input, 4 not found, 5 conflict or in use, "
    "6 store unavailable or outcome unknown, 7 forbidden, 8 a limit, 130 interrupted.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlive {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with every error. Stands anywhere.")] = False,
) -> None:
    """Virtual machines that outlive their hosts."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = take_debug(arguments)
    try:
        result = app(args=arguments, prog_name="outlive", standalone_mode=False)
        code = result if isinstance(result, int) else ExitCode.YES
        sys.stdout.flush()
    except BrokenPipeError:
        code = ExitCode.YES
        from outlive.cli.output import discard_stdout

        discard_stdout()
    except (SystemExit, Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the end of the line for every error
        code = report(error, debug)
    return int(code)

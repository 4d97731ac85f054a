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
from outlive.base.errors import ExitCode
from outlive.cli.errors import report, take_debug
from outlive.cli.parameters import PlainGroup


class Entry(NamedTuple):
    """A command: the module that has it, and its line in the list of commands."""

    module: str
    help: str
    attribute: str = ""
    """The function or group in the module, where it is not called like the command."""

    def load(self, name: str) -> Any:
        """The command itself; imports its module."""
        from outlive.cli.commands import single

        found = getattr(importlib.import_module(f"outlive.cli.{self.module}"), self.attribute or name)
        return typer.main.get_command(found if isinstance(found, typer.Typer) else single(name, found))


COMMANDS: Final[dict[str, Entry]] = {
    "up": Entry("up", "Run everything on this machine: store, controllers, HTTP API."),
    "controller": Entry(
        "controller", "Run the controllers on a Kubernetes API server or ZooKeeper, as one of several processes."
    ),
    "node": Entry("node", "Run the daemon of this host: its membership, its VMs, fencing.", "app"),
    "import": Entry(
        "inventory", "Read an inventory of hosts and VMs: csv, openstack, proxmox, libvirt and more.", "app"
    ),
    "assess": Entry("assess", "Whether a cluster of another system is N+1, from its files, and what that would cost."),
    "status": Entry("status", "What is known, whether every VM is covered, and who runs."),
    "failover": Entry("failover", "Coverage, plans, checks and views of failover reservations.", "app"),
    "survive": Entry("survive", "Whether every VM keeps a slot of its own when hosts fail."),
    "whatif": Entry("whatif", "What would happen if hosts or VMs came or went.", "app"),
    "capacity": Entry("capacity", "How many more VMs of a flavor fit with every promise kept, and what limits it."),
    "commitments": Entry("commitments", "Capacity that is sold: request, explain, usage, capacity, checks.", "app"),
    "simulate": Entry("simulate", "Play a failure in virtual time, and show what happens to every VM."),
    "guard": Entry("operator", "Empty this host when it cannot prove any more that it is alive."),
    "why": Entry("why", "How a VM came to run where it runs, or why a host is thought dead."),
    "fence": Entry("operator", "Have a host declared dead, assert that it is off; or let fencing go on: release."),
    "acknowledge": Entry("operator", "Have faults lower the cluster's health no more."),
    "notify": Entry("notify", "Who is notified of faults: send a test message.", "app"),
    "maintenance": Entry("operator", "Stop condemning silent hosts, or start it again."),
    "protect": Entry("operator", "Take a VM back into protection."),
    "unprotect": Entry("operator", "Take a VM out of protection: nobody restarts it elsewhere."),
    "vm": Entry("vm", "VMs: define, list, info, start, stop, move, migrate, rename, undefine and more.", "app"),
    "group": Entry("groups", "Groups of VMs that are to be together or apart: list, move.", "app"),
    "console": Entry("console", "Attach to the serial console of a VM, or print its log."),
    "rebalance": Entry("rebalance", "Which VMs to move so that hosts are evenly full; --apply has them moved."),
    "drain": Entry("operator", "Empty hosts of their VMs."),
    "host": Entry("host", "Hosts: list, info, log, and which coordinator is the primary.", "app"),
    "network": Entry("network_own", "Networks of VMs: add, modify, acl, dhcp, check, trace and more.", "app"),
    "storage": Entry("storage", "Storage clusters, their daemons and pools, as the primary saw them.", "app"),
    "storage-agent": Entry(
        "storage_agent", "Have pods leave Kubernetes nodes whose DRBD volumes lost quorum: the agent, explain.", "app"
    ),
    "ready": Entry("operator", "Make hosts schedulable again."),
    "arm": Entry("operator", "Let hosts empty themselves when they cannot prove that they live."),
    "disarm": Entry("operator", "Disarm hosts again."),
    "placement": Entry("placement", "Rank hosts for a VM, and say why each other host is not among them.", "app"),
    "secret": Entry("secrets", "Credentials that only coordinators can read, such as of power controllers."),
    "get": Entry("objects", "List resources of a kind, or show some by name."),
    "describe": Entry("objects", "One resource in full, with its events and what belongs to it."),
    "apply": Entry("objects", "Create or change resources from files."),
    "delete": Entry("objects", "Delete resources."),
    "dump": Entry("objects", "Write the objects of a cluster as one file, for --state; this is no backup."),
    "backup": Entry("backup", "Write everything that a lost server needs into one file, and check it."),
    "restore": Entry("backup", "Put a backup back; the cluster is paused until its hosts have registered."),
    "schema": Entry(
        "schema", "The storage schema: status, plan, upgrade and back; the tree of ZooKeeper as a file.", "app"
    ),
    "migrate-store": Entry(
        "migrate_store", "Move a cluster from its state directory to a Kubernetes API server.", "migrate_store"
    ),
    "zookeeper": Entry("zookeeper", "ZooKeeper as the store: make what a new cluster needs there.", "app"),
    "restored": Entry("controller", "Say that the data of etcd or ZooKeeper was put back: the cluster is paused."),
    "audit": Entry("audit", "Who did what to which object with which token: list, verify.", "app"),
    "tls": Entry("tls", "The server's own authority: replace it.", "app"),
    "token": Entry("tokens", "Tokens of people, programs and hosts: create, list, rotate, revoke.", "app"),
    "decide": Entry("decide", "Replay a decision on data from a file."),
    "admission": Entry("controller", "Print the webhook by which an API server asks before it writes."),
    "cluster-roles": Entry(
        "controller", "Print the roles of those who write to a Kubernetes API server directly.", "cluster_roles"
    ),
    "crds": Entry("objects", "Print the manifests of all kinds for a Kubernetes cluster."),
    "config": Entry("decide", "Show the effective settings, or the reference of all settings."),
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

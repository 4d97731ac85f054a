"""The command line of ``outlive guard``, read without anything but the standard library."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

from outlive.guard.states import USAGE

SOCKET: Final = "/run/outlive-guard/guard.sock"
WATCHDOG: Final = "/dev/watchdog"
CGROUP: Final = "/sys/fs/cgroup/machine.slice"

_DAEMONS: Final = ("libvirtd", "virtproxyd", "virtqemud", "virtchd", "virtlxcd", "virtxend", "virtvboxd")
_UNITS: Final = " ".join(f"'{daemon}*.{kind}'" for daemon in _DAEMONS for kind in ("socket", "service"))
"""The daemons of libvirt that start guests or pass requests on to those, with all their sockets (``-ro``, ``-admin``,
``-tcp``, ``-tls``): a socket that is left would start its daemon again."""
LIBVIRT: Final = {
    "--stop-service": f"systemctl stop {_UNITS}",
    "--start-service": (
        f"sh -c \"systemctl list-unit-files --no-legend --state=enabled {_UNITS} | cut -d' ' -f1"
        ' | xargs -r systemctl --no-block start"'
    ),
}
"""What the word ``libvirt`` means: whichever of these units are loaded are stopped, the enabled ones started."""

DESCRIPTION: Final = (
    "Empty this host when it cannot prove any more that it is alive. Feeds the hardware watchdog only while "
    "the daemon's renewals are acknowledged. Does nothing until it is armed: outlive arm HOST."
)
EPILOG: Final = (
    "Exit codes: 0 stopped cleanly, 2 usage, 3 bad input, 4 not found, 5 in use, 6 unreachable, 7 forbidden."
)


class GuardOptions(NamedTuple):
    """What the guard is started with."""

    socket: str
    watchdog: str
    cgroup: str
    stop_service: tuple[str, ...]
    start_service: tuple[str, ...]
    rehearsal: bool
    laboratory: str
    """The socket of a laboratory's watchdog; empty: the watchdog is a device."""
    status: bool


class OneLine(argparse.ArgumentParser):
    """A parser whose complaint is one line, as everywhere else on the command line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


class CommandHelp(argparse.HelpFormatter):
    """Help that looks as that of all other commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=80)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Say ``Usage`` as all other commands do."""
        super().add_usage(usage, actions, groups, "Usage: ")

    def start_section(self, heading: str | None) -> None:
        """Begin a section with a capital letter."""
        super().start_section(heading.capitalize() if heading else heading)


def make_parser() -> OneLine:
    """All options, with what they mean."""
    made = OneLine(
        "outlive guard",
        usage="%(prog)s [OPTIONS]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        add_help=False,
        formatter_class=CommandHelp,
    )
    add = made.add_argument
    add("--socket", metavar="PATH", default=SOCKET, help="Where the daemon finds the guard.  [default: %(default)s]")
    add(
        "--watchdog",
        metavar="PATH",
        default=WATCHDOG,
        help="The watchdog that resets the host.  [default: %(default)s]",
    )
    add("--cgroup", metavar="FOLDER", default=CGROUP, help="The group that all VMs are below.  [default: %(default)s]")
    add(
        "--stop-service",
        metavar="COMMAND",
        default="",
        help="Stops whatever could start a VM; libvirt: all its daemons.",
    )
    add(
        "--start-service", metavar="COMMAND", default="", help="Starts it when the gate opens again; libvirt: as above."
    )
    add("--rehearsal", action="store_true", help="Take a file or FIFO as the watchdog: proves nothing, resets nothing.")
    add("--laboratory", metavar="SOCKET", default="", help="Only for laboratories: what resets this host instead.")
    add("--status", action="store_true", help="Ask the guard that runs, print its answer as JSON, and end.")
    add("-h", "--help", action="help", help="Show this message and exit.")
    return made


def read(arguments: Sequence[str]) -> GuardOptions:
    """The options. Ends the process with exit code 2 and a line that says what to change."""
    made = make_parser()
    given = made.parse_args(list(arguments))
    if given.laboratory and (given.rehearsal or given.watchdog != WATCHDOG):
        made.error("--laboratory takes the place of a watchdog: leave --watchdog and --rehearsal away")
    return GuardOptions(
        socket=given.socket,
        watchdog=given.watchdog,
        cgroup=given.cgroup.rstrip("/") or "/",
        stop_service=_parse_command(made, "--stop-service", given.stop_service),
        start_service=_parse_command(made, "--start-service", given.start_service),
        rehearsal=given.rehearsal,
        laboratory=given.laboratory,
        status=given.status,
    )


def _parse_command(made: argparse.ArgumentParser, option: str, text: str) -> tuple[str, ...]:
    """The words of a command whose program is there: found missing at the wrong moment, it would cost the host."""
    text = LIBVIRT[option] if text == "libvirt" else text
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        made.error(f"{option} {text!r}: {error}; mend the quotes")
    if words and not _is_executable(words[0]):
        made.error(f"{option} {text!r}: no program {words[0]!r}; name it with its whole path")
    return words


def _is_executable(program: str) -> bool:
    folders = [""] if "/" in program else os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in folders)  # noqa: PTH118 - light

"""What is seen of a lab from outside of the product: who runs where, and what each guest wrote to its console and disk.

The times are the machine's own. Nothing here asks the product anything.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

from lab.cluster import Lab
from lab.guest import BLOCK, RING
from lab.processes import until

LINE = re.compile(rb"seq=(\d+) run=(\S+) count=(\d+)")
COUNT = re.compile(rb"count (\d+) run=(\S+) up=([0-9.]+)")
UP = re.compile(rb"guest up run=(\S+) up=([0-9.]+)")
TAIL_BYTES = 65_536


class Written(NamedTuple):
    """The newest block of a disk."""

    seq: int
    run: str
    number: int


def ring(disk: Path) -> list[Written]:
    """Every block that a guest wrote and that is still there, oldest first."""
    with disk.open("rb") as file:
        data = file.read(BLOCK * (RING + 1))
    found = []
    for index in range(1, RING + 1):
        match = LINE.match(data[index * BLOCK : (index + 1) * BLOCK])
        if match:
            found.append(Written(int(match[1]), match[2].decode(), int(match[3])))
    return sorted(found)


def newest(disk: Path) -> Written:
    """The newest block; run ``""`` where nothing was written."""
    return max(ring(disk), default=Written(0, "", 0))


def foreign(disk: Path) -> str:
    """What a guest said of a block that another one wrote in its turn; empty: nothing."""
    with disk.open("rb") as file:
        first = file.read(BLOCK)
    return first.decode("ascii", "replace").strip() if first.startswith(b"FOREIGN") else ""


def boot_s(console: Path) -> float:
    """How long the newest boot took, by the guest's own clock, until it counted."""
    return float(UP.findall(_tail(console))[-1][1])


def counting(console: Path, run: str) -> bool:
    """Whether the guest that counted last on this console is of another run than ``run``."""
    found = COUNT.findall(_tail(console))
    return bool(found) and found[-1][1].decode() != run


class Running(NamedTuple):
    """A QEMU of a guest."""

    guest: str
    host: str
    pid: int
    waited: bool
    """Whether it was started to take a guest over from another host."""


def running(lab: Lab) -> list[Running]:
    """Every QEMU of the lab's guests, by the machine's own process table."""
    found = []
    for host in lab.hosts:
        for pid, comm in host.processes():
            if comm.startswith("qemu-system"):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                names = [
                    name for name in lab.guests if any(word.startswith(f"guest={name},".encode()) for word in words)
                ]
                found += [Running(name, host.name, pid, b"-incoming" in words) for name in names]
    return found


def places(lab: Lab) -> dict[str, list[str]]:
    """Of each guest the hosts on which a QEMU of its name runs."""
    here = running(lab)
    return {name: [one.host for one in here if one.guest == name] for name in lab.guests}


def wait_counting(lab: Lab, names: list[str], before: dict[str, str], limit_s: float) -> dict[str, float]:
    """When each of these guests counted in another run than before (monotonic, by name)."""
    left, when = set(names), {}

    def look() -> bool:
        for name in sorted(left):
            console = lab.console(name)
            if console.exists() and counting(console, before.get(name, "")):
                when[name] = time.monotonic()
                left.discard(name)
        return not left

    until(look, f"these guests count again: {', '.join(sorted(left))}", limit_s, 0.1)
    return when


def runs(lab: Lab) -> dict[str, str]:
    """The run that counted last on each guest's console."""
    found = {}
    for name in lab.guests:
        seen = COUNT.findall(_tail(lab.console(name))) if lab.console(name).exists() else []
        found[name] = seen[-1][1].decode() if seen else ""
    return found


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read()


def turns(disk: Path) -> list[str]:
    """The runs that wrote to a disk, in the order of their blocks; one that comes twice wrote beside another one."""
    found: list[str] = []
    for one in ring(disk):
        if not found or found[-1] != one.run:
            found.append(one.run)
    return found


def two_writers(disk: Path) -> str:
    """What shows that two runs wrote in turns; empty: nothing."""
    seen = turns(disk)
    twice = next((run for run in seen if seen.count(run) > 1), "")
    return foreign(disk) or (f"run {twice} wrote before and after another run" if twice else "")

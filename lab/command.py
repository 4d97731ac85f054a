"""``scripts/lab``: start three hosts on this machine, break them, and see what becomes of their guests."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import story
from lab.cluster import Lab
from lab.faults import TOGETHER
from lab.faults import faults as random_faults
from lab.hosts import PROJECT, Host
from lab.processes import LabError, until

FIRST_START_S = 240.0
RECOVERY_S = 150.0
NOBODY_ANSWERS = 6
"""Exit code where no lab runs."""


class Teller:
    """Says what happens, each line with the seconds since the command was given."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str, at: float | None = None) -> None:
        """One sentence; ``at``: when it happened (monotonic), otherwise now."""
        when = time.monotonic() if at is None else at
        print(f"{when - self._start:6.1f} s  {text}", flush=True)


def main() -> int:
    """The exit code is 0, 1 where something did not happen in time, 2 for wrong words, 6 where no lab runs."""
    parser = argparse.ArgumentParser(prog="scripts/lab", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(os.environ.get("OUTLIVE_LAB", PROJECT / ".outlive/lab")))
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for name, (_, text) in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text)
        if name in ("kill", "freeze", "bmc-down", "partition"):
            verb.add_argument("host", help="such as host-2")
        if name == "partition":
            verb.add_argument("other", nargs="?", default="", help="host or store; absent: from everything")
        if name == "faults":
            verb.add_argument("count", type=_number, help="how many")
            verb.add_argument("--seed", type=int, default=1, help="which ones (default %(default)s)")
            together = "how many of them overlap, at most (default %(default)s)"
            verb.add_argument("--together", type=_number, default=TOGETHER, help=together)
        if name == "start":
            kinds = ("sqlite", "kubernetes", "zookeeper")
            text = "where the cluster is kept, from its first start on (default %(default)s)"
            verb.add_argument("--store", choices=kinds, default=kinds[0], help=text)
        if name == "outlive":
            verb.add_argument("words", nargs=argparse.REMAINDER, help="for the command line, such as: get vms")
    given = parser.parse_args()
    store = given.store if given.verb == "start" else ""
    lab = Lab(given.dir, on_kubernetes=store == "kubernetes", on_zookeeper=store == "zookeeper")
    if given.verb not in ("start", "stop") and not (lab.server.pid or any(host.on for host in lab.hosts)):
        print(f"scripts/lab: no lab runs in {lab.state}: scripts/lab start starts one", file=sys.stderr)
        return NOBODY_ANSWERS
    if os.geteuid() != 0:
        print("scripts/lab: namespaces and cgroups need root: run it as root", file=sys.stderr)
        return 1
    try:
        VERBS[given.verb][0](lab, given)
    except LabError as error:
        print(f"scripts/lab: {error}", file=sys.stderr)
        return 1
    return 0


def _number(text: str) -> int:
    """1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of faults; write 1 or more")
    return int(text)


def start(lab: Lab, _: Any) -> None:
    """Start, and wait until every guest counts."""
    tell = Teller()
    for text in lab.start():
        tell(text)
    story.wait_counting(lab, lab.guests, {}, FIRST_START_S)
    for name, where in story.places(lab).items():
        tell(f"{name} counts on {' and '.join(where)}")
    slots = until(lambda: slots_of(lab), "every guest has a slot on another host", FIRST_START_S, 0.5)
    for name in lab.guests:
        tell(f"{name} has its slot on {slots[name]}")
    until(lambda: rehearsed(lab), "the BMC of every host was found good", FIRST_START_S, 0.5)
    tell("the BMC of every host was tried and is good")


def kill(lab: Lab, given: Any) -> None:
    """Cut the power of a host, and wait for its guests."""
    host = lab.host(given.host)
    slots, before = slots_of(lab), story.runs(lab)
    names = [name for name, where in story.places(lab).items() if host.name in where]
    tell = Teller()
    host.power_off()
    tell(f"{host.name} has no power any more, and with it {' and '.join(names) or 'no guest'}")
    _tell_recovery(lab, tell, host, names, before, slots)


def freeze(lab: Lab, given: Any) -> None:
    """Let a whole host stand still."""
    host = lab.host(given.host)
    tell = Teller()
    host.freeze()
    tell(f"{host.name} stands still with everything on it; scripts/lab heal lets it go on")


def partition(lab: Lab, given: Any) -> None:
    """Cut a host off from one other, or from everything but its BMC's network."""
    host = lab.host(given.host)
    tell = Teller()
    if given.other:
        if given.other != "store":
            lab.host(given.other)
        lab.switch.cut((host.name, given.other), (given.other, host.name))
        tell(f"{host.name} and {given.other} do not hear each other")
    else:
        lab.switch.isolate(host.name)
        tell(f"{host.name} is cut off from everything")


def bmc_down(lab: Lab, given: Any) -> None:
    """Let the BMC of a host answer nothing."""
    host = lab.host(given.host)
    lab.controller(host).hang()
    Teller()(f"the BMC of {host.name} answers nothing any more")


def heal(lab: Lab, _: Any) -> None:
    """Take everything back that this command broke, and switch on what is off."""
    tell = Teller()
    lab.switch.heal()
    tell("every network is whole")
    for host in lab.hosts:
        lab.controller(host).go_on()
        if host.on:
            host.freeze(False)
        else:
            host.power_on()
            tell(f"{host.name} was switched on")
    for text in lab.start():
        tell(text)


def status(lab: Lab, _: Any) -> None:
    """What runs where, by the machine's process table, and what Outlive says."""
    for host in lab.hosts:
        on = "has power" if host.on else "has no power"
        here = [name for name, where in story.places(lab).items() if host.name in where]
        print(f"{host.name} {on}; guests: {' '.join(here) or 'none'}")
    for name in lab.guests:
        seen = story.newest(lab.disk(name))
        print(f"{name} wrote block {seen.seq} of its disk in run {seen.run[:8] or '-'}")
    print(lab.outlive("status"), end="")


def faults(lab: Lab, given: Any) -> None:
    """Make random faults, and judge by the guests' disks."""
    tell = Teller()
    for text in random_faults(lab, given.count, given.seed, given.together):
        tell(text)


def outlive(lab: Lab, given: Any) -> None:
    """Run the command line of Outlive where the lab's store is."""
    command = lab.outlive_command(*given.words)
    sys.stdout.flush()
    os.execvp(command[0], command)


def stop(lab: Lab, _: Any) -> None:
    """End everything; disks, logs and state stay."""
    lab.stop()
    Teller()(f"everything ended; disks, logs and state are in {lab.state}")


def _tell_recovery(
    lab: Lab, tell: Teller, host: Host, names: list[str], before: dict[str, str], slots: dict[str, str]
) -> None:
    """Who proved the host dead, and where each of its guests counts again."""
    if not names:
        return
    dead = until(lambda: proof(lab, host.name), f"{host.name} is proven dead", RECOVERY_S, 0.2)
    tell(f"{host.name} is proven dead by {dead}")
    when = story.wait_counting(lab, names, before, RECOVERY_S)
    where = story.places(lab)
    for name in sorted(names, key=lambda name: when[name]):
        promised = "its promised slot" if where[name] == [slots.get(name)] else f"not its slot ({slots.get(name)})"
        boot = story.boot_s(lab.console(name))
        tell(f"{name} counts on {' and '.join(where[name])}, {promised}; its boot took {boot:.1f} s", when[name])


def slots_of(lab: Lab) -> dict[str, str]:
    """Of each guest the host of its slot; empty while one has none."""
    found = {}
    for one in lab.objects("reservations"):
        for vm in one["status"].get("failoverReservation", {}).get("allocations", {}):
            found[vm] = one["status"].get("host", "")
    return found if set(lab.guests) <= set(found) else {}


def proof(lab: Lab, host: str) -> str:
    """The kind of proof of the newest death of a host; empty while it is not dead."""
    for one in lab.objects("memberships"):
        record = one["record"]
        if one["metadata"]["name"] == host and record.get("deadThrough", 0) >= record.get("epoch", 1):
            return str(record.get("proof", {}).get("kind", "?"))
    return ""


def rehearsed(lab: Lab) -> bool:
    """Whether the BMC of every host was tried and is good."""
    return all(one["status"].get("rehearsed") == "ok" for one in lab.objects("hypervisors"))


VERBS: dict[str, tuple[Callable[[Lab, Any], None], str]] = {
    "start": (start, "start hosts and guests, and wait until every guest counts and has its slot"),
    "kill": (kill, "cut the power of a host, and tell how its guests come back"),
    "partition": (partition, "cut a host off from another one, from the store, or from everything"),
    "freeze": (freeze, "let a whole host stand still"),
    "bmc-down": (bmc_down, "let the BMC of a host answer nothing"),
    "faults": (faults, "make random faults, and judge by what the guests wrote to their disks"),
    "heal": (heal, "take back what was broken"),
    "status": (status, "what runs where"),
    "outlive": (outlive, "the command line of Outlive, in the lab"),
    "stop": (stop, "end everything"),
}

if __name__ == "__main__":
    sys.exit(main())

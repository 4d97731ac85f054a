"""From the power loss of a host to the first count of each of its guests elsewhere, on three real hosts of the lab.

What guests take to boot is measured apart: as many at once, started by libvirt alone on the same hosts, from the
request to the first count. Guests are emulated, and all hosts and their daemons share the processors of one machine.
Who counts is read from the consoles; the phases in between are what the logs of the product say.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lab import guest, story
from lab.cluster import GUEST, Lab
from lab.command import rehearsed, slots_of
from lab.kubernetes import program
from lab.processes import LabError, until

from bench.figures import Figure

GUESTS = 5
RUNS = 3
LOST = "host-1"
LIMIT_S = 200.0
FAST_S, STEADY_S = 12.0, 65.0
"""From the loss to the first count, without the boot."""
SERVER_LINE = re.compile(r"^(\S+) \[.*?\] (\S+) .*?\bvm=(\S+)", re.MULTILINE)
PHASES = ("condemned", "proven", "assigned", "created", "first count")


def measure(*, on_kubernetes: bool = False) -> list[Figure]:
    """Needs root, libvirt and QEMU; nothing where they are missing. ``on_kubernetes``: the store is an API server, and
    only what a power loss costs is measured."""
    if os.geteuid() != 0 or not Path("/usr/sbin/libvirtd").exists():
        print("lab: needs root, libvirtd and QEMU", file=sys.stderr)
        return []
    if on_kubernetes and not program():
        print("lab: needs kube-apiserver", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(dir=os.environ.get("OUTLIVE_BENCH_DIR")) as folder:
        lab = Lab(Path(folder), guests_count=GUESTS, homes=[LOST], on_kubernetes=on_kubernetes)
        try:
            for _ in lab.start():
                pass
            story.wait_counting(lab, lab.guests, {}, LIMIT_S)
            return _measured(lab)
        finally:
            lab.stop()


def _measured(lab: Lab) -> list[Figure]:
    alone = statistics.median(boot_s(lab, 1) for _ in range(RUNS))
    together = statistics.median(boot_s(lab, GUESTS) for _ in range(RUNS))
    fast = [_lost(lab) for _ in range(RUNS)]
    if lab.kubernetes is not None:
        return [_figure("fast, proof by power, the store on an API server", fast, together, FAST_S)]
    _go_home(lab)
    lab.outlive("arm", LOST, "--yes", "--accept-single-store")
    until(lambda: _armed(lab), f"{LOST} is armed", LIMIT_S, 0.5)
    steady = _lost(lab, controller_dead=True)
    return [
        Figure("a guest's boot, created by libvirt alone to its first count", alone, "s"),
        Figure(f"the same, the last of {GUESTS} created at once", together, "s"),
        _figure("fast, proof by power", fast, together, FAST_S),
        _figure("steady, controller dead, proof by watchdog", [steady], together, STEADY_S),
    ]


def _figure(how: str, runs: Sequence[dict[str, float]], boot: float, bar: float) -> Figure:
    times = [one["first count"] - boot for one in runs]
    middle = sorted(runs, key=lambda one: one["first count"])[len(runs) // 2]
    note = ", ".join(f"{name} {middle[name]:.1f}" for name in PHASES)
    return Figure(
        f"loss of a host with {GUESTS} guests to the last one's first count, without the boot, {how}",
        statistics.median(times),
        "s",
        bar,
        note=f"{min(times):.1f} to {max(times):.1f} s; seconds since the loss: {note}",
    )


def boot_s(lab: Lab, count: int) -> float:
    """Start as many guests at once by libvirt alone where those of ``LOST`` have their slots, and end them again."""
    targets = sorted({host for host in slots_of(lab).values() if host != LOST}) or [LOST]
    names = [f"boot-{number}" for number in range(count)]
    where = {name: lab.host(targets[number % len(targets)]) for number, name in enumerate(names)}
    for name in names:
        guest.make_disk(lab.disk(name))
        lab.console(name).unlink(missing_ok=True)
        xml = guest.definition(name, lab.disk(name), lab.console(name), extra=GUEST)
        (lab.state / f"{name}.xml").write_text(xml)
    began = time.monotonic()
    made = [
        subprocess.Popen(
            where[name].inside("virsh", "-q", "create", str(lab.state / f"{name}.xml")), stdout=subprocess.DEVNULL
        )
        for name in names
    ]
    when = story.wait_counting(lab, names, {}, LIMIT_S)
    for one in made:
        one.wait()
    for name in names:
        where[name].run("virsh", "-q", "destroy", name)
    return max(when.values()) - began


def _lost(lab: Lab, *, controller_dead: bool = False) -> dict[str, float]:
    """Cut the power of the host with all guests; seconds since then to the last one of each phase."""
    host = lab.host(LOST)
    _go_home(lab)
    until(lambda: set(slots_of(lab)) >= set(lab.guests), "every guest has a slot", LIMIT_S, 0.5)
    until(lambda: rehearsed(lab), "every controller was tried", LIMIT_S, 0.5)
    before = story.runs(lab)
    if controller_dead:
        lab.controller(host).hang()
    wall, began = time.time(), time.monotonic()
    host.power_off()
    when = story.wait_counting(lab, lab.guests, before, LIMIT_S)
    found = {**_phases(lab, wall), "first count": max(when.values()) - began}
    print(f"since the loss: {found}; counting: {sorted(at - began for at in when.values())}", file=sys.stderr)
    lab.controller(host).go_on()
    return found


def _go_home(lab: Lab) -> None:
    """The host is back, and all guests are on it again."""
    for _ in lab.start():
        pass
    until(lambda: _are_home(lab), f"all guests are on {LOST}", LIMIT_S, 3.0)


def _are_home(lab: Lab) -> bool:
    """Whether all are there; those that are not are moved live, which a host that has just joined may refuse."""
    away = [name for name, where in story.places(lab).items() if where != [LOST]]
    for name in away:
        if LOST not in story.places(lab)[name]:
            with contextlib.suppress(LabError):
                lab.outlive("vm", "move", name, "--to", LOST, "--force-live")
    return not away


def _phases(lab: Lab, wall: float) -> dict[str, float]:
    """When the last guest had reached each phase, by the logs of hosts and controllers."""
    found: dict[str, float] = {}

    def note(phase: str, stamp: str) -> None:
        at = datetime.fromisoformat(stamp).timestamp() - wall
        if at > 0:
            found[phase] = max(found.get(phase, 0.0), at)

    for event in _events(lab):
        match event:
            case {"event": "fence.condemned" | "fence.proven" as name, "host": str(host)} if host == LOST:
                note(name.partition(".")[2], event["timestamp"])
            case {"event": "domain.created", "vm": str(vm)} if vm in lab.guests:
                note("created", event["timestamp"])
    for stamp, name, vm in SERVER_LINE.findall((lab.state / "server.log").read_text()):
        if name == "recovery.assigned" and vm in lab.guests:
            note("assigned", stamp)
    return {phase: found.get(phase, 0.0) for phase in PHASES}


def _events(lab: Lab) -> list[dict[str, Any]]:
    lines = [line for host in lab.hosts for line in (host.folder / "log/node.log").read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def _armed(lab: Lab) -> bool:
    records = {one["metadata"]["name"]: one["record"] for one in lab.objects("memberships")}
    return bool(records[LOST].get("guard", {}).get("armed"))

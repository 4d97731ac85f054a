"""Random faults on the hosts of a lab, and a judge that shares nothing with the product.

Faults come in batches of up to three that overlap. After each batch everything is healed, and every guest must write to
its disk again, or be held with a fault that says why. All the time the judge reads the disks: a run that writes before
and after another one had a second writer beside it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

from lab import story
from lab.cluster import Lab
from lab.hosts import Host
from lab.processes import LabError, until

LOOK_S = 0.2
TOGETHER = 3
LASTS_S = (1.0, 9.0)
"""How long a fault lasts before it is healed."""
BACK_S = 150.0
"""After which every guest runs or is held."""
Fault = Callable[[Lab, Host, Random], str]


class Judge:
    """Reads the guests' disks until it is asked to end."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._runs: dict[str, list[str]] = {name: [] for name in lab.guests}
        self.violations: dict[str, str] = {}
        self.looks = 0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end."""
        self._over.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """One look at every disk; the order of runs is remembered beyond what the disk still has."""
        self.looks += 1
        for name, seen in self._runs.items():
            disk = self._lab.disk(name)
            wrong = story.two_writers(disk)
            newest = story.newest(disk).run
            if newest and (not seen or seen[-1] != newest):
                if newest in seen:
                    wrong = wrong or f"run {newest} writes again after another run"
                seen.append(newest)
            if wrong:
                self.violations.setdefault(name, wrong)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()


def faults(lab: Lab, count: int, seed: int) -> Iterator[str]:
    """Make so many faults; says each, and raises ``LabError`` at the first violation."""
    random = Random(seed)
    judge = Judge(lab)
    judge.start()
    done = 0
    try:
        while done < count:
            batch = random.randint(1, min(TOGETHER, count - done))
            done += batch
            for _ in range(batch):
                host = random.choice(lab.hosts)
                name = random.choice(sorted(FAULTS))
                yield FAULTS[name](lab, host, random)
                time.sleep(random.uniform(*LASTS_S) / batch)
            heal(lab)
            held = _wait_for_all(lab, judge)
            yield f"all guests write again after {done} faults" + (f", but for those held: {held}" if held else "")
    finally:
        judge.stop()
    if judge.violations:
        raise LabError(f"seed {seed}: two writers: {judge.violations}")
    yield f"{done} faults of seed {seed}: no disk had two writers in {judge.looks} looks"


def heal(lab: Lab) -> None:
    """Take everything back."""
    lab.switch.heal()
    lab.start_server()
    for host in lab.hosts:
        lab.controller(host).go_on()
        lab.controller(host).slow(0)
        if not host.on:
            host.power_on()
            continue
        host.freeze(False)
        for pid, _ in host.processes():
            _signal(pid, signal.SIGCONT)


def _wait_for_all(lab: Lab, judge: Judge) -> str:
    """Until every guest writes; those that are held instead, with their faults."""
    before = {name: story.newest(lab.disk(name)) for name in lab.guests}
    left = set(lab.guests)

    def back() -> bool:
        if judge.violations:
            raise LabError(f"two writers: {judge.violations}")
        left.difference_update([name for name in left if story.newest(lab.disk(name)).seq > before[name].seq])
        return not left

    try:
        until(back, f"these guests write again: {' '.join(sorted(left))}", BACK_S, LOOK_S)
    except LabError:
        if judge.violations:
            raise
        why = {
            one["fault"]["subject"]["name"]: one["fault"].get("message", "")
            for one in lab.objects("faults")
            if one.get("fault", {}).get("subject", {}).get("kind") == "VirtualMachine"
        }
        if left - set(why):
            raise LabError(f"neither written to nor held with a reason: {' '.join(sorted(left - set(why)))}") from None
        return "; ".join(f"{name}: {why[name]}" for name in sorted(left))
    return ""


def _signal(pid: int, number: int) -> bool:
    """Whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _service(service: str, number: int, verb: str) -> Fault:
    def fault(lab: Lab, host: Host, random: Random) -> str:
        pid = host.services().get(service, 0) if host.on else 0
        hit = pid and _signal(pid, number)
        return f"{service} of {host.name} {verb}" if hit else f"{service} of {host.name} does not run"

    return fault


def _guest(number: int, verb: str) -> Fault:
    def fault(lab: Lab, host: Host, random: Random) -> str:
        here = sorted(pid for pid, comm in host.processes() if comm.startswith("qemu-system"))
        if here and _signal(random.choice(here), number):
            return f"a guest's process on {host.name} {verb}"
        return f"no guest runs on {host.name}"

    return fault


def _power(lab: Lab, host: Host, random: Random) -> str:
    host.power_off()
    return f"{host.name} loses power"


def _cut_pair(lab: Lab, host: Host, random: Random) -> str:
    other = random.choice([one for one in lab.hosts if one is not host])
    lab.switch.cut((host.name, other.name), (other.name, host.name))
    return f"{host.name} and {other.name} do not hear each other"


def _cut_store(lab: Lab, host: Host, random: Random) -> str:
    lab.switch.cut((host.name, "store"), ("store", host.name))
    return f"{host.name} is cut off from the store"


def _store(lab: Lab, host: Host, random: Random) -> str:
    lab.kill_server()
    return "the store is killed"


def _controller_hangs(lab: Lab, host: Host, random: Random) -> str:
    lab.controller(host).hang()
    return f"the power controller of {host.name} hangs"


def _controller_slow(lab: Lab, host: Host, random: Random) -> str:
    lab.controller(host).slow(2)
    return f"the power controller of {host.name} is slow"


def _freeze(lab: Lab, host: Host, random: Random) -> str:
    if not host.on:
        return f"{host.name} has no power"
    host.freeze()
    return f"{host.name} stands still"


FAULTS: dict[str, Fault] = {
    "controller-hangs": _controller_hangs,
    "controller-slow": _controller_slow,
    "cut-pair": _cut_pair,
    "cut-store": _cut_store,
    "freeze": _freeze,
    "guard-killed": _service("guard", signal.SIGKILL, "is killed"),
    "guest-killed": _guest(signal.SIGKILL, "is killed"),
    "guest-stopped": _guest(signal.SIGSTOP, "stands still"),
    "libvirtd-killed": _service("libvirtd", signal.SIGKILL, "is killed"),
    "libvirtd-stopped": _service("libvirtd", signal.SIGSTOP, "stands still"),
    "node-killed": _service("node", signal.SIGKILL, "is killed"),
    "node-stopped": _service("node", signal.SIGSTOP, "stands still"),
    "power": _power,
    "store-killed": _store,
}

"""Random faults on the hosts of a lab, and a judge that shares nothing with the product.

Faults come in batches that overlap. After each batch everything is healed, and every guest must write to its disk
again, or be held with a fault that says why. All the time the judge reads the disks: a run that writes before and after
another one had a second writer beside it. What the store has acknowledged meanwhile must be there in the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from random import Random

from lab import story
from lab.bmc import Ipmi
from lab.cluster import Lab
from lab.hosts import Host
from lab.processes import LabError, Process, until

LOOK_S = 0.2
TOGETHER = 5
"""Faults of a batch, at most."""
LASTS_S = (1.0, 15.0)
"""How long a batch lasts before it is healed: some are too short for a host to be proven dead, some long enough."""
TRIES = 100
BACK_S = 200.0
"""After which every guest runs or is held: an armed host that nobody can switch off takes 65 s and a boot."""
HELD_S = 40.0
"""A guest whose fault is the same for so long is held."""
ORDER_S = 15.0
"""How long an operator waits for the command line."""
YEAR_S = 365 * 86_400
STEPS_S = (-10 * YEAR_S, -86_400, -3600, -5, 5, 3600, 86_400, 2 * YEAR_S)
"""By how much a wall clock is stepped."""
Fault = Callable[[Lab, Host, Random], str]
"""Breaks something and says what; ``""`` where that is not there to be broken."""


class Judge:
    """Reads the guests' disks and the process table until it is asked to end.

    QEMU's lock of an image keeps a second writer off, so a second QEMU beside one that lives elsewhere is a violation
    as well, unless one of them takes part in a live move, or a BMC has lied about the first one.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._runs: dict[str, list[str]] = {name: [] for name in lab.guests}
        self._left_alive: set[int] = set()
        """Processes of hosts whose BMCs said that they were off."""
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
        self._look_at_processes()
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

    def _look_at_processes(self) -> None:
        lying = {host.name for host in self._lab.hosts if self._lab.controller(host).lies}
        found = story.running(self._lab)
        self._left_alive.update(one.pid for one in found if one.host in lying)
        for one, other in combinations([one for one in found if one.pid not in self._left_alive], 2):
            if one.guest == other.guest and one.host != other.host and not (one.waited or other.waited):
                self.violations.setdefault(one.guest, f"it has a QEMU on {one.host} and on {other.host}")

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:
                self.violations["the judge"] = f"it failed: {error!r}"
                raise


class Writes:
    """What a user writes while faults last: what was acknowledged is there for ever."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self._lab = lab
        self._name = f"note-{seed}-{int(time.time())}"
        self._acknowledged: set[str] = set()

    def write(self, number: int) -> None:
        """Write one object; most of them are refused, or nobody answers."""
        name = f"{self._name}-{number}"
        with contextlib.suppress(LabError):
            self._lab.outlive("secret", "set", name, "--username", "x", stdin="x", limit_s=ORDER_S)
            self._acknowledged.add(name)

    def check(self) -> None:
        """``LabError`` where one is lost."""
        lost = self._acknowledged - {one["metadata"]["name"] for one in self._lab.objects("secrets")}
        if lost:
            raise LabError(f"the store lost what it had acknowledged: {' '.join(sorted(lost))}")


def faults(lab: Lab, count: int, seed: int, together: int = TOGETHER) -> Iterator[str]:
    """Make so many faults, at most ``together`` in a batch; says each. Raises ``LabError`` at the first violation."""
    random = Random(seed)
    judge, writes = Judge(lab), Writes(lab, seed)
    judge.start()
    done = 0
    try:
        while done < count:
            batch = random.randint(1, min(together, count - done))
            done += batch
            for _ in range(batch):
                yield _one(lab, random)
                time.sleep(random.uniform(*LASTS_S) / batch)
            writes.write(done)
            heal(lab)
            held = _wait_for_all(lab, judge)
            yield f"all guests write again after {done} faults" + (f", but for those held: {held}" if held else "")
    finally:
        judge.stop()
    if judge.violations:
        raise LabError(f"seed {seed}: two writers: {judge.violations}")
    writes.check()
    yield f"{done} faults of seed {seed}: no disk had two writers in {judge.looks} looks"


def _one(lab: Lab, random: Random) -> str:
    """Make one fault, and say what it is; what cannot be broken now is drawn again."""
    for _ in range(TRIES):
        said = FAULTS[random.choice(sorted(FAULTS))](lab, random.choice(lab.hosts), random)
        if said:
            return said
    raise LabError("nothing is left that could be broken")


def heal(lab: Lab) -> None:
    """Take everything back, but that a host is armed or not."""
    lab.switch.heal()
    lab.disk_of_store.free()
    for process in lab.store_processes.values():
        process.signal(signal.SIGCONT)
    if not all(process.pid for process in lab.store_processes.values()):
        lab.start_server()
    for host in lab.hosts:
        controller = lab.controller(host)
        controller.go_on()
        controller.slow(0)
        controller.lie(False)
        host.disk.free()
        host.step_clock(0)
        if not host.on:
            host.power_on()
            continue
        host.freeze(False)
        for pid, _ in host.processes():
            _signal(pid, signal.SIGCONT)


def _wait_for_all(lab: Lab, judge: Judge) -> str:
    """Until every guest writes, or all others are held for good; those, with their faults. An operator then starts
    them, as the faults say."""
    before = {name: story.newest(lab.disk(name)) for name in lab.guests}
    left = set(lab.guests)
    end = time.monotonic() + BACK_S
    held: dict[str, str] = {}
    while left and time.monotonic() < end:
        found = _held(lab)
        settled = left <= held.keys() and all(found.get(name) == held[name] for name in left)
        if settled:
            break
        held = found
        with contextlib.suppress(LabError):
            until(lambda: _all_write(lab, judge, left, before), "they write again", HELD_S, LOOK_S)
        if judge.violations:
            raise LabError(f"two writers: {judge.violations}")
    held = _held(lab)
    if left - set(held):
        reasons = "\n".join(_explain(lab, name) for name in sorted(left - set(held)))
        raise LabError(f"neither written to nor held with a reason: {reasons}")
    for name in sorted(left):
        with contextlib.suppress(LabError):
            lab.outlive("vm", "start", name, limit_s=ORDER_S)
    return "; ".join(f"{name}: {held[name]}" for name in sorted(left))


def _all_write(lab: Lab, judge: Judge, left: set[str], before: dict[str, story.Written]) -> bool:
    """Take those that have written since out of ``left``; whether none is left, or there is a violation."""
    left.difference_update([name for name in left if story.newest(lab.disk(name)).seq > before[name].seq])
    return not left or bool(judge.violations)


def _held(lab: Lab) -> dict[str, str]:
    """Guests of which an active fault says why they do not run."""
    return {
        one["subject"]["name"]: one["message"]
        for one in lab.objects("faults")
        if one["subject"]["kind"] == "VirtualMachine" and not one["ended"]
    }


def _explain(lab: Lab, name: str) -> str:
    """What the product says of a guest that does not run, whatever its exit code, and where it has a process."""
    asked = lab.outlive_command("why", name, "-o", "wide")
    done = subprocess.run(asked, capture_output=True, text=True, timeout=ORDER_S)
    return f"{name} (processes on {story.places(lab)[name]}):\n{done.stdout}{done.stderr}"


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
        return f"{service} of {host.name} {verb}" if pid and _signal(pid, number) else ""

    return fault


def _guest(number: int, verb: str) -> Fault:
    def fault(lab: Lab, host: Host, random: Random) -> str:
        here = sorted(pid for pid, comm in host.processes() if comm.startswith("qemu-system"))
        if here and _signal(random.choice(here), number):
            return f"a guest's process on {host.name} {verb}"
        return ""

    return fault


def _on_host(act: Callable[[Host, Random], str]) -> Fault:
    """A fault of a host that has power."""

    def fault(lab: Lab, host: Host, random: Random) -> str:
        return act(host, random) if host.on else ""

    return fault


def _power(host: Host, random: Random) -> str:
    host.power_off()
    return f"{host.name} loses power"


def _freeze(host: Host, random: Random) -> str:
    host.freeze()
    return f"{host.name} stands still"


def _disk_full(host: Host, random: Random) -> str:
    host.disk.fill()
    return f"the disk of {host.name} is full"


def _clock(host: Host, random: Random) -> str:
    seconds = random.choice(STEPS_S)
    host.step_clock(seconds)
    return f"the wall clock of {host.name} is stepped by {seconds:+} s"


def _between(other_of: Callable[[Lab, Host, Random], str]) -> Fault:
    """A cut between a host and another end: both ways, or one of them."""

    def fault(lab: Lab, host: Host, random: Random) -> str:
        other = other_of(lab, host, random)
        ways = random.choice([((host.name, other), (other, host.name)), ((host.name, other),), ((other, host.name),)])
        lab.switch.cut(*ways)
        return "nothing comes through any more from " + " and ".join(f"{one} to {two}" for one, two in ways)

    return fault


def _other_host(lab: Lab, host: Host, random: Random) -> str:
    return random.choice([one.name for one in lab.hosts if one is not host])


def _isolated(lab: Lab, host: Host, random: Random) -> str:
    lab.switch.isolate(host.name)
    return f"{host.name} is cut off from everything"


def _controller_isolated(lab: Lab, host: Host, random: Random) -> str:
    lab.switch.isolate(lab.controller(host).name)
    return f"the BMC of {host.name} is cut off from everything"


def _controller(act: Callable[[Ipmi], None], what: str) -> Fault:
    def fault(lab: Lab, host: Host, random: Random) -> str:
        act(lab.controller(host))
        return f"the BMC of {host.name} {what}"

    return fault


def _store_killed(lab: Lab, host: Host, random: Random) -> str:
    name, process = _of_store(lab, random)
    process.kill()
    return f"{name} is killed"


def _store_stopped(lab: Lab, host: Host, random: Random) -> str:
    name, process = _of_store(lab, random)
    process.signal(signal.SIGSTOP)
    return f"{name} stands still"


def _of_store(lab: Lab, random: Random) -> tuple[str, Process]:
    """One of the processes that the store is made of."""
    processes = list(lab.store_processes.items())
    return random.choice(processes) if len(processes) > 1 else processes[0]


def _store_full(lab: Lab, host: Host, random: Random) -> str:
    lab.disk_of_store.fill()
    return "the disk of the store is full"


def _ordered(lab: Lab, *words: str) -> bool:
    """Whether an operator's command was carried out while hosts fail."""
    try:
        return bool(lab.server.pid) and lab.outlive(*words, limit_s=ORDER_S) is not None
    except LabError:
        return False


def _move(lab: Lab, host: Host, random: Random) -> str:
    name = random.choice(lab.guests)
    there = host.name in story.places(lab)[name]
    moves = not there and _ordered(lab, "vm", "move", name, "--to", host.name)
    return f"an operator moves {name} to {host.name}" if moves else ""


def _arming(verb: str, *options: str) -> Fault:
    def fault(lab: Lab, host: Host, random: Random) -> str:
        done = _ordered(lab, verb, host.name, "--yes", *options)
        return f"an operator asks to {verb} {host.name}" if done else ""

    return fault


FAULTS: dict[str, Fault] = {
    "arm": _arming("arm", "--accept-single-store"),
    "clock": _on_host(_clock),
    "controller-hangs": _controller(Ipmi.hang, "hangs"),
    "controller-isolated": _controller_isolated,
    "controller-lies": _controller(Ipmi.lie, "says that it did, and does nothing"),
    "controller-slow": _controller(lambda one: one.slow(2), "is slow"),
    "cut-host": _between(_other_host),
    "cut-store": _between(lambda lab, host, random: "store"),
    "disarm": _arming("disarm"),
    "disk-full": _on_host(_disk_full),
    "freeze": _on_host(_freeze),
    "guard-killed": _service("guard", signal.SIGKILL, "is killed"),
    "guard-stopped": _service("guard", signal.SIGSTOP, "stands still"),
    "guest-killed": _guest(signal.SIGKILL, "is killed"),
    "guest-stopped": _guest(signal.SIGSTOP, "stands still"),
    "isolated": _isolated,
    "libvirtd-killed": _service("libvirtd", signal.SIGKILL, "is killed"),
    "libvirtd-stopped": _service("libvirtd", signal.SIGSTOP, "stands still"),
    "move": _move,
    "node-killed": _service("node", signal.SIGKILL, "is killed"),
    "node-stopped": _service("node", signal.SIGSTOP, "stands still"),
    "power": _on_host(_power),
    "store-full": _store_full,
    "store-killed": _store_killed,
    "store-stopped": _store_stopped,
}

"""Single parts of a virtual cluster for tests: a machine with a hypervisor and a guard, and judges over two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from outlive.base import LoopClock, Random, SeededIds
from outlive.resources import Amounts, ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.simulation import (
    Author,
    History,
    Machine,
    MakeStore,
    Process,
    SimDisks,
    SimGuard,
    SimHypervisor,
    WorldStore,
)
from outlive.simulation.judges import Judge, Truth
from outlive.store import Write

GIB = 2**30


def small_vm(name: str = "vm-1", *, accept_duplicate: bool = False) -> VirtualMachine:
    """A VM with one disk and one port."""
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(
            resources=Amounts(cpu=1000, memory=GIB),
            disks=(f"{name}-root",),
            ports=(f"{name}-net",),
            network_policy="accept-duplicate" if accept_duplicate else "",
        ),
    )


class PermissiveStore(WorldStore):
    """Carries out what the server would refuse: a judge behind the server is shown what it must find all the same."""

    def _permit(self, write: Write) -> Write:
        return write


@dataclass
class Bench:
    """Hosts that are judged, and nobody who runs them."""

    names: tuple[str, ...] = ("h1", "h2")
    reported: list[tuple[str, str, str]] = field(default_factory=list)
    watch: Callable[[str, str], None] = lambda host, vm: None
    """Called after each change of a domain."""
    make_store: MakeStore = WorldStore

    def __post_init__(self) -> None:
        self.history = History()
        self.hypervisors: dict[str, SimHypervisor] = {}
        self.disks = SimDisks("all", lambda host: self.judge.judge_host(host))
        self.store = self.make_store(
            LoopClock(),
            SeededIds(Random(1)),
            lambda write, by: self.judge.judge_write(write, by),
            lambda write, by, refusal: self.judge.judge_refusal(write, by, refusal),
        )
        self.judge = Judge(
            Truth(self.store, self.hypervisors, self.disks, self.history), seed=1, replay="outlive simulate --seed 1"
        )
        for name in self.names:
            self.hypervisors[name] = SimHypervisor(
                name,
                random=Random(7).fork(name),
                changed=lambda vm, how, name=name: self._changed(name, vm, how),
                peer=lambda other: self.hypervisors[other] if self.hypervisors[other].powered else None,
            )

    def boot(self) -> None:
        """All of them."""
        for one in self.hypervisors.values():
            one.boot()

    def broken(self) -> list[str]:
        """Invariants that were found violated."""
        return [one.invariant for one in self.judge.violations]

    def _changed(self, host: str, vm: str, how: str) -> None:
        self.reported.append((host, vm, how))
        self.judge.judge_domain(host, vm, how)
        self.watch(host, vm)


def author(host: str, *writers: str) -> Author:
    """A process on that host."""
    return Author(f"{host}/daemon", host, writers)


@dataclass
class GuardedHost:
    """A machine with a hypervisor and a guard that runs."""

    resets: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(("h1",))
        self.hypervisor = self.bench.hypervisors["h1"]
        self.machine = Machine(
            "h1",
            ids=SeededIds(Random(3)),
            capacity=Amounts(cpu=32000, memory=64 * GIB),
            boot_s=10.0,
            up=self.hypervisor.boot,
            down=self._down,
        )
        self.guard: SimGuard | None = None
        self.changed = partial(self.bench.judge.judge_guard, "h1")
        self.daemon = Process("daemon")
        self.daemon.alive = True
        self.process = Process("guard")

    def start(self) -> None:
        """Power and guard."""
        self.machine.plug(at_once=True)
        self.guard = SimGuard(self.machine, self.hypervisor, self.process, self.bench.history, self.changed)
        self.process.start(self.guard.run, lambda process: None)

    def answering_guard(self) -> SimGuard | None:
        """The guard, if it lives and is not halted."""
        return self.guard if self.process.alive and not self.process.part.halted else None

    def _down(self, how: str) -> None:
        self.resets.append(LoopClock().monotonic())
        self.process.kill()
        self.hypervisor.lose_power()

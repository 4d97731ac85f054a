"""A domain of the virtual cluster, and what may go wrong with one: the plain facts that hypervisor and judges share."""

from __future__ import annotations

from dataclasses import dataclass, field

from outlive.node.ports import Domain, DomainState
from outlive.resources import VirtualMachine


@dataclass(slots=True)
class SimDomain:
    """One domain as it really is."""

    vm: str
    run_id: str
    epoch: int
    state: DomainState
    cpu_milli: int = 0
    memory_bytes: int = 0
    disks: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    accept_duplicate: bool = False
    crashed: bool = False
    left: bool = False
    """Whether its state has run elsewhere since: what is here is of the past, and must never run again."""

    def shown(self) -> Domain:
        """As the port shows it."""
        return Domain(
            vm=self.vm,
            run_id=self.run_id,
            epoch=self.epoch,
            state=self.state,
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            crashed=self.crashed,
        )


def domain_of(vm: VirtualMachine, run_id: str, epoch: int, state: DomainState) -> SimDomain:
    """The domain that a definition makes."""
    spec = vm.spec
    return SimDomain(
        vm=vm.name,
        run_id=run_id,
        epoch=epoch,
        state=state,
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        disks=spec.disks,
        ports=spec.ports,
        accept_duplicate=spec.network_policy == "accept-duplicate",
    )


@dataclass(slots=True)
class Latencies:
    """How long a hypervisor takes, in seconds, from and to."""

    look: tuple[float, float] = (0.005, 0.02)
    create: tuple[float, float] = (0.3, 1.2)
    destroy: tuple[float, float] = (0.05, 0.4)
    migrate: tuple[float, float] = (2.0, 6.0)
    downtime: tuple[float, float] = (0.05, 0.3)
    service: tuple[float, float] = (0.3, 1.0)
    shutdown: tuple[float, float] = (2.0, 8.0)


@dataclass(slots=True)
class HypervisorFaults:
    """What goes wrong on one host, until it is taken away."""

    start_fails: dict[str, tuple[str, int]] = field(default_factory=dict)
    """VM (or ``*``) → the reason, and how often yet."""
    slow_starts_s: float = 0.0
    """Added to each start."""
    ignores_shutdown: dict[str, bool] = field(default_factory=dict)
    """VMs whose guest ignores a shutdown."""
    migration: str = ""
    """Where the next migration from here fails: ``precopy``, ``paused``, ``sent``, ``last``."""
    unkillable: dict[str, bool] = field(default_factory=dict)
    """VMs whose process hangs in the kernel, so that no signal ends it."""
    lag_s: float = 0.0
    """Added to whatever the hypervisor is asked."""
    lost_answers: float = 0.0
    """Of calls that are carried out and answered ``Unknown``."""

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self.start_fails.clear()
        self.ignores_shutdown.clear()
        self.unkillable.clear()
        self.slow_starts_s = self.lag_s = self.lost_answers = 0.0
        self.migration = ""


PHASES = ("precopy", "paused", "sent", "last")
"""Where a migration may fail."""

"""One seed's draw of faults: hosts, VMs, durations and the schedule that they are written to.

What has not ended when the faults are over is healed then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from outlive.base import Random
from outlive.simulation import HostSpec, VmSpec, WorldSpec, hosts_of, vms_of

FROM_S: Final = 20.0
"""The cluster has started and placed its slots by then."""
UNTIL_S: Final = 120.0
"""No fault begins later."""
AROUND_SILENCE_S: Final = (0.5, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0, 45.0)
"""Durations, most of them near the limits at which hosts are condemned and guards kill."""


RESTORES: Final = 2
"""Backups that are put back in one seed at most, and machines that are replaced."""


class Fault(NamedTuple):
    """One entry of the schedule."""

    at_s: float
    verb: str
    arguments: dict[str, Any]


class Draw:
    """See the module."""

    def __init__(self, random: Random, spec: WorldSpec) -> None:
        self.random = random
        self.spec = spec
        self.hosts = hosts_of(spec)
        self.vms = vms_of(spec)
        self.faults: list[Fault] = []
        self._counts: dict[str, int] = {}

    def host(self) -> HostSpec:
        """Any host."""
        return self.random.choice(self.hosts)

    def one(self) -> tuple[str]:
        """Its name, as verbs take hosts."""
        return (self.host().name,)

    def vm(self) -> VmSpec:
        """Any VM."""
        return self.random.choice(self.vms)

    def controller(self) -> str:
        """Any controller: on a machine of its own, or beside the daemon of a coordinator."""
        if isinstance(self.spec.controllers, int):
            return f"ctl-{self.random.randint(1, max(1, self.spec.controllers))}"
        coordinators = [host.name for host in self.hosts if host.mode == "coordinator"]
        return f"{self.random.choice(coordinators)}/controller"

    def first(self, what: str, times: int) -> bool:
        """Whether this happens for at most the ``times``-th time in this seed."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what] <= times

    def add(self, at_s: float, verb: str, /, **arguments: Any) -> None:
        """Write down, unless the faults are over by then."""
        if at_s < UNTIL_S:
            self.faults.append(Fault(at_s, verb, {name.rstrip("_"): value for name, value in arguments.items()}))

    def while_(self, at_s: float, for_s: float, verb: str, back: str, /, **arguments: Any) -> None:
        """Write down, and what ends it."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + for_s, back, **arguments)

    def briefly(self, at_s: float, verb: str, back: Mapping[str, Any], /, **arguments: Any) -> None:
        """Write down, and that these arguments are ``back`` after a duration around the limits of silence."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + self.short(), verb, **{**arguments, **back})

    def slowly(self, at_s: float, verb: str, back: Mapping[str, Any], /, **arguments: Any) -> None:
        """The same, for so long that something comes of it."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + self.random.uniform(20.0, 90.0), verb, **{**arguments, **back})

    def off_network(self, at_s: float, network: str, hosts: tuple[str, ...], direction: str) -> None:
        """These hosts are off a network for a short time."""
        self.add(at_s, "cut", network=network, hosts=hosts, direction=direction)
        self.add(at_s + self.short(), "heal", network=network, hosts=hosts)

    def short(self) -> float:
        """A duration around the limits of silence."""
        return self.random.choice(AROUND_SILENCE_S) * self.random.uniform(0.7, 1.3)


Kind = Callable[[Draw, float], None]
"""What happens from a moment on; it ends itself what lasts."""

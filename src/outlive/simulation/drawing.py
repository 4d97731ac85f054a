"""What the kinds of fault draw from, and where they write: the schedule of one seed while it comes to be.

A kind says what happens from a moment on, and takes back itself what lasts; what is not taken back before the faults
end is healed then.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from outlive.base.random import Random
from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec, hosts_of, vms_of

FROM_S: Final = 20.0
"""The cluster has started and placed its slots by then."""
UNTIL_S: Final = 120.0
"""No fault begins later."""
AROUND_SILENCE_S: Final = (0.5, 2.0, 4.0, 6.0, 8.0, 12.0, 20.0, 45.0)
"""Durations, most of them near the limits at which hosts are condemned and guards kill."""


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
        """Write down, and that it is taken back."""
        self.add(at_s, verb, **arguments)
        self.add(at_s + for_s, back, **arguments)

    def short(self) -> float:
        """A duration around the limits of silence."""
        return self.random.choice(AROUND_SILENCE_S) * self.random.uniform(0.7, 1.3)

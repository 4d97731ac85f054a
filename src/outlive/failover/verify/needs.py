"""How many slots each VM needs, by what the certificate says of itself and by the settings that the state keeps.

A certificate for part of the fleet lowers the needs of VMs. It names what these VMs need, and the settings of the
server that wrote the state are read once more here, so that neither can be passed over: a VM is *short* where it is
certified for fewer failures than it needs slots. The settings count up to ``k``, since who certifies for fewer failures
says so there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlive.base.patterns import Pattern, compile_pattern
from outlive.failover.verify.document import CertifiedState
from outlive.failover.verify.findings import SHOWN, Code, Findings
from outlive.failover.verify.fleet import KeptSettings, StateFleet
from outlive.resources.digest import Facts

NAMED = 3
"""Short VMs that the sentence names."""


class ShortVm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that is certified for fewer failures than it needs slots."""

    vm: str
    certified: int
    required: int


class Shortfall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many VMs are short, and of how many that need slots."""

    required: int
    """VMs that need slots."""
    short: int
    vms: tuple[ShortVm, ...] = ()
    """The first of them."""

    def sentence(self) -> str:
        """The same in words."""
        named = ", ".join(f"{one.vm} ({one.certified} of {one.required})" for one in self.vms[:NAMED])
        more = f" and {self.short - NAMED} more" if self.short > NAMED else ""
        return f"{self.short} of {self.required} VMs that need slots have fewer than they need: {named}{more}"


def shortfall(fleet: StateFleet, certificate: CertifiedState) -> Shortfall:
    """Who is certified for less than it needs."""
    needs = _Needs(fleet.settings) if fleet.settings is not None else None
    known: dict[tuple[str, str, str, str], int] = {}
    needing, short = 0, []
    for vm in certificate.vms:
        required = max(vm.required, vm.need)
        spec = fleet.specs.get(vm.id)
        if needs is not None and spec is not None and vm.id not in fleet.deleted:
            kind = (spec.protection, spec.project, spec.flavor, spec.recovery.mode)
            if kind not in known:
                known[kind] = needs.required(spec)
            required = max(required, min(known[kind], certificate.k))
        needing += required > 0
        if vm.need < required:
            short.append(ShortVm(vm=vm.id, certified=vm.need, required=required))
    return Shortfall(required=needing, short=len(short), vms=tuple(short[:SHOWN]))


def check_unplaced(fleet: StateFleet, findings: Findings) -> None:
    """A violation for each VM that is to run, may need slots, and is nowhere for certain."""
    needs = _Needs(fleet.settings) if fleet.settings is not None else None
    for name, vm in fleet.unplaced.items():
        if needs is None or needs.required(vm.spec) > 0:
            host = vm.status.assigned.hypervisor
            message = f"VM {name} is to run and is recorded on {host}, and no report of that host confirms it"
            findings.add(Code.UNPLACED, message, vm=name, host=host)


def check_shortfall(found: Shortfall, findings: Findings) -> None:
    """A violation where anybody is short."""
    if found.short:
        findings.add(Code.PARTIAL, f"{found.sentence()}; --allow-partial accepts what is claimed of the others")


class _Needs:
    """The settings of the state, compiled."""

    def __init__(self, settings: KeptSettings) -> None:
        patterns = settings.failover.flavor_failover_requirements
        protection = settings.protection
        self._slots = [(compile_pattern(text), count) for text, count in (patterns or {}).items()]
        self._levels = protection.levels
        self._default = protection.default
        self._projects = [(compile_pattern(text), level) for text, level in protection.projects.items()]
        self._flavors = [(compile_pattern(text), level) for text, level in protection.flavors.items()]

    def required(self, vm: Facts) -> int:
        """Slots of the VM's level where that names any, else the largest count of the patterns for its flavor.

        None of a VM that was taken out of protection.
        """
        if vm.recovery.mode == "ignore":
            return 0
        level = self._levels.get(self._level(vm))
        if level is not None and level.slots is not None:
            return level.slots
        return max([0, *(count for pattern, count in self._slots if vm.flavor and pattern.fullmatch(vm.flavor))])

    def _level(self, vm: Facts) -> str:
        """The level that the VM names, else that of its project, else the strongest of its flavor, else the default."""
        if vm.protection in self._levels:
            return str(vm.protection)
        by_project = self._matching(self._projects, vm.project)
        if by_project:
            return by_project[0]
        by_flavor = self._matching(self._flavors, vm.flavor)
        return min(by_flavor, key=self._strongest_first) if by_flavor else self._default

    def _matching(self, patterns: Sequence[tuple[Pattern, str]], text: str) -> list[str]:
        return [level for pattern, level in patterns if text and level in self._levels and pattern.fullmatch(text)]

    def _strongest_first(self, name: str) -> tuple[int, int, str]:
        level = self._levels[name]
        return (-level.priority, -(level.slots or 0), name)

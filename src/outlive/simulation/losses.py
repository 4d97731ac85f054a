"""Which VMs ran nowhere although somebody wants them to, from when to when: the truth of the machines, not the store's.

A VM is lost at the moment its last running domain ends without anybody having asked for that, and is back at the moment
one runs again. Ends that were asked for (a stop, a cold move, a restart) are no losses; what dies in the middle of one,
with its host or by itself, is lost all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from outlive.resources import Fault, VirtualMachine
from outlive.resources.vms import MigrationPhase
from outlive.simulation.history import HistoryEvent
from outlive.simulation.hypervisors import ACCIDENTS
from outlive.simulation.judges.rest import wanted
from outlive.simulation.spec import WorldSpec, hosts_of
from outlive.simulation.summary import HeldVm

if TYPE_CHECKING:
    from outlive.simulation.world import World

_ASKED_PHASES: Final = ("stop", "shutdown", "restart", "disable", "migrate", "migrate-live")
"""Phases in which an end was asked for."""
FAST_S: Final = 30.0
STEADY_S: Final = 90.0
"""A VM that was lost so shortly before the end may be down without anybody saying why: by the profile of its hosts."""


def back_within_s(spec: WorldSpec) -> float:
    """How soon a lost VM runs again, or something says why it does not."""
    steady = spec.policy.profile == "steady" or any(one.armed or one.profile == "steady" for one in hosts_of(spec))
    return STEADY_S if steady else FAST_S


class Losses:
    """See the module."""

    def __init__(self, world: World, back_within_s: float) -> None:
        self._world = world
        self._back_within_s = back_within_s
        self._running: dict[str, bool] = {}
        self._lost_at: dict[str, float] = {}
        self._longest: dict[str, float] = {}
        self._ever: dict[str, None] = {}

    @property
    def lost(self) -> int:
        """VMs that were lost at least once."""
        return len(self._ever)

    def happened(self, event: HistoryEvent) -> None:
        """Called with every event; those of domains are looked at."""
        if event.kind != "domain":
            return
        vm = event.subject
        runs = bool(self._world.running(vm))
        before = self._running.get(vm, False)
        self._running[vm] = runs
        accident = event.text.endswith(ACCIDENTS)
        if not runs and (before or accident) and vm not in self._lost_at and self._missed(vm, accident):
            self._lost_at[vm] = event.at_s
            self._ever[vm] = None
        elif runs and vm in self._lost_at:
            took_s = event.at_s - self._lost_at.pop(vm)
            self._longest[vm] = max(took_s, self._longest.get(vm, 0.0))

    def _missed(self, name: str, accident: bool) -> bool:
        """Whether it should run, and nobody asked for its end."""
        vm = self._world.store.look(VirtualMachine, name)
        if vm is None or not wanted(vm):
            return False
        if accident:
            return True
        if vm.status.phase in _ASKED_PHASES:
            return False
        moved = vm.status.migration
        return moved is None or moved.phase is MigrationPhase.ABORTED

    def took_s(self) -> tuple[float, ...]:
        """The longest loss of each VM that is back, shortest first."""
        return tuple(sorted(took for vm, took in self._longest.items() if vm not in self._lost_at))

    def recent(self) -> Collection[str]:
        """VMs that were lost too short a time ago for anything to be said of them."""
        now = asyncio.get_running_loop().time()
        return {vm: None for vm, at_s in self._lost_at.items() if now - at_s < self._back_within_s}

    def still_missing(self) -> tuple[HeldVm, ...]:
        """VMs that should run and run nowhere, with what is said of them."""
        found: list[HeldVm] = []
        faults = [one for one in self._world.store.all_of(Fault) if not one.ended]
        recent = self.recent()
        for vm in self._world.store.all_of(VirtualMachine):
            if not wanted(vm) or self._world.running(vm.name):
                continue
            recovery = vm.status.recovery
            if recovery is not None and recovery.reason:
                found.append(
                    HeldVm(vm=vm.name, reason=f"{recovery.reason}: {recovery.message}", remedy=recovery.remedy)
                )
                continue
            fault = next((one for one in faults if one.subject.name == vm.name), None)
            if fault is not None:
                found.append(HeldVm(vm=vm.name, reason=fault.message, remedy=fault.remedy))
                continue
            if vm.name in recent:
                found.append(
                    HeldVm(vm=vm.name, reason="the end came too soon after its loss", remedy="simulate longer")
                )
                continue
            found.append(HeldVm(vm=vm.name, reason=vm.status.message or "nothing says why it does not run"))
        return tuple(found)

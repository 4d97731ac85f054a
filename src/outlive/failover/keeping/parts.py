"""What cycles and upkeep work with, and what they tell each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.base.random import Random
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.keeping.covering import CoverageWriter
from outlive.failover.keeping.decide import Decider
from outlive.failover.keeping.observe import Observation, World
from outlive.failover.keeping.writes import SlotWriter
from outlive.failover.model import VmView
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.offers import FreeAmounts
from outlive.failover.ports import PlacementPort, VMSource
from outlive.failover.protection import ProtectionSettings
from outlive.failover.report.forecast import Forecast, Pass
from outlive.failover.report.reporter import Reporter
from outlive.failover.sizing import ResolvedSize, enough_for, groups_by_flavor, resolve_size
from outlive.resources import FlavorGroupSpec

REQUEST_PREFIX = "failover"
"""Begins the global request ids of cycles and upkeep."""
GATHER_S = 0.05
"""How long upkeep gathers changes before it looks at them together."""
PASS_VMS = 50
"""VMs that one pass of upkeep looks at; the others follow in the next."""
USUAL_S_PER_SLOT = 0.02
"""What giving a slot is taken to last before any was given."""

_log = get_logger("failover.parts")


@dataclass(slots=True)
class Parts:
    """What a cycle works with."""

    world: World
    source: VMSource
    placement: PlacementPort
    free: Callable[[], FreeAmounts]
    """What hosts have free, as of now."""
    writer: SlotWriter
    decider: Decider
    coverage: CoverageWriter
    reporter: Reporter
    clock: Clock
    random: Random
    ids: Ids
    config: FailoverConfig
    settings: FailoverUpkeepSettings = field(default_factory=FailoverUpkeepSettings)
    protection: ProtectionSettings = field(default_factory=ProtectionSettings)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whoever places or removes members holds it (module ``turns``)."""
    fails: dict[str, Fail] = field(default_factory=dict)
    """VM → why it has not got what it misses, as last decided."""
    forecast: Forecast = field(init=False)
    """When everybody has all slots again."""

    def __post_init__(self) -> None:
        config = self.config.apply_defaults()
        slots = config.max_vms_to_process if config.max_vms_to_process > 0 else 1_000
        self.forecast = Forecast(
            self.clock,
            usual_pass=Pass(gave=PASS_VMS, took_s=PASS_VMS * USUAL_S_PER_SLOT, pause_s=GATHER_S),
            usual_cycle=Pass(
                gave=slots,
                took_s=slots * USUAL_S_PER_SLOT,
                pause_s=config.short_reconcile_interval_s or config.reconcile_interval_s,
            ),
        )
        self.forecast.tell = self.reporter.foretold
        self.reporter.foresee(self.forecast.now)
        self.coverage.heard = self.forecast

    async def groups(self) -> Mapping[str, FlavorGroupSpec] | None:
        """Flavor → group; ``None`` where slots are of the VMs' own sizes, as also while groups cannot be read."""
        if not self.config.use_flavor_group_resources:
            return None
        try:
            return groups_by_flavor(await self.world.groups())
        except OutliveError as error:
            _log.info("groups.unavailable", error=str(error))
            return None

    def note_fail(self, vm: str, fail: Fail | None) -> None:
        """Remember why, for the VM's coverage; an event only when the reason is another than before."""
        before = self.fails.pop(vm, None)
        if fail is not None:
            self.fails[vm] = fail
            if before is None or before.reason != fail.reason:
                self.reporter.vm_without_slot(fail)


class Watcher:
    """Told how cycles go, and asked what changed meanwhile; upkeep listens."""

    def cycle_begins(self) -> None:
        """A cycle is about to look at the world."""

    async def cycle_seen(self, seen: Observation) -> None:
        """A cycle has seen the world; nothing is written yet."""

    @property
    def newer(self) -> Collection[str]:
        """The VMs that changed since the cycle began; it leaves them alone."""
        return ()

    def take_over(self, vms: Iterable[str]) -> None:
        """The cycle left these alone although it meant to do something about them."""

    def cycle_ended(self, *, braked: bool) -> None:
        """A cycle ran to its end."""


def slot_size(vm: VmView, groups: Mapping[str, FlavorGroupSpec] | None) -> ResolvedSize:
    """The size of the VM's slots; never below the VM's own."""
    size = resolve_size(vm, groups)
    return enough_for(vm, size) if vm.cpu_milli > 0 and vm.memory_bytes > 0 else size

"""What ticks, events and whole plans share: one cache, one lock, one budget, and those who write and report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.base.random import Random
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.fleet import FreeAmounts
from outlive.failover.ports import PlacementPort
from outlive.failover.protection import ProtectionSettings
from outlive.failover.reconciler.budget import RemovalBudget
from outlive.failover.reconciler.cache import FleetCache
from outlive.failover.reconciler.coverage import CoverageWriter
from outlive.failover.reconciler.decider import Decider
from outlive.failover.reconciler.writes import SlotWriter
from outlive.failover.report.forecast import Forecast
from outlive.failover.report.reporter import Reporter
from outlive.placement.vms import VMSource
from outlive.runtime.faults import FaultRecorder


@dataclass(slots=True, kw_only=True)
class Context:
    """See the module."""

    cache: FleetCache
    placement: PlacementPort
    free: Callable[[], FreeAmounts]
    """What hosts have free, as of now."""
    writer: SlotWriter
    decider: Decider
    coverage: CoverageWriter
    reporter: Reporter
    forecast: Forecast
    lock: asyncio.Lock
    """Held around a whole pass, and around each write of a tick and the check before it."""
    budget: RemovalBudget
    clock: Clock
    random: Random
    ids: Ids
    config: FailoverConfig
    """Filled."""
    settings: FailoverUpkeepSettings
    domain_of: Callable[[str], str]
    """Project → name of its domain, where hosts are set aside by it."""
    protection: ProtectionSettings
    faults: FaultRecorder | None
    """Where VMs without a known location are reported as faults."""
    source: VMSource | None
    """Who lists the VMs; ``None``: they are our own objects, which the cache follows."""

"""What all fences of one fencer share: its clock, its sight, its rules, and whom it may ask."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from outlive.base.clock import Clock
from outlive.node.faults import FaultRecorder
from outlive.node.fencing.isolation import Isolation
from outlive.node.fencing.powering import PowerSequence
from outlive.node.fencing.rehearsing import Rehearsals
from outlive.node.fencing.rules import Rules
from outlive.node.fencing.watching import Watching
from outlive.node.fencing.writing import FenceWriter


@dataclass(frozen=True, slots=True)
class Desk:
    """See the module. ``me``: the fencer's own name."""

    me: str
    clock: Clock
    watching: Watching
    rules: Rules
    writer: FenceWriter
    power: PowerSequence
    power_slots: asyncio.Semaphore
    cutting: Isolation | None
    rehearsals: Rehearsals
    faults: FaultRecorder

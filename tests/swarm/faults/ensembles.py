"""An ensemble of ZooKeeper below the store in some seeds, and what happens to its servers: drawn by itself."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from outlive.base import Random
from outlive.simulation import WorldSpec
from tests.swarm.faults.draw import FROM_S, UNTIL_S, Draw

ENSEMBLE_SHARE: Final = 0.25
"""Of the seeds, in so many the store is an ensemble."""
FAULT_RATES: Final = (0.02, 0.05, 0.1)
"""Faults of servers a second."""
VERBS: Final = ("zookeeper-kill", "zookeeper-pause", "zookeeper-cut", "zookeeper-lag")


def on_ensemble(random: Random, spec: WorldSpec) -> WorldSpec:
    """In some seeds three or five servers keep the store."""
    if random.random() >= ENSEMBLE_SHARE:
        return spec
    return replace(spec, zookeeper=random.choice((3, 3, 5)))


def ensemble_faults(random: Random, draw: Draw) -> None:
    """Servers die, stand still, are apart or lag, now and then two at once, so that no majority is left."""
    servers = draw.spec.zookeeper
    if not servers:
        return
    drawn, rate = Draw(random, draw.spec), random.choice(FAULT_RATES)
    at_s = FROM_S + random.expovariate(rate)
    while at_s < UNTIL_S:
        verb = random.choice(VERBS)
        more = {"by": random.choice((0.5, 2.0, 5.0))} if verb == "zookeeper-lag" else {}
        for number in random.sample(range(servers + 1), random.choice((1, 1, 1, 2))):
            drawn.add(at_s, verb, server=number, for_=drawn.short(), **more)
        at_s += random.expovariate(rate)
    draw.faults += drawn.faults

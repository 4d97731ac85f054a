"""Which faults a seed brings, and when: a schedule of verbs, drawn once and the same for ever.

Each seed turns a random subset of the kinds on, at random rates; so some seeds have only one kind, often, and others
have all.
"""

from __future__ import annotations

from typing import Final

from outlive.base.random import Random
from outlive.simulation.asking import ASKING
from outlive.simulation.breaking import BREAKING, GRAY, Kind
from outlive.simulation.drawing import FROM_S, UNTIL_S, Draw, Fault
from outlive.simulation.spec import WorldSpec

GRAY_SHARE: Final = 0.3
"""Of the seeds, so many have hosts that get slow besides everything else."""
GRAY_UNTIL_S: Final = 60.0
"""No host gets slow later: it takes its time until something comes of it."""
RATES: Final = (0.01, 0.03, 0.08)
"""Faults of one kind a second."""
KINDS: Final[dict[str, Kind]] = {**BREAKING, **ASKING}
"""All kinds of fault; the order is part of what a seed means."""


def kinds(random: Random) -> list[str]:
    """Which kinds come up."""
    some = random.choice((1, 2, 3, 4, 6, 8, len(KINDS)))
    return random.sample(list(KINDS), some)


def schedule(random: Random, spec: WorldSpec) -> list[Fault]:
    """All faults, in the order of their times."""
    draw = Draw(random, spec)
    for name in kinds(random):
        rate = random.choice(RATES)
        at_s = FROM_S + random.expovariate(rate)
        while at_s < UNTIL_S:
            KINDS[name](draw, at_s)
            at_s += random.expovariate(rate)
    gray(random.fork("gray"), draw)
    draw.faults.sort(key=lambda fault: fault.at_s)
    return draw.faults


def gray(random: Random, draw: Draw) -> None:
    """Hosts that get slow, in some seeds: drawn by themselves, so that all other faults of a seed are as they were."""
    if random.random() >= GRAY_SHARE:
        return
    drawn = Draw(random, draw.spec)
    for _ in range(random.randint(1, 5)):
        GRAY[random.choice(list(GRAY))](drawn, random.uniform(FROM_S, GRAY_UNTIL_S))
    draw.faults += drawn.faults

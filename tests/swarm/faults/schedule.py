"""Which faults a seed brings, and when: a schedule of verbs, drawn once and the same for ever.

Each seed turns a random subset of the kinds on, at random rates; so some seeds have only one kind, often, and others
have all.
"""

from __future__ import annotations

from typing import Final

from outlive.base import Random
from outlive.simulation import HostSpec, WorldSpec
from tests.swarm.faults.accidents import ACCIDENTAL, GRAY
from tests.swarm.faults.draw import FROM_S, UNTIL_S, Draw, Fault, Kind
from tests.swarm.faults.ensembles import ensemble_faults
from tests.swarm.faults.links import link_faults
from tests.swarm.faults.networks import network_faults
from tests.swarm.faults.operations import ASKED_FOR
from tests.swarm.faults.sales import sales

UNPROTECT_SHARE: Final = 0.2
"""Of the seeds, in so many VMs are taken out of protection, and some of them back."""
DISARM_SHARE: Final = 0.15
"""Of the seeds, in so many an operator disarms the cluster for a while besides everything else."""
STAYING_OFF_SHARE: Final = 0.25
"""Of the seeds, so many have hosts that never come back."""
DELETION_SHARE: Final = 0.3
"""Of the seeds, in so many VMs are deleted, and most of them made anew, besides everything else."""
GRAY_SHARE: Final = 0.3
"""Of the seeds, so many have hosts that get slow besides everything else."""
GRAY_UNTIL_S: Final = 60.0
"""No host gets slow later: it takes its time until something comes of it."""
RATES: Final = (0.01, 0.03, 0.08)
"""Faults of one kind a second."""
KINDS: Final[dict[str, Kind]] = {**ACCIDENTAL, **ASKED_FOR}
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
    for host, off_s in staying_off(random.fork("staying-off"), draw.hosts).items():
        draw.add(off_s, "power-off", hosts=(host,))
    gray(random.fork("gray"), draw)
    disarm(random.fork("disarm"), draw)
    unprotect(random.fork("unprotect"), draw)
    sales(random.fork("sales"), draw)
    deletions(random.fork("deletions"), draw)
    network_faults(random.fork("networks"), draw)
    ensemble_faults(random.fork("ensemble"), draw)
    link_faults(random.fork("links"), draw)
    draw.faults.sort(key=lambda fault: fault.at_s)
    return draw.faults


def staying_off(random: Random, hosts: tuple[HostSpec, ...]) -> dict[str, float]:
    """Hosts that lose power for good in this seed, and when; drawn by itself. One coordinator always comes back."""
    if random.random() >= STAYING_OFF_SHARE:
        return {}
    back = random.choice([host.name for host in hosts if host.mode == "coordinator"])
    some = random.sample([host.name for host in hosts if host.name != back], random.choice((1, 1, 2)))
    return {name: random.uniform(FROM_S, UNTIL_S - 1.0) for name in some}


def gray(random: Random, draw: Draw) -> None:
    """Hosts that get slow, in some seeds: drawn by themselves, so that all other faults of a seed are as they were."""
    if random.random() >= GRAY_SHARE:
        return
    drawn = Draw(random, draw.spec)
    for _ in range(random.randint(1, 5)):
        GRAY[random.choice(list(GRAY))](drawn, random.uniform(FROM_S, GRAY_UNTIL_S))
    draw.faults += drawn.faults


def disarm(random: Random, draw: Draw) -> None:
    """The cluster is disarmed for a while, in some seeds: drawn by itself, as grayness is."""
    if random.random() >= DISARM_SHARE:
        return
    drawn = Draw(random, draw.spec)
    at_s, mode = random.uniform(FROM_S, GRAY_UNTIL_S), random.choice(("freeze", "ignore"))
    limit = {"for_": 60.0} if random.random() < 0.3 else {}
    drawn.add(at_s, "disarm-cluster", mode=mode, **limit)
    drawn.add(at_s + drawn.short() + random.uniform(0.0, 60.0), "arm-cluster")
    draw.faults += drawn.faults


def unprotect(random: Random, draw: Draw) -> None:
    """VMs are taken out of protection, and some of them back or to be held: drawn by itself, as grayness is."""
    if random.random() >= UNPROTECT_SHARE:
        return
    drawn = Draw(random, draw.spec)
    for _ in range(random.randint(1, 4)):
        at_s, vm = random.uniform(FROM_S, UNTIL_S), drawn.vm().name
        drawn.add(at_s, "unprotect", vm=vm)
        back_s = at_s + drawn.short() + random.uniform(0.0, 60.0)
        if random.random() < 0.7 and back_s < UNTIL_S:
            drawn.add(back_s, "protect", vm=vm, hold=random.random() < 0.5)
    draw.faults += drawn.faults


def deletions(random: Random, draw: Draw) -> None:
    """VMs are deleted, half of them while something goes wrong with their host, and most are made anew, here or there,
    on the same disks or others: drawn by itself, as grayness is."""
    if random.random() >= DELETION_SHARE:
        return
    drawn = Draw(random, draw.spec)
    struck = [(fault.at_s, host) for fault in draw.faults for host in fault.arguments.get("hosts", ())]
    for _ in range(random.randint(1, 6)):
        at_s, vm = random.uniform(FROM_S, UNTIL_S), drawn.vm().name
        if struck and random.random() < 0.5:
            begun_s, host = random.choice(struck)
            at_s = begun_s + random.uniform(-1.0, 15.0)
            vm = next((one.name for one in random.sample(list(draw.vms), len(draw.vms)) if one.host == host), vm)
        drawn.add(at_s, "delete-vm", vm=vm)
        if random.random() < 0.8:
            disks = {"disks": (f"{vm}-other",)} if random.random() < 0.4 else {}
            after_s = random.choice((0.0, 0.2, 1.0, drawn.short()))
            drawn.add(at_s + after_s, "create-vm", vm=vm, host=drawn.host().name, **disks)
    draw.faults += drawn.faults

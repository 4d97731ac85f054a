"""What customers do in seeds whose clusters sell: they commit, give back, move and convert, and start VMs.

It is drawn by itself, so that everything else of a seed is as it was.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec.structs import replace

from outlive.base import Random
from outlive.simulation import FlavorEntry, WantedCommitment, WorldSpec, vms_of
from tests.swarm.faults.draw import FROM_S, UNTIL_S, Draw

SELLING_SHARE: Final = 0.35
"""Of the seeds, in so many capacity is sold."""
RATES: Final = (0.03, 0.1, 0.2)
"""Requests a second."""
GROUP: Final = "g"
FLAVORS: Final = tuple(
    FlavorEntry(name=f"c{cpu}", cpu=str(cpu), memory=f"{2 * cpu}Gi", group=GROUP) for cpu in (1, 2, 4)
)
PROJECTS: Final = ("p1", "p2", "p3")
COMMITMENTS: Final = 8
"""Different ones in one seed."""
TOGETHER: Final = 3
"""Commitments of one batch at most."""
UNITS: Final = 12
"""Of one commitment at most."""
QUICK: Final = {
    "requeueIntervalRetry": "5s",
    "maxRequeueInterval": "20s",
    "requeueIntervalActive": "20s",
    "requeueIntervalGracePeriod": "5s",
    "allocationGracePeriod": "20s",
    "oversubscriptionGracePeriod": "5s",
    "oversubscriptionMinCheckInterval": "2s",
    "usageCooldownInterval": "5s",
    "capacityReconcileInterval": "20s",
    "capacityMinReconcileInterval": "5s",
    "consistencyInterval": "20s",
}
"""More often than an operator should choose, so that it matters within the time of a seed."""
STATUSES: Final[tuple[Literal["planned", "pending", "guaranteed", "confirmed", "deleted"], ...]] = (
    *("confirmed",) * 5,
    *("deleted",) * 3,
    *("guaranteed", "pending", "planned"),
)


def selling(random: Random, spec: WorldSpec) -> WorldSpec:
    """In some seeds the cluster sells: its VMs have flavors and projects."""
    if random.random() >= SELLING_SHARE:
        return spec
    vms = tuple(replace(vm, flavor=f"c{vm.cpu}", project=random.choice(PROJECTS)) for vm in vms_of(spec))
    sold = {"handlesCommitments": True, "hasCapacity": True}
    commitments: dict[str, Any] = {
        **QUICK,
        "flavorGroupResources": {"*": {"ram": {**sold, "hasQuota": True}, "cores": sold}},
        "enableConsistencyRepair": random.random() < 0.3,
        "enablePaygPreAllocation": random.random() < 0.8,
    }
    scheduler = {"committedResourceTracking": random.random() < 0.8}
    return replace(
        spec, vms=vms, flavors=FLAVORS, settings={**spec.settings, "commitments": commitments, "scheduler": scheduler}
    )


def sales(random: Random, draw: Draw) -> None:
    """Batches and starts of VMs, where the cluster sells."""
    if not draw.spec.flavors:
        return
    drawn, rate = Draw(random, draw.spec), random.choice(RATES)
    at_s = FROM_S + random.expovariate(rate)
    while at_s < UNTIL_S:
        if random.random() < 0.7:
            drawn.add(at_s, "change-commitments", commitments=_batch(random))
        else:
            vm, flavor = f"sold-{len(drawn.faults)}", random.choice(FLAVORS).name
            drawn.add(at_s, "place-vm", vm=vm, flavor=flavor, project=random.choice(PROJECTS))
            if random.random() < 0.3:
                drawn.add(at_s + drawn.short(), "delete-vm", vm=vm)
        at_s += random.expovariate(rate)
    draw.faults += drawn.faults


def _batch(random: Random) -> tuple[WantedCommitment, ...]:
    """Of several commitments; some of them cores."""
    numbers = random.sample(range(COMMITMENTS), random.randint(1, TOGETHER))
    return tuple(
        WantedCommitment(
            uuid=f"commit-{number}",
            project=random.choice(PROJECTS),
            group=GROUP,
            resource="cores" if number % 4 == 0 else "memory",
            amount=random.randint(1, UNITS),
            status=random.choice(STATUSES),
        )
        for number in numbers
    )

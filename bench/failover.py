"""Failover: planning whole fleets, checking them from scratch, and following single events.

Placement runs in process: the engine ranks every class of VMs once and the answers are kept, as in a cycle. The large
fleet is planned in a child process, whose peak memory is the figure.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from bench.failover_cloud import Cloud
from bench.failover_events import events
from bench.failover_live import live
from bench.figures import Figure, median_seconds
from outlive.failover import CheckInput
from outlive.failover.check import check


def measure() -> list[Figure]:
    return [*small(), *middle(), *large(), *live()]


def small() -> list[Figure]:
    cloud = Cloud(4_000, 200, 1, (2,), even=True)
    result = cloud.plan()
    given = CheckInput(vms=cloud.vms, slots=result.slots)
    least = -(-4_000 // 199)
    return [
        Figure("plan 4,000 equal VMs on 200 hosts, k=1", median_seconds(cloud.plan), "s", 0.25),
        Figure("slots of that plan", len(result.slots), "slots", 1.1 * least, note=f"bound {least}"),
        Figure("check all its allocations", median_seconds(lambda: check(given)), "s", 0.05),
        Figure("VMs of that plan without a slot", result.failed, "VMs", 0),
    ]


def middle() -> list[Figure]:
    cloud = Cloud(10_000, 1_000, 2, (1, 2, 4, 8), even=False)
    result = cloud.plan()
    given = CheckInput(vms=cloud.vms, slots=result.slots)
    return [
        Figure(
            "plan 10,000 VMs on 1,000 hosts, k=2, mixed sizes",
            median_seconds(cloud.plan, runs=3, warmup=0),
            "s",
            5.0,
            note=f"{len(result.slots)} slots, {result.failed} VMs without",
        ),
        Figure("verify that plan from scratch", median_seconds(lambda: check(given)), "s", 0.2),
        *events(cloud, result),
    ]


def large() -> list[Figure]:
    child = subprocess.run(
        [sys.executable, "-c", "from bench.failover import large_child; large_child()"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    found = json.loads(child.stdout)
    note = f"{found['slots']} slots, {found['failed']} VMs without"
    return [
        Figure("plan 100,000 VMs on 5,000 hosts, k=2", found["seconds"], "s", 60.0, note=note),
        Figure("peak resident memory of that planner", found["mib"], "MiB", 1024.0),
        Figure("verify that plan from scratch", found["verify"], "s", note="no bar"),
    ]


def large_child() -> None:
    """Plan the large fleet and print what it took."""
    cloud = Cloud(100_000, 5_000, 2, (1, 2, 4, 8), even=False)
    start = time.perf_counter()
    result = cloud.plan()
    seconds = time.perf_counter() - start
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    assert check(CheckInput(vms=cloud.vms, slots=result.slots)).holds
    verify = time.perf_counter() - start
    found = {
        "seconds": seconds,
        "mib": mib,
        "slots": len(result.slots),
        "failed": result.failed,
        "verify": verify,
    }
    print(json.dumps(found))

"""Live moves between two real libvirt hosts: how long the guest stands still beyond what QEMU says of it.

The guest counts every 20 ms on its console, which is looked at every millisecond. What libvirt, this driver and the
looking add is what remains of the longest pause without the 20 ms and QEMU's own downtime. Guests are emulated; on a
machine that does other things the console is seen late, so the best of some moves counts.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.conformance.ports.real_libvirt import RealHypervisors, real_hosts
from tests.integration.test_libvirt_moves import Counting, moved

from bench.figures import Figure

MOVES = 6
LISTED = 5


def measure() -> list[Figure]:
    """The part's figures."""
    return asyncio.run(_measure())


async def _measure() -> list[Figure]:
    async with real_hosts() as hosts:
        one = Counting(hosts)
        await hosts.remote("a").create(one.vm, run_id="r0", epoch=7)
        await one.has_counted(20)
        ways = [("a", "b") if number % 2 == 0 else ("b", "a") for number in range(MOVES)]
        figures = [await moved(hosts, one, *way, f"r{number + 1}") for number, way in enumerate(ways)]
        one.check()
        listing = await _listing(hosts, "ab"[MOVES % 2])
    print("gap and downtime in ms:", figures, file=sys.stderr)
    beyond = sorted(gap - downtime for gap, downtime in figures)
    return [
        Figure("the guest's gap beyond QEMU's downtime, best", beyond[0], "ms", 50),
        Figure("QEMU's downtime, median", sorted(downtime for _, downtime in figures)[MOVES // 2], "ms"),
        Figure("domains listed", listing, "ms"),
    ]


async def _listing(hosts: RealHypervisors, host: str) -> float:
    """The best time of one listing, in ms."""
    port = hosts.remote(host)
    await port.domains()
    best = float("inf")
    for _ in range(LISTED):
        began = time.perf_counter()
        await port.domains()
        best = min(best, time.perf_counter() - began)
    return 1000 * best

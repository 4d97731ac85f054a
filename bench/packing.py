"""Packing: how few slots and how little memory plans need, with and without search, and how far from the bound that is.

The yardsticks are fleets without limits of capacity, on which other planners can be compared, and the public inventory
openb where ``OUTLIVE_SHARED`` has it. A search is measured in steps, so that only its time depends on the machine.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import msgspec

from bench.figures import Figure
from outlive.base import Random
from outlive.failover import CheckInput, HostView
from outlive.failover.analysis import BoundInput, BoundResult, compute_bound
from outlive.failover.check import check
from outlive.failover.planner import PlacementOffer, PlanInput, PlanResult, RepackInput, apply_moves, shortfalls_of
from outlive.failover.planner.plan import plan
from outlive.failover.planner.repack import repack
from outlive.failover.planner.replan import replan
from outlive.placement import VmView

GIB = 2**30
EFFORT_S = 60.0
CYCLES = 5
"""Repacking cycles in a row."""
CHANGES = 400
"""Changes of one of these cycles."""
OPENB_PARTS = ("nodes.csv", "pods.csv")


def measure() -> list[Figure]:
    return [*equal_small(), *equal_large(), *mixed(), *repacking(), *openb()]


def fleet(hosts: int, least: int, most: int, sizes: tuple[int, ...], *, seed: int = 20_26) -> PlanInput:
    """So many hosts with so many VMs each, k = 2, and no limit of capacity."""
    random = Random(seed)
    on = tuple(f"h{number:03}" for number in range(hosts))
    vms: list[VmView] = []
    for host in on:
        for _ in range(random.randint(least, most)):
            size = random.choice(sizes)
            vms.append(VmView(id=f"v{len(vms):04}", host=host, cpu_milli=1000 * size, memory_bytes=size * GIB))
    offer = {"": PlacementOffer(hosts=on, scores=(0.0,) * hosts)}
    return PlanInput(vms=tuple(vms), required={vm.id: 2 for vm in vms}, new=offer, reuse=offer, hosts=on)


def timed(given: PlanInput, effort_s: float = 0.0) -> tuple[PlanResult, float]:
    """The plan, from scratch found right, and how long it took."""
    start = time.perf_counter()
    result = plan(msgspec.structs.replace(given, effort_s=effort_s))
    seconds = time.perf_counter() - start
    assert check(CheckInput(vms=given.vms, slots=result.slots, required=given.required)).holds
    return result, seconds


def least(given: PlanInput) -> BoundResult:
    """The bound of this fleet."""
    hosts = tuple(HostView(name=host) for host in given.hosts)
    return compute_bound(BoundInput(vms=given.vms, required=given.required, hosts=hosts))


def memory(result: PlanResult) -> int:
    """Bytes of all slots."""
    return sum(slot.memory_bytes for slot in result.slots)


def equal_small() -> list[Figure]:
    given = fleet(20, 5, 5, (1,))
    found, seconds = timed(given, EFFORT_S)
    note = f"{len(timed(given)[0].slots)} without search, bound {least(given).slots}; {seconds:.0f} s"
    return [Figure("slots for 20 hosts x 5 equal VMs, k=2", len(found.slots), "slots", 35, note=note)]


def equal_large() -> list[Figure]:
    given = fleet(40, 10, 10, (1,))
    found, seconds = timed(given, EFFORT_S)
    note = f"{len(timed(given)[0].slots)} without search, bound {least(given).slots}; stretch 71"
    return [
        Figure("slots for 40 hosts x 10 equal VMs, k=2", len(found.slots), "slots", 80, note=note),
        Figure("that plan", seconds, "s", 60.0, note="effort 60 s"),
    ]


def mixed() -> list[Figure]:
    given = fleet(40, 5, 15, (1, 2, 4))
    greedy = memory(timed(msgspec.structs.replace(given, packing=False))[0])
    plain, found = memory(timed(given)[0]), memory(timed(given, EFFORT_S)[0])
    note = f"{found / GIB:,.0f} of {greedy / GIB:,.0f} GiB, {plain / GIB:,.0f} without search"
    note += f", bound {least(given).memory_bytes / GIB:,.0f}"
    return [Figure("memory for 40 hosts x 5-15 VMs of three sizes, k=2", found / greedy, "x greedy", 0.8, note=note)]


def repacking() -> list[Figure]:
    given = fleet(40, 10, 10, (1,))
    figures = []
    for name, packing in (("greedy", False), ("default", True)):
        slots = plan(msgspec.structs.replace(given, packing=packing)).slots
        before, changes = len(slots), 0
        for cycle in range(CYCLES):
            moves = repack(
                RepackInput(
                    slots=slots,
                    vms=given.vms,
                    required=given.required,
                    classes=dict.fromkeys(given.required, ""),
                    reuse=given.reuse,
                    limit=CHANGES,
                    seed=cycle,
                )
            ).actions
            slots = apply_moves(slots, moves)
            changes += sum(2 if move.joins else 1 for move in moves)
        note = f"{before} before, {changes} changes in {CYCLES} cycles"
        figures.append(Figure(f"slots of the {name} plan after repacking", len(slots), "slots", note=note))
    return figures


def openb() -> list[Figure]:
    """The public inventory, placed as its walk-through does it."""
    shared = os.environ.get("OUTLIVE_SHARED", "")
    if not all((Path(shared) / "data" / "openb" / part).exists() for part in OPENB_PARTS):
        return []
    one, two = asyncio.run(_openb_inputs(Path(shared) / "data" / "openb"))
    figures = []
    for k, given, effort_s, bar in ((1, one, 0.0, 1.15), (2, two, 0.0, None), (2, two, EFFORT_S, None)):
        result, seconds = timed(given, effort_s)
        floor = least(given)
        note = f"{memory(result) / GIB:,.0f} of at least {floor.memory_bytes / GIB:,.0f} GiB"
        note += f", {len(result.slots)} slots, {seconds:.1f} s"
        what = f"openb, k={k}{f', effort {effort_s:.0f} s' if effort_s else ''}: memory"
        figures.append(Figure(what, memory(result) / floor.memory_bytes, "x bound", bar, note=note))
    return [*figures, raised(one, two)]


def raised(before: PlanInput, after: PlanInput) -> Figure:
    """What VMs need is raised in a planned state: slots against those of a plan from nothing."""
    slots = tuple(msgspec.structs.replace(slot, name=f"slot-{slot.name}") for slot in plan(before).slots)
    free = dict(after.free)
    for slot in slots:
        cpu, memory_bytes = free[slot.host]
        free[slot.host] = (cpu - slot.cpu_milli, memory_bytes - slot.memory_bytes)
    given = msgspec.structs.replace(after, slots=slots, free=free)
    start = time.perf_counter()
    found, anew = replan(given), plan(after)
    seconds = time.perf_counter() - start
    assert check(CheckInput(vms=given.vms, slots=found.slots, required=given.required)).holds
    short, missing = (sum(each) for each in zip(*shortfalls_of(given, found.slots), strict=True))
    note = f"{len(slots)} slots before, {len(found.slots)} and {len(anew.slots)} after, {seconds:.0f} s with both plans"
    note += f"; {missing} slots missing, {short} VMs without any, {anew.failed} short from nothing"
    return Figure(
        "openb, k raised from 1 to 2: slots", len(found.slots) / len(anew.slots), "x from nothing", 1.05, note=note
    )


async def _openb_inputs(folder: Path) -> tuple[PlanInput, PlanInput]:
    from outlive.cli import Access, take_snapshot
    from outlive.failover import plan_input

    with tempfile.TemporaryDirectory() as state:
        import_openb(folder, state)
        async with Access(state_dir=Path(state)).open() as store:
            looks = [await take_snapshot(Access(state_dir=Path(state)), store, None, k) for k in (1, 2)]
            one, two = [await plan_input(gathered) for gathered in looks]
    return one, two


def import_openb(folder: Path, state: str, *more: str) -> None:
    """The public inventory, placed, into a directory of state; ``more`` are further options of the import."""
    import subprocess
    import sys

    columns = "cpu=cpu_milli:m,memory=memory_mib:Mi"
    files = ["--hosts", str(folder / OPENB_PARTS[0]), "--vms", str(folder / OPENB_PARTS[1])]
    maps = ["--host-map", f"name=sn,{columns}", "--vm-map", f"id=name,{columns}"]
    command = [sys.executable, "-m", "outlive", "import", "csv", *files, *maps]
    command += ["--where", "pod_phase=Running", "--place", "--state-dir", state, *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

"""The virtual cluster: how fast it runs, and how soon, in virtual seconds, VMs run again after hosts lose power."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tests.swarm.seeds import run_seed

from bench.figures import Figure
from bench.packing import OPENB_PARTS, import_openb
from outlive.base import silence_logging
from outlive.resources import Hypervisor, Resource, VirtualMachine
from outlive.runtime import run_virtual
from outlive.simulation import (
    HostsSpec,
    PlayedStory,
    Story,
    Virtual,
    VmsSpec,
    World,
    WorldSpec,
    build_virtual,
    inventory_scenario,
)

SEEDS = 40
JOBS = 2
HOSTS, VMS_PER_HOST, PER_RACK = 40, 15, 10
SETTLE_S = 40.0
"""Virtual seconds of calm, in which slots are planned and daemons renew, before something fails."""
LOST_LIMIT_S = 240.0
EXAMPLE_AT_S, EXAMPLE_UNTIL_S = 40.0, 100.0


def measure() -> list[Figure]:
    with silence_logging():
        return [seeds(), *losses(), *promised(), *openb()]


def seeds() -> Figure:
    begun, cpu = time.perf_counter(), os.times()
    with multiprocessing.get_context("spawn").Pool(JOBS) as pool:
        results = pool.map(run_seed, range(1, SEEDS + 1), chunksize=1)
    after = os.times()
    used = after.user + after.children_user - cpu.user - cpu.children_user
    bad = sum(not result.well for result in results)
    note = f"{JOBS} processes, {used / SEEDS:.2f} CPU s a seed, {bad} not well"
    return Figure("seeds of the swarm", SEEDS / (time.perf_counter() - begun), "seeds/s", 3.0, "higher", note)


def losses() -> list[Figure]:
    """Virtual seconds from the loss of power until the last VM runs again and its host has said so."""
    one, rack = ("kvm-7",), tuple(f"kvm-{number}" for number in range(11, 11 + PER_RACK))
    cases = (
        ("a host of 40 with 15 VMs, fast", one, HostsSpec(count=HOSTS, per_rack=PER_RACK), 12.0),
        (
            "a host of 40 with 15 VMs, fast, BMCs answer in 1 s",
            one,
            HostsSpec(count=HOSTS, per_rack=PER_RACK, bmc_answer_s=1.0),
            13.0,
        ),
        (
            "a host of 40 with 15 VMs, fast, BMCs answer in 5 s",
            one,
            HostsSpec(count=HOSTS, per_rack=PER_RACK, bmc_answer_s=5.0),
            30.0,
        ),
        ("a rack of 10 of 40 hosts, 150 VMs, fast", rack, HostsSpec(count=HOSTS, per_rack=PER_RACK), 20.0),
        (
            "a host of 40 with 15 VMs, watchdog only, steady",
            one,
            HostsSpec(count=HOSTS, per_rack=PER_RACK, armed=True, bmc="none"),
            60.0,
        ),
    )
    return [_loss(what, hosts, spec, bar) for what, hosts, spec, bar in cases]


def _loss(what: str, hosts: tuple[str, ...], spec: HostsSpec, bar: float) -> Figure:
    begun = time.process_time()
    took_s, violations = run_virtual(_lost(hosts, spec))
    note = f"{time.process_time() - begun:.1f} CPU s, {violations} violations"
    return Figure(f"from the loss of {what}, to every VM seen running", took_s, "virtual s", bar, note=note)


async def _lost(hosts: tuple[str, ...], spec: HostsSpec) -> tuple[float, int]:
    world = World(WorldSpec(hosts=spec, vms=VmsSpec(per_host=VMS_PER_HOST, cpu="1", memory="2Gi")), seed=1)
    await world.build()
    await world.start()
    assert await world.wait_settled()
    await world.clock.sleep(SETTLE_S)
    names = [vm.name for vm in world.store.list_all(VirtualMachine)]
    begun = world.clock.monotonic()
    await world.do("power-off", {"hosts": hosts})
    while (took_s := world.clock.monotonic() - begun) < LOST_LIMIT_S:
        await world.clock.sleep(0.1)
        if all(len(world.running_hosts(vm)) == 1 for vm in names) and world.are_all_running():
            break
    await world.stop()
    return took_s, len(world.violations)


def promised() -> list[Figure]:
    """The shipped example: of the VMs that are lost with k hosts, those that come back in a slot promised to them."""
    from outlive.cli import example_objects

    objects = asyncio.run(example_objects())
    names = sorted({vm.host for vm in build_virtual(objects, ()).spec.vms})  # type: ignore[union-attr]
    figures: list[Figure] = []
    for k in (1, 2):
        failed = names[:: max(1, len(names) // k)][:k]
        virtual = build_virtual(objects, [f"host={name}" for name in failed])
        ended, seconds = _played("example", virtual, EXAMPLE_AT_S, EXAMPLE_UNTIL_S, k)
        summary = ended.summary
        share = 100.0 * summary.in_promised_slot / summary.recovered if summary.recovered else 0.0
        note = f"{summary.in_promised_slot} of {summary.lost} lost, {summary.recovered} back, {seconds:.1f} CPU s"
        note += f", {len(summary.violations)} violations"
        figures.append(
            Figure(f"example, {k} of its hosts lost: VMs in a promised slot", share, "%", 100.0, "higher", note)
        )
    return figures


def openb() -> list[Figure]:
    """The public inventory of 1,523 hosts and 5,193 VMs: sixty virtual seconds in which a rack is lost."""
    shared = os.environ.get("OUTLIVE_SHARED", "")
    if not all((Path(shared) / "data" / "openb" / part).exists() for part in OPENB_PARTS):
        return []
    with tempfile.TemporaryDirectory() as state:
        import_openb(Path(shared) / "data" / "openb", state, "--domains", "rack=32")
        # As a cluster is on which outlive has been running: with the slots that its settings ask for.
        command = [sys.executable, "-m", "outlive", "failover", "plan", "--apply", "--state-dir", state]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        objects = asyncio.run(_dumped(state))
    begun = time.perf_counter()
    virtual = build_virtual(objects, ["rack=rack-003"])
    ended, seconds = _played("openb", virtual, 10.0, 60.0, 0)
    hosts = sum(isinstance(one, Hypervisor) for one in objects)
    note = f"{seconds:.0f} CPU s; {len(virtual.failed)} of {hosts:,} hosts"
    note += f"; {ended.summary.recovered} of {ended.summary.lost} VMs back"
    note += f"; {len(ended.summary.violations)} violations"
    return [Figure("openb: 60 virtual seconds with a lost rack", time.perf_counter() - begun, "s", 60.0, note=note)]


async def _dumped(state: str) -> tuple[Resource, ...]:
    from outlive.cli import Access, all_objects

    async with Access(state_dir=Path(state)).open() as store:
        return tuple(await all_objects(store))


def _played(name: str, virtual: Virtual, at_s: float, until_s: float, failures: int) -> tuple[PlayedStory, float]:
    from outlive.simulation import collect_rarely

    settings = {"failover": {"flavorFailoverRequirements": {"*": failures}}} if failures else {}
    scenario = inventory_scenario(
        name, msgspec.structs.replace(virtual.spec, settings=settings), virtual.build_acts(at_s), until_s
    )
    begun = time.process_time()

    async def play() -> PlayedStory:
        return await Story(scenario, seed=1, replay="", inventory=virtual.objects).play()

    with collect_rarely():
        ended = run_virtual(play())
    return ended, time.process_time() - begun

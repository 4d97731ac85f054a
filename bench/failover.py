"""Failover: planning whole fleets, checking them from scratch, and following single events.

Placement runs in process: the engine ranks every class of VMs once and the answers are kept, as in a cycle. The large
fleet is planned in a child process, whose peak memory is the figure.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter

from bench.figures import Figure, median_seconds
from outlive.base.random import Random
from outlive.failover.eligibility.check import CheckInput, check
from outlive.failover.keeping.calls import Caller
from outlive.failover.keeping.placing import InProcessPlacement, free_capacity, gather_offers, wanted
from outlive.failover.model import VmView
from outlive.failover.planning.actions import Need, Open
from outlive.failover.planning.plan import PlanInput, PlanResult, plan
from outlive.failover.planning.planner import Planner
from outlive.failover.sizing import resolve_size
from outlive.placement.engine import Engine
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable
from outlive.placement.ranking import Ranking
from outlive.placement.request import PlacementRequest
from outlive.resources import Amounts, Hypervisor
from outlive.resources.hosts import DomainCapabilities, HypervisorStatus
from outlive.resources.meta import ZONE_LABEL, ObjectMeta

GIB = 2**30
ZONE = "z1"
HOST_CPU, HOST_MEMORY = 192_000, 1024 * GIB
EVENTS = 300


class Cloud:
    """A fleet of equal hosts with random VMs, and placement over it."""

    def __init__(self, vms: int, hosts: int, k: int, sizes: tuple[int, ...], *, even: bool) -> None:
        random = Random(20_26)
        self.names = tuple(f"kvm-{number:05}" for number in range(hosts))
        views = []
        for number in range(vms):
            size = random.choice(sizes)
            host = self.names[number % hosts] if even else random.choice(self.names)
            views.append(vm_view(f"{random.getrandbits(128):032x}", host, size))
        self.vms = tuple(views)
        self.required = {vm.id: k for vm in views}
        self.fleet = Fleet()
        used = Counter[str]()
        for vm in views:
            used[vm.host] += vm.cpu_milli
        for name in self.names:
            self.fleet.upsert_host(hypervisor(name, used[name]))
        self.engine = Engine(self.fleet, PipelineTable.shipped(self.fleet.settings))

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        return self.engine.rank(request, why=why)

    def plan_input(self) -> PlanInput:
        """What ``plan`` is given: includes asking placement once for each class."""
        wishes = [wanted(vm, self.required[vm.id], resolve_size(vm), with_project=False) for vm in self.vms]
        port = InProcessPlacement(self, self.fleet)
        offers = asyncio.run(gather_offers(port, Caller(), wishes, requests={}, request_id=""))
        return PlanInput(
            vms=self.vms,
            required=self.required,
            classes={wish.vm.id: wish.offer_class for wish in wishes},
            reuse=offers.reuse,
            new=offers.new,
            free=free_capacity(self.fleet),
            hosts=self.names,
        )

    def plan(self) -> PlanResult:
        return plan(self.plan_input())


def vm_view(name: str, host: str, size: int) -> VmView:
    return VmView(
        id=name, host=host, zone=ZONE, flavor=f"std_{size}", cpu_milli=1000 * size, memory_bytes=4 * GIB * size
    )


def hypervisor(name: str, used_milli: int) -> Hypervisor:
    used = Amounts({"cpu": used_milli, "memory": used_milli // 1000 * 4 * GIB})
    return Hypervisor(
        metadata=ObjectMeta(name=name, labels={ZONE_LABEL: ZONE}),
        status=HypervisorStatus(
            capacity=Amounts({"cpu": HOST_CPU, "memory": HOST_MEMORY}),
            allocation=used,
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
        ),
    )


def measure() -> list[Figure]:
    return [*small(), *middle(), *large()]


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


def events(cloud: Cloud, result: PlanResult) -> list[Figure]:
    """Median times of one VM's event, clean-up and cover included, on the fleet of ``result``."""
    random = Random(7)
    given = cloud.plan_input()
    follower = Planner(
        cloud.vms,
        result.slots,
        cloud.required,
        reuse=given.reuse,
        new=given.new,
        free=given.free,
        hosts=given.hosts,
    )
    times: dict[str, list[float]] = {"appears": [], "moves": [], "disappears": []}
    classes = given.classes
    by_flavor = {vm.flavor: classes[vm.id] for vm in cloud.vms}
    serial = 0

    def cover(vm: VmView) -> None:
        nonlocal serial
        missing = follower.counters.misses(vm.id)
        need = Need(vm=vm.id, needed=missing, size=resolve_size(vm), offer_class=by_flavor[vm.flavor])
        for action in follower.cover(vm, need):
            if isinstance(action, Open):
                serial += 1
                follower.slot_created(action, f"event-{serial}")

    for number in range(EVENTS):
        fresh = vm_view(f"fresh-{number}", random.choice(cloud.names), random.choice((1, 2, 4, 8)))
        start = time.perf_counter()
        follower.appear(fresh, 2)
        cover(fresh)
        times["appears"].append(time.perf_counter() - start)
        old = random.choice(cloud.vms)
        moved = vm_view(old.id, random.choice(cloud.names), old.cpu_milli // 1000)
        start = time.perf_counter()
        follower.appear(moved, 2)
        cover(moved)
        times["moves"].append(time.perf_counter() - start)
        start = time.perf_counter()
        follower.disappear(fresh.id)
        times["disappears"].append(time.perf_counter() - start)
    assert not follower.counters.faulty()
    return [
        Figure(f"a VM {what}, 10,000 VMs, covered again", statistics.median(found) * 1000, "ms", 1.0)
        for what, found in times.items()
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

"""A fleet of equal hosts with random VMs, and placement over it, for the figures of failover."""

from __future__ import annotations

import asyncio
from collections import Counter

from outlive.base import Random
from outlive.failover import Caller, InProcessPlacement, Offers, claim_of, free_capacity, gather_offers, resolve_size
from outlive.failover.planner import PlanInput, PlanResult
from outlive.failover.planner.plan import plan
from outlive.placement import Engine, Fleet, PipelineTable, PlacementRequest, Ranking, VmView
from outlive.resources import ZONE_LABEL, Amounts, DomainCapabilities, Hypervisor, HypervisorStatus, ObjectMeta

GIB = 2**30
ZONE = "z1"
HOST_CPU, HOST_MEMORY = 192_000, 1024 * GIB


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
        self.engine = Engine(self.fleet, PipelineTable.with_shipped())

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        return self.engine.rank(request, why=why)

    def offers(self) -> tuple[dict[str, str], Offers]:
        """VM → class, and what placement offers to each class."""
        claims = [claim_of(vm, self.required[vm.id], resolve_size(vm), with_project=False) for vm in self.vms]
        port = InProcessPlacement(self, self.fleet)
        offers = asyncio.run(gather_offers(port, Caller(), claims, requests={}, request_id=""))
        return {one.vm.id: one.need.offer_class for one in claims}, offers

    def plan_input(self) -> PlanInput:
        """What ``plan`` is given: includes asking placement once for each class."""
        classes, offers = self.offers()
        return PlanInput(
            vms=self.vms,
            required=self.required,
            classes=classes,
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

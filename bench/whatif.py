"""Emptying two hosts of a thousand: finding an order. What placement says is given, and is not part of the figure.

And how many more VMs fit: reading the objects and asking placement are part of that figure.
"""

from __future__ import annotations

import asyncio

from bench.failover_cloud import GIB, Cloud
from bench.figures import Figure, median_seconds
from outlive.failover import Documents, FailoverSettings, snapshot_of
from outlive.failover.analysis.drain import DrainInput, free_table, order_drain
from outlive.failover.analysis.whatif import FlavorFit, count_further_vms
from outlive.failover.planner import PlacementOffer
from outlive.placement import VmView
from outlive.resources import (
    ZONE_LABEL,
    Amounts,
    Condition,
    DomainCapabilities,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
)


def measure() -> list[Figure]:
    given = question(Cloud(10_000, 1_000, 2, (1, 2, 4, 8), even=False))
    result = order_drain(given)
    moving = sum(vm.host in given.drained for vm in given.vms)
    note = f"{moving} VMs, {len(result.steps)} steps" if result.possible else "no order"
    what = "order of emptying 2 of 1,000 hosts with 10,000 VMs, k=2"
    order = Figure(what, median_seconds(lambda: order_drain(given), runs=3), "s", note=note)
    return [order, _more(40, 1, bar=10.0, wanted=3_744), _more(5_000, 3, bar=60.0)]


def _more(count: int, zones: int, *, bar: float, wanted: int = 0) -> Figure:
    """VMs of 4 GiB with one slot each, on empty hosts of 384 GiB."""
    documents = Documents(hypervisors=tuple(_host(number, zones) for number in range(count)))
    like = VmView(id="new", host="", flavor="f", cpu_milli=1_000, memory_bytes=4 * GIB)

    def ask() -> FlavorFit:
        return asyncio.run(count_further_vms(snapshot_of(documents, FailoverSettings(), k=1), like))

    found = ask()
    assert found.exact
    assert not wanted or found.vms == wanted
    note = f"exactly {found.vms:,}"
    return Figure(f"how many more VMs fit on {count:,} hosts", median_seconds(ask, runs=3), "s", bar=bar, note=note)


def _host(number: int, zones: int) -> Hypervisor:
    capacity = Amounts(cpu=192_000, memory=384 * GIB)
    return Hypervisor(
        metadata=ObjectMeta(name=f"host-{number:05d}", labels={ZONE_LABEL: f"zone-{number % zones}"}),
        status=HypervisorStatus(
            capacity=capacity,
            allocation=Amounts(cpu=0, memory=0),
            conditions=(Condition(type="Ready", status="True"),),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
        ),
    )


def question(cloud: Cloud) -> DrainInput:
    """Two hosts of a planned fleet go; every other host may take their VMs."""
    planned = cloud.plan_input()
    slots = cloud.plan().slots
    free = free_table(cloud.fleet)
    for slot in slots:
        free[slot.host]["cpu"] -= slot.cpu_milli
        free[slot.host]["memory"] -= slot.memory_bytes
    drained = cloud.names[:2]
    everywhere = tuple(sorted(cloud.names[2:], key=lambda host: -free[host]["memory"]))
    offers = {key: PlacementOffer(hosts=everywhere) for key in planned.new}
    return DrainInput(
        drained=drained,
        vms=cloud.vms,
        required=cloud.required,
        slots=slots,
        classes=planned.classes,
        destinations={vm.id: everywhere for vm in cloud.vms if vm.host in drained},
        reuse=offers,
        new=offers,
        free=free,
    )

"""Emptying two hosts of a thousand: finding an order. What placement says is given, and is not part of the figure."""

from __future__ import annotations

from bench.failover_cloud import Cloud
from bench.figures import Figure, median_seconds
from outlive.failover.analysis.drain.inputs import free_table
from outlive.failover.analysis.drain.order import order_drain
from outlive.failover.analysis.drain.steps import DrainInput
from outlive.failover.planner.actions import Offer


def measure() -> list[Figure]:
    given = question(Cloud(10_000, 1_000, 2, (1, 2, 4, 8), even=False))
    result = order_drain(given)
    moving = sum(vm.host in given.drained for vm in given.vms)
    note = f"{moving} VMs, {len(result.steps)} steps" if result.possible else "no order"
    what = "order of emptying 2 of 1,000 hosts with 10,000 VMs, k=2"
    return [Figure(what, median_seconds(lambda: order_drain(given), runs=3), "s", note=note)]


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
    offers = {key: Offer(hosts=everywhere) for key in planned.new}
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

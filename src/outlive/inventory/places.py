"""Where VMs land that an inventory places nowhere: the placement engine decides, one VM after the other.

The order is fixed (memory, then CPU, largest first, then id), so that the same inventory lands the same way every
time. Only VMs that run and have no host are placed; nobody is moved. Each landed VM counts before the next is asked
about, and a size that once found no host is not asked about again, since hosts only fill up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from outlive.failover import Caller, ResolvedSize, forced_hosts, pipeline_for, placement_class
from outlive.inventory.check import Existing
from outlive.inventory.plan import ImportPlan, apply_plan
from outlive.placement import Engine, Fleet, Intent, PipelineTable, PlacementRequest, explain_nowhere, view_of_resource
from outlive.resources import Amounts, Pipeline, Reservation, VirtualMachine
from outlive.store import Store, list_all

YIELD_EVERY = 20
"""VMs placed between two turns of the event loop."""


@dataclass(slots=True)
class HostSearchResult:
    """Who found a host, and who did not and why."""

    placed: dict[str, str] = field(default_factory=dict)
    """VM → host."""
    unplaced: dict[str, str] = field(default_factory=dict)
    """VM → reason."""


async def place_vms(
    store: Store,
    plan: ImportPlan,
    existing: Existing,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HostSearchResult:
    """Find hosts for the VMs that would run nowhere after the plan."""
    hosts, vms = apply_plan(plan, existing)
    fleet = Fleet()
    for known in hosts.values():
        fleet.upsert_host(known)
    async for reservation in list_all(store, Reservation):
        fleet.upsert_reservation(reservation)
    pipelines = PipelineTable.with_shipped()
    async for pipeline in list_all(store, Pipeline):
        pipelines.put(pipeline)
    engine = Engine(fleet, pipelines)
    waiting = waiting_vms(vms.values())
    landing = HostSearchResult()
    hopeless: dict[str, str] = {}
    for done, vm in enumerate(waiting):
        host, reason = _land(engine, vm, hopeless)
        if host:
            landing.placed[vm.name] = host
            found = fleet.find_host(host)
            assert found is not None, "a ranked host is known"
            allocation = (found.status.allocation or Amounts()) + vm.spec.resources
            status = msgspec.structs.replace(found.status, allocation=allocation)
            fleet.upsert_host(msgspec.structs.replace(found, status=status))
        else:
            landing.unplaced[vm.name] = reason
        if done % YIELD_EVERY == 0:
            progress(done, len(waiting))
            await asyncio.sleep(0)
    return landing


def waiting_vms(vms: Iterable[VirtualMachine]) -> list[VirtualMachine]:
    """The VMs that run and have no host, in the order in which they are placed."""
    waiting = [vm for vm in vms if vm.status.assigned is None and vm.spec.power_state == "running"]
    return sorted(waiting, key=lambda vm: (-vm.spec.resources.memory_bytes, -vm.spec.resources.cpu_milli, vm.name))


def creation_request(vm: VirtualMachine) -> PlacementRequest:
    """What Nova would ask on creating the VM."""
    view = view_of_resource(vm)
    specs = Caller().extra_specs(view)
    return PlacementRequest(
        resource_id=vm.name,
        project=view.project,
        zone=view.zone,
        need=vm.spec.resources,
        flavor_name=view.flavor,
        extra_specs=specs,
        force_hosts=forced_hosts(view),
        intent=Intent.CREATE,
        pipeline=pipeline_for(view),
    )


def _land(engine: Engine, vm: VirtualMachine, hopeless: dict[str, str]) -> tuple[str, str]:
    """The best host, or the reason why there is none."""
    amounts = vm.spec.resources
    size = ResolvedSize(
        flavor_name=repr(amounts.to_wire()),
        group_name="",
        cpu_milli=amounts.cpu_milli,
        memory_bytes=amounts.memory_bytes,
    )
    key = placement_class(view_of_resource(vm), size, with_project=True)
    if key in hopeless:
        return "", hopeless[key]
    request = creation_request(vm)
    ranking = engine.rank(request)
    if ranking.hosts:
        return ranking.hosts[0], ""
    hopeless[key] = explain_nowhere(engine.rank(request, why=True))
    return "", hopeless[key]

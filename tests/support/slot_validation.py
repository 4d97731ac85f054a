"""A cloud of three hosts with the validation of its slots, and a scheduler that answers as a test says."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from outlive.base import OutliveError, Random
from outlive.failover import Call, OverbookedHosts
from outlive.failover.planner import PlacementOffer
from outlive.failover.reconciler import RemovalBudget, SlotValidation, SlotWriter
from outlive.placement import VmView
from outlive.resources import Reservation
from outlive.runtime import Requeue
from tests.support.failover import GIB, Cloud


class Locations:
    """Where VMs are, as cycles would see them."""

    def __init__(self, **hosts: str) -> None:
        self.vms = {
            name: VmView(id=name, host=host, zone="z", flavor="std", cpu_milli=2000, memory_bytes=4 * GIB)
            for name, host in hosts.items()
        }
        self.error: OutliveError | None = None

    async def locate(self, vm_id: str) -> VmView | None:
        if self.error is not None:
            raise self.error
        return self.vms.get(vm_id)


class Answering:
    """A scheduler whose answers a test writes."""

    needs_candidates = False

    def __init__(self, answer: Callable[[Call], PlacementOffer]) -> None:
        self._answer = answer
        self.calls: list[Call] = []

    async def offer(self, call: Call) -> PlacementOffer:
        self.calls.append(call)
        return self._answer(call)

    def equivalence_key(self, call: Call) -> None:
        return None


class Bench:
    """A cloud of three hosts with the validation of its slots."""

    def __init__(self, locations: Locations, *, port: Any = None) -> None:
        self.cloud = Cloud({"revalidationInterval": "30m"}, port=port)
        cloud = self.cloud
        self.locations = locations
        self.slots: dict[str, list[Reservation]] = {}
        """Host → its slots, for changes of hosts."""
        self.budget = RemovalBudget(share=0.2, number=50)
        context = cloud.reconciler._context
        self.validation = SlotValidation(
            cloud.own,
            dataclasses.replace(context, budget=self.budget, lock=asyncio.Lock()),
            hosts=cloud.fleet.find_host,
            locate=locations.locate,
            writer=SlotWriter(cloud.own, clock=cloud.clock, ids=cloud.ids, creator="test"),
            random=Random(4),
            overbooked=OverbookedHosts(lambda host: self.slots.get(host, ()), lambda host: {}),
        )

    async def look(self, name: str = "s") -> Requeue | None:
        return await self.validation.reconcile(name)

    async def slot(self, name: str = "s") -> Reservation:
        return await self.cloud.memory.get(Reservation, name)


async def bench(locations: Locations | None = None, **how: Any) -> Bench:
    made = Bench(locations or Locations(a="h1", b="h2"), **how)
    await made.cloud.hosts("h1", "h2", "h3")
    return made

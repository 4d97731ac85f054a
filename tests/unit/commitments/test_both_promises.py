"""Failover and sold capacity hold beside each other, whatever happens in which order: nothing is sold twice, and no
protected VM loses its place to a customer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.sales import GIB, SOLD, Market, asked, batch, host, in_cloud, project, vm

from outlive.commitments import CommitmentSettings, slot_allocations
from outlive.failover import FailoverConfig
from outlive.placement import HYPERVISOR_TYPE, Intent, PlacementRequest, blocked_hosts, image_properties, unused_amounts
from outlive.resources import COMMITTED, Amounts, Coverage, Hypervisor, Reservation, VirtualMachine
from outlive.roles import RoleSettings
from outlive.store import list_all

HOSTS = tuple(f"h{number}" for number in range(5))
SPECS = {"quota:hw_version": "g", HYPERVISOR_TYPE: "QEMU"}
PROTECTED = RoleSettings(
    failover=FailoverConfig(flavor_failover_requirements={"*": 1}).apply_defaults(),
    commitments=CommitmentSettings(flavor_group_resources={"*": SOLD}),
)
SETTLED_S = 45.0
"""After so long the failover cycle has covered whom it can."""

projects = st.sampled_from(["p1", "p2"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("sell"), projects, st.integers(1, 6)),
        st.tuples(st.just("end"), projects, st.integers(0, 9)),
        st.tuples(st.just("start"), projects, st.integers(0, 9)),
        st.tuples(st.just("stop"), projects, st.integers(0, 9)),
        st.tuples(st.just("lose"), projects, st.integers(0, len(HOSTS) - 1)),
        st.tuples(st.just("return"), projects, st.integers(0, len(HOSTS) - 1)),
    ),
    min_size=4,
    max_size=12,
)


class Cloud:
    """What happens, as Limes, Nova and machines do it."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self.sold: dict[str, tuple[str, int]] = {}
        self.number = 0

    async def sell(self, customer: str, amount: int) -> None:
        """A batch with one commitment; nobody loses his place by it."""
        self.number += 1
        uuid = f"sold-{self.number:03}"
        before = await self.covered()
        if await self.market.change(batch(project(customer, asked(uuid, amount)))) == "":
            self.sold[uuid] = (customer, amount)
        await asyncio.sleep(2)
        assert before <= await self.covered(), "a commitment took the place of a protected VM"

    async def end(self, customer: str, which: int) -> None:
        """A commitment of the customer is deleted."""
        mine = sorted(uuid for uuid, (owner, _) in self.sold.items() if owner == customer)
        if mine:
            uuid = mine[which % len(mine)]
            amount = self.sold.pop(uuid)[1]
            gone = asked(uuid, amount, old="confirmed", new=None)
            assert await self.market.change(batch(project(customer, gone))) == ""

    async def start(self, customer: str, _which: int) -> None:
        """A VM where placement lets it start."""
        self.number += 1
        request = PlacementRequest(
            resource_id=f"vm-{self.number:03}",
            project=customer,
            zone="zone-a",
            need=Amounts(cpu=2000, memory=8 * GIB),
            flavor_name="m8",
            extra_specs=SPECS,
            image_properties=image_properties("QEMU"),
            intent=Intent.CREATE,
            pipeline="kvm-general-purpose-load-balancing",
        )
        target = self.market.role.placement.engine.rank(request).target
        if target is None:
            return
        new = vm(request.resource_id, target, project=customer)
        written = await self.market.store.create(new)
        await self.market.store.replace_status(replace(written, status=new.status))
        await self.market.run_on(target, new)

    async def stop(self, customer: str, which: int) -> None:
        """A VM of the customer ends."""
        mine = [one async for one in list_all(self.market.store, VirtualMachine) if one.spec.project == customer]
        if mine:
            await self._end_vm(mine[which % len(mine)])

    async def lose(self, _customer: str, which: int) -> None:
        """A host is proven dead, and its VMs end."""
        name = HOSTS[which]
        for one in [one async for one in list_all(self.market.store, VirtualMachine)]:
            if one.status.assigned is not None and one.status.assigned.hypervisor == name:
                await self._end_vm(one)
        await self.market.lose(name)

    async def _end_vm(self, one: VirtualMachine) -> None:
        assert one.status.assigned is not None
        found = await self.market.store.get(Hypervisor, one.status.assigned.hypervisor)
        status = replace(
            found.status,
            instances=tuple(instance for instance in found.status.instances if instance.id != one.name),
            allocation=(found.status.allocation or Amounts()) - one.spec.resources,
        )
        await self.market.store.delete(one.ref)
        await self.market.store.replace_status(replace(found, status=status))

    async def back(self, _customer: str, which: int) -> None:
        """A lost host is back, empty."""
        found = await self.market.store.get(Hypervisor, HOSTS[which])
        if found.status.lost:
            await self.market.store.replace_status(replace(found, status=replace(found.status, lost="")))

    async def covered(self) -> set[str]:
        """VMs that are reported covered."""
        found = [one async for one in list_all(self.market.store, Coverage)]
        return {one.name for one in found if one.status.required and one.status.covered}

    async def check(self) -> None:
        """No host holds more than it has, and no VM is in two slots."""
        slots = [one async for one in list_all(self.market.store, Reservation)]
        names: list[str] = []
        for slot in slots:
            if slot.spec.type == COMMITTED:
                names += slot_allocations(slot)
        assert len(names) == len(set(names)), f"a VM is in two slots: {names}"
        for one in [one async for one in list_all(self.market.store, Hypervisor)]:
            running = {each.id for each in one.status.instances}
            there = [slot for slot in slots if one.name in blocked_hosts(slot)]
            held = sum(unused_amounts(slot, running=running).memory_bytes for slot in there)
            has, runs = one.status.capacity or Amounts(), one.status.allocation or Amounts()
            if not one.status.lost:
                assert held + runs.memory_bytes <= has.memory_bytes, f"{one.name} is sold twice"


@pytest.mark.slow
@given(happens=steps)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_order_of_sales_starts_and_failures_sells_a_slot_twice_or_takes_a_protected_vms_place(
    happens: list[tuple[str, str, int]],
) -> None:
    async def story(market: Market) -> None:
        cloud = Cloud(market)
        does: dict[str, Any] = {
            "sell": cloud.sell,
            "end": cloud.end,
            "start": cloud.start,
            "stop": cloud.stop,
            "lose": cloud.lose,
            "return": cloud.back,
        }
        for word, customer, number in happens:
            await does[word](customer, number)
            await asyncio.sleep(3)
            await cloud.check()
        await asyncio.sleep(SETTLED_S)
        await cloud.check()

    in_cloud([host(name, gib=40) for name in HOSTS], story, settings=PROTECTED)

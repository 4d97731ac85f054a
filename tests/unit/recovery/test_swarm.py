"""Random failures with a store that loses answers and two leaders: once all is quiet every VM runs, or says why not."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from tests.support.loops import run
from tests.support.recovery import RecoveryCloud

from outlive.base.errors import Conflict, NotFound
from outlive.base.random import Random
from outlive.node.vm.states import is_to_run
from outlive.resources import Reservation, VirtualMachine
from outlive.runtime.tasks import OrderedTaskGroup
from outlive.store import Store
from outlive.store.faults import FaultRates, FaultStore

HOSTS = tuple(f"h{n}" for n in range(6))
STORMY_S = 90
QUIET_S = 150
RATES = FaultRates(
    delay=0.3, delay_max_s=0.5, refuse=0.05, lose_applied=0.05, lose_dropped=0.05, lose_late=0.03, late_max_s=3.0
)


class Storm:
    """What happens to one cloud."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.networks: list[Any] = []
        self.cloud = RecoveryCloud(seed=seed, wrap=self._faulty)
        self.down: set[str] = set()

    def _faulty(self, store: Store) -> Store:
        faulty = FaultStore(store, clock=self.cloud.clock, random=self.random.fork("faults"), rates=RATES)
        self.networks.append(faulty.network)
        return faulty

    async def build(self) -> None:
        cloud, random = self.cloud, self.random
        await cloud.hosts(*HOSTS, cpu=14_000, memory=28 * 2**30)
        for number in range(random.randint(4, 12)):
            home = random.choice(HOSTS)
            await cloud.vm(f"v{number:02}", home, restart_priority=random.randint(0, 2))
            for which in range(random.randint(0, 2)):
                host = random.choice([one for one in HOSTS if one != home])
                members = {f"v{number:02}": home}
                await cloud.slot(f"s{number:02}-{which}", host, members)

    async def rage(self) -> None:
        end = self.cloud.clock.monotonic() + STORMY_S
        while self.cloud.clock.monotonic() < end:
            await self.cloud.clock.sleep(self.random.uniform(0.1, 8.0))
            with contextlib.suppress(Conflict, NotFound):
                await self._something()

    async def _something(self) -> None:
        cloud, random = self.cloud, self.random
        up = sorted(cloud.alive)
        match random.choice(["die", "die", "return", "refuse", "dawdle", "stop", "start", "delete", "share"]):
            case "die" if len(up) > 3:
                hosts = random.sample(up, random.randint(1, 2))
                for host in hosts:
                    cloud.lose_power(host)
                    self.down.add(host)
                await cloud.clock.sleep(random.uniform(0, 6))
                for host in hosts:
                    await cloud.prove(host)
            case "return" if self.down:
                host = random.choice(sorted(self.down))
                self.down.discard(host)
                await cloud.come_back(host)
            case "refuse":
                cloud.refuses[random.choice(HOSTS)] = "its disk is locked"
            case "dawdle":
                cloud.dawdles.add(random.choice(HOSTS))
            case "stop" | "start" as verb:
                vm = await cloud.get(random.choice(sorted(cloud.running)))
                state = "stopped" if verb == "stop" else "running"
                await cloud.memory.replace(
                    msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, power_state=state))
                )
            case "delete":
                name = random.choice(sorted(cloud.running))
                vm = await cloud.get(name)
                if all(one.hypervisor in self.down for one in vm.status.holders):
                    await cloud.memory.delete(vm.ref)
            case "share":
                slots = (await cloud.memory.list(Reservation)).items
                if not slots:
                    return
                slot, vm = random.choice(slots), await cloud.get(random.choice(sorted(cloud.running)))
                failover = slot.status.failover_reservation
                where = vm.status.assigned
                if failover is not None and where is not None:
                    more = {**failover.allocations, vm.name: where.hypervisor}
                    status = msgspec.structs.replace(
                        slot.status, failover_reservation=msgspec.structs.replace(failover, allocations=more)
                    )
                    await cloud.memory.replace_status(msgspec.structs.replace(slot, status=status))

    def calm(self) -> None:
        self.cloud.refuses.clear()
        self.cloud.dawdles.clear()
        for network in self.networks:
            network.rates = FaultRates()


async def _weather(seed: int) -> None:
    storm = Storm(seed)
    cloud = storm.cloud
    async with OrderedTaskGroup() as group:
        await storm.build()
        tasks = [group.create_task(cloud.live(), name="hosts")]
        tasks += [group.create_task(cloud.manager().run(), name=f"recovery {n}") for n in range(2)]
        await storm.rage()
        storm.calm()
        await cloud.clock.sleep(QUIET_S)
        await _judge(storm, seed)
        for task in tasks:
            task.cancel()


async def _judge(storm: Storm, seed: int) -> None:
    cloud = storm.cloud
    vms = {vm.name: vm for vm in (await cloud.memory.list(VirtualMachine, limit=5000)).items}
    slots = {one.name: one for one in (await cloud.memory.list(Reservation, limit=5000)).items}
    for name, vm in vms.items():
        where, record = vm.status.assigned, vm.status.recovery
        facts = (seed, name, msgspec.to_builtins(vm.status))
        assert where is not None, facts
        if not is_to_run(vm):
            assert all(one.hypervisor in cloud.alive for one in vm.status.holders), facts
            continue
        if cloud.running[name]:
            assert cloud.running[name] == {where.hypervisor}, facts
            assert vm.metadata.labels["outlive.dev/host"] == where.hypervisor, facts
            assert record is None or record.phase in ("recovered", "dropped"), facts
            continue
        assert record is not None, facts
        assert record.phase == "held", facts
        assert record.reason, facts
        assert record.remedy, facts
    for slot in slots.values():
        consumer = slot.status.consumer
        if consumer is not None:
            vm = vms.get(consumer.vm)
            facts = (seed, slot.name, consumer, msgspec.to_builtins(vm.status) if vm else None)
            assert vm is not None, facts
            assert vm.status.assigned is not None, facts
            kept = vm.status.assigned.slot is not None and vm.status.assigned.slot.name == slot.name
            assert kept or not cloud.running[consumer.vm], facts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_once_all_is_quiet_every_vm_runs_once_or_says_why_not(seed: int) -> None:
    run(_weather(seed))

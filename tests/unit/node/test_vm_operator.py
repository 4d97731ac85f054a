"""What an operator does with one VM, from being defined until it is gone, on simulated hosts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.loops import run, run_by
from tests.support.node_worlds import STARTED_S, play, vm_of

from outlive.base import BadInput, LoopClock, NotFound, Random, Refused, SeededIds
from outlive.node import HostLife, HostLiveness, VmLife, request_vm, vm_liveness
from outlive.node.vm import change_vm, follow_request, is_at_rest, outcome_of, rename_vm, undefine_vm
from outlive.resources import (
    Amounts,
    Answer,
    ObjectMeta,
    Request,
    RequestVerb,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.simulation import HostSpec, VmSpec, World, WorldSpec
from outlive.simulation.verbs import change_spec
from outlive.store import MemoryStore, find_vm

IDS = SeededIds(Random(7))


async def ask(world: World, verb: RequestVerb, vm: str = "vm-1", *, target: str = "") -> tuple[bool, list[str]]:
    """Ask and follow; whether it came to that, and what was said."""
    said: list[str] = []
    asked = await request_vm(world.store, world.clock, IDS, vm, verb, target=target)
    return await follow_request(world.store, world.clock, vm, asked.request, said.append), said


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))
async def test_a_start_that_another_vm_blocks_is_followed_for_a_minute_and_counts_as_waiting(world: World) -> None:
    (disk,) = vm_of(world, "vm-2").spec.disks
    assert (await ask(world, "stop"))[0]

    def shares(spec: VirtualMachineSpec) -> VirtualMachineSpec:
        return msgspec.structs.replace(spec, disks=(disk,), shared_disks=(disk,))

    await change_spec(world, VirtualMachine, "vm-1", shares)
    began = world.clock.monotonic()
    done, said = await ask(world, "start")
    assert not done
    assert world.clock.monotonic() - began < 120
    assert f"disk {disk} is that of vm-2 as well" in said[-2]
    assert said[-1] == "vm-1: start is still not done, and goes on (outlive why vm-1)"
    alive = HostLiveness(state=HostLife.ALIVE, text="alive", epoch=1, uid="")
    life = vm_liveness(vm_of(world), {"kvm-1": alive})
    assert (life.state, life.reason) == (VmLife.WAITING, "disk-not-shared")


async def test_a_start_that_all_hosts_refuse_ends_with_their_reason() -> None:
    hosts = tuple(HostSpec(name=f"kvm-{n}", rack=f"r{n}") for n in (1, 2))
    world = World(WorldSpec(hosts=hosts, vms=(VmSpec(name="vm-1", host="kvm-1"),), controllers=1), seed=1)
    await world.build()
    await world.start()
    await world.clock.sleep(STARTED_S)
    assert (await ask(world, "stop"))[0]
    for host in world.hosts.values():
        host.hypervisor.faults.start_fails["vm-1"] = ("no memory", 1000, False)
    began = world.clock.monotonic()
    done, said = await ask(world, "start")
    assert not done
    assert world.clock.monotonic() - began < 300
    assert said[-1].startswith("vm-1: start failed, and it waits: ")
    assert "no memory" in said[-1]
    assert world.running_hosts("vm-1") == ()
    await world.stop()


@run_by(play)
async def test_requests_are_followed_until_their_end(world: World) -> None:
    done, said = await ask(world, "migrate", target="kvm-2")
    assert done
    assert "vm-1: moves from kvm-1 to kvm-2: transferring" in said
    assert said[-1] == "vm-1: start on kvm-2, runs"
    assert (vm_of(world).host, vm_of(world).status.home) == ("kvm-2", "kvm-1")
    done, said = await ask(world, "migrate", target="kvm-1")
    assert not done
    assert "refused as already_migrated" in said[-1]
    assert (await ask(world, "unmigrate"))[0]
    assert vm_of(world).host == "kvm-1"
    assert (await ask(world, "restart"))[0]
    assert world.running_hosts("vm-1") != ()
    assert (await ask(world, "stop"))[0]
    assert world.running_hosts("vm-1") == ()
    assert is_at_rest(vm_of(world))
    assert (await ask(world, "move", target="kvm-2"))[0]
    assert vm_of(world).host == "kvm-2"
    done, said = await ask(world, "start")
    assert done
    assert said[-1] == "vm-1: start on kvm-2, runs"
    assert (await ask(world, "disable"))[0]
    assert vm_of(world).status.phase == "disable"


@run_by(play)
async def test_names_change_only_at_rest_and_what_is_undefined_is_stopped_first(world: World) -> None:
    store, clock = world.store, world.clock
    with pytest.raises(Refused, match="not stopped"):
        await rename_vm(store, clock, vm_of(world), "web")
    await ask(world, "stop")
    await rename_vm(store, clock, vm_of(world), "web")
    assert (await find_vm(store, "web")).name == "vm-1"
    await ask(world, "start")
    said: list[str] = []
    done = await undefine_vm(store, clock, IDS, await find_vm(store, "web"), said.append)
    assert done.startswith("VM vm-1 is being deleted: no host runs it")  # no recovery runs here
    assert done.endswith("; its disks stay: vm-1-root")
    assert said[-1] == "web: stop on kvm-1"
    assert world.running_hosts("vm-1") == ()


def test_a_vm_of_no_host_is_brought_to_one_and_starts_when_asked() -> None:
    """As ``outlive vm define`` writes it: recovery answers for it, and it does not run before its start."""

    async def played() -> None:
        hosts = tuple(HostSpec(name=f"kvm-{n}", rack=f"r{n}") for n in (1, 2))
        spec = WorldSpec(hosts=hosts, vms=(VmSpec(name="vm-1", host="kvm-1"),), controllers=1)
        world = World(spec, seed=1)
        await world.build()
        await world.start()
        await world.clock.sleep(STARTED_S)
        for name, target in (("named", "kvm-2"), ("chosen", "")):
            wanted = Request(id=f"define-{name}", verb="move", target=target)
            size = Amounts(cpu=1000, memory=1 << 30)
            vm = VirtualMachineSpec(resources=size, power_state="stopped", request=wanted, disks=(f"{name}-root",))
            await world.store.create(VirtualMachine(metadata=ObjectMeta(name=name), spec=vm))
            said: list[str] = []
            assert await follow_request(world.store, world.clock, name, wanted, said.append), said
            assert vm_of(world, name).host == (target or vm_of(world, name).host) != ""
            await world.clock.sleep(30)
            assert world.running_hosts(name) == ()
            assert await ask(world, "start", name) == (True, said_of_start(world, name))
            assert world.running_hosts(name) != ()
        await world.stop()

    def said_of_start(world: World, name: str) -> list[str]:
        where = vm_of(world, name).host
        return [f"{name}: start on {where}", f"{name}: start on {where}, runs"]

    run(played())


# Without hosts


def vm(name: str, display: str = "", **status: object) -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(display_name=display, power_state="stopped"),
        status=VirtualMachineStatus(**status),  # type: ignore[arg-type]
    )


def store_of(*vms: VirtualMachine) -> MemoryStore:
    store = MemoryStore(LoopClock(), IDS)
    store.load(vms)
    return store


class Between(MemoryStore):
    """A daemon writes the VM's status between a client's reading and its writing, once."""

    written = False

    async def replace(self, item: Any) -> Any:
        if not self.written:
            self.written = True
            found = await self.get(VirtualMachine, item.name)
            status = msgspec.structs.replace(found.status, home="kvm-1")
            await self.replace_status(msgspec.structs.replace(found, status=status))
        return await super().replace(item)


async def test_what_is_wanted_of_a_vm_is_changed_though_its_daemon_reports_in_the_same_moment() -> None:
    def live(found: VirtualMachine) -> VirtualMachine:
        return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, migration_method="live"))

    store = Between(LoopClock(), IDS)
    store.load([vm("vm-1", "web")])
    after = await change_vm(store, LoopClock(), await find_vm(store, "web"), live)
    assert (after.spec.migration_method, after.spec.display_name, after.status.home) == ("live", "web", "kvm-1")


def test_display_names_are_found_where_only_one_has_them() -> None:
    store = store_of(vm("a", "web"), vm("b", "db"), vm("c", "db"))
    assert run(find_vm(store, "web")).name == "a"
    with pytest.raises(BadInput, match=r"'db' is the name of several: db \(b\) and db \(c\)"):
        run(find_vm(store, "db"))
    with pytest.raises(NotFound, match="no VM 'Not There'"):
        run(find_vm(store, "Not There"))


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256, "a\nb"])
def test_a_name_that_no_domain_could_have_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        run(rename_vm(store_of(vm("a")), LoopClock(), vm("a"), name))


@pytest.mark.parametrize("name", ["b", "db"])
def test_a_name_of_another_vm_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="called"):
        run(rename_vm(store_of(vm("a"), vm("b", "db")), LoopClock(), vm("a"), name))


def test_a_request_that_was_overtaken_by_another_has_failed() -> None:
    mine = Request(id="1", verb="start")
    one = vm("a", answered=Answer(id="2", code="accepted"))
    later = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, request=Request(id="2", verb="stop")))
    assert outcome_of(later, mine) is False

"""Small virtual clusters in which nobody fences and nobody recovers: what hosts do by themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from outlive.node.membership import waits_for
from outlive.resources import (
    Assigned,
    Cluster,
    Fault,
    Hypervisor,
    MemberRecord,
    Membership,
    Proof,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.simulation import HostSpec, VmSpec, World, WorldSpec
from tests.support.loops import run

STARTED_S = 10.0
NOT_HERE = ("S3", "silence")
"""What nobody sees to here: no slots are placed, and stories condemn hosts by themselves."""

Story = Callable[[World], Awaitable[None]]


def play(
    story: Story,
    *,
    hosts: int = 2,
    vms: tuple[VmSpec, ...] = (VmSpec(name="vm-1", host="kvm-1"),),
    node: dict[str, Any] | None = None,
    seed: int = 1,
    violations: bool = False,
    cuts: Literal["none", "disks", "all"] = "none",
    primary_role: bool = False,
    **host: Any,
) -> None:
    """Start the cluster, let it settle, tell the story, and see that nothing went wrong on the way."""

    async def played() -> None:
        spec = WorldSpec(
            hosts=tuple(HostSpec(name=f"kvm-{n}", rack=f"r{n}", **host) for n in range(1, hosts + 1)),
            vms=vms,
            controllers=0,
            settings={"node": node or {}},
            cuts=cuts,
            primary_role=primary_role,
        )
        world = World(spec, seed=seed)
        await world.build()
        await world.start()
        await world.clock.sleep(STARTED_S)
        await story(world)
        if not violations:
            found = [str(one).splitlines()[0] for one in world.violations if one.invariant not in NOT_HERE]
            wrong = [one for one in found if "operator as users" not in one]  # the story itself plays other parts
            assert not wrong, wrong
        await world.stop()

    run(played())


async def at(world: World, seconds: float) -> None:
    """Until that moment of the story, counted from its start."""
    await world.clock.sleep(STARTED_S + seconds - world.clock.monotonic())


def vm_of(world: World, name: str = "vm-1") -> VirtualMachine:
    """As the store has it."""
    found = world.store.find(VirtualMachine, name)
    assert found is not None
    return found


def holders(world: World, name: str = "vm-1") -> list[tuple[str, int, str]]:
    """Host, epoch and what it says, of each holder."""
    return [(one.hypervisor, one.epoch, one.seen) for one in vm_of(world, name).status.holders]


def record(world: World, host: str = "kvm-1") -> MemberRecord:
    """The membership of a host."""
    found = world.store.find(Membership, host)
    assert found is not None
    return found.record


def host_of(world: World, host: str = "kvm-1") -> Hypervisor:
    """As the store has it."""
    found = world.store.find(Hypervisor, host)
    assert found is not None
    return found


def faults(world: World) -> set[str]:
    """Names of faults that are not over."""
    return {one.name for one in world.store.list_all(Fault) if not one.ended}


async def condemn(world: World, host: str = "kvm-1", *, dead: str = "") -> None:
    """What a fencer writes; with ``dead`` a kind of proof as well."""
    found = world.store.find(Membership, host)
    assert found is not None
    fence = msgspec.structs.replace(
        found.record.fence, id=f"{host}.{found.record.epoch}.abc", epoch=found.record.epoch, phase="condemned"
    )
    changed = msgspec.structs.replace(found.record, state="Revoked", fence=fence)
    if dead:
        proof = Proof(kind=dead, evidence="said so", epoch=found.record.epoch)  # type: ignore[arg-type]
        changed = msgspec.structs.replace(changed, dead_through=found.record.epoch, proof=proof)
    await world.store.replace(msgspec.structs.replace(found, record=changed))


async def set_status(world: World, name: str = "vm-1", **changes: Any) -> VirtualMachineStatus:
    """Write a part of a virtual machine's status, as a controller would."""
    vm = vm_of(world, name)
    status = msgspec.structs.replace(vm.status, **changes)
    written = await world.store.replace_status(msgspec.structs.replace(vm, status=status))
    return written.status


async def without_finalizer(world: World, name: str = "vm-1") -> None:
    """A virtual machine as earlier versions had it, which nothing keeps from being deleted."""
    vm = vm_of(world, name)
    await world.store.replace(msgspec.structs.replace(vm, metadata=msgspec.structs.replace(vm.metadata, finalizers=())))


def hears(world: World, vm: str = "vm-1") -> None:
    """Its guest reacts when asked to end, from now on."""
    for host in world.hosts.values():
        host.hypervisor.faults.ignores_shutdown.pop(vm, None)


def assigned(host: str, fence: str = "") -> Assigned:
    """To that host, by that fence."""
    return Assigned(hypervisor=host, fence=fence)


def narrated(world: World, subject: str, kind: str) -> list[str]:
    """What the history says of a subject, of one kind."""
    return [event.text for event in world.history.events if event.subject == subject and event.kind == kind]


def cluster_of(world: World) -> Cluster:
    """As the store has it."""
    found = world.store.find(Cluster, "default")
    assert found is not None
    return found


def waits(world: World) -> tuple[str, ...]:
    """Hosts that the paused cluster waits for."""
    cluster = cluster_of(world)
    members = {one.name: one.record for one in world.store.list_all(Membership)}
    hosts = [one.name for one in world.store.list_all(Hypervisor)]
    return waits_for(cluster, members, hosts) if cluster.paused else ()

"""The end of all faults: ``heal`` repairs what the seed broke, and ``Operator`` does what only an operator can do.

Only an operator can handle replaced machines, deleted memberships, fences that are held back, and a restored store that
waits for hosts which cannot come. ``Operator`` follows docs/concepts/safety.md#what-you-may-be-woken-for as often as it
is needed, and states only what is true.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from outlive.guard import Phase
from outlive.resources import Cluster, Fault, Hypervisor, MemberRecord, VirtualMachine
from outlive.resources.reasons import FaultCode, HoldReason
from outlive.simulation import QUIET, SPREADS_S, BmcMode, SimHost, World
from outlive.simulation.network import LAG_S, Fabric, OvnFaults
from outlive.simulation.verbs import end_second_network

HELD_BACK: Final = (FaultCode.STORM_HOLD, FaultCode.RATE_HOLD)
"""Faults that ask whether the silent hosts are really dead."""
ACCEPT_AFTER_S: Final = 90.0
"""Coordinators have so long to condemn the machine that was replaced; it may have been the last of them."""
CONFIRM_AFTER_S: Final = 60.0
"""Hosts have so long to register in a restored store before the operator confirms it."""


async def heal(world: World, *, but: Collection[str] = ()) -> None:
    """Restore power, networks, controllers, hypervisors and policies; clocks run on as they do.

    ``but``: hosts that stay off for good.
    """
    world.history.add("fault", "cluster", "everything is healed")
    world.rates, world.store_down = QUIET, False
    if world.ensemble is not None:
        world.ensemble.heal()
    world.slow.clear()
    world.reach_store()
    world.networks.heal_all()
    world.disks.unlock_strangers(world.hosts)
    world.disks.spreads_s = SPREADS_S
    if world.fabric is not None:
        heal_networks(world, world.fabric)
    for kernel in world.own.kernels.values() if world.own is not None else ():
        kernel.answers.set()
    world.hung_duties.clear()
    for service in world.controllers.values():
        if service.process is not None:
            service.process.go_on()
        if not service.alive:
            service.start()
    for host in world.hosts.values():
        _heal_host(world, host)
        if host.name in but:
            host.machine.unplug()
    await world.do("maintenance", {"on": False})
    cluster = world.store.find(Cluster, "default")
    if cluster is not None and cluster.spec.disarmed:
        await world.attempt("arm-cluster", {})
    await world.do("release", {})
    for name in sorted(world.withdrawn):
        if world.store.find(Hypervisor, name) is None:
            await world.do("apply-host", {"host": name})
    for host in world.hosts.values():
        await world.do("maintenance", {"on": False, "hosts": (host.name,)})
        await world.do("maintenance", {"on": False, "hosts": (host.name,), "power": True})
        await world.do("ready", {"host": host.name})
        found = world.store.find(Hypervisor, host.name)
        if found is not None and found.spec.fencing.requested:
            await world.attempt("call-off-fence", {"host": host.name})


def heal_networks(world: World, fabric: Fabric) -> None:
    """Restore databases, northd and chassis, and leave one network controller."""
    end_second_network(world)
    fabric.ovn.faults, fabric.lag_s = OvnFaults(), LAG_S
    fabric.stopped.clear()
    for host in world.hosts:
        fabric.refresh(host)
    fabric.ovn.catch_up()
    fabric.ovn.reconnect()


def _heal_host(world: World, host: SimHost) -> None:
    mode: BmcMode = host.spec.bmc
    world.wire(host.name, mode)
    host.hypervisor.heal()
    host.go_on()
    host.machine.watchdog.broken = False
    host.machine.disk_stall = 0.0
    host.machine.lacks = ""
    host.machine.plug()
    host.end_second()
    if not host.lives:
        return
    for service in (host.daemon, host.beside):
        if service is None:
            continue
        if service.process is not None:
            service.process.go_on()
        service.start()


class Operator:
    """The operator who is called after the faults, and does what only people can do until the cluster is at rest."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since_s = world.clock.monotonic()

    async def look(self) -> None:
        """Look at everything once and do what is necessary now; the next look tries again what failed."""
        world = self._world
        if any(fault.code in HELD_BACK and not fault.ended for fault in world.store.list_all(Fault)):
            await self._world.attempt("release", {})
        for host in world.hosts.values():
            member = world.store.find_member_record(host.name)
            if member is None:
                await self._without_membership(host)
            elif member.machine_id not in ("", host.machine.machine_id):
                await self._replaced(host, member)
            elif not member.former and self._waits_for_lost(host.name):
                await self._world.attempt(
                    "confirm-off", {"host": host.name, "lost": True, "looks": True, "reason": "I looked"}
                )
        await self._reboot()
        if world.truth.restored and self._patient(CONFIRM_AFTER_S):
            await self._confirm_store()

    async def _reboot(self) -> None:
        """Reboot hosts that were isolated or whose guard gave up: their faults ask for it."""
        for fault in self._world.store.list_all(Fault):
            if fault.code not in (FaultCode.HOST_ISOLATED, FaultCode.GUARD_NOT_ARMED) or fault.ended:
                continue
            host = self._world.hosts.get(fault.subject.name)
            if host is None or not host.lives:
                continue
            guard = host.answering_guard()
            gave_up = guard is not None and guard.state.phase is Phase.LOST
            if fault.code == FaultCode.HOST_ISOLATED or gave_up:
                await self._world.attempt("power-off", {"hosts": (host.name,)})
                await self._world.attempt("power-on", {"hosts": (host.name,)})

    def _patient(self, seconds: float) -> bool:
        """True once the cluster has had so many seconds by itself."""
        return self._world.clock.monotonic() - self._since_s > seconds

    async def _replaced(self, host: SimHost, member: MemberRecord) -> None:
        """Report the old machine as scrapped; accept the new one once no VM waits for the old one."""
        if member.dead_through < member.epoch and not self._patient(ACCEPT_AFTER_S):
            if member.state == "Revoked" and member.fence.id:
                await self._world.attempt(
                    "confirm-off", {"host": host.name, "looks": True, "reason": "it was scrapped"}
                )
            return
        if member.dead_through < member.epoch:
            await self._world.attempt("accept-machine", {"host": host.name})  # no coordinator is left to condemn it
            return
        vms = self._world.store.list_all(VirtualMachine)
        if not any(one.hypervisor == host.name for vm in vms for one in vm.status.holders):
            await self._world.attempt("accept-machine", {"host": host.name})

    async def _without_membership(self, host: SimHost) -> None:
        """An empty host forgets its membership and starts again; a host with VMs stays as it is."""
        if host.lives and not host.hypervisor.domains and host.machine.remembered is not None:
            await self._world.attempt("forget-membership", {"host": host.name})
            await self._world.attempt("kill-daemon", {"hosts": (host.name,)})

    def _waits_for_lost(self, host: str) -> bool:
        """True if a VM is down because a membership of the host does not exist any more."""
        return any(
            vm.status.recovery is not None
            and vm.status.recovery.reason == HoldReason.MEMBERSHIP_MISSING
            and any(one.hypervisor == host for one in vm.status.holders)
            for vm in self._world.store.list_all(VirtualMachine)
        )

    async def _confirm_store(self) -> None:
        """Confirm the restored store, unless a host that has not registered may still run a VM."""
        world = self._world
        unheard = [host for host in world.hosts.values() if world.truth.is_unregistered(host.name)]
        idle = not any(host.lives and (host.hypervisor.domains or host.hypervisor.creating) for host in unheard)
        cluster = world.store.find(Cluster, "default")
        confirmed = cluster is not None and cluster.spec.confirmed_incarnation == world.store.incarnation
        if unheard and idle and not confirmed:
            await world.attempt("confirm-incarnation", {})

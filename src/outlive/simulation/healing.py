"""The end of all faults: everything that was broken on purpose works again, and whoever waits for a word gets it."""

from __future__ import annotations

from outlive.simulation.spec import BmcMode
from outlive.simulation.world import World
from outlive.store.faults import FaultRates


async def heal(world: World) -> None:
    """Power, networks, controllers, hypervisors and policies as they were; clocks run on as they do."""
    world.history.add("fault", "cluster", "everything is healed")
    world.set_rates(FaultRates())
    world.set_store(down=False)
    world.networks.heal_all()
    for service in world.controllers.values():
        if not service.alive:
            service.start()
    for host in world.hosts.values():
        mode: BmcMode = host.spec.bmc
        world.wire(host.name, mode)
        host.hypervisor.faults.clear()
        host.go_on()
        host.machine.watchdog.broken = False
        host.machine.plug()
        host.machine.switch_on()
        if host.lives:
            if host.daemon.process is not None:
                host.daemon.process.go_on()
            host.daemon.start()
    await world.do("maintenance", {"on": False})
    await world.do("release", {})
    for host in world.hosts.values():
        await world.do("maintenance", {"on": False, "hosts": (host.name,)})
        await world.do("ready", {"host": host.name})

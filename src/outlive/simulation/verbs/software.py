"""What happens to daemons, guards, controllers and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlive.base.errors import BadInput
from outlive.simulation.hosts import Service
from outlive.simulation.process import Process
from outlive.simulation.verbs.arguments import Arguments, after, hosts_in, texts
from outlive.store.faults import FaultRates

if TYPE_CHECKING:
    from outlive.simulation.world import World


async def kill_daemon(world: World, given: Arguments) -> None:
    """The daemon dies; its service manager starts it again."""
    for host in hosts_in(world, given):
        if host.lives:
            host.daemon.kill()


async def stop_daemon(world: World, given: Arguments) -> None:
    """The daemon is stopped, cleanly, and stays so."""
    for host in hosts_in(world, given):
        host.daemon.stop(leave_vms=bool(given.get("leaveVms", False)), going_down=bool(given.get("goingDown", False)))


async def start_daemon(world: World, given: Arguments) -> None:
    """It is started again."""
    for host in hosts_in(world, given):
        if host.lives:
            host.daemon.start()


async def pause_daemon(world: World, given: Arguments) -> None:
    """It stands still, by a signal or because it computes."""
    for host in hosts_in(world, given):
        service, process = host.daemon, host.daemon.process
        if process is None or not process.alive:
            continue
        process.halt()
        world.history.add("process", service.name, "stands still")
        after(given, lambda process=process: process.go_on())  # type: ignore[misc]


async def resume_daemon(world: World, given: Arguments) -> None:
    """It goes on."""
    for host in hosts_in(world, given):
        if host.daemon.process is not None:
            host.daemon.process.go_on()


async def second_daemon(world: World, given: Arguments) -> None:
    """Another daemon is started on a host, beside the one that runs."""
    for host in hosts_in(world, given):
        name = f"{host.name}/second-daemon"

        def make(process: Process, host: Any = host) -> Any:
            return world.make_daemon(host, process)

        world.controllers[name] = Service(name, make, world.history, 5.0)
        world.controllers[name].start()


async def kill_guard(world: World, given: Arguments) -> None:
    """The guard dies; its service manager starts it again."""
    for host in hosts_in(world, given):
        if host.lives:
            host.guard.kill()


async def kill_controller(world: World, given: Arguments) -> None:
    """Controllers die and stay so."""
    for service in _controllers(world, given):
        service.kill(again=False)


async def start_controller(world: World, given: Arguments) -> None:
    """They are started again."""
    for service in _controllers(world, given):
        service.start()


async def store_outage(world: World, given: Arguments) -> None:
    """Nobody reaches the store."""
    world.set_store(down=True)
    after(given, lambda: world.set_store(down=False))


async def store_heal(world: World, given: Arguments) -> None:
    """Everybody does."""
    world.set_store(down=False)


async def store_faults(world: World, given: Arguments) -> None:
    """Calls and observers suffer at these rates."""
    try:
        rates = msgspec.convert(dict(given.get("rates", {})), FaultRates)
    except msgspec.ValidationError as error:
        raise BadInput(f"rates of faults: {error}", remedy="see docs/operating/simulating.md") from error
    world.set_rates(rates)


async def store_snapshot(world: World, given: Arguments) -> None:
    """A backup is made."""
    world.store.snapshot()


async def store_restore(world: World, given: Arguments) -> None:
    """The last backup is put back."""
    world.judge.restored = True
    world.store.restore()


def _controllers(world: World, given: Arguments) -> list[Service]:
    names = texts(given, "names")
    for name in names:
        if name not in world.controllers:
            raise BadInput(f"there is no controller {name}", remedy=f"there are {', '.join(world.controllers)}")
    return [world.controllers[name] for name in names]

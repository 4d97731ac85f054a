"""What happens to daemons, guards, controllers and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlive.base.errors import BadInput
from outlive.simulation.hosts import Service
from outlive.simulation.process import Process
from outlive.simulation.verbs.arguments import (
    FOR,
    HOST,
    HOSTS,
    SOME_HOSTS,
    Argument,
    Arguments,
    Kind,
    after,
    hosts_in,
    number,
    texts,
    verb,
)
from outlive.store.faults import FaultRates

if TYPE_CHECKING:
    from outlive.simulation.world import World


SECOND_S = 5.0
"""After so long whoever started the second daemon tries it again."""


@verb("kill-daemon", "the daemon of {who} dies", {"hosts": HOSTS})
async def kill_daemon(world: World, given: Arguments) -> None:
    """The daemon dies; its service manager starts it again."""
    for host in hosts_in(world, given):
        if host.lives:
            host.daemon.kill()


@verb(
    "stop-daemon",
    "the daemon of {who} is stopped",
    {"hosts": HOSTS, "leaveVms": Argument(Kind.FLAG), "goingDown": Argument(Kind.FLAG)},
)
async def stop_daemon(world: World, given: Arguments) -> None:
    """The daemon is stopped, cleanly, and stays so."""
    for host in hosts_in(world, given):
        host.daemon.stop(leave_vms=bool(given.get("leaveVms", False)), going_down=bool(given.get("goingDown", False)))


@verb("start-daemon", "the daemon of {who} is started", {"hosts": HOSTS})
async def start_daemon(world: World, given: Arguments) -> None:
    """It is started again."""
    for host in hosts_in(world, given):
        if host.lives:
            host.daemon.start()


@verb("pause-daemon", "the daemon of {who} stands still{for}", {"hosts": HOSTS, "for": FOR})
@verb("hog-daemon", "the daemon of {who} computes{for} and answers nobody", {"hosts": HOSTS, "for": FOR})
async def pause_daemon(world: World, given: Arguments) -> None:
    """It stands still, by a signal or because it computes."""
    for host in hosts_in(world, given):
        service, process = host.daemon, host.daemon.process
        if process is None or not process.alive:
            continue
        process.halt()
        world.history.add("process", service.name, "stands still")
        after(given, lambda process=process: process.go_on())  # type: ignore[misc]


@verb("second-daemon", "somebody starts a second daemon on {who}", {"host": HOST, "for": FOR})
async def second_daemon(world: World, given: Arguments) -> None:
    """Another daemon is started on a host, beside the one that runs, again and again."""
    for host in hosts_in(world, given):
        if not host.lives or host.second is not None:
            continue

        def make(process: Process, host: Any = host) -> Any:
            return world.make_daemon(host, process)

        host.second = Service(f"{host.name}/second-daemon", make, world.history, SECOND_S)
        host.second.start()
        after(given, host.end_second)


@verb("kill-guard", "the guard of {who} dies", {"hosts": HOSTS})
async def kill_guard(world: World, given: Arguments) -> None:
    """The guard dies; its service manager starts it again."""
    for host in hosts_in(world, given):
        if host.lives:
            host.guard.kill()


@verb("kill-controller", "a controller dies: {details}", {"names": Argument(Kind.NAMES, True)})
async def kill_controller(world: World, given: Arguments) -> None:
    """Controllers die and stay so."""
    for service in _controllers(world, given):
        service.kill(again=False)


@verb("start-controller", "a controller is started: {details}", {"names": Argument(Kind.NAMES, True)})
async def start_controller(world: World, given: Arguments) -> None:
    """They are started again; those beside a host's daemon only where the host runs, and does not stand still."""
    for service in _controllers(world, given):
        host = world.hosts.get(service.name.partition("/")[0])
        if host is None or (host.lives and not host.paused):
            service.start()


@verb(
    "pause-controller", "a controller stands still{for}: {details}", {"names": Argument(Kind.NAMES, True), "for": FOR}
)
async def pause_controller(world: World, given: Arguments) -> None:
    """Controllers stand still."""
    for service in _controllers(world, given):
        process = service.process
        if process is None or not process.alive:
            continue
        process.halt()
        world.history.add("process", service.name, "stands still")
        after(given, process.go_on)


@verb("store-outage", "nobody reaches the store{for}", {"for": FOR})
async def store_outage(world: World, given: Arguments) -> None:
    """Nobody reaches the store."""
    world.set_store(down=True)
    after(given, lambda: _store_is_back(world))


def _store_is_back(world: World) -> None:
    if world.store_down:
        world.set_store(down=False)
        world.history.add("store", "store", "everybody reaches the store again", loud=True)


@verb("store-faults", "the store loses some answers: {details}", {"rates": Argument(Kind.MAPPING, True)})
async def store_faults(world: World, given: Arguments) -> None:
    """Calls and observers suffer at these rates."""
    try:
        rates = msgspec.convert(dict(given.get("rates", {})), FaultRates)
    except msgspec.ValidationError as error:
        raise BadInput(f"rates of faults: {error}", remedy="see docs/operating/simulating.md") from error
    world.set_rates(rates)


@verb(
    "slow-store",
    "calls to the store take longer: {details}",
    {"hosts": SOME_HOSTS, "by": Argument(Kind.DURATION, True)},
)
async def slow_store(world: World, given: Arguments) -> None:
    """Calls to the store take so much longer, one way: those of some hosts, or everybody's."""
    hosts = [host.name for host in hosts_in(world, given)] if given.get("hosts") else []
    world.slow_store(hosts, number(given, "by"))


@verb("store-snapshot", "somebody makes a backup of the store")
async def store_snapshot(world: World, given: Arguments) -> None:
    """A backup is made."""
    world.store.snapshot()


@verb("store-restore", "somebody restores the backup of the store")
async def store_restore(world: World, given: Arguments) -> None:
    """The last backup is put back."""
    world.store.restore()
    world.truth.restored = True


def _controllers(world: World, given: Arguments) -> list[Service]:
    found: list[Service] = []
    for name in texts(given, "names"):
        service = world.controller(name)
        if service is None:
            raise BadInput(f"there is no controller {name}", remedy=f"there are {', '.join(world.controllers)}")
        found.append(service)
    return found

"""What happens to daemons, guards, controllers and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from outlive.base.errors import BadInput
from outlive.runtime.units import Duration
from outlive.simulation.hosts import Service
from outlive.simulation.verbs.table import Names, after, verb
from outlive.store.faults import FaultRates

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World


SECOND_S = 5.0
"""After so long whoever started the second daemon tries it again."""


@verb("kill-daemon", "the daemon of {who} dies")
def _kill_daemon(world: World, host: SimHost) -> None:
    """Its service manager starts it again."""
    if host.lives:
        host.daemon.kill()


@verb("stop-daemon", "the daemon of {who} is stopped")
def _stop_daemon(world: World, host: SimHost, leave_vms: bool = False, going_down: bool = False) -> None:
    host.daemon.stop(leave_vms=leave_vms, going_down=going_down)


@verb("start-daemon", "the daemon of {who} is started")
def _start_daemon(world: World, host: SimHost) -> None:
    if host.lives:
        host.daemon.start()


@verb("pause-daemon", "the daemon of {who} stands still{for}")
@verb("hog-daemon", "the daemon of {who} computes{for} and answers nobody")
def _pause_daemon(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """By a signal, or because it computes."""
    _pause(world, host.daemon, for_)


@verb("second-daemon", "somebody starts a second daemon on {who}")
def _second_daemon(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """Beside the one that runs, again and again."""
    if not host.lives or host.second is not None:
        return
    host.second = Service(
        f"{host.name}/second-daemon", lambda process: world.make_daemon(host, process), world.history, SECOND_S
    )
    host.second.start()
    after(for_, host.end_second)


@verb("kill-guard", "the guard of {who} dies")
def _kill_guard(world: World, host: SimHost) -> None:
    """Its service manager starts it again."""
    if host.lives:
        host.guard.kill()


@verb("kill-controller", "a controller dies: {details}")
def _kill_controller(world: World, names: Names) -> None:
    """It stays down."""
    for service in _controllers(world, names):
        service.kill(again=False)


@verb("start-controller", "a controller is started: {details}")
def _start_controller(world: World, names: Names) -> None:
    """Beside a host's daemon only where the host runs, and does not stand still."""
    for service in _controllers(world, names):
        host = world.hosts.get(service.name.partition("/")[0])
        if host is None or (host.lives and not host.paused):
            service.start()


@verb("pause-controller", "a controller stands still{for}: {details}")
def _pause_controller(world: World, names: Names, for_: Duration | None = None) -> None:
    for service in _controllers(world, names):
        _pause(world, service, for_)


def _pause(world: World, service: Service, for_: Duration | None) -> None:
    process = service.process
    if process is not None and process.alive:
        process.halt()
        world.history.add("process", service.name, "stands still")
        after(for_, process.go_on)


@verb("store-outage", "nobody reaches the store{for}")
def _store_outage(world: World, for_: Duration | None = None) -> None:
    world.store_down = True
    world.reach_store()
    after(for_, lambda: _store_is_back(world))


def _store_is_back(world: World) -> None:
    if world.store_down:
        world.store_down = False
        world.reach_store()
        world.history.add("store", "store", "everybody reaches the store again", loud=True)


@verb("store-faults", "the store loses some answers: {details}")
def _store_faults(world: World, rates: dict[str, Any]) -> None:
    """Calls and observers suffer at these rates."""
    try:
        world.rates = msgspec.convert(rates, FaultRates)
    except msgspec.ValidationError as error:
        raise BadInput(f"rates of faults: {error}", remedy="see docs/operating/simulating.md") from error
    world.reach_store()


@verb("slow-store", "calls to the store take longer: {details}")
def _slow_store(world: World, by: Duration, hosts: Names | None = None) -> None:
    """One way, and for everybody where no hosts are named."""
    world.slow |= dict.fromkeys([host.name for host in world.named(hosts or ())] or [""], by)
    world.reach_store()


@verb("store-snapshot", "somebody makes a backup of the store")
def _store_snapshot(world: World) -> None:
    world.store.snapshot()


@verb("store-restore", "somebody restores the backup of the store")
def _store_restore(world: World) -> None:
    world.store.restore()
    world.truth.restored = True
    world.judge.batches.restored()


def _controllers(world: World, names: Names) -> list[Service]:
    found: list[Service] = []
    for name in names:
        service = world.controller(name)
        if service is None:
            raise BadInput(f"there is no controller {name}", remedy=f"there are {', '.join(world.controllers)}")
        found.append(service)
    return found

"""What happens to daemons, guards, controllers and the store.

Verbs of a ZooKeeper ensemble name a server by its number; ``server: 0`` is the one that leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from outlive.base import BadInput
from outlive.runtime import Duration
from outlive.simulation.hosts import SimService
from outlive.simulation.verbs.table import Names, call_after, register_verb
from outlive.store import FaultRates

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

SECOND_S = 5.0
"""After so long the operator who started the second daemon tries it again."""
Server = Annotated[int, Meta(ge=0)]


@register_verb("kill-daemon", "the daemon of {who} dies")
def _kill_daemon(world: World, host: SimHost) -> None:
    """Its service manager starts it again."""
    if host.lives:
        host.daemon.kill()


@register_verb("stop-daemon", "the daemon of {who} is stopped")
def _stop_daemon(world: World, host: SimHost, leave_vms: bool = False, going_down: bool = False) -> None:
    host.daemon.stop(leave_vms=leave_vms, going_down=going_down)


@register_verb("start-daemon", "the daemon of {who} is started")
def _start_daemon(world: World, host: SimHost) -> None:
    if host.lives:
        host.daemon.start()


@register_verb("pause-daemon", "the daemon of {who} stands still{for}")
@register_verb("hog-daemon", "the daemon of {who} computes{for} and answers nobody")
def _pause_daemon(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """By a signal, or because it computes."""
    _pause(world, host.daemon, for_)


@register_verb("second-daemon", "somebody starts a second daemon on {who}")
def _start_second_daemon(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """Beside the one that runs, again and again."""
    if not host.lives or host.second is not None:
        return
    host.second = SimService(
        f"{host.name}/second-daemon", lambda process: world.make_daemon(host, process), world.history, SECOND_S
    )
    host.second.start()
    call_after(for_, host.end_second)


@register_verb("kill-guard", "the guard of {who} dies")
def _kill_guard(world: World, host: SimHost) -> None:
    """Its service manager starts it again."""
    if host.lives:
        host.guard.kill()


@register_verb("kill-controller", "a controller dies: {details}")
def _kill_controller(world: World, names: Names) -> None:
    """It stays down."""
    for service in _find_controllers(world, names):
        service.kill(again=False)


@register_verb("start-controller", "a controller is started: {details}")
def _start_controller(world: World, names: Names) -> None:
    """Beside a host's daemon only where the host runs, and does not stand still."""
    for service in _find_controllers(world, names):
        host = world.hosts.get(service.name.partition("/")[0])
        if host is None or (host.lives and not host.paused):
            service.start()


@register_verb("pause-controller", "a controller stands still{for}: {details}")
def _pause_controller(world: World, names: Names, for_: Duration | None = None) -> None:
    for service in _find_controllers(world, names):
        _pause(world, service, for_)


def _pause(world: World, service: SimService, for_: Duration | None) -> None:
    process = service.process
    if process is not None and process.alive:
        process.halt()
        world.history.add("process", service.name, "stands still")
        call_after(for_, process.go_on)


@register_verb("store-outage", "nobody reaches the store{for}")
def _store_outage(world: World, for_: Duration | None = None) -> None:
    world.store_down = True
    world.reach_store()
    call_after(for_, lambda: _restore_store_access(world))


def _restore_store_access(world: World) -> None:
    if world.store_down:
        world.store_down = False
        world.reach_store()
        world.history.add("store", "store", "everybody reaches the store again", loud=True)


@register_verb("store-faults", "the store loses some answers: {details}")
def _store_faults(world: World, rates: dict[str, Any]) -> None:
    """Calls and observers suffer at these rates."""
    try:
        world.rates = msgspec.convert(rates, FaultRates)
    except msgspec.ValidationError as error:
        raise BadInput(f"rates of faults: {error}", remedy="see docs/reference/scenarios.md") from error
    world.reach_store()


@register_verb("slow-store", "calls to the store take longer: {details}")
def _delay_store(world: World, by: Duration, hosts: Names | None = None) -> None:
    """One way, and for everybody where no hosts are named."""
    world.slow |= dict.fromkeys([host.name for host in world.find_hosts(hosts or ())] or [""], by)
    world.reach_store()


@register_verb("store-snapshot", "somebody makes a backup of the store")
def _store_snapshot(world: World) -> None:
    world.store.make_backup()


@register_verb("store-restore", "somebody restores the backup of the store")
def _store_restore(world: World) -> None:
    world.store.restore()
    world.truth.restored = True
    world.judge.batches.handle_restore()


def _find_controllers(world: World, names: Names) -> list[SimService]:
    found: list[SimService] = []
    for name in names:
        service = world.find_controller(name)
        if service is None:
            raise BadInput(f"there is no controller {name}", remedy=f"there are {', '.join(world.controllers)}")
        found.append(service)
    return found


@register_verb("zookeeper-kill", "a server of ZooKeeper dies: {details}")
def _kill_server(world: World, server: Server, for_: Duration | None = None) -> None:
    """Without a time it stays down until the faults are over."""
    _change(world, server, for_, {"up": False}, {"up": True})


@register_verb("zookeeper-pause", "a server of ZooKeeper stands still{for}: {details}")
def _pause_server(world: World, server: Server, for_: Duration | None = None) -> None:
    _change(world, server, for_, {"paused": True}, {"paused": False})


@register_verb("zookeeper-cut", "a server of ZooKeeper is apart from the others{for}: {details}")
def _cut_server(world: World, server: Server, for_: Duration | None = None) -> None:
    _change(world, server, for_, {"apart": True}, {"apart": False})


@register_verb("zookeeper-lag", "a server of ZooKeeper shows changes late{for}: {details}")
def _delay_server(world: World, server: Server, by: Duration, for_: Duration | None = None) -> None:
    """Of the one that leads nothing is late."""
    _change(world, server, for_, {"lag_s": by}, {"lag_s": 0.0})


def _change(
    world: World, number: int, for_: Duration | None, states: dict[str, float | bool], back: dict[str, float | bool]
) -> None:
    ensemble = world.ensemble
    if ensemble is None:
        raise BadInput("the cluster has no ensemble", remedy="write zookeeper: 3 into cluster.yaml")
    chosen = number or ensemble.leader or 1
    ensemble.change(chosen, **states)
    call_after(for_, lambda: ensemble.change(chosen, **back))

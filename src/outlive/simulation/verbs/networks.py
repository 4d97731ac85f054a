"""What happens to OVN: its databases, northd, the chassis of hosts, and who else writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from outlive.base.errors import BadInput
from outlive.network.copies import VmKey
from outlive.network.names import OWN_NAMESPACE
from outlive.network.operations import PORTS, delete
from outlive.network.owners import vm_keys
from outlive.runtime.units import Duration
from outlive.simulation.hosts import Service
from outlive.simulation.network.fabric import LAG_S, Fabric
from outlive.simulation.network.ovn import OvnFault
from outlive.simulation.verbs.table import Names, after, verb

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

RESTARTS_S: Final = 2.0
"""After so long the second network controller is started again where it died."""
Database = Literal["northbound", "southbound"]
Commit = Literal["lost-before", "lost-after", "overtaken", "crash-before", "crash-after"]
FAULTS: Final[dict[Commit, OvnFault]] = {
    "lost-before": OvnFault.LOST_BEFORE,
    "lost-after": OvnFault.LOST_AFTER,
    "overtaken": OvnFault.OVERTAKEN,
    "crash-before": OvnFault.CRASH_BEFORE,
    "crash-after": OvnFault.CRASH_AFTER,
}


@verb("ovn-outage", "OVN's databases do not answer{for}: {details}")
def _ovn_outage(
    world: World,
    databases: Annotated[tuple[Database, ...], Meta(min_length=1)] = ("northbound", "southbound"),
    for_: Duration | None = None,
) -> None:
    """Without the southbound one no chassis hears of anything new, and all go on with the flows that they have."""
    ovn = fabric_of(world).ovn
    faults = ovn.faults
    faults.northbound_down = faults.northbound_down or "northbound" in databases
    faults.southbound_down = faults.southbound_down or "southbound" in databases

    def answer() -> None:
        faults.northbound_down = faults.northbound_down and "northbound" not in databases
        faults.southbound_down = faults.southbound_down and "southbound" not in databases
        ovn.catch_up()
        ovn.reconnect()
        world.history.add("network", "ovn", "OVN's databases answer again", loud=True)

    after(for_, answer)


@verb("northd-stuck", "northd does nothing{for}")
def _northd_stuck(world: World, for_: Duration | None = None) -> None:
    """What is written to the northbound database stays there."""
    ovn = fabric_of(world).ovn
    ovn.faults.northd_down = True

    def go_on() -> None:
        ovn.faults.northd_down = False
        ovn.catch_up()

    after(for_, go_on)


@verb("ovn-commits", "the next transactions of OVN go wrong: {details}")
def _ovn_commits(world: World, faults: Annotated[tuple[Commit, ...], Meta(min_length=1)]) -> None:
    """One each, whoever makes them: an answer is lost before or after the commit, others are faster, or who commits
    dies."""
    fabric_of(world).ovn.faults.transactions += [FAULTS[one] for one in faults]


@verb("slow-ovn", "OVN's databases answer, and report changes, later: {details}")
def _slow_ovn(
    world: World, by: Duration = Duration(0.0), events: Duration = Duration(0.0), flows: Duration = Duration(0.0)
) -> None:
    """``by``: calls take longer; ``events``: changes are reported so much later; ``flows``: northd, and each chassis,
    take up to so much longer for a change."""
    fabric = fabric_of(world)
    fabric.lag_s = (LAG_S[0], LAG_S[1] + flows)
    faults = fabric.ovn.faults
    faults.latency_s = (0.001 + by, 0.005 + by)
    faults.event_delay_s = events


@verb("ovn-snapshot", "somebody makes a backup of the northbound database")
def _ovn_snapshot(world: World) -> None:
    fabric = fabric_of(world)
    fabric.backup = fabric.ovn.backup()


@verb("ovn-restore", "somebody restores the backup of the northbound database")
def _ovn_restore(world: World) -> None:
    """Nothing happens where nobody has made one."""
    fabric = fabric_of(world)
    if fabric.backup is not None:
        fabric.ovn.restore(fabric.backup)


@verb("lose-rows", "somebody deletes the logical ports of {vms}")
def _lose_rows(world: World, vms: Names) -> None:
    ovn = fabric_of(world).ovn
    ovn.commit([delete(PORTS, {"external_ids": vm_keys(VmKey(OWN_NAMESPACE, vm))}) for vm in vms], "somebody")


@verb("stop-ovn-controller", "the ovn-controller of {who} hangs{for}")
def _stop_ovn_controller(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """Its switch goes on with the flows that it has."""
    fabric, boots = fabric_of(world), host.machine.boots
    fabric.stopped.add(host.name)
    fabric.refresh(host.name)
    after(for_, lambda: _start(fabric, host) if host.machine.boots == boots else None)


@verb("start-ovn-controller", "the ovn-controller of {who} is started again")
def _start_ovn_controller(world: World, host: SimHost) -> None:
    _start(fabric_of(world), host)


def _start(fabric: Fabric, host: SimHost) -> None:
    fabric.stopped.discard(host.name)
    fabric.refresh(host.name)


@verb("second-network-controller", "a second network controller writes as well{for}")
def _second_network_controller(world: World, for_: Duration | None = None) -> None:
    """Beside the one that leads, as if both had won the election."""
    fabric_of(world)
    if world.second_network is not None:
        return
    service = Service("second-network-controller", world.make_network_controller, world.history, RESTARTS_S)
    world.second_network = service
    service.start()
    after(for_, lambda: end_second_network(world))


def end_second_network(world: World) -> None:
    """End the second network controller, if there is one."""
    if world.second_network is not None:
        world.second_network.kill(again=False)
        world.second_network = None


def fabric_of(world: World) -> Fabric:
    """The OVN of the world; ``BadInput`` where its VMs have no networks there."""
    if world.fabric is None:
        raise BadInput("the cluster has no networks in OVN", remedy="name some in cluster.yaml: networks")
    return world.fabric

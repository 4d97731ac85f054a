"""What happens to networks.

OVN: its databases, northd, the chassis of hosts, and other writers. Networks that hosts make: the kernel, the addresses
of the primary, and the process that removes these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from outlive.base import BadInput
from outlive.network import OWN_NAMESPACE, PORTS, VmKey, delete, vm_keys
from outlive.runtime import Duration
from outlive.simulation.hosts import SimService
from outlive.simulation.network.fabric import LAG_S, Fabric
from outlive.simulation.network.ovn import OvnFault
from outlive.simulation.verbs.table import Names, call_after, register_verb

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.links.processes import OwnNetworks
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


@register_verb("ovn-outage", "OVN's databases do not answer{for}: {details}")
def _stop_databases(
    world: World,
    databases: Annotated[tuple[Database, ...], Meta(min_length=1)] = ("northbound", "southbound"),
    for_: Duration | None = None,
) -> None:
    """Without the southbound one no chassis hears of anything new, and all go on with the flows that they have."""
    ovn = fabric_of(world).ovn
    faults = ovn.faults
    faults.northbound_down = faults.northbound_down or "northbound" in databases
    faults.southbound_down = faults.southbound_down or "southbound" in databases

    def restore_databases() -> None:
        faults.northbound_down = faults.northbound_down and "northbound" not in databases
        faults.southbound_down = faults.southbound_down and "southbound" not in databases
        ovn.catch_up()
        ovn.reconnect()
        world.history.add("network", "ovn", "OVN's databases answer again", loud=True)

    call_after(for_, restore_databases)


@register_verb("northd-stuck", "northd does nothing{for}")
def _hang_northd(world: World, for_: Duration | None = None) -> None:
    """What is written to the northbound database stays there."""
    ovn = fabric_of(world).ovn
    ovn.faults.northd_down = True

    def go_on() -> None:
        ovn.faults.northd_down = False
        ovn.catch_up()

    call_after(for_, go_on)


@register_verb("ovn-commits", "the next transactions of OVN go wrong: {details}")
def _disturb_commits(world: World, faults: Annotated[tuple[Commit, ...], Meta(min_length=1)]) -> None:
    """One each, of any process: an answer is lost before or after the commit, others are faster, or the process
    dies."""
    fabric_of(world).ovn.faults.transactions += [FAULTS[one] for one in faults]


@register_verb("slow-ovn", "OVN's databases answer, and report changes, later: {details}")
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


@register_verb("ovn-snapshot", "somebody makes a backup of the northbound database")
def _make_backup(world: World) -> None:
    fabric = fabric_of(world)
    fabric.backup = fabric.ovn.make_backup()


@register_verb("ovn-restore", "somebody restores the backup of the northbound database")
def _restore_backup(world: World) -> None:
    """Nothing happens where nobody has made one."""
    fabric = fabric_of(world)
    if fabric.backup is not None:
        fabric.ovn.restore(fabric.backup)


@register_verb("lose-rows", "somebody deletes the logical ports of {vms}")
def _lose_rows(world: World, vms: Names) -> None:
    ovn = fabric_of(world).ovn
    ovn.commit([delete(PORTS, {"external_ids": vm_keys(VmKey(OWN_NAMESPACE, vm))}) for vm in vms], "somebody")


@register_verb("stop-ovn-controller", "the ovn-controller of {who} hangs{for}")
def _stop_ovn_controller(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """Its switch goes on with the flows that it has."""
    fabric, boots = fabric_of(world), host.machine.boots
    fabric.stopped.add(host.name)
    fabric.refresh(host.name)
    call_after(for_, lambda: _start(fabric, host) if host.machine.boots == boots else None)


@register_verb("start-ovn-controller", "the ovn-controller of {who} is started again")
def _start_ovn_controller(world: World, host: SimHost) -> None:
    _start(fabric_of(world), host)


def _start(fabric: Fabric, host: SimHost) -> None:
    fabric.stopped.discard(host.name)
    fabric.refresh(host.name)


@register_verb("second-network-controller", "a second network controller writes as well{for}")
def _start_second_controller(world: World, for_: Duration | None = None) -> None:
    """Beside the one that leads, as if both had won the election."""
    fabric_of(world)
    if world.second_network is not None:
        return
    service = SimService("second-network-controller", world.make_network_controller, world.history, RESTARTS_S)
    world.second_network = service
    service.start()
    call_after(for_, lambda: end_second_network(world))


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


@register_verb("hang-links", "the kernel of {who} answers no change of its network{for}")
def _hang_links(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """What was asked for meanwhile is done then."""
    kernel = own_networks(world).kernels[host.name]
    kernel.answers.clear()
    call_after(for_, kernel.answers.set)


@register_verb("lose-addresses", "somebody removes the addresses of the primary from the devices of {who}")
def _lose_addresses(world: World, host: SimHost) -> None:
    """By hand; nothing happens where the host has none."""
    own = own_networks(world)
    for device, address in list(own.guards[host.name].noted):
        own.kernels[host.name].remove_address(device, address)


@register_verb("kill-role-guard", "the process of {who} dies that takes addresses of the primary back")
def _kill_role_guard(world: World, host: SimHost) -> None:
    """The daemon starts it again."""
    own_networks(world).guards[host.name].kill()


def own_networks(world: World) -> OwnNetworks:
    """Networks that hosts of the world make; ``BadInput`` where they make none."""
    if world.own is None:
        raise BadInput("hosts make no networks of their own", remedy="write systemNetworks into cluster.yaml")
    return world.own

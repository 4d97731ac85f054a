"""What happens to networks that hosts make themselves, and to who takes addresses of the primary back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base.errors import BadInput
from outlive.runtime.units import Duration
from outlive.simulation.verbs.table import after, verb

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.links.processes import OwnNetworks
    from outlive.simulation.world import World


@verb("hang-links", "the kernel of {who} answers no change of its network{for}")
def _hang_links(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """What was asked for meanwhile is done then."""
    kernel = own_networks(world).kernels[host.name]
    kernel.answers.clear()
    after(for_, kernel.answers.set)


@verb("lose-addresses", "somebody removes the addresses of the primary from the devices of {who}")
def _lose_addresses(world: World, host: SimHost) -> None:
    """By hand; nothing happens where the host has none."""
    own = own_networks(world)
    for device, address in list(own.guards[host.name].noted):
        own.kernels[host.name].remove_address(device, address)


@verb("kill-role-guard", "the process of {who} dies that takes addresses of the primary back")
def _kill_role_guard(world: World, host: SimHost) -> None:
    """The daemon starts it again."""
    own_networks(world).guards[host.name].kill()


def own_networks(world: World) -> OwnNetworks:
    """Networks that hosts of the world make; ``BadInput`` where they make none."""
    if world.own is None:
        raise BadInput("hosts make no networks of their own", remedy="write systemNetworks into cluster.yaml")
    return world.own

"""Networks of VMs in some seeds, and what happens to OVN there.

Both are drawn by themselves, so that everything else of a seed is as it was, and a seed without networks is the same.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from outlive.base import Random
from outlive.resources import Subnet
from outlive.simulation import PHASES, NetworkEntry, VmSpec, WorldSpec, uses_ovn, vms_of
from outlive.simulation.verbs import FAULTS
from tests.swarm.faults.draw import FROM_S, UNTIL_S, Draw, Kind

NETWORK_SHARE: Final = 0.3
"""Of the seeds, so many have VMs on networks in OVN."""
FAULT_RATES: Final = (0.01, 0.03, 0.08)
"""Faults of one kind a second."""
IPV6: Final = "fd44::/32"
NETWORKS: Final = (
    NetworkEntry(name="red", type="routed", subnets=(Subnet(cidr="10.44.0.0/16"),)),
    NetworkEntry(name="pink", type="routed", subnets=(Subnet(cidr="10.45.0.0/16"), Subnet(cidr=IPV6))),
    NetworkEntry(name="green", type="layer2", subnets=(Subnet(cidr="192.168.40.0/24", gateway="192.168.40.1"),)),
    NetworkEntry(name="open", type="layer2", addressing="none", port_security=False),
    NetworkEntry(name="blue", type="localnet", subnets=(Subnet(cidr="10.9.0.0/24", gateway="10.9.0.1"),)),
    NetworkEntry(name="physical", type="localnet", addressing="none"),
)


def connected(random: Random, spec: WorldSpec) -> WorldSpec:
    """In some seeds most VMs have interfaces on one network, or two."""
    if random.random() >= NETWORK_SHARE:
        return spec
    some = tuple(random.sample(NETWORKS, random.choice((1, 1, 2, 3))))
    networks = tuple(
        replace(one, dhcp=replace(one.dhcp, router=random.choice(("link-local", "subnet")))) for one in some
    )
    share = random.choice((0.5, 1.0, 1.0))
    vms = tuple(_on_networks(random, vm, networks) if random.random() < share else vm for vm in vms_of(spec))
    return replace(spec, networks=networks, vms=vms)


def _on_networks(random: Random, vm: VmSpec, networks: tuple[NetworkEntry, ...]) -> VmSpec:
    some = random.sample(networks, min(len(networks), random.choice((1, 1, 1, 2))))
    mode = random.choice((None, None, "shared", "twin"))
    return replace(vm, networks=tuple(one.name for one in some), port_mode=mode)


def _outage(draw: Draw, at_s: float) -> None:
    databases = draw.random.choice((("northbound",), ("southbound",), ("northbound", "southbound")))
    draw.add(at_s, "ovn-outage", databases=databases, for_=draw.short())


def _commits(draw: Draw, at_s: float) -> None:
    some = tuple(draw.random.choice(list(FAULTS)) for _ in range(draw.random.randint(1, 4)))
    draw.add(at_s, "ovn-commits", faults=some)


def _backup(draw: Draw, at_s: float) -> None:
    draw.add(at_s, "ovn-snapshot")
    draw.add(at_s + draw.short(), "ovn-restore")


def _chassis(draw: Draw, at_s: float) -> None:
    """The ovn-controller of a host hangs, of one that is being moved to or from, or of any."""
    vm, to = draw.vm(), draw.host().name
    draw.add(at_s, "stop-ovn-controller", hosts=(draw.random.choice((vm.host, to)),), for_=draw.short())
    if draw.random.random() < 0.5:
        draw.add(at_s + draw.random.uniform(-3.0, 3.0), "move", vm=vm.name, to=to, live=True)


def _move(draw: Draw, at_s: float) -> None:
    """A live move, during which something may happen to one of its ends."""
    vm, to = draw.vm(), draw.host().name
    if draw.random.random() < 0.3:
        draw.add(at_s, "migration-fails", hosts=(vm.host,), phase=draw.random.choice(PHASES))
    draw.add(at_s, "move", vm=vm.name, to=to, live=True)
    happens, host = draw.random.choice(("", "", "power", "chassis", "daemon")), draw.random.choice((vm.host, to))
    then_s = at_s + draw.random.uniform(0.0, 9.0)
    if happens == "power":
        draw.while_(then_s, draw.short(), "power-off", "power-on", hosts=(host,))
    elif happens == "chassis":
        draw.add(then_s, "stop-ovn-controller", hosts=(host,), for_=draw.short())
    elif happens == "daemon":
        draw.add(then_s, "kill-daemon", hosts=(host,))


OVN: Final[dict[str, Kind]] = {
    "outage": _outage,
    "northd": lambda draw, at_s: draw.add(at_s, "northd-stuck", for_=draw.short()),
    "commits": _commits,
    "slow": lambda draw, at_s: draw.briefly(
        at_s,
        "slow-ovn",
        {"by": 0.0, "events": 0.0, "flows": 0.0},
        by=draw.random.choice((0.0, 0.2, 1.0)),
        events=draw.random.choice((0.0, 1.0, 5.0)),
        flows=draw.random.choice((0.0, 0.5, 3.0)),
    ),
    "backup": _backup,
    "lose-rows": lambda draw, at_s: draw.add(at_s, "lose-rows", vms=(draw.vm().name,)),
    "chassis": _chassis,
    "start-chassis": lambda draw, at_s: draw.while_(
        at_s, draw.short(), "stop-ovn-controller", "start-ovn-controller", hosts=draw.one()
    ),
    "second": lambda draw, at_s: draw.add(at_s, "second-network-controller", for_=draw.short()),
    "moves": _move,
}
"""What happens to OVN, and while VMs move on its networks."""


def network_faults(random: Random, draw: Draw) -> None:
    """Some kinds of them, where VMs have networks."""
    if not uses_ovn(draw.spec):
        return
    drawn = Draw(random, draw.spec)
    for name in random.sample(list(OVN), random.choice((1, 2, 3, 5, len(OVN)))):
        rate = random.choice(FAULT_RATES)
        at_s = FROM_S + random.expovariate(rate)
        while at_s < UNTIL_S:
            OVN[name](drawn, at_s)
            at_s += random.expovariate(rate)
    draw.faults += drawn.faults

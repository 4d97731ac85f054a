"""Networks that hosts make themselves, and functions of their cards, in some seeds, and what happens to them.

Both are drawn by themselves, so that everything else of a seed is as it was, and a seed without them is the same.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from outlive.base import Random
from outlive.resources import DhcpRange, FunctionNeed, Subnet, SystemNetwork
from outlive.simulation import HostSpec, NetworkEntry, VmSpec, WorldSpec, hosts_of, vms_of
from tests.swarm.faults.draw import FROM_S, UNTIL_S, Draw, Kind

OWN_SHARE: Final = 0.25
"""Of the seeds, in so many hosts make their own networks, and coordinators stand for the role of the primary."""
FUNCTION_SHARE: Final = 0.15
"""Of the seeds, in so many some hosts have cards with virtual functions, and some VMs need one."""
COORDINATORS: Final = 2
"""So many of the hosts are coordinators there at least."""
FAULT_RATES: Final = (0.02, 0.05, 0.1)
"""Faults of one kind a second."""
SYSTEM: Final = {
    "upstream": SystemNetwork(cidr="10.60.0.0/24", floating="10.60.0.200"),
    "cluster": SystemNetwork(cidr="10.61.0.0/24", floating="10.61.0.200"),
}
MANAGED: Final = (
    NetworkEntry(
        name="white",
        type="managed",
        vni=70,
        subnets=(
            Subnet(cidr="10.70.0.0/24", gateway="10.70.0.1", dhcp=DhcpRange(start="10.70.0.10", end="10.70.0.250")),
            Subnet(cidr="fd00:70::/64", gateway="fd00:70::1"),
        ),
    ),
    NetworkEntry(
        name="grey",
        type="managed",
        vni=71,
        subnets=(
            Subnet(cidr="10.71.0.0/24", gateway="10.71.0.1", dhcp=DhcpRange(start="10.71.0.10", end="10.71.0.40")),
        ),
    ),
)


def with_own_networks(random: Random, spec: WorldSpec) -> WorldSpec:
    """In some seeds hosts make networks: their own ones, and one or two on which most VMs are."""
    if random.random() >= OWN_SHARE:
        return spec
    hosts = tuple(
        replace(host, mode="coordinator") if number < COORDINATORS else host
        for number, host in enumerate(hosts_of(spec))
    )
    spec = replace(spec, hosts=hosts, primary_role=True, system_networks=dict(SYSTEM))
    if spec.networks or random.random() < 0.3:
        return spec
    managed = MANAGED[: random.choice((1, 2))]
    share = random.choice((0.5, 1.0))
    vms = tuple(
        replace(vm, networks=(random.choice(managed).name,)) if random.random() < share else vm for vm in vms_of(spec)
    )
    return replace(spec, networks=managed, vms=vms)


def with_functions(random: Random, spec: WorldSpec) -> WorldSpec:
    """In some seeds most hosts have a card with a few functions, and some VMs need one where they begin."""
    if random.random() >= FUNCTION_SHARE:
        return spec
    hosts: list[HostSpec] = []
    left: dict[str, list[str]] = {}
    for host in hosts_of(spec):
        count = random.choice((0, 2, 4, 4))
        left[host.name] = [f"eth9v{number}" for number in range(count)]
        hosts.append(replace(host, functions={"eth9": count}) if count else host)
    vms: list[VmSpec] = []
    for vm in vms_of(spec):
        if len(left[vm.host]) > 1 and random.random() < 0.3:  # one stays free for those who come
            vms.append(replace(vm, functions=(FunctionNeed(name=left[vm.host].pop(0)),)))
        else:
            vms.append(vm)
    return replace(spec, hosts=tuple(hosts), vms=tuple(vms))


def _coordinators(draw: Draw) -> list[str]:
    return [host.name for host in draw.hosts if host.mode == "coordinator"]


def _hand_over(draw: Draw, at_s: float) -> None:
    """The role is asked for, and something may happen to a coordinator meanwhile."""
    host, other = draw.random.choice(_coordinators(draw)), draw.random.choice(_coordinators(draw))
    draw.add(at_s, draw.random.choice(("primary", "primary", "secondary")), hosts=(host,))
    then_s = at_s + draw.random.uniform(0.0, 4.0)
    match draw.random.choice(("", "", "daemon", "power", "pause", "links", "store", "guard")):
        case "daemon":
            draw.add(then_s, "kill-daemon", hosts=(other,))
        case "power":
            draw.while_(then_s, draw.short(), "power-off", "power-on", hosts=(other,))
        case "pause":
            draw.add(then_s, "pause-daemon", hosts=(other,), for_=draw.short())
        case "links":
            draw.add(then_s, "hang-links", hosts=(other,), for_=draw.short())
        case "store":
            draw.add(then_s, "store-outage", for_=draw.short())
        case "guard":
            draw.add(then_s, "kill-role-guard", hosts=(other,))


def _hung_duty(draw: Draw, at_s: float) -> None:
    host = draw.random.choice(_coordinators(draw))
    draw.add(at_s, "hang-duty", hosts=(host,))
    draw.add(at_s + draw.short(), "hang-duty", hosts=(host,), on=False)


LINKS: Final[dict[str, Kind]] = {
    "hand-over": _hand_over,
    "stand-still": lambda draw, at_s: draw.add(
        at_s, "pause-daemon", hosts=(draw.random.choice(_coordinators(draw)),), for_=draw.short()
    ),
    "hang-links": lambda draw, at_s: draw.add(at_s, "hang-links", hosts=draw.one(), for_=draw.short()),
    "kill-role-guard": lambda draw, at_s: draw.add(at_s, "kill-role-guard", hosts=draw.one()),
    "lose-address": lambda draw, at_s: draw.add(at_s, "lose-addresses", hosts=draw.one()),
    "hang-duty": _hung_duty,
}
"""What happens to the role of the primary and to hosts' own networks."""


def link_faults(random: Random, draw: Draw) -> None:
    """Some kinds of them, where hosts make their own networks."""
    if not draw.spec.system_networks:
        return
    drawn = Draw(random, draw.spec)
    for name in random.sample(list(LINKS), random.choice((2, 3, len(LINKS)))):
        rate = random.choice(FAULT_RATES)
        at_s = FROM_S + random.expovariate(rate)
        while at_s < UNTIL_S:
            LINKS[name](drawn, at_s)
            at_s += random.expovariate(rate)
    draw.faults += drawn.faults

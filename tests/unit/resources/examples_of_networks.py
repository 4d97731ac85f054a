"""Networks and ports with every field set."""

from __future__ import annotations

from tests.unit.resources.example_parts import META, MOMENT, READY

from outlive import resources as r
from outlive.resources.networks import DhcpRange, DhcpReservation, FirewallRule, NetworkDhcp, Subnet

NETWORKS: tuple[r.Resource, ...] = (
    r.DhcpLease(
        metadata=META,
        network="green",
        mac="0a:58:c0:a8:28:0a",
        address="192.168.40.10",
        hostname="web",
        client_id="01:0a",
        iaid="7",
        expires_at=MOMENT,
    ),
    r.VirtualMachinePort(
        metadata=META,
        spec=r.VirtualMachinePortSpec(
            vm="cart",
            network="green",
            mac="0a:58:c0:a8:28:09",
            addresses=("192.168.40.9/24",),
            port_mode="twin",
            port_security=False,
            max_gap_ms=200,
        ),
        status=r.VirtualMachinePortStatus(
            network="green",
            addresses=("192.168.40.9/24",),
            gateways=("192.168.40.1",),
            port_mode="twin",
            interfaces={"h1": "7b1c"},
            active_on="h1",
            migration=r.PortMove(
                id="m-17",
                prepared=True,
                reason="not-bound",
                message="m",
                target="kvm-2",
                incarnation="i-2",
                times_ms={"commit": 3.5},
            ),
            announcements=(r.Announcement(id="m-17", hypervisor="h1", interface="7b1c", frames=("ffff",)),),
            gap_ms=12.5,
            switched_at=MOMENT,
            conditions=(READY,),
        ),
    ),
    r.VirtualNetwork(
        metadata=META,
        spec=r.VirtualNetworkSpec(
            type="localnet",
            subnets=(
                Subnet(
                    cidr="192.168.40.0/24",
                    host_prefix=26,
                    gateway="192.168.40.1",
                    excluded=("192.168.40.2",),
                    dhcp=DhcpRange(start="192.168.40.10", end="192.168.40.20"),
                ),
            ),
            addressing="none",
            mtu=1342,
            port_security=False,
            dhcp=NetworkDhcp(enabled=True, router="subnet", dns_servers=("10.45.0.10",)),
            physical_network="physnet",
            vlan=40,
            host_labels={"rack": "a"},
            vni=200,
            domain="green.example",
            name_servers=("ns.example",),
            reservations=(DhcpReservation(mac="0a:58:c0:a8:28:0a", address="192.168.40.10", hostname="web"),),
            rules=(FirewallRule(name="ssh", direction="in", order=1, rule="tcp dport 22 accept"),),
        ),
        status=r.VirtualNetworkStatus(
            type="routed", host_subnets={"h1": ("10.44.7.0/24",)}, ports=3, mtu=1450, conditions=(READY,)
        ),
    ),
)

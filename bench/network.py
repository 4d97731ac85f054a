"""The OVN driver on a real northbound database: start-up, memory and the way of a change, with the rows of many VMs."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.ovn import Ovn

from bench.figures import Figure
from outlive.drivers.ovn import OvnNorthbound, OvnSouthbound
from outlive.network import (
    CLUSTER_ROUTER,
    DHCP,
    ID_KEY,
    NAME_KEY,
    NAMESPACE_KEY,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    VM_KEY,
    ZONE_KEY,
    Op,
    Plan,
    Scope,
    VmKey,
    router_port,
    upsert,
)

VMS, CHASSIS = 5_000, 500
BATCH = 40
"""VMs of one transaction: 5 rows each."""
CHANGES = 500
LIMIT_S = 60.0


def vm_ops(number: int, hypervisor: int) -> list[Op]:
    """The rows of a VM: a port, two DHCP rows, a route and a policy."""
    name, address = f"vm-{number}", f"10.{number >> 8}.{number & 255}.23"
    ids = {NAMESPACE_KEY: "shop", VM_KEY: name, ZONE_KEY: "local"}
    ops = []
    for family, options in (("4", {"lease_time": "3500", "router": "169.254.1.1", "mtu": "1400"}), ("6", {})):
        id = f"default-network-controller:VirtualMachine:shop/{name}:{family}"
        external = {ID_KEY: id, NAME_KEY: f"shop/{name}", ZONE_KEY: "local"}
        cidr = "10.0.0.0/8" if family == "4" else "fd44::/64"
        row = {"cidr": cidr, "options": {**options, "hostname": f'"{name}"'}, "external_ids": external}
        ops.append(upsert(DHCP, {"external_ids": {ID_KEY: id}}, row))
    port = {
        "name": f"shop_{name}",
        "switch": f"hv-{hypervisor}",
        "addresses": [f"0a:58:0a:00:00:01 {address}"],
        "port_security": [f"0a:58:0a:00:00:01 {address}"],
        "options": {"requested-chassis": f"hv-{hypervisor}"},
        "dhcpv4_options": f"default-network-controller:VirtualMachine:shop/{name}:4",
        "dhcpv6_options": f"default-network-controller:VirtualMachine:shop/{name}:6",
        "external_ids": ids,
    }
    route = {
        "ip_prefix": address,
        "policy": "dst-ip",
        "nexthop": address,
        "output_port": router_port(f"hv-{hypervisor}"),
    }
    match = {"match": f"ip4.src == {address}", "priority": 10}
    policy = {**match, "action": "reroute", "nexthops": ["100.64.0.3"], "external_ids": ids}
    return [
        *ops,
        upsert(PORTS, {"name": port["name"]}, port),
        upsert(ROUTES, {"ip_prefix": address, "policy": "dst-ip"}, {**route, "external_ids": ids}),
        upsert(POLICIES, match, policy),
    ]


def hypervisor_ops(number: int) -> list[Op]:
    """The switch of a hypervisor and the router's port to it."""
    name = f"hv-{number}"
    port = {
        "name": router_port(name),
        "mac": "0a:58:a9:fe:01:01",
        "networks": [f"10.{number >> 8}.{number & 255}.1/24"],
    }
    return [
        upsert(SWITCHES, {"name": name}, {"name": name}),
        upsert(ROUTER_PORTS, {"name": router_port(name)}, port),
    ]


def plan_of(ops: list[Op]) -> Plan:
    """A plan that is always these operations."""
    return lambda _rows, _features: ops


async def connect(nb: str, sb: str) -> tuple[OvnNorthbound, OvnSouthbound]:
    """Both databases."""
    southbound = OvnSouthbound(sb, limit_s=LIMIT_S)
    northbound = OvnNorthbound(nb, southbound, limit_s=LIMIT_S)
    await southbound.start()
    await northbound.start()
    return northbound, southbound


async def fill(nb: str, sb: str) -> float:
    """Write all rows into an empty database; the seconds that those of the VMs took."""
    northbound, southbound = await connect(nb, sb)
    router = upsert(ROUTERS, {"name": CLUSTER_ROUTER}, {"name": CLUSTER_ROUTER})
    await northbound.transact(Scope(names=("none",)), plan_of([router]), comment="bench")
    for first in range(0, CHASSIS, 100):
        ops = [op for number in range(first, first + 100) for op in hypervisor_ops(number)]
        await northbound.transact(Scope(names=("none",)), plan_of(ops), comment="bench")
    start = time.perf_counter()
    for first in range(0, VMS, BATCH):
        ops = [op for number in range(first, first + BATCH) for op in vm_ops(number, number % CHASSIS)]
        await northbound.transact(Scope(names=("none",)), plan_of(ops), comment="bench", numbered=False)
    took = time.perf_counter() - start
    await northbound.aclose()
    await southbound.aclose()
    return took


async def start_up(nb: str, sb: str) -> dict[str, Any]:
    """In a fresh process: read everything, compare the rows of all VMs, then change single VMs."""
    start = time.perf_counter()
    northbound, southbound = await connect(nb, sb)
    await northbound.read_rows(Scope(names=("none",)))
    loaded = time.perf_counter() - start
    for first in range(0, VMS, BATCH):
        ops = [op for number in range(first, first + BATCH) for op in vm_ops(number, number % CHASSIS)]
        receipt = await northbound.transact(Scope(names=("none",)), plan_of(ops), comment="bench", numbered=False)
        assert not receipt.ops
    compared = time.perf_counter() - start
    times = []
    for number in range(CHANGES):
        vm = number * 7 % VMS
        scope = Scope(vms=(VmKey("shop", f"vm-{vm}"),), ports=(f"shop_vm-{vm}",))
        ops = vm_ops(vm, (vm + 1) % CHASSIS)
        before = time.perf_counter()
        receipt = await northbound.transact(scope, plan_of(ops), comment="bench")
        times.append((time.perf_counter() - before) * 1000)
        assert len(receipt.ops) == 2
    await northbound.aclose()
    await southbound.aclose()
    return {"loaded": loaded, "compared": compared, "times": times}


def measure() -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="ovn-") as folder:
        ovn = Ovn(Path(folder), 0)
        try:
            ovn.switch.start()
            ovn.switch.plug("central", 1)
            for database in (*ovn.northbound, ovn.southbound):
                database.start()
            ovn.nbctl("init")
            missing = asyncio.run(fill(ovn.nb_remote, ovn.sb_remote))
            words = [sys.executable, "-m", "bench.network", ovn.nb_remote, ovn.sb_remote]
            child = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
        finally:
            ovn.stop()
    found = json.loads(child.stdout)
    of = f"{VMS:,} VMs on {CHASSIS} chassis"
    slowest = statistics.quantiles(found["times"], n=100)[98]
    return [
        Figure(f"OVN driver: rows are known, {of}", found["loaded"], "s"),
        Figure("OVN driver: the same, and all were compared and are right", found["compared"], "s", 5),
        Figure("OVN driver: all rows of the VMs were missing", missing, "s", 30, note="200 operations a transaction"),
        Figure("OVN driver: highest resident memory", found["memory"], "MiB", 200),
        Figure("OVN driver: a VM's rows change, p99", slowest, "ms", 50, note="planned, committed and read back"),
    ]


if __name__ == "__main__":
    answer = asyncio.run(start_up(sys.argv[1], sys.argv[2]))
    highest = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({**answer, "memory": int(highest.split()[1]) / 1024}))

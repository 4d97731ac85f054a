"""The network controller with the VMs of our own hosts on a real northbound database: start-up, and one VM's change."""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from lab.ovn import Ovn

from bench.figures import Figure
from outlive.base import Random, SystemClock, SystemIds
from outlive.drivers.ovn import OvnNorthbound, OvnSouthbound
from outlive.network import INTERFACE_KEY, PORTS, NetworkController, NetworkInformers, interface_indexes, port_indexes
from outlive.resources import (
    Assigned,
    Cluster,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
)
from outlive.runtime import DecisionLog, Informer, Manager, Metrics
from outlive.store import MemoryStore, compare_and_swap

VMS, HOSTS = 5_000, 500
CHANGES = 200
LIMIT_S = 180.0
_replace = msgspec.structs.replace


def measure() -> list[Figure]:
    """The part's figures."""
    with tempfile.TemporaryDirectory() as folder, Ovn(Path(folder), 0) as ovn:
        for number in range(HOSTS):
            words = ["chassis-add", f"kvm-{number}", "geneve", f"10.9.{number // 250}.{number % 250 + 1}"]
            ovn.sbctl(*words)
        return asyncio.run(_measure(ovn))


async def _measure(ovn: Ovn) -> list[Figure]:
    store = MemoryStore(SystemClock(), SystemIds())
    store.load(_objects())
    started_s = await _start_up(store, ovn)
    again_s, changes_ms = await _start_up(store, ovn, changes=True)
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    changes_ms.sort()
    return [
        Figure("own VMs: start-up, no row there", started_s[0], "s", 30),
        Figure("own VMs: start-up, all rows right", again_s, "s", 5),
        Figure("own VMs: an assignment to its rows, median", statistics.median(changes_ms), "ms"),
        Figure("own VMs: an assignment to its rows, p99", changes_ms[int(len(changes_ms) * 0.99) - 1], "ms", 50),
        Figure("own VMs: memory of the process, with the store", memory_mib, "MiB", 200),
    ]


def _objects() -> list[Any]:
    found: list[Any] = [
        VirtualNetwork(
            metadata=ObjectMeta(name="green"),
            spec=VirtualNetworkSpec(type="layer2", subnets=(Subnet(cidr="10.0.0.0/16", gateway="10.0.0.1"),)),
        )
    ]
    found += [
        Hypervisor(metadata=ObjectMeta(name=f"kvm-{number}"), spec=HypervisorSpec(management="node"))
        for number in range(HOSTS)
    ]
    for number in range(VMS):
        name = f"vm-{number}"
        mac = f"0a:58:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}:01"
        spec = VirtualMachinePortSpec(vm=name, network="green", mac=mac)
        found.append(VirtualMachinePort(metadata=ObjectMeta(name=f"{name}.0"), spec=spec))
        interface = f"00000000-0000-4000-8000-{number:012d}"
        found.append(
            VirtualMachine(
                metadata=ObjectMeta(name=name),
                spec=VirtualMachineSpec(ports=(interface,)),
                status=VirtualMachineStatus(assigned=Assigned(hypervisor=f"kvm-{number % HOSTS}")),
            )
        )
    return found


async def _start_up(store: MemoryStore, ovn: Ovn, *, changes: bool = False) -> tuple[float, list[float]]:
    """Seconds until OVN has the rows of all VMs and nothing is left to do, and then those of single changes in ms."""
    clock, random, metrics = SystemClock(), Random(1), Metrics()
    southbound = OvnSouthbound(ovn.sb_remote)
    northbound = OvnNorthbound(ovn.nb_remote, southbound)
    await southbound.start()
    await northbound.start()
    manager = Manager(clock, random, metrics, SystemIds())

    def informer(kind: Any, indexes: Any = None) -> Informer[Any]:
        return Informer(store, kind, clock=clock, random=random, indexes=indexes)

    informers = NetworkInformers(
        ports=informer(VirtualMachinePort, port_indexes()),
        networks=informer(VirtualNetwork),
        vms=informer(VirtualMachine, interface_indexes()),
        hosts=informer(Hypervisor),
        clusters=informer(Cluster),
    )
    controller = NetworkController(
        store,
        informers,
        northbound,
        southbound,
        metrics=metrics,
        decisions=DecisionLog(clock),
        clock=clock,
        emit=lambda *_args, **_more: None,
    )
    controller.attach(manager, None)
    began = time.perf_counter()
    running = asyncio.ensure_future(manager.run())
    try:
        await _settled(metrics, northbound)
        took_s = time.perf_counter() - began
        return took_s, await _changes(store, northbound) if changes else []
    finally:
        manager.stop()
        await asyncio.wait((running,), timeout=30)
        await northbound.aclose()
        await southbound.aclose()


async def _settled(metrics: Metrics, northbound: OvnNorthbound) -> None:
    """Until each VM was looked at, and OVN has a port of each."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        lines = metrics.render().decode().splitlines()
        name = 'controller_reconciles_total{controller="network",result="ok"}'
        done = sum(float(line.rpartition(" ")[2]) for line in lines if name in line)
        if done >= VMS:
            rows = await northbound.read_rows()
            if sum(INTERFACE_KEY in row.get("external_ids", {}) for row in rows.get(PORTS, ())) >= VMS:
                return
        await asyncio.sleep(0.1)
    raise TimeoutError("the controller did not settle")


async def _changes(store: MemoryStore, northbound: OvnNorthbound) -> list[float]:
    """Assign VMs to other hosts, one after the other."""
    found = []
    for number in range(CHANGES):
        name, host = f"vm-{number}", f"kvm-{(number + 7) % HOSTS}"
        began = time.perf_counter()

        def change(vm: VirtualMachine | None, host: str = host) -> VirtualMachine | None:
            assert vm is not None
            return _replace(vm, status=_replace(vm.status, assigned=Assigned(hypervisor=host)))

        await compare_and_swap(store, VirtualMachine, name, change, clock=SystemClock())
        await _await_row(northbound, f"00000000-0000-4000-8000-{number:012d}", host)
        found.append(1000 * (time.perf_counter() - began))
    return found


async def _await_row(northbound: OvnNorthbound, port: str, host: str) -> None:
    from outlive.network import Scope

    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        (row,) = (await northbound.read_rows(Scope(ports=(port,))))[PORTS]
        if row["options"]["requested-chassis"] == host:
            return
        await asyncio.sleep(0.001)
    raise TimeoutError(f"port {port} did not follow")

"""Network services of a primary that reaches its store by the API, with the rights of a coordinator."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tests.integration.test_network_services import network, until
from tests.support.api import HOST, TOKENS, api
from tests.support.plain_services import PlainDhcp, PlainMetadata, plain_ports

from outlive.api import Role
from outlive.base import Random, SystemClock, SystemIds
from outlive.node import ROLE
from outlive.node.services import LeaseChange, NameSettings, NetworkServices, ServedLease, service_metrics
from outlive.resources import (
    HOST_LABEL,
    USER_DATA,
    Assigned,
    DhcpLease,
    Election,
    ElectionRecord,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
)
from outlive.runtime import FaultRecorder, FaultSet, Informer
from outlive.store import HttpStore, MemoryStore, list_all

OTHER = "kvm-2"
UUID = "6f9619ff-8b86-4011-b42d-00cf4fc964ff"


def vm(number: int, bridge: str) -> VirtualMachine:
    """A VM on the other host, whose interface is on this bridge."""
    mac = f"02:00:00:00:00:0{number}"
    definition = (
        f"<domain type='kvm'><name>v{number}</name><uuid>{UUID[:-1]}{number}</uuid><memory unit='MiB'>96</memory>"
        f"<vcpu>1</vcpu><os><type>hvm</type></os><devices><interface type='bridge'><mac address='{mac}'/>"
        f"<source bridge='{bridge}'/></interface></devices></domain>"
    )
    return VirtualMachine(
        metadata=ObjectMeta(
            name=f"v{number}", labels={HOST_LABEL: OTHER}, annotations={USER_DATA: f"data {number}", "own": "secret"}
        ),
        spec=VirtualMachineSpec(definition=definition, flavor="small", ports=(mac,)),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor=OTHER)),
    )


def told(number: int) -> LeaseChange:
    lease = ServedLease(address=f"10.10.0.10{number}", mac=f"02:00:00:00:00:0{number}", expires=4_000_000_000)
    return LeaseChange(vni=10, action="add", lease=lease)


async def test_the_primary_answers_guests_of_other_hosts_and_writes_leases_with_the_rights_of_a_coordinator() -> None:
    clock, behind = SystemClock(), MemoryStore(SystemClock(), SystemIds())
    record = ElectionRecord(holder=HOST, term=1)
    behind.load(
        [
            Hypervisor(metadata=ObjectMeta(name=HOST), spec=HypervisorSpec(mode="coordinator")),
            Election(metadata=ObjectMeta(name=ROLE), record=record),
            vm(1, "vmbr10"),
            vm(2, "br-of-somebody"),
            network("blue", 10),
        ]
    )
    ports = plain_ports()
    dhcp, metadata = ports.dhcp, ports.metadata
    assert isinstance(dhcp, PlainDhcp)
    assert isinstance(metadata, PlainMetadata)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(api(behind))
        store = HttpStore(server.url, TOKENS[Role.COORDINATOR], clock=clock, random=Random(1), insecure=True)
        stack.push_async_callback(store.close)
        networks = Informer(store, VirtualNetwork, clock=clock, random=Random(2))
        services = NetworkServices(
            store,
            ports,
            networks,
            host=HOST,
            names=NameSettings(tuple, "ns.example"),
            has_gateways=lambda _network: True,
            faults=FaultSet(FaultRecorder(store, clock, "daemon", HOST), clock),
            clock=clock,
            random=Random(3),
        )
        following = [asyncio.create_task(services.run()), asyncio.create_task(networks.run())]
        try:
            await services.start(1)
            dhcp.tell(told(1), told(2))

            async def stored() -> bool:
                return len([one async for one in list_all(behind, DhcpLease)]) == 2

            await until(stored)
            values = {
                (family.name, *sample.labels.values()): sample.value
                for family in service_metrics(None, services)
                for sample in family.samples
            }
            assert values == {
                ("node_role_addresses",): 0,
                ("node_role_addresses_failed",): 0,
                ("node_dhcp_leases", "blue"): 2,
                ("node_dhcp_free_addresses", "blue"): 9,
                ("node_network_services_failed", "dhcp"): 0,
                ("node_network_services_failed", "metadata"): 0,
                ("node_network_services_failed", "names"): 0,
            }
            answers = [
                (await metadata.ask("vmbr10", f"10.10.0.10{number}", path)).text
                for number in (1, 2)
                for path in ("/latest/user-data", "/latest/meta-data/profile", "/latest/meta-data/name")
            ]
            assert answers == ["data 1", "small", "v1", "", "", ""]
        finally:
            await services.stop()
            for task in following:
                task.cancel()
            await asyncio.wait(following)

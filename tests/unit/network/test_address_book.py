"""The book of addresses: what rows of OVN say of them, and how long what is not written yet is remembered."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.network_clouds import guest, objects

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.network import (
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    PORTS,
    AddressBook,
    AddressedPort,
    Columns,
    NetworkInformers,
    StatusWriter,
    VmKey,
    VmPlace,
    address_book,
    interface_indexes,
    port_indexes,
    read_addresses,
    vm_keys,
)
from outlive.resources import Cluster, Hypervisor, Resource, VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.runtime import Informer
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn
from outlive.store import MemoryStore, list_all

MAC = "02:00:00:00:00:01"
PLACE = VmPlace("ch-1")


def row(*addresses: str, namespace: str = OWN_NAMESPACE, owner: str = OWN_CONTROLLER) -> Columns:
    ids = {OWNER_KEY: owner, NETWORK_KEY: "green", **vm_keys(VmKey(namespace, "web"))}
    return {"name": "port", "addresses": list(addresses), "external_ids": ids}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row(f"{MAC.upper()} 10.1.0.7 FD44::7"), {("web", "green", MAC): ("10.1.0.7", "fd44::7")}),
        (row(f"{MAC} 10.1.0.7", "unknown"), {("web", "green", MAC): ("10.1.0.7",)}),
        (row(MAC), {("web", "green", MAC): ()}),
        (row(), {}),
        (row("router"), {}),
        (row(""), {}),
        (row(f"{MAC} house"), {}),
        (row(f"{MAC} 10.1.0.7", namespace="shop"), {}),
        (row(f"{MAC} 10.1.0.7", owner="somebody"), {}),
    ],
)
def test_what_rows_say_of_addresses(found: Columns, expected: dict[Any, Any]) -> None:
    read = read_addresses({PORTS: [found]})
    assert read.ports == expected
    assert read.owners == {("green", one): "web" for many in expected.values() for one in many}


class Frozen(StatusWriter):
    """Writes nothing, as long as it is ``broken``."""

    broken = False

    async def write_port(self, name: str, change: Any) -> VirtualMachinePort | None:
        if self.broken:
            raise Unavailable("a test")
        return await super().write_port(name, change)


async def book_of(*given: Resource) -> tuple[AddressBook, NetworkInformers, Frozen, LoopClock]:
    clock, random = LoopClock(), Random(1)
    store = MemoryStore(clock, SeededIds(random))
    informers = NetworkInformers(
        ports=Informer(store, VirtualMachinePort, clock=clock, random=random, indexes=port_indexes()),
        networks=Informer(store, VirtualNetwork, clock=clock, random=random),
        vms=Informer(store, VirtualMachine, clock=clock, random=random, indexes=interface_indexes()),
        hosts=Informer(store, Hypervisor, clock=clock, random=random),
        clusters=Informer(store, Cluster, clock=clock, random=random),
    )
    store.load((*objects("green"), *given))
    caches: tuple[Informer[Any], ...] = (informers.ports, informers.networks, informers.vms, informers.hosts)
    for cache in caches:
        async for one in list_all(store, cache.kind):
            cache.note(one)
    writer = Frozen(store, informers, clock)
    northbound = SimulatedNorthbound(SimulatedOvn(), clock, random)
    return AddressBook(informers, writer, northbound, clock), informers, writer, clock


async def given_to(book: AddressBook, informers: NetworkInformers, name: str) -> str:
    port, network = informers.ports.get(name), informers.networks.get("green")
    assert port is not None
    assert network is not None
    found = await book.assign_addresses(port, network, PLACE)
    assert isinstance(found, AddressedPort)
    (address,) = found.port.status.addresses
    return address


async def test_an_address_is_given_once_while_the_cache_does_not_have_it_and_free_when_it_was_not_written() -> None:
    book, informers, writer, clock = await book_of(*guest("other", "green", 7), *guest("last", "green", 8))
    writer.broken = True
    with pytest.raises(Unavailable):
        await given_to(book, informers, "web.0")
    writer.broken = False
    assert await given_to(book, informers, "other.0") == "10.1.0.2/24"
    await clock.sleep(address_book.RESERVED_S)
    assert await given_to(book, informers, "last.0") == "10.1.0.3/24"
    last = informers.ports.get("last.0")
    assert last is not None
    assert not book.is_taken(last, "green", "10.1.0.1")


async def test_what_is_remembered_of_ports_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_book, "RESERVED_LIMIT", 2)
    many = [one for number in range(7, 12) for one in guest(f"vm-{number}", "green", number)]
    book, informers, _, _ = await book_of(*many)
    for number in range(7, 12):
        await given_to(book, informers, f"vm-{number}.0")
    assert len(book._reserved) == 2

"""From where the clients of a host reach storage: only what is known, and nobody else's."""

from __future__ import annotations

import pytest
from tests.support.loops import run

from outlive.base import LoopClock, NotFound, SystemIds
from outlive.drivers.storage import StorageAddresses
from outlive.resources import Hypervisor, HypervisorStatus, ObjectMeta
from outlive.store import MemoryStore


def host(name: str, own: str = "", **networks: str) -> Hypervisor:
    status = HypervisorStatus(storage_address=own, addresses=networks)
    return Hypervisor(metadata=ObjectMeta(name=name), status=status)


def addresses(of: str, *hosts: Hypervisor) -> tuple[str, ...]:
    async def found() -> tuple[str, ...]:
        store = MemoryStore(LoopClock(), SystemIds())
        store.load(hosts)
        return await StorageAddresses(store)(of)

    return run(found())


def test_all_addresses_of_a_host_are_its_clients() -> None:
    hosts = host("a", "10.0.1.1", cluster="10.0.0.1/24", storage="10.0.1.1"), host("b", "10.0.1.2")
    assert addresses("a", *hosts) == ("10.0.0.1", "10.0.1.1")


@pytest.mark.parametrize("of", ["silent", "nobody"])
def test_host_that_named_no_address_cannot_be_shut_out(of: str) -> None:
    with pytest.raises(NotFound, match=f"the address of {of} on the storage network is not known"):
        addresses(of, host("silent"), host("b", "10.0.1.2"))


def test_address_of_two_hosts_shuts_out_neither() -> None:
    with pytest.raises(NotFound, match=r"10\.0\.1\.1 is an address of a and of b"):
        addresses("a", host("a", "10.0.1.1"), host("b", "10.0.1.2", cluster="10.0.1.1/24"))

"""Every list and map has a limit: stores refuse more, and what was stored before stays usable."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from outlive.base import Invalid, LoopClock, Random, SeededIds
from outlive.resources import (
    FORMER_MEMBERSHIPS,
    HOLDERS_LIMIT,
    KINDS,
    RUN_FINALIZER,
    SILENT_PEERS,
    FormerMembership,
    Holder,
    Hypervisor,
    Instance,
    MemberRecord,
    Membership,
    ObjectMeta,
    Proof,
    StorageDaemon,
    StorageDevice,
    StorageVolume,
    VirtualMachine,
    VirtualMachineStatus,
    check_lists,
    decode,
    encode,
    kind_schema,
)
from outlive.store import MemoryStore

_replace = msgspec.structs.replace


def held_by(count: int) -> VirtualMachine:
    holders = tuple(Holder(hypervisor="kvm-1", run_id=f"r{number}") for number in range(count))
    return VirtualMachine(metadata=ObjectMeta(name="vm"), status=VirtualMachineStatus(holders=holders))


def store() -> MemoryStore:
    return MemoryStore(LoopClock(0), SeededIds(Random(1)))


def test_a_store_refuses_a_list_above_its_limit_and_names_field_and_limit() -> None:
    async def story() -> None:
        kept = store()
        made = await kept.create(VirtualMachine(metadata=ObjectMeta(name="vm")))
        made = await kept.replace_status(_replace(made, status=held_by(HOLDERS_LIMIT).status))
        with pytest.raises(Invalid, match=r"VirtualMachine/vm has 33 entries there, and may have 32") as no:
            await kept.replace_status(_replace(made, status=held_by(HOLDERS_LIMIT + 1).status))
        assert (no.value.place, no.value.remedy) == ("status.holders", "write at most 32")

    asyncio.run(story())


def test_a_stored_object_above_a_limit_is_read_written_and_may_only_shrink_there() -> None:
    async def story() -> None:
        kept = store()
        meta = ObjectMeta(name="vm", uid="u", resource_version="1")
        kept.load([_replace(held_by(40), metadata=meta)])
        found = await kept.get(VirtualMachine, "vm")
        assert decode(VirtualMachine, encode(found)) == found
        found = await kept.replace(_replace(found, metadata=_replace(found.metadata, finalizers=(RUN_FINALIZER,))))
        found = await kept.replace_status(_replace(found, status=_replace(found.status, phase="stop")))
        found = await kept.replace_status(_replace(found, status=held_by(39).status))
        with pytest.raises(Invalid, match=r"status\.holders"):
            await kept.replace_status(_replace(found, status=held_by(40).status))
        await kept.replace_status(_replace(found, status=held_by(1).status))

    asyncio.run(story())


def test_a_list_within_entries_of_a_list_has_its_limit_too() -> None:
    volume = StorageVolume(use="block", devices=tuple(f"/dev/sd{number}" for number in range(1001)))
    device = StorageDevice(host="kvm-1", volumes=(StorageVolume(use="db"), volume))
    daemon = StorageDaemon(metadata=ObjectMeta(name="1"), device=device)
    with pytest.raises(Invalid, match=r"device\.volumes\[1\]\.devices: StorageDaemon/1 has 1001"):
        check_lists(None, daemon)
    check_lists(daemon, daemon)


def test_what_the_product_writes_is_below_the_limits() -> None:
    instances = tuple(Instance(id=f"vm-{number}", name="n") for number in range(10_000))
    host = Hypervisor(metadata=ObjectMeta(name="kvm-1"))
    check_lists(host, _replace(host, status=_replace(host.status, instances=instances)))
    proof = Proof(kind="operator")
    former = tuple(FormerMembership(uid=f"u{number}", dead_through=1, proof=proof) for number in range(16))
    record = MemberRecord(machine_id="m", boot_id="b", former=former)
    check_lists(None, Membership(metadata=ObjectMeta(name="kvm-1"), record=record))
    assert len(former) <= FORMER_MEMBERSHIPS
    assert SILENT_PEERS == 64


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_list_and_map_of_a_manifest_has_a_limit(kind: Any) -> None:
    def check(schema: dict[str, Any], path: str) -> None:
        if schema.get("type") == "array":
            assert schema["maxItems"] > 0, path
            check(schema["items"], f"{path}[]")
        if "additionalProperties" in schema and path:
            assert schema.get("maxProperties", 1) > 0, path
            check(schema["additionalProperties"], f"{path}{{}}")
        for name, part in schema.get("properties", {}).items():
            check(part, f"{path}.{name}")

    check(kind_schema(kind), "")


def test_the_manifest_says_how_many_holders_a_vm_has() -> None:
    status = kind_schema(VirtualMachine)["properties"]["status"]["properties"]
    assert status["holders"]["maxItems"] == HOLDERS_LIMIT

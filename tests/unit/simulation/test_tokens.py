"""A simulated daemon reads what the token of its host shows, and asking for more is a violation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlive.base import Forbidden, LoopClock, Random, SeededIds
from outlive.resources import (
    ADMIN,
    Assigned,
    Coverage,
    Flavor,
    Holder,
    HostLog,
    Hypervisor,
    ObjectMeta,
    Resource,
    Secret,
    Token,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.simulation import Author, Process, ProcessStore, StoreLink, TokenStore, WorldStore
from outlive.store import Delete, Synced, Upsert

_replace = msgspec.structs.replace


def vm(name: str, host: str) -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(project="p", disks=("d",)),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor=host)),
    )


def stores() -> tuple[WorldStore, TokenStore, list[str]]:
    """A store with a VM of each of two hosts, and as the token of the first shows it; what was refused."""
    clock, refused = LoopClock(), list[str]()
    world = WorldStore(clock, SeededIds(Random(1)), lambda write, by: None, lambda write, by, refusal: None)
    world.load([vm("mine", "h1"), vm("theirs", "h2"), Hypervisor(metadata=ObjectMeta(name="h1"))])
    process = Process("daemon")
    process.alive = True
    way = StoreLink(world, process, clock=clock, random=Random(5), acknowledged=lambda answer: None)
    return (
        world,
        TokenStore(ProcessStore(way, Author("p", "h1", (ADMIN,))), "host", "h1", world, {}, refused.append),
        refused,
    )


async def test_of_vms_of_others_it_is_shown_a_part_and_writes_no_more() -> None:
    world, store, refused = stores()
    listed = {one.name: one.spec.project for one in (await store.list(VirtualMachine)).items}
    assert listed == {"mine": "p", "theirs": ""}
    theirs = await store.get(VirtualMachine, "theirs")
    assert theirs.spec == VirtualMachineSpec(disks=("d",))
    await store.replace(_replace(theirs, metadata=_replace(theirs.metadata, labels={"a": "b"})))
    status = _replace(theirs.status, holders=(Holder(hypervisor="h1"),))
    now = await store.get(VirtualMachine, "theirs")
    assert (await store.replace_status(_replace(now, status=status))).spec.project == "p"  # it is its own now
    kept = world.find(VirtualMachine, "theirs")
    assert kept is not None
    assert (kept.spec.project, kept.metadata.labels, kept.status.holders) == ("p", {"a": "b"}, status.holders)
    assert refused == []


async def test_it_observes_vms_as_long_as_they_are_its_own() -> None:
    world, store, _ = stores()
    changes, seen = store.observe(VirtualMachine), list[Any]()

    async def hear(count: int) -> None:
        for _ in range(count):
            change = await anext(changes)
            name = change.object.name if isinstance(change, Upsert) else ""
            seen.append((type(change), change.ref.name if isinstance(change, Delete) else name))

    await hear(2)
    for host, heard in (("h1", 1), ("h2", 1), ("h3", 0), ("h1", 1)):
        now = await world.get(VirtualMachine, "theirs")
        await world.replace_status(_replace(now, status=VirtualMachineStatus(assigned=Assigned(hypervisor=host))))
        await hear(heard)
    await changes.aclose()  # type: ignore[attr-defined]
    assert seen == [(Upsert, "mine"), (Synced, ""), (Upsert, "theirs"), (Delete, "theirs"), (Upsert, "theirs")]


@pytest.mark.parametrize(
    ("kind", "name"), [(Secret, "x"), (Token, "x"), (Flavor, "x"), (Coverage, "theirs"), (HostLog, "h2")]
)
async def test_what_it_may_not_read_is_refused_and_reported(kind: type[Resource], name: str) -> None:
    world, store, refused = stores()
    if kind is HostLog:
        await world.create(msgspec.convert({"kind": "HostLog", "metadata": {"name": name}, "process": "p",
                                            "writtenAt": "2026-01-01T00:00:00Z"}, HostLog))  # fmt: skip
    with pytest.raises(Forbidden):
        await store.get(kind, name)
    assert len(refused) == 1

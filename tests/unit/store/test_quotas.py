"""What a store keeps of each kind and of each owner, and what it says when that is nearly reached."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import LimitExceeded, LoopClock, Random, SeededIds
from outlive.resources import (
    HOST_LABEL,
    RUN_FINALIZER,
    WRITER_LABEL,
    DecisionRecord,
    Fault,
    Holder,
    KindInfo,
    ObjectMeta,
    ObjectRef,
    Quota,
    StorageDaemon,
    StorageDevice,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.runtime import ENDED_KEPT_S, fault_sweeper, run_virtual, trail_sweeper
from outlive.store import MemoryStore, Table

AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight records, four of each owner; 1 MiB of each owner."""
    quota = Quota(objects=8, mebibytes=2, owners=("by",), shares=2)
    monkeypatch.setattr(DecisionRecord, "info", msgspec.structs.replace(DecisionRecord.info, quota=quota))


def store() -> MemoryStore:
    return MemoryStore(LoopClock(AT.timestamp()), SeededIds(Random(1)))


def record(name: str, by: str, size_bytes: int = 0, at: datetime = AT) -> DecisionRecord:
    return DecisionRecord(metadata=ObjectMeta(name=name), decision="safety.x", by=by, at=at, output="x" * size_bytes)


@pytest.mark.usefixtures("small")
async def test_an_owner_has_no_more_than_its_share_and_others_still_write() -> None:
    kept = store()
    for number in range(4):
        await kept.create(record(f"a{number}", "a"))
    with pytest.raises(LimitExceeded, match="4 decisionrecords of a"):
        await kept.create(record("a4", "a"))
    for number in range(4):
        await kept.create(record(f"b{number}", "b"))
    with pytest.raises(LimitExceeded, match="8 decisionrecords with"):
        await kept.create(record("c", "c"))
    first = await kept.get(DecisionRecord, "a0")
    await kept.delete(first.ref)
    await kept.create(record("a4", "a"))


@pytest.mark.usefixtures("small")
async def test_bytes_count_when_an_object_grows_and_a_smaller_one_is_always_taken() -> None:
    kept = store()
    one = await kept.create(record("a", "a", 400_000))
    await kept.create(record("b", "a", 400_000))
    with pytest.raises(LimitExceeded, match="of a"):
        await kept.create(record("c", "a", 400_000))
    grown = msgspec.structs.replace(one, input="y" * 100_000)
    one = await kept.replace(grown)
    with pytest.raises(LimitExceeded):
        await kept.create(record("c", "a", 200_000))
    await kept.replace(msgspec.structs.replace(one, input=""))
    await kept.create(record("c", "a", 200_000))


async def test_who_fills_a_kind_with_objects_does_not_stop_what_the_safety_protocol_says_of_those_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(VirtualMachine, "info", msgspec.structs.replace(VirtualMachine.info, quota=Quota(mebibytes=1)))

    kept = store()
    for number in range(4):
        text = "x" * (2**18 - (500 if number < 3 else 2_000))
        spec = VirtualMachineSpec(display_name=text)
        await kept.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-{number}"), spec=spec))
    vm = await kept.get(VirtualMachine, "vm-0")
    longer = {"a": "x" * 4_000}
    for more in (
        msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, extra_specs=longer)),
        msgspec.structs.replace(vm, metadata=msgspec.structs.replace(vm.metadata, annotations=longer)),
    ):
        with pytest.raises(LimitExceeded):
            await kept.replace(more)
    held = VirtualMachineStatus(holders=(Holder(hypervisor="h", member_uid="u", epoch=1),), message="x" * 4_000)
    vm = await kept.replace_status(msgspec.structs.replace(vm, status=held))
    meta = msgspec.structs.replace(vm.metadata, labels={HOST_LABEL: "h"}, finalizers=(RUN_FINALIZER,))
    vm = await kept.replace(msgspec.structs.replace(vm, metadata=meta))
    large = VirtualMachineStatus(message="x" * 200_000)
    await kept.replace_status(msgspec.structs.replace(vm, status=large))
    with pytest.raises(LimitExceeded):  # what is kept for that ends as well
        await kept.replace_status(msgspec.structs.replace(await kept.get(VirtualMachine, "vm-1"), status=large))


@pytest.mark.usefixtures("small")
async def test_what_is_nearly_full_is_named() -> None:
    kept = store()
    assert kept.find_near_quotas(0.5) == ()
    for number in range(3):
        await kept.create(record(f"a{number}", "a"))
    assert kept.find_near_quotas(0.5) == ("decisionrecords of a (3 with 0 MiB)",)
    assert kept.usage_by_kind()["decisionrecords"][0] == 3


@pytest.mark.usefixtures("small")
async def test_the_sweeper_takes_from_an_owner_who_has_much_only_what_is_its_own() -> None:
    kept = store()
    await kept.create(record("b", "b", at=AT))
    for number in range(4):
        await kept.create(record(f"a{number}", "a", at=AT.replace(minute=number + 1)))
    await trail_sweeper(kept, LoopClock(AT.timestamp())).sweep()
    assert [one.name for one in (await kept.list(DecisionRecord)).items] == ["a2", "a3", "b"]


def test_a_fault_that_ended_long_ago_is_deleted_and_one_that_goes_on_is_not() -> None:
    async def story() -> None:
        clock = LoopClock(AT.timestamp())
        kept = MemoryStore(clock, SeededIds(Random(1)))
        for name, ended in (("a", True), ("b", False)):
            subject = ObjectRef(kind="Hypervisor", name=name)
            fault = Fault(
                metadata=ObjectMeta(name=f"host-dead.{name}", labels={HOST_LABEL: "h"}),
                code="host-dead",
                subject=subject,
                message="m",
                ended=ended,
                first_seen=AT,
                last_seen=AT,
            )
            await kept.create(fault)
        await asyncio.sleep(ENDED_KEPT_S + 1)
        await fault_sweeper(kept, clock).sweep()
        assert [one.name for one in (await kept.list(Fault)).items] == ["host-dead.b"]

    run_virtual(story())


KEYS = st.sampled_from(["k1", "k2", "k3"])
RAWS = st.builds(
    lambda by, size: b'{"by":"%b","x":"%b"}' % (by, b"x" * size), st.sampled_from([b"a", b"b", b""]), st.integers(0, 9)
)


@given(st.lists(st.tuples(KEYS, st.none() | RAWS), max_size=30))
def test_what_is_counted_is_what_is_there(changes: list[tuple[str, bytes | None]]) -> None:
    table, there = Table(owners=("by",)), dict[str, bytes]()
    for key, raw in changes:
        if raw is None:
            table.remove(key)
            there.pop(key, None)
        else:
            table.put(key, raw)
            there[key] = raw
    again = Table(there, owners=("by",))
    assert (table.use.objects, table.use.size_bytes) == (len(there), sum(map(len, there.values())))
    for owner in ("a", "b"):
        assert (table.usage_of_owner(owner).objects, table.usage_of_owner(owner).size_bytes) == (
            again.usage_of_owner(owner).objects,
            again.usage_of_owner(owner).size_bytes,
        )
    assert sorted(owner for owner, _ in table.list_owners()) == sorted(owner for owner, _ in again.list_owners())


def test_every_kind_has_a_quota_that_leaves_each_owner_something() -> None:
    from outlive.resources import KINDS

    for kind in KINDS.values():
        info: KindInfo = kind.info
        assert min(info.quota.get_limits(shared=True)) >= 100


async def test_a_host_that_fills_its_share_of_storage_daemons_and_faults_silences_no_other() -> None:
    kept = store()

    def osd(number: int, host: str) -> StorageDaemon:
        return StorageDaemon(metadata=ObjectMeta(name=f"{host}-{number}"), device=StorageDevice(host=host))

    def fault(number: int, host: str) -> Fault:
        subject = ObjectRef(kind="Hypervisor", name=f"{host}-{number}")
        meta = ObjectMeta(name=f"c.{host}-{number}", labels={WRITER_LABEL: host})
        return Fault(metadata=meta, code="c", subject=subject, message="m", first_seen=AT, last_seen=AT)

    for made, share in ((osd, 1000), (fault, 2000)):
        for number in range(share):
            await kept.create(made(number, "evil"))
        with pytest.raises(LimitExceeded, match="of evil"):
            await kept.create(made(share, "evil"))
        await kept.create(made(0, "good"))

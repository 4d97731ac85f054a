"""A host that fills a store which keeps no quotas itself is refused by the server, and nobody else is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from outlive.api import COUNTED_AGAIN_S, HostQuotas, Identity, ReviewedWrite, Role
from outlive.api.admission_review import _ends_cascade
from outlive.base import LimitExceeded, LoopClock, Random, SeededIds
from outlive.resources import DecisionRecord, Election, Flavor, ObjectMeta, Resource, encode
from outlive.store import MemoryStore

HOST = Identity("kvm-1", Role.HOST, host="kvm-1")
AT = datetime(2030, 1, 1, tzinfo=UTC)
MOST, _ = DecisionRecord.info.quota.get_limits(shared=True)


def record(number: int, by: str = "kvm-1") -> DecisionRecord:
    return DecisionRecord(metadata=ObjectMeta(name=f"{by}-{number}"), by=by, decision="lease.renew", at=AT)


async def filled(count: int) -> tuple[MemoryStore, HostQuotas]:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    store.load([record(number) for number in range(count)])
    store.embedded = False
    return store, HostQuotas(store, clock)


async def test_a_host_has_its_share_of_records_and_no_more_and_others_have_theirs() -> None:
    _, quotas = await filled(MOST - 2)
    for number in (-1, -2):
        await quotas.check(HOST, None, record(number))
    with pytest.raises(LimitExceeded, match=f"{MOST} decisionrecords of kvm-1"):
        await quotas.check(HOST, None, record(-3))
    other = Identity("kvm-2", Role.HOST, host="kvm-2")
    await quotas.check(other, None, record(1, "kvm-2"))
    await quotas.check(Identity("admin", Role.ADMIN), None, record(-3))


async def test_what_was_deleted_gives_room_as_soon_as_it_is_counted_again() -> None:
    store, quotas = await filled(MOST)
    with pytest.raises(LimitExceeded):
        await quotas.check(HOST, None, record(-1))
    await store.delete(record(0).ref)
    await asyncio.sleep(COUNTED_AGAIN_S + 1.0)
    await quotas.check(HOST, None, record(-1))


async def test_kinds_of_the_safety_protocol_are_never_refused() -> None:
    _, quotas = await filled(0)
    most, _ = Election.info.quota.get_limits()
    for number in range(most + 5):
        await quotas.check(HOST, None, Election(metadata=ObjectMeta(name=f"e{number}")))


def cascade(before: Resource, after: Resource) -> bool:
    review = {
        "uid": "u",
        "resource": {"group": "outlive.dev", "resource": "flavors"},
        "operation": "UPDATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:generic-garbage-collector"},
    }
    asked = msgspec.convert(review, ReviewedWrite)
    raws = {"old_object": msgspec.Raw(encode(before)), "object": msgspec.Raw(encode(after))}
    return _ends_cascade(Flavor, msgspec.structs.replace(asked, **raws))


def test_the_garbage_collector_ends_a_deletion_in_the_foreground_and_changes_nothing_else() -> None:
    def flavor(*finalizers: str, deleted: bool = True, **labels: str) -> Flavor:
        meta = {"name": "f", "uid": "u", "resourceVersion": "1", "finalizers": list(finalizers), "labels": labels}
        if deleted:
            meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        return msgspec.convert({"kind": "Flavor", "metadata": meta, "spec": {"flavorName": "f"}}, Flavor)

    marked = flavor("foregroundDeletion", "outlive.dev/may-run")
    assert cascade(marked, flavor("outlive.dev/may-run"))
    assert not cascade(marked, flavor()), "our own finalizer is not its to remove"
    assert not cascade(marked, flavor("outlive.dev/may-run", color="red"))
    assert not cascade(marked, marked)
    assert not cascade(flavor("orphan", deleted=False), flavor(deleted=False))

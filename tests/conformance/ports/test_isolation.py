"""What every driver keeps that isolates hosts and shows locks (``isolation`` and ``storage`` of the ports)."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.claims import claims_of
from tests.conformance.ports.harness import IsolationHarness
from tests.conformance.ports.real_ceph import CEPH
from tests.conformance.ports.simulated import ISOLATION, Isolation, _subject

from outlive.base import Unavailable
from outlive.node.ports import DiskLock

claim = claims_of([*ISOLATION, CEPH])


@claim
async def test_after_the_barrier_no_client_of_the_host_gets_through(h: IsolationHarness) -> None:
    port = h.driver()
    await port.cut("a", 1, h.scope)
    assert set((await port.read_back("a", 1)).scope) == set(h.scope)
    assert set(await port.wait_isolated(h.scope)) == set(h.scope)
    assert not any(h.reaches("a", 1, one) for one in h.scope), "also a client that connects only now"
    assert all(h.reaches("b", 1, one) for one in h.scope)
    assert (await port.read_back("b", 1)).scope == ()


@claim
async def test_the_barrier_waits_for_servers_that_have_not_heard(h: IsolationHarness) -> None:
    h.slow_servers(5.0)
    await h.driver().cut("a", 1, h.scope)
    other = h.driver()  # on another host, and of a process that knows nothing of the cut
    assert set((await other.read_back("a", 1)).scope) == set(h.scope)
    await other.wait_isolated((h.scope[0],))
    assert not h.reaches("a", 1, h.scope[0])


@claim
async def test_the_barrier_returns_where_nobody_was_shut_out(h: IsolationHarness) -> None:
    async with asyncio.timeout(30.0):
        assert set(await h.driver().wait_isolated(h.scope)) == set(h.scope)


@claim
async def test_renewing_is_the_same_call_and_a_cut_only_grows(h: IsolationHarness) -> None:
    port = h.driver()
    one, other = h.scope[:2]
    await port.cut("a", 1, (one,))
    assert (await port.read_back("a", 1)).scope == (one,)
    await port.wait_isolated(h.scope)
    assert not h.reaches("a", 1, other), "the host is shut out of all its disks"
    for _ in range(2):
        await port.cut("a", 1, (other,))
        assert set((await port.read_back("a", 1)).scope) == {one, other}
    await port.wait_isolated(h.scope)
    assert not h.reaches("a", 1, one)


@claim
async def test_a_later_epoch_is_not_meant_and_an_older_one_is(h: IsolationHarness) -> None:
    port = h.driver()
    await port.cut("a", 2, h.scope)
    await port.wait_isolated(h.scope)
    assert not h.reaches("a", 1, h.scope[0])
    assert not h.reaches("a", 2, h.scope[0])
    assert (await port.read_back("a", 3)).scope == ()
    assert not h.reaches("a", 3, h.scope[0]), "storage knows no epochs: until it is let in"
    with pytest.raises(Unavailable):
        await h.driver("a").wait_isolated(h.scope)
    await port.lift("a", 2)
    assert set(await h.driver("a").wait_isolated(h.scope)) == set(h.scope)
    assert h.reaches("a", 3, h.scope[0])


@claim
async def test_lifting_ends_what_was_cut_through_that_epoch_and_nothing_later(h: IsolationHarness) -> None:
    port = h.driver()
    await port.cut("a", 2, h.scope)
    await port.lift("a", 1)
    assert set((await port.read_back("a", 2)).scope) == set(h.scope)
    assert dict(await port.list_hosts()) == {"a": 2}
    for _ in range(2):
        await port.lift("a", 2)
        assert (await port.read_back("a", 2)).scope == ()
        assert dict(await port.list_hosts()) == {}
    await port.wait_isolated(h.scope)
    assert h.reaches("a", 2, h.scope[0])


@claim
async def test_an_order_of_a_killed_process_is_carried_out_or_not_and_read_back_as_it_is(h: IsolationHarness) -> None:
    task = asyncio.create_task(h.driver().cut("a", 1, h.scope))
    await asyncio.sleep(0)
    h.kill()
    await asyncio.sleep(h.settle_s)
    port = h.driver()
    scope = set((await port.read_back("a", 1)).scope)
    assert scope in (set(), set(h.scope))
    await port.wait_isolated(h.scope)
    assert h.reaches("a", 1, h.scope[0]) == (not scope)
    await asyncio.gather(task, return_exceptions=True)


@claim
async def test_who_does_not_reach_the_servers_is_told_nothing(h: IsolationHarness) -> None:
    port, storage = h.driver(), h.storage()
    h.partition("b")
    volume = h.scope[0].removeprefix("disk:")
    answers = await asyncio.gather(
        port.cut("a", 1, h.scope),
        port.read_back("a", 1),
        port.wait_isolated(h.scope),
        port.lift("a", 1),
        port.list_hosts(),
        storage.list_locks((volume,)),
        storage.release(DiskLock(volume=volume, id="x", locker="client.1", address="a")),
        return_exceptions=True,
    )
    assert {type(answer) for answer in answers} == {Unavailable}, answers
    assert h.reaches("a", 1, h.scope[0]), "Unavailable: nothing happened"
    assert (await h.driver("a").read_back("a", 1)).scope == ()


@claim
async def test_the_host_that_is_shut_out_is_needed_for_nothing(h: IsolationHarness) -> None:
    h.partition("a")
    port = h.driver("b")
    await port.cut("a", 1, h.scope)
    assert set((await port.read_back("a", 1)).scope) == set(h.scope)


@claims_of([_subject("simulated, disks only", lambda: Isolation("disks"))])
async def test_what_is_in_nobodys_power_is_ordered_and_not_read_back(h: IsolationHarness) -> None:
    port = h.driver()
    await port.cut("a", 1, h.scope)
    assert set((await port.read_back("a", 1)).scope) == {"disk:d1", "disk:d2"}
    assert set(await port.wait_isolated(h.scope)) == {"disk:d1", "disk:d2"}, "of the port it knows nothing"
    assert h.reaches("a", 1, "port:p1")


# Locks


@claim
async def test_a_lock_names_its_owner_until_exactly_it_is_released(h: IsolationHarness) -> None:
    a, b = h.storage("a"), h.storage("b")
    one, other = (disk.removeprefix("disk:") for disk in h.scope[:2])
    assert await b.list_locks((one, other)) == ()
    h.open_disk(one, "a")
    (lock,) = await b.list_locks((one, other))
    assert (lock.volume, lock.address.startswith(a.own_address())) == (one, True)
    assert await b.list_locks((other,)) == ()
    h.open_disk(one, "b")
    await b.release(lock)
    (newer,) = await b.list_locks((one,))
    assert newer.address.startswith(b.own_address()), "the lock of another stays"
    for _ in range(2):
        await b.release(newer)
        assert await b.list_locks((one,)) == ()


@claim
async def test_a_host_has_one_address_whichever_process_asks(h: IsolationHarness) -> None:
    assert h.storage("a").own_address() == h.storage("a").own_address() != h.storage("b").own_address()

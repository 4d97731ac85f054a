"""An age begins when a version is first received, and nothing but another version restarts it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import LoopClock
from outlive.node.fencing import HAIR_S, Watcher
from outlive.resources import FenceRecord, MemberRecord, Membership, ObjectMeta


def _member(name: str, version: str, *, uid: str = "u1", **record) -> Membership:
    values = {"machine_id": "m", "boot_id": "b", "nonce": "n1", **record}
    meta = ObjectMeta(name=name, uid=uid, resource_version=version)
    return Membership(metadata=meta, record=MemberRecord(**values))


def _condemned(member: Membership, version: str, by: str) -> Membership:
    fence = FenceRecord(id="h.1.n1", epoch=1, phase="condemned", by=by)
    record = msgspec.structs.replace(member.record, state="Revoked", fence=fence)
    meta = msgspec.structs.replace(member.metadata, resource_version=version)
    return msgspec.structs.replace(member, metadata=meta, record=record)


def _watcher() -> Watcher:
    return Watcher(LoopClock(), "me")


async def test_same_version_shown_again_does_not_restart_the_age():
    watcher, member = _watcher(), _member("h", "1")
    watcher.on_membership(None, member)
    await asyncio.sleep(10)
    watcher.on_membership(member, _member("h", "1"))
    seen = watcher.get("h")
    assert LoopClock().monotonic() - seen.since == 10


async def test_host_is_due_right_after_its_limit_and_never_before():
    watcher, first = _watcher(), _member("h", "1")
    watcher.on_membership(None, first)
    await asyncio.sleep(3)
    watcher.on_membership(first, _member("h", "2"))
    found = []
    for _ in range(200):
        await asyncio.sleep(0.1)
        found += [LoopClock().monotonic() for _ in watcher.find_due(LoopClock().monotonic(), lambda host, seen: 5.0)]
    assert 8.0 + HAIR_S <= found[0] <= 8.2


async def test_fence_of_mine_is_quiet_since_i_saw_the_version_that_i_condemned():
    watcher, member = _watcher(), _member("h", "1", seq=7)
    watcher.on_membership(None, member)
    began = LoopClock().monotonic()
    await asyncio.sleep(10)
    watcher.note_condemnation("h", member, began)
    watcher.on_membership(member, _condemned(member, "2", "me"))
    assert watcher.get("h").quiet_since == began
    assert list(watcher.open) == ["h"]


async def test_fence_of_another_is_quiet_since_i_first_saw_it():
    watcher, member = _watcher(), _member("h", "1", seq=7)
    watcher.on_membership(None, member)
    began = LoopClock().monotonic()
    await asyncio.sleep(10)
    watcher.note_condemnation("h", member, began)
    watcher.on_membership(member, _condemned(member, "2", "other"))
    assert watcher.get("h").quiet_since == began + 10


async def test_fence_on_a_later_renewal_than_mine_is_not_quiet_since_mine():
    watcher, member = _watcher(), _member("h", "1", seq=7)
    watcher.on_membership(None, member)
    began = LoopClock().monotonic()
    await asyncio.sleep(10)
    watcher.note_condemnation("h", member, began)
    later = _member("h", "2", seq=8)
    watcher.on_membership(member, _condemned(later, "3", "me"))
    assert watcher.get("h").quiet_since == began + 10


async def test_fence_that_is_taken_over_stays_quiet_since_it_was_first_seen():
    watcher, member = _watcher(), _member("h", "1")
    condemned = _condemned(member, "2", "other")
    watcher.on_membership(None, condemned)
    await asyncio.sleep(10)
    watcher.on_membership(condemned, _condemned(member, "3", "me"))
    assert watcher.get("h").quiet_since == LoopClock().monotonic() - 10
    back = _member("h", "4", epoch=2)
    watcher.on_membership(_condemned(member, "3", "me"), back)
    assert list(watcher.open) == []


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.1, 4.0)), min_size=1, max_size=40))
def test_every_silent_host_is_found_and_nobody_else(changes: list[tuple[int, float]]):
    """Against the plain rule, for five hosts that renew at any time."""

    async def story():
        watcher = _watcher()
        last: dict[str, tuple[Membership, float]] = {}
        version = 0
        for host, pause in [(number, 0.1) for number in range(5)] + changes:
            await asyncio.sleep(pause)
            name, version = f"h{host}", version + 1
            before = last[name][0] if name in last else None
            last[name] = (_member(name, str(version)), LoopClock().monotonic())
            watcher.on_membership(before, last[name][0])
            now = LoopClock().monotonic()
            assert all(now - last[one][1] > 5.0 for one in watcher.find_due(now, lambda host, seen: 5.0))
        await asyncio.sleep(6.5)
        found = watcher.find_due(LoopClock().monotonic(), lambda host, seen: 5.0)
        assert sorted(found) == sorted(last)

    run(story())

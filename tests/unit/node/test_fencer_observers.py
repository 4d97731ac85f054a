"""A host is condemned for its silence once coordinators on two switches see it, or one, where only one can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fencing import Site, site

from outlive.resources import SILENT_PEERS, Membership

BEFORE_S = 20.0


class Deaf:
    """A store whose observers hear of some memberships only what was there at first."""

    def __init__(self, store: Any, *names: str) -> None:
        self._store = store
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def observe(self, kind: Any, **given: Any) -> Any:
        seen: set[str] = set()
        async for event in self._store.observe(kind, **given):
            obj = getattr(event, "object", None)
            if kind is Membership and obj is not None and obj.name in self._names:
                if obj.name in seen:
                    continue
                seen.add(obj.name)
            yield event


async def three(s: Site, *switches: str) -> None:
    """Coordinators ``a``, ``b``, ``c`` and a host ``x``, with fencers on ``a`` and ``b``."""
    for name, switch in zip("abc", switches, strict=True):
        await s.host(name, switch=switch)
    await s.host("x", switch=switches[0], mode="hypervisor")


async def test_silent_host_is_published_with_a_renewal_that_is_brought_forward_and_withdrawn_when_it_lives() -> None:
    async with site() as s:
        await three(s, "s1", "s2", "s1")
        await s.policy(fences_limit=0)  # nobody is condemned
        eyes = s.watch("a").eyes
        await asyncio.sleep(BEFORE_S)
        assert (await s.record("a")).silent == ()
        s.silence("x")
        await asyncio.sleep(8)
        (one,) = (await s.record("a")).silent
        found = await s.record("x")
        assert (one.host, one.epoch, one.seq) == ("x", found.epoch, found.seq)
        assert 5.0 <= one.silent_s <= 8.0
        assert eyes.early == 1, "renewals that follow say it without being brought forward"
        s.renew("x")
        await asyncio.sleep(4)
        assert (await s.record("a")).silent == ()
        assert eyes.early == 1


async def test_nothing_is_published_where_no_switch_is_known() -> None:
    async with site() as s:
        await three(s, "", "", "")
        eyes = s.watch("a").eyes
        await asyncio.sleep(BEFORE_S)
        s.silence("x")
        await s.until_dead("x", limit_s=20)
        assert (eyes.silent, eyes.early) == ((), 0)
        assert "observer" not in (await s.record("x")).fence.reason


@pytest.mark.slow
async def test_published_are_only_so_many_hosts_the_longest_silent_first() -> None:
    async with site() as s:
        await three(s, "s1", "s2", "s1")
        names = [f"r{number}" for number in range(SILENT_PEERS + 6)]
        for name in names:
            await s.host(name, rack="r1", bmc="", mode="hypervisor")
        await s.policy(fences_limit=0)
        eyes = s.watch("a").eyes
        await asyncio.sleep(BEFORE_S)
        s.silence(*names[:6])
        await asyncio.sleep(1.5)
        s.silence(*names[6:])
        await asyncio.sleep(10)
        found = [one.host for one in eyes.silent]
        assert len(found) == SILENT_PEERS
        assert set(names[:6]) <= set(found[:12])
        assert eyes.early <= 8, "two a second at most"


async def test_storm_brings_renewals_forward_only_once_for_each_silence() -> None:
    async with site() as s:
        await three(s, "s1", "s2", "s1")
        names = [f"r{number}" for number in range(9)]
        for name in names:
            await s.host(name, rack=name, bmc="", mode="hypervisor")
        eyes = s.watch("a").eyes
        await asyncio.sleep(BEFORE_S)
        s.silence(*names)
        await asyncio.sleep(120)
        assert "storm-hold.default" in await s.faults()
        assert 1 <= eyes.early <= 4


async def test_observer_that_alone_does_not_hear_of_a_host_does_not_condemn_it() -> None:
    async with site() as s:
        await three(s, "s1", "s2", "s1")
        alone = s.watch("a", store=Deaf(s.store, "x"))
        s.watch("b")
        await s.policy(second_observer_s=1e6)
        await asyncio.sleep(60)
        assert (await s.record("x")).state == "Held"
        asked = alone.decisions.uses("fence.agree")
        assert asked
        assert all(b'"waiting"' in use.output for use in asked if use.output)
        assert alone.decisions.uses("safety.condemn") == ()


async def test_fencer_that_ends_publishes_nothing_any_more() -> None:
    async with site() as s:
        await three(s, "s1", "s2", "s1")
        await s.policy(fences_limit=0)
        eyes = s.watch("a").eyes
        await asyncio.sleep(BEFORE_S)
        s.silence("x")
        await asyncio.sleep(8)
        assert eyes.silent
        s.kill("a")
        await asyncio.sleep(1)
        assert eyes.silent == ()

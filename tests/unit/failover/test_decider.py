from __future__ import annotations

from typing import Any

import pytest
from tests.support.cycles import check_rules
from tests.support.failover import GIB, Cloud
from tests.support.loops import run

from outlive.base.errors import Unavailable
from outlive.failover.ports import Inline
from outlive.failover.protection import Demands
from outlive.failover.reconciler import decider
from outlive.failover.reconciler.reconciler import PASS_VMS
from outlive.runtime.decisions import Decision


class Counting(Inline):
    """Computes on the spot and remembers what."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.error: Unavailable | None = None

    async def compute(self, decision: Decision[Any, Any], raw: bytes) -> bytes:
        self.names.append(decision.name)
        if self.error is not None:
            raise self.error
        return await super().compute(decision, raw)


async def cloud_with(computer: Counting, vms: int = 1) -> Cloud:
    cloud = Cloud(computer=computer)
    await cloud.hosts("h1", "h2", "h3", "h4")
    for number in range(vms):
        await cloud.vm(f"v{number:02}", "h1", cpu=100, memory=GIB)
    return cloud


def test_large_decisions_are_computed_elsewhere_with_the_same_answer(monkeypatch: pytest.MonkeyPatch):
    async def story(vms: int) -> tuple[list[str], set[bool], set[str]]:
        computer = Counting()
        cloud = await cloud_with(computer, vms)
        await cloud.cycle()
        covered = await cloud.covered()
        assert len(covered) == vms
        return computer.names, set(covered.values()), {use.name for use in cloud.decisions.uses()}

    monkeypatch.setattr(decider, "INLINE_OBJECTS", -1)
    names, covered, kept = run(story(1))
    assert names == ["failover.clean", "failover.select"], "few VMs are decided about on the living index"
    assert (covered, kept) == ({True}, {*names, "failover.assign"})
    names, covered, kept = run(story(PASS_VMS + 1))
    assert names == ["failover.clean", "failover.select", "failover.plan"]
    assert (covered, kept) == ({True}, set(names))


def test_a_computer_that_fails_ends_the_cycle_and_is_counted(monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        computer = Counting()
        cloud = await cloud_with(computer)
        computer.error = Unavailable("the child died")
        assert await cloud.cycle() == 30.0
        assert cloud.metric("failover_reconciliation_aborted_total", step="decide") == 1
        assert await cloud.members() == {}
        computer.error = None
        await cloud.cycle()
        assert await cloud.covered() == {"v00": True}

    monkeypatch.setattr(decider, "INLINE_OBJECTS", -1)
    run(story())


def test_slots_are_planned_anew_when_more_are_needed_than_can_be_added():
    """Slots made for one slot a VM leave hardly any second one; a plan for two covers everybody on these hosts."""

    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        for number in range(10):
            await cloud.host(f"h{number}", cpu=32_000, memory=128 * GIB)
        for number in range(60):
            await cloud.vm(f"v{number:02}", f"h{number % 10}", cpu=2_000, memory=8 * GIB)
        await cloud.cycle()
        assert set((await cloud.covered()).values()) == {True}
        cache = cloud.failover_run.cache
        cache._demands = Demands({"*": 2})
        await cache.rebuild()
        for _ in range(3):
            await cloud.cycle()
        covered = await cloud.covered()
        assert (len(covered), sum(covered.values())) == (60, 60)
        await check_rules(cloud)

    run(story())

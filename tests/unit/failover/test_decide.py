from __future__ import annotations

from typing import Any

import pytest
from tests.support.failover import Cloud
from tests.support.loops import run

from outlive.base.errors import Unavailable
from outlive.failover.keeping import decide
from outlive.failover.keeping.decide import Decider
from outlive.failover.keeping.periodic import PeriodicCycle
from outlive.failover.ports import Inline
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


async def cloud_with(computer: Counting) -> Cloud:
    cloud = Cloud()
    cloud.parts.decider = Decider(cloud.decisions, computer, clock=cloud.clock, inline_needs=0)
    cloud.periodic = PeriodicCycle(cloud.parts)
    await cloud.hosts("h1", "h2", "h3", "h4")
    await cloud.vm("a", "h1")
    return cloud


def test_large_decisions_are_computed_elsewhere_with_the_same_answer(monkeypatch: pytest.MonkeyPatch):
    async def story() -> tuple[list[str], dict[str, bool], set[str]]:
        computer = Counting()
        cloud = await cloud_with(computer)
        await cloud.cycle()
        return computer.names, await cloud.covered(), {use.name for use in cloud.decisions.uses()}

    names, covered, kept = run(story())
    assert (names, covered) == (["failover.assign"], {"a": True})
    monkeypatch.setattr(decide, "INLINE_OBJECTS", -1)
    names, covered, kept = run(story())
    assert names == ["failover.clean", "failover.select", "failover.assign"]
    assert covered == {"a": True}
    assert kept == set(names)


def test_a_computer_that_fails_ends_the_cycle_and_is_counted():
    async def story() -> None:
        computer = Counting()
        cloud = await cloud_with(computer)
        computer.error = Unavailable("the child died")
        assert await cloud.cycle() == 30.0
        assert cloud.metric("failover_reconciliation_aborted_total", step="decide") == 1
        assert await cloud.members() == {}
        computer.error = None
        await cloud.cycle()
        assert await cloud.covered() == {"a": True}

    run(story())

"""Carrying a plan out: what is sent when, and what is not sent any more."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.unit.storage.builders import act, pod, tick

from outlive.base import LoopClock, Throttled
from outlive.runtime import ServedResource, run_virtual
from outlive.storage import AgentMetrics, CallRate, Plan, PlanExecutor, PlanOutcome, parse_options


class Verbs:
    """Records what it is asked for; an eviction takes ``takes_s``."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.calls: list[str] = []
        self._takes_s = takes_s

    async def list_served(self, api_version: str) -> tuple[ServedResource, ...]:
        return (ServedResource(name="pods/eviction", kind="Eviction", group="policy", version="v1"),)

    async def evict(self, key: str, **_: Any) -> None:
        self.calls.append(f"evict {key}")
        await asyncio.sleep(self._takes_s)

    async def delete(self, kind: Any, key: str, **_: Any) -> None:
        self.calls.append(f"delete {key}")

    async def patch(self, kind: Any, key: str, *_: Any, **__: Any) -> None:
        self.calls.append(f"patch {key}")


class Events:
    """Takes events."""

    def emit(self, *_: Any, **__: Any) -> None: ...


def carry_out(verbs: Verbs, *options: str, holds: Any = lambda plan: True) -> tuple[PlanOutcome, float]:
    """How the plan for two pods ends, and when."""
    plan = msgspec.convert(act("failover", tick(pods=[pod(), pod("db-1")]))["plans"][0], Plan)

    async def work() -> tuple[PlanOutcome, float]:
        clock = LoopClock()
        executor = PlanExecutor(
            parse_options(options, {}),
            store=None,  # type: ignore[arg-type]
            verbs=verbs,  # type: ignore[arg-type]
            events=Events(),
            drbd=None,  # type: ignore[arg-type]
            clock=clock,
            metrics=AgentMetrics(lambda: 0.0),
            is_proven=holds,
        )
        return await executor.carry_out(plan), clock.monotonic()

    return run_virtual(work())


def test_taint_pods_and_attachment_are_sent_in_their_order() -> None:
    verbs = Verbs()
    outcome, _ = carry_out(verbs)
    assert outcome.error is None
    assert verbs.calls == ["patch k1", "evict shop/db-0", "evict shop/db-1", "delete va-1"]


def test_a_call_without_an_answer_by_the_deadline_has_failed_and_nothing_follows() -> None:
    verbs = Verbs(takes_s=1000.0)
    outcome, at_s = carry_out(verbs, "--operations-timeout=7s")
    assert (outcome.error, round(at_s)) == ("evict-failed", 7)
    assert "delete va-1" not in verbs.calls


def test_nothing_is_sent_once_the_loss_is_none_any_more() -> None:
    verbs = Verbs()
    outcome, _ = carry_out(verbs, holds=lambda plan: len(verbs.calls) < 2)
    assert outcome.error == "evict-failed"
    assert verbs.calls == ["patch k1", "evict shop/db-0"]


def test_a_dry_run_sends_nothing() -> None:
    verbs = Verbs()
    outcome, _ = carry_out(verbs, "--dry-run")
    assert (outcome.error, verbs.calls) == (None, [])


def test_a_refused_eviction_keeps_the_attachment() -> None:
    class Refusing(Verbs):
        async def evict(self, key: str, **_: Any) -> None:
            raise Throttled("it would violate its disruption budget")

    verbs = Refusing()
    outcome, _ = carry_out(verbs)
    assert outcome.error == "evict-failed"
    assert outcome.detail == "evict: 429"
    assert verbs.calls == ["patch k1"]


def test_calls_beyond_the_burst_are_spread_over_time() -> None:
    async def work() -> float:
        clock = LoopClock()
        rate = CallRate(clock, qps=10.0, burst=5)
        for _ in range(15):
            await rate.wait()
        return clock.monotonic()

    assert round(run_virtual(work()), 6) == 1.0

"""Surviving failures: every single host of a large fleet, every pair of a middle one, by enumeration; and tolerance."""

from __future__ import annotations

from bench.failover_cloud import Cloud
from bench.figures import Figure, median_seconds
from outlive.failover import HostView, SlotView
from outlive.failover.analysis import (
    FailuresInput,
    FailuresResult,
    Method,
    ToleranceInput,
    compute_tolerance,
    iter_cases,
    survive,
)

RACK = 20
"""Hosts in a rack."""


def measure() -> list[Figure]:
    return [*pairs(), *singles()]


def pairs() -> list[Figure]:
    cloud = Cloud(4_000, 200, 2, (1, 2, 4, 8), even=False)
    slots = cloud.plan().slots
    given = asked(cloud, slots, 2)
    result = survive(given)
    held(result)

    def told() -> None:
        landed = sum(len(answer.landing) for _, answer in iter_cases(given))
        assert landed == result.affected

    note = f"{result.cases:,} pairs, {result.affected:,} landings"
    return [
        Figure(
            "every pair of 200 hosts, 4,000 VMs, by enumeration", median_seconds(lambda: survive(given)), "s", 10.0,
            note=note,
        ),
        Figure(
            "the same, with the slot of each VM in each case", median_seconds(told, runs=3, warmup=0), "s", 10.0,
            note=note,
        ),
    ]  # fmt: skip


def singles() -> list[Figure]:
    cloud = Cloud(100_000, 5_000, 2, (1, 2, 4, 8), even=False)
    slots = cloud.plan().slots
    given = asked(cloud, slots, 1)
    result = survive(given)
    held(result)
    racks = {name: f"rack={number // RACK}" for number, name in enumerate(cloud.names)}
    judged = [ToleranceInput(vms=cloud.vms, required=cloud.required, slots=slots, units=units) for units in ({}, racks)]
    counts = compute_tolerance(judged[1]).counts
    return [
        Figure(
            "every single failure of 5,000 hosts, 100,000 VMs, by enumeration",
            median_seconds(lambda: survive(given), runs=3, warmup=0),
            "s",
            3.0,
            note=f"{result.cases:,} cases, {result.affected:,} landings",
        ),
        Figure(
            "tolerance of 100,000 VMs", median_seconds(lambda: compute_tolerance(judged[0]), runs=3, warmup=0), "s", 3.0
        ),
        Figure(
            f"the same by racks of {RACK} hosts, of a plan for hosts",
            median_seconds(lambda: compute_tolerance(judged[1]), runs=3, warmup=0),
            "s",
            3.0,
            note=", ".join(f"{count:,} survive {level}" for level, count in counts.items()),
        ),
    ]


def held(result: FailuresResult) -> None:
    """What is measured is what was asked for, and its answer is yes."""
    assert result.method is Method.ENUMERATION
    assert result.holds


def asked(cloud: Cloud, slots: tuple[SlotView, ...], failures: int) -> FailuresInput:
    return FailuresInput(
        vms=cloud.vms,
        required=cloud.required,
        slots=slots,
        hosts=tuple(HostView(name=name) for name in cloud.names),
        failures=failures,
        enumerate=True,
    )

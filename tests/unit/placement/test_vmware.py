"""VMware: steps that work with records, which somebody else extracts, and are left out while there are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.placement import request

from outlive.base import BadInput, LoopClock, Random
from outlive.placement import (
    VMWARE_GENERAL_PURPOSE,
    AvoidLongTermContention,
    Engine,
    Fleet,
    KnowledgeRecords,
    PipelineTable,
    PlacementService,
    Ranking,
    SpreadNoisyProjects,
    VmwareBinPack,
    admit,
    build,
    decode_parameters,
    min_max_scale,
)
from outlive.resources import (
    Condition,
    Knowledge,
    KnowledgeRaw,
    KnowledgeStatus,
    ObjectMeta,
    Parameter,
    Pipeline,
    PipelineSpec,
    StepSpec,
)


def knowledge(name: str, *features: dict[str, Any], ready: bool = True) -> Knowledge:
    conditions = (Condition(type="Ready", status="True" if ready else "False"),)
    return Knowledge(
        metadata=ObjectMeta(name=name),
        status=KnowledgeStatus(raw=KnowledgeRaw(features=features), conditions=conditions),
    )


UTILIZATION = knowledge(
    "host-utilization",
    {
        "computeHost": "a",
        "ramUsedMB": 16384,
        "totalRAMAllocatableMB": 65536,
        "vcpusUsed": 4,
        "totalVCPUsAllocatable": 16,
    },
    {"computeHost": "b", "ramUsedMB": 0, "totalRAMAllocatableMB": 32768, "vcpusUsed": 0, "totalVCPUsAllocatable": 0},
)
CONTENTION = {
    "avgCPUContentionLowerBound": 0.0, "avgCPUContentionUpperBound": 10.0,
    "avgCPUContentionActivationLowerBound": 0.0, "avgCPUContentionActivationUpperBound": -0.75,
    "maxCPUContentionLowerBound": 0.0, "maxCPUContentionUpperBound": 10.0,
    "maxCPUContentionActivationLowerBound": 0.0, "maxCPUContentionActivationUpperBound": -0.25,
}  # fmt: skip
NOISE = {
    "avgCPUUsageLowerBound": 20.0, "avgCPUUsageUpperBound": 100.0,
    "avgCPUUsageActivationLowerBound": 0.0, "avgCPUUsageActivationUpperBound": -0.5,
}  # fmt: skip


def step(name: str, values: dict[str, Any]) -> StepSpec:
    def parameter(key: str, value: Any) -> Parameter:
        return (
            Parameter(key=key, float_map_value=value)
            if isinstance(value, dict)
            else Parameter(key=key, float_value=value)
        )

    return StepSpec(name=name, params=tuple(parameter(key, value) for key, value in values.items()))


def scores(name: str, values: dict[str, Any], *known: Knowledge, **fields: Any) -> dict[str, float]:
    """What the weigher says of hosts a, b and c."""
    fleet = Fleet()
    for one in known:
        fleet.records.upsert(one)
    table = PipelineTable(fleet.records.usable_names)
    table.put(Pipeline(metadata=ObjectMeta(name="p"), spec=PipelineSpec(weighers=(step(name, values),))))
    ranking = Engine(fleet, table).rank(request(pipeline="p", hosts=["a", "b", "c"], **fields))
    trace = ranking.traces[0]
    return dict(zip(ranking.names_at(trace.kept.nonzero()[0]), trace.get_activations().tolist(), strict=True))


def test_bin_packing_counts_what_can_be_allocated() -> None:
    both = scores("vmware_binpack", {"resourceWeights": {"cpu": 1.0, "memory": 3.0}}, UTILIZATION)
    assert both == {"a": (0.5 + 3 * 0.5) / 4, "b": 0.5, "c": 0.0}


def test_contention_of_average_and_maximum_add_up() -> None:
    records = (
        {"computeHost": "a", "avgCPUContention": 5, "maxCPUContention": 40},
        {"computeHost": "b", "avgCPUContention": -1},
        {"computeHost": "c", "avgCPUContention": "nonsense"},
    )
    for kind in ("long", "short"):
        known = knowledge(f"vmware-{kind}-term-contended-hosts", *records)
        found = scores(f"vmware_avoid_{kind}_term_contended_hosts", CONTENTION, known)
        assert found == {"a": -0.375 - 0.25, "b": 0.0, "c": 0.0}


@pytest.mark.parametrize("odd", ["NaN", "inf", "-Infinity"])
def test_a_figure_that_is_no_number_spoils_only_its_own_record(odd: str) -> None:
    name = "vmware-long-term-contended-hosts"
    known = knowledge(
        name,
        {"computeHost": "a", "avgCPUContention": 10.0, "maxCPUContention": 5.0},
        {"computeHost": "b", "avgCPUContention": odd, "maxCPUContention": 5.0},
    )
    found = scores("vmware_avoid_long_term_contended_hosts", CONTENTION, known)
    assert found == {"a": -0.875, "b": 0.0, "c": 0.0}


def test_only_the_own_project_is_noisy() -> None:
    known = knowledge(
        "vmware-project-noisiness",
        {"project": "p", "computeHost": "a", "avgCPUOfProject": 60},
        {"project": "q", "computeHost": "b", "avgCPUOfProject": 100},
    )
    assert scores("vmware_anti_affinity_noisy_projects", NOISE, known) == {"a": -0.25, "b": 0.0, "c": 0.0}
    assert scores("vmware_anti_affinity_noisy_projects", NOISE, known, project="")["a"] == 0.0


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (AvoidLongTermContention, {**CONTENTION, "maxCPUContentionUpperBound": 0.0}, "are both 0.0"),
        (AvoidLongTermContention, {**CONTENTION, "avgCPUContentionActivationUpperBound": 0.0}, "are both 0.0"),
        (AvoidLongTermContention, {"avgCPUContentionLowerBound": 0.0}, "avgCPUContentionUpperBound"),
        (SpreadNoisyProjects, {**NOISE, "avgCPUUsageUpperBound": 20.0}, "are both 20.0"),
        (VmwareBinPack, {"resourceWeights": {"cpu": 0.0}}, "use the multiplier"),
    ],
)
def test_bounds_of_a_pair_differ(kind: Any, values: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        decode_parameters(step(kind.name, values), kind)


@given(*[st.floats(-100, 100)] * 5)
def test_scaled_values_stay_in_their_range(
    value: float, low: float, high: float, low_to: float, high_to: float
) -> None:
    found = min_max_scale(value, low, high, low_to, high_to)
    if low == high or low_to == high_to:
        assert found == 0.0
    else:
        assert min(low_to, high_to) <= found <= max(low_to, high_to)
        if abs(high - low) > 1e-3:
            assert min_max_scale(low, low, high, low_to, high_to) == pytest.approx(low_to)
            assert min_max_scale(high, low, high, low_to, high_to) == pytest.approx(high_to)


async def test_steps_come_and_go_with_their_records() -> None:
    fleet = Fleet()
    service = PlacementService(
        fleet, PipelineTable.with_shipped(fleet.records.usable_names), clock=LoopClock(), random=Random(0)
    )

    async def steps() -> list[str]:
        ranking: Ranking = await service.rank(request(pipeline=VMWARE_GENERAL_PURPOSE, hosts=["a", "b"]))
        return [trace.name for trace in ranking.traces]

    assert await steps() == []
    service.on_knowledge(None, UTILIZATION)
    assert await steps() == ["vmware_binpack"]
    unready = knowledge("host-utilization", *UTILIZATION.status.raw.features, ready=False)
    service.on_knowledge(UTILIZATION, unready)
    assert await steps() == []
    service.on_knowledge(unready, UTILIZATION)
    assert await steps() == ["vmware_binpack"]
    service.on_knowledge(UTILIZATION, None)
    assert await steps() == []
    service.on_knowledge(None, knowledge("host-utilization"))
    service.on_knowledge(None, knowledge("of-somebody-else", {"x": 1}))
    assert await steps() == []


def test_missing_records_refuse_no_pipeline() -> None:
    pipeline = Pipeline(
        metadata=ObjectMeta(name="p"), spec=PipelineSpec(weighers=(step("vmware_anti_affinity_noisy_projects", NOISE),))
    )
    assert admit(pipeline).errors == ()
    (error,) = build(pipeline, KnowledgeRecords().usable_names()).dropped
    assert "Knowledge/vmware-project-noisiness is missing, not ready or empty" in error

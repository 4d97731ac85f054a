"""The columns give the same answer as plain Python, for every step, on random fleets and requests."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import plain_placement
from tests.support.placement import HOSTS, PROJECTS, commitment, fleet_of, host, random_fleet, random_request, request
from tests.support.plain_placement import COMPARED, rank_plain

from outlive.base import Random
from outlive.placement import (
    FILTERS,
    HOST_UTILIZATION,
    LONG_TERM_CONTENTION,
    PROJECT_NOISINESS,
    SHORT_TERM_CONTENTION,
    WEIGHERS,
    BinPack,
    Engine,
    Fleet,
    Intent,
    PipelineTable,
    PlacementSettings,
    RunRefused,
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
    ProjectQuota,
    ProjectQuotaSpec,
    StepSpec,
)


def bounds(what: str, low: float, high: float, score: float) -> tuple[Parameter, ...]:
    """No score at the lower bound, and this one at the upper."""
    values = {"LowerBound": low, "UpperBound": high, "ActivationLowerBound": 0.0, "ActivationUpperBound": score}
    return tuple(Parameter(key=f"{what}{key}", float_value=value) for key, value in values.items())


CONTENTION = bounds("avgCPUContention", 0.0, 10.0, -0.75) + bounds("maxCPUContention", 0.0, 10.0, -0.25)
PARAMETERS = {
    "filter_external_customer": (Parameter(key="domainNamePrefixes", string_list_value=("iaas-",)),),
    "filter_exclude_hosts": (Parameter(key="excludedHosts", string_list_value=("h1", "nowhere")),),
    "kvm_prefer_smaller_hosts": (Parameter(key="resourceWeights", float_map_value={"memory": 1.0, "cpu": 0.5}),),
    "kvm_binpack": (Parameter(key="resourceWeights", float_map_value={"memory": 1.0, "cpu": 2.0}),),
    "filter_quota_enforcement": (Parameter(key="enforce", bool_value=True),),
    "vmware_binpack": (Parameter(key="resourceWeights", float_map_value={"memory": 1.0, "cpu": 2.0}),),
    "vmware_avoid_long_term_contended_hosts": CONTENTION,
    "vmware_avoid_short_term_contended_hosts": CONTENTION,
    "vmware_anti_affinity_noisy_projects": bounds("avgCPUUsage", 20.0, 100.0, -0.5),
}
MEGABYTES = PlacementSettings(flavor_memory_unit="mb")


def pipeline(name: str, filters: list[str], weighers: list[str], *, gathers: bool = False) -> Pipeline:
    def step(of: str) -> StepSpec:
        return StepSpec(name=of, params=PARAMETERS.get(of, ()), multiplier=-1.5 if of == "kvm_binpack" else 1.0)

    spec = PipelineSpec(
        filters=tuple(map(step, filters)), weighers=tuple(map(step, weighers)), ignore_preselection=gathers
    )
    return Pipeline(metadata=ObjectMeta(name=name), spec=spec)


def compare(engine: Engine, name: str, random: Random, intent: Intent | None = None) -> int:
    """Run one random request both ways; the number of hosts in the answer, -1 for a refusal."""
    request = random_request(random, pipeline=name, intent=intent)
    try:
        ranking = engine.rank(request, why=True)
    except RunRefused as error:
        with pytest.raises(type(error)):
            rank_plain(engine, request)
        return -1
    assert list(zip(ranking.hosts, ranking.scores, strict=True)) == rank_plain(engine, request)
    for reason in ranking.rejected.values():
        assert reason.code != "rejected", "a host was refused and nobody can say why"
    return len(ranking)


def known(fleet: Fleet, random: Random) -> Fleet:
    """The same fleet with quota of every project, and with records about some of its hosts."""
    for project in PROJECTS:
        for zone in ("z1", "z2"):
            spec = ProjectQuotaSpec(
                project_id=project,
                availability_zone=zone,
                quota={f"hw_version_{group}_cores": random.randint(0, 4) for group in ("g", "g2")},
            )
            fleet.quotas.upsert_quota(ProjectQuota(metadata=ObjectMeta(name=f"{project}-{zone}"), spec=spec))
    hosts = [name for name in HOSTS if random.random() < 0.8]
    records: dict[str, list[dict[str, Any]]] = {
        HOST_UTILIZATION: [
            {"computeHost": name, "ramUsedMB": random.randint(0, 2**16), "totalRAMAllocatableMB": 2**16,
             "vcpusUsed": random.randint(0, 64), "totalVCPUsAllocatable": random.choice([0, 64])}
            for name in hosts
        ],
        PROJECT_NOISINESS: [
            {"computeHost": name, "project": random.choice(PROJECTS), "avgCPUOfProject": random.uniform(0, 120)}
            for name in hosts
        ],
        **{
            term: [
                {"computeHost": name, "avgCPUContention": random.uniform(0, 9), "maxCPUContention": random.random()}
                for name in hosts
            ]
            for term in (LONG_TERM_CONTENTION, SHORT_TERM_CONTENTION)
        },
    }  # fmt: skip
    for name, features in records.items():
        conditions = (Condition(type="Ready", status="True"),)
        status = KnowledgeStatus(raw=KnowledgeRaw(features=tuple(features)), conditions=conditions)
        fleet.records.upsert(Knowledge(metadata=ObjectMeta(name=name), status=status))
    return fleet


SEEDS = 80
"""So many fleets are tried until a step has been compared in all that it does."""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [PlacementSettings(), MEGABYTES], ids=["mib", "mb"])
@pytest.mark.parametrize("name", sorted(FILTERS))
def test_each_filter_says_the_same_over_columns_and_host_by_host(name: str, settings: PlacementSettings) -> None:
    COMPARED.clear()
    sizes = set()
    for seed in range(SEEDS):
        random = Random(seed).fork(name)
        fleet = known(random_fleet(random, settings), random)
        table = PipelineTable(fleet.records.usable_names)
        table.put(pipeline("one", [name], []))
        for _ in range(10):
            sizes.add(compare(Engine(fleet, table), "one", random))
        if seed >= 6 and COMPARED[name, "refused"] and COMPARED[name, "kept"]:
            break
    assert len(sizes) > 1
    assert COMPARED[name, "refused"], "nothing was compared"
    assert COMPARED[name, "kept"] or name == "filter_quota_enforcement", "it refuses everybody, or is skipped"


@pytest.mark.parametrize("name", sorted(WEIGHERS))
def test_each_weigher_says_the_same_over_columns_and_host_by_host(name: str) -> None:
    COMPARED.clear()
    for seed in range(SEEDS):
        random = Random(seed).fork(name)
        fleet = known(random_fleet(random), random)
        table = PipelineTable(fleet.records.usable_names)
        table.put(pipeline("one", ["filter_status_conditions"], [name]))
        table.put(pipeline("strangers", [], [name]))
        for intent in (None, Intent.EVACUATE, Intent.RESERVE_FOR_FAILOVER, Intent.CREATE):
            compare(Engine(fleet, table), "one", random, intent)
            compare(Engine(fleet, table), "strangers", random, intent)
        if seed >= 8 and COMPARED[name, "differs"]:
            break
    assert COMPARED[name, "differs"], "nothing was compared"


def test_every_step_has_its_plain_form() -> None:
    assert {step.name for step in plain_placement._PLAIN} == set(WEIGHERS)


def test_an_oracle_that_cannot_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_step: object, _run: object, _hosts: object) -> list[float]:
        raise AttributeError("it calls a function that is gone")

    table = PipelineTable()
    table.put(pipeline("one", [], ["kvm_binpack"]))
    engine = Engine(fleet_of(host("h1"), host("h2")), table)
    assert rank_plain(engine, request(pipeline="one"))
    monkeypatch.setitem(plain_placement._PLAIN, BinPack, broken)
    with pytest.raises(AttributeError, match="gone"):
        rank_plain(engine, request(pipeline="one"))


def test_hosts_with_a_slot_of_the_project_score_the_same_either_way() -> None:
    table = PipelineTable()
    table.put(pipeline("one", [], ["kvm_committed_resource_reservation"]))
    hosts = [host(f"h{number}") for number in range(5)]
    slots = [
        commitment("room", "h0", project="p", group="g", zone="z1"),
        commitment("elsewhere", "h1", project="p", group="g", zone="z2"),
        commitment("foreign", "h2", project="q", group="g", zone="z1"),
        commitment("full", "h3", project="p", group="g", zone="z1", meant={"v": ("4", "100Gi")}),
        commitment("evicted", "h4", target="", project="p", group="g", zone="z1"),
    ]
    engine = Engine(fleet_of(*hosts, *slots), table)
    asked = request(pipeline="one", zone="z1", extraSpecs={"quota:hw_version": "g"})
    ranking = engine.rank(asked)
    assert list(zip(ranking.hosts, ranking.scores, strict=True)) == rank_plain(engine, asked)
    assert {one for one, score in rank_plain(engine, asked) if score > 0.5} == {"h0"}


@pytest.mark.parametrize("settings", [PlacementSettings(), MEGABYTES], ids=["mib", "mb"])
def test_shipped_pipelines_say_the_same_over_columns_and_host_by_host(settings: PlacementSettings) -> None:
    table = PipelineTable.with_shipped()
    answered = 0
    for seed in range(12):
        random = Random(seed)
        engine = Engine(random_fleet(random, settings), table)
        for name in table:
            answered += compare(engine, name, random) > 0
    assert answered > 12


@pytest.mark.slow
def test_the_fleet_says_the_same_after_any_history_of_changes() -> None:
    table = PipelineTable.with_shipped()
    for seed in range(8):
        random = Random(seed)
        grown = random_fleet(random)
        for _ in range(60):
            other = random_fleet(random)
            _change(grown, other, random)
        rebuilt = Fleet()
        for name in grown.names:
            host = grown.find_host(name)
            assert host is not None
            rebuilt.upsert_host(host)
        for reservation in grown.list_reservations():
            rebuilt.upsert_reservation(reservation)
        assert grown.names == rebuilt.names
        assert (grown.free_amounts() == rebuilt.free_amounts()).all()
        for _ in range(6):
            request = random_request(random, pipeline="kvm-general-purpose-load-balancing")
            try:
                expected = Engine(rebuilt, table).rank(request)
            except RunRefused:
                continue
            found = Engine(grown, table).rank(request)
            assert (found.hosts, found.scores) == (expected.hosts, expected.scores)


def _change(fleet: Fleet, source: Fleet, random: Random) -> None:
    """One random change, taken from another fleet."""
    if random.random() < 0.5 and source.names:
        name = random.choice(source.names)
        host = source.find_host(name)
        assert host is not None
        if random.random() < 0.3:
            fleet.remove_host(name)
        else:
            fleet.upsert_host(host)
    elif source.list_reservations():
        reservation = random.choice(source.list_reservations())
        if random.random() < 0.3:
            fleet.remove_reservation(reservation.name)
        else:
            fleet.upsert_reservation(reservation)

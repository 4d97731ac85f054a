"""The columns give the same answer as plain Python, for every step, on random fleets and requests."""

from __future__ import annotations

import pytest
from tests.support.placement import random_fleet, random_request
from tests.support.plain_placement import rank_plain

from outlive.base.random import Random
from outlive.placement.engine import Engine
from outlive.placement.errors import RunRefused
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import FILTERS, WEIGHERS, PipelineTable
from outlive.placement.request import Intent
from outlive.placement.settings import PlacementSettings
from outlive.resources import Parameter, Pipeline, PipelineSpec, Step
from outlive.resources.meta import ObjectMeta

PARAMETERS = {
    "filter_external_customer": (Parameter(key="domainNamePrefixes", string_list_value=("iaas-",)),),
    "filter_exclude_hosts": (Parameter(key="excludedHosts", string_list_value=("h1", "nowhere")),),
    "kvm_prefer_smaller_hosts": (Parameter(key="resourceWeights", float_map_value={"memory": 1.0, "cpu": 0.5}),),
    "kvm_binpack": (Parameter(key="resourceWeights", float_map_value={"memory": 1.0, "cpu": 2.0}),),
}
MEGABYTES = PlacementSettings(flavor_memory_unit="mb")


def pipeline(name: str, filters: list[str], weighers: list[str], *, gathers: bool = False) -> Pipeline:
    def step(of: str) -> Step:
        return Step(name=of, params=PARAMETERS.get(of, ()), multiplier=-1.5 if of == "kvm_binpack" else 1.0)

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


@pytest.mark.slow
@pytest.mark.parametrize("settings", [PlacementSettings(), MEGABYTES], ids=["mib", "mb"])
@pytest.mark.parametrize("name", sorted(FILTERS))
def test_each_filter_says_the_same_over_columns_and_host_by_host(name: str, settings: PlacementSettings) -> None:
    table = PipelineTable()
    table.put(pipeline("one", [name], []))
    sizes = set()
    for seed in range(6):
        random = Random(seed).fork(name)
        engine = Engine(random_fleet(random, settings), table)
        for _ in range(10):
            sizes.add(compare(engine, "one", random))
    assert len(sizes) > 1


@pytest.mark.parametrize("name", sorted(WEIGHERS))
def test_each_weigher_says_the_same_over_columns_and_host_by_host(name: str) -> None:
    table = PipelineTable()
    table.put(pipeline("one", ["filter_status_conditions"], [name]))
    table.put(pipeline("strangers", [], [name]))
    for seed in range(8):
        random = Random(seed).fork(name)
        engine = Engine(random_fleet(random), table)
        for intent in (None, Intent.EVACUATE, Intent.RESERVE_FOR_FAILOVER, Intent.CREATE):
            compare(engine, "one", random, intent)
            compare(engine, "strangers", random, intent)


@pytest.mark.parametrize("settings", [PlacementSettings(), MEGABYTES], ids=["mib", "mb"])
def test_shipped_pipelines_say_the_same_over_columns_and_host_by_host(settings: PlacementSettings) -> None:
    table = PipelineTable.shipped()
    answered = 0
    for seed in range(12):
        random = Random(seed)
        engine = Engine(random_fleet(random, settings), table)
        for name in table:
            answered += compare(engine, name, random) > 0
    assert answered > 12


@pytest.mark.slow
def test_the_fleet_says_the_same_after_any_history_of_changes() -> None:
    table = PipelineTable.shipped()
    for seed in range(8):
        random = Random(seed)
        grown = random_fleet(random)
        for _ in range(60):
            other = random_fleet(random)
            _change(grown, other, random)
        rebuilt = Fleet()
        for name in grown.names:
            host = grown.host(name)
            assert host is not None
            rebuilt.upsert_host(host)
        for reservation in grown.reservations():
            rebuilt.upsert_reservation(reservation)
        assert grown.names == rebuilt.names
        assert (grown.free() == rebuilt.free()).all()
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
        host = source.host(name)
        assert host is not None
        if random.random() < 0.3:
            fleet.remove_host(name)
        else:
            fleet.upsert_host(host)
    elif source.reservations():
        reservation = random.choice(source.reservations())
        if random.random() < 0.3:
            fleet.remove_reservation(reservation.name)
        else:
            fleet.upsert_reservation(reservation)

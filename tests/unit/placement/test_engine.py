"""How a run combines its steps: weights, order, failures, gathering, and what is left of the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace
from tests.support.placement import commitment, fleet_of, host, instances, request, slot

from outlive.base import Random
from outlive.placement import (
    SILENT,
    Engine,
    GatheringRefused,
    Intent,
    InvalidOptions,
    PipelineNotReady,
    PipelineTable,
    PlacementOptions,
    PlacementSettings,
    RunRefused,
    UnknownPipeline,
    shuffle_top,
    squash,
)
from outlive.resources import Hypervisor, ObjectMeta, Parameter, Pipeline, PipelineSpec, Reservation, StepSpec

MEMORY = (Parameter(key="resourceWeights", float_map_value={"memory": 1.0}),)
VALIDATION = replace(SILENT, read_only=True, lock_reservations=True)


def engine(
    *objects: Hypervisor | Reservation, settings: PlacementSettings | None = None, **specs: PipelineSpec
) -> Engine:
    settings = settings or PlacementSettings()
    table = PipelineTable.with_shipped()
    for name, spec in specs.items():
        table.put(Pipeline(metadata=ObjectMeta(name=name), spec=spec))
    return Engine(fleet_of(*objects, settings=settings), table)


def weigher(name: str, multiplier: float = 1.0, params: tuple[Parameter, ...] = ()) -> PipelineSpec:
    return PipelineSpec(weighers=(StepSpec(name=name, multiplier=multiplier, params=params),))


def three_fills() -> tuple[Hypervisor, ...]:
    return tuple(
        host(name, allocation={"cpu": "0", "memory": memory})
        for name, memory in (("empty", "0"), ("half", "32Gi"), ("full", "48Gi"))
    )


def test_incoming_weights_are_bounded_only_where_weighers_follow() -> None:
    hosts = (host("a"), host("b"))
    asked = replace(request(pipeline="bare", hosts=["a", "b"]), weights=(50.0, 60.0))
    bare = engine(*hosts, bare=PipelineSpec()).rank(asked)
    assert (bare.hosts, bare.scores) == (("b", "a"), (60.0, 50.0))
    weighed = engine(*hosts, bare=weigher("kvm_binpack", 0.0, MEMORY)).rank(asked)
    assert weighed.scores == (1.0, 1.0)


def test_every_weigher_adds_its_multiplier_times_the_bounded_score() -> None:
    packed = engine(*three_fills(), p=weigher("kvm_binpack", 2.0, MEMORY)).rank(request(pipeline="p"))
    assert packed.hosts == ("full", "half", "empty")
    assert packed.scores[0] == pytest.approx(2 * math.tanh(1.0), abs=1e-12)
    assert engine(*three_fills(), p=weigher("kvm_binpack", -1.0, MEMORY)).rank(request(pipeline="p")).target == "empty"


def test_scores_are_squashed_as_tanh_says() -> None:
    for value in (-50.0, -1.0, -0.1, 0.0, 1e-9, 0.1, 1.0, 3.0, 19.0, 1e6):
        assert float(squash(np.array([value]))[0]) == pytest.approx(math.tanh(value), abs=1e-15)


def test_smaller_hosts_go_first_and_equal_sizes_say_nothing() -> None:
    hosts = [
        host(name, effectiveCapacity={"cpu": "8", "memory": f"{size}Gi"})
        for name, size in (("big", 256), ("mid", 128), ("small", 64))
    ]
    found = engine(*hosts, p=weigher("kvm_prefer_smaller_hosts", params=MEMORY)).rank(request(pipeline="p"))
    activations = found.to_document().step_results[0].activations
    assert activations == {"big": 0.0, "mid": pytest.approx(2 / 3), "small": 1.0}
    cpu = (Parameter(key="resourceWeights", float_map_value={"cpu": 1.0}),)
    level = engine(*hosts, p=weigher("kvm_prefer_smaller_hosts", params=cpu)).rank(request(pipeline="p"))
    assert set(level.scores) == {0.0}


def test_soft_policies_count_members() -> None:
    from outlive.placement import InstanceGroup

    hosts = (host("two", instances=instances("a", "b")), host("none"))
    for policy, first in (("soft-affinity", "two"), ("soft-anti-affinity", "none")):
        asked = replace(request(pipeline="p"), group=InstanceGroup(policy=policy, members=("a", "b")))
        assert engine(*hosts, p=weigher("kvm_instance_group_soft_affinity")).rank(asked).target == first


def test_the_vms_own_slots_are_preferred_in_an_evacuation_only() -> None:
    objects = (host("a"), host("b"), slot("s", on="b", members=("vm-1",)))
    table = {"p": weigher("kvm_failover_evacuation")}
    found = engine(*objects, **table).rank(request(pipeline="p", intent="evacuate"))
    assert found.hosts == ("b", "a")
    assert found.scores == (pytest.approx(math.tanh(1.0)), pytest.approx(math.tanh(0.1)))
    assert set(engine(*objects, **table).rank(request(pipeline="p", intent="create")).scores) == {0.0}


def test_own_slots_go_first_even_where_the_weighers_disagree() -> None:
    weights = {"hosts": ["a", "b"]}
    objects = (host("a"), host("b"), slot("s", on="b", members=("vm-1",)))
    asked = replace(request(pipeline="p", intent="evacuate", **weights), weights=(5.0, 0.0))
    assert engine(*objects, p=weigher("kvm_failover_evacuation")).rank(asked).hosts == ("b", "a")
    weak = PlacementSettings(own_slots_first=False)
    assert engine(*objects, settings=weak, p=weigher("kvm_failover_evacuation")).rank(asked).hosts == ("a", "b")


def test_commitment_slots_attract_the_vms_of_their_project_and_group() -> None:
    objects = (host("a"), host("b"), commitment("c", on="b", memory="16Gi"))
    spec = {"zone": "z1", "pipeline": "p", "extraSpecs": {"quota:hw_version": "g"}}
    table = {"p": weigher("kvm_committed_resource_reservation")}
    assert engine(*objects, **table).rank(request(**spec)).target == "b"
    for elsewhere in ({"zone": "z2"}, {"project": "q"}, {"need": {"cpu": "1", "memory": "17Gi"}}):
        assert len(set(engine(*objects, **table).rank(request(**{**spec, **elsewhere})).scores)) == 1


def test_consolidation_packs_slots_and_spreads_those_of_a_group() -> None:
    objects = (
        *(host(name) for name in "abc"),
        *(slot(f"{on}-{group}-{n}", on=on, group=group) for n, (on, group) in enumerate(("ag", "bx", "bg", "ag"))),
    )
    asked = request(pipeline="p", intent="reserve_for_failover", hints={"_cortex_resource_group": "g"})
    found = engine(*objects, p=weigher("kvm_failover_reservation_consolidation")).rank(asked)
    activations = found.to_document().step_results[0].activations
    assert activations == {"a": pytest.approx(0.5 - 0.05), "b": pytest.approx(0.5 - 0.025), "c": 0.0}


def test_equal_hosts_share_the_load_and_a_replay_gives_the_same_answer() -> None:
    machine = engine(*[host(f"h{number}") for number in range(10)])
    first = {machine.rank(request(resourceId=f"vm-{number}")).target for number in range(60)}
    assert len(first) == 10
    assert machine.rank(request()).hosts == machine.rank(request()).hosts


def test_a_pipeline_that_gathers_takes_all_hosts_and_answers_with_named_ones() -> None:
    hosts = [host(name) for name in "abc"]
    assert set(engine(*hosts).rank(request(hosts=["a", "b"]))) == {"a", "b"}
    assert set(engine(*hosts).rank(request(hosts=[]))) == {"a", "b", "c"}
    free = PlacementSettings(nova_limit_hosts_to_request=False)
    assert set(engine(*hosts, settings=free).rank(request(hosts=["a"]))) == {"a", "b", "c"}


def test_the_answer_is_cut_after_it_is_limited_to_named_hosts() -> None:
    busy = host("busy", allocation={"cpu": "8", "memory": "32Gi"})
    asked = replace(request(hosts=["busy"]), options=PlacementOptions(max_candidates=1))
    assert engine(host("idle"), busy).rank(asked).hosts == ("busy",)


def test_a_pipeline_that_gathers_wants_a_kvm_flavor() -> None:
    with pytest.raises(GatheringRefused, match="hypervisor_type"):
        engine(host()).rank(request(extraSpecs={"capabilities:hypervisor_type": "Ironic"}))


def test_validation_looks_at_the_named_host_only_however_answers_are_trimmed() -> None:
    asked = replace(request(hosts=["a"], intent="evacuate"), options=VALIDATION)
    for settings in (PlacementSettings(), PlacementSettings(nova_limit_hosts_to_request=False)):
        found = engine(host("a"), host("b"), settings=settings).rank(asked)
        assert found.hosts == ("a",)
        assert len(found.start) == 1


def test_a_failing_capacity_filter_refuses_everybody_and_gives_the_reason() -> None:
    nothing = request(need={"cpu": "0", "memory": "0"})
    found = engine(host("a")).rank(nothing, why=True)
    assert found.hosts == ()
    assert found.refusal is not None
    assert (found.refusal.step, found.refusal.code) == ("filter_has_enough_capacity", "zero-size")
    assert found.rejected["a"] == found.refusal


def test_a_pipeline_may_say_what_a_failing_step_means() -> None:
    spec = PipelineSpec(filters=(StepSpec(name="filter_has_enough_capacity", on_error="skip"),))
    assert engine(host("a"), p=spec).rank(request(pipeline="p", need={})).hosts == ("a",)


def test_runs_that_cannot_be_answered_say_which_way() -> None:
    with pytest.raises(InvalidOptions, match="skip_history"):
        engine(host()).rank(replace(request(), options=PlacementOptions(read_only=True)))
    with pytest.raises(UnknownPipeline, match="nothing"):
        engine(host()).rank(request(pipeline="nothing"))
    broken = PipelineSpec(filters=(StepSpec(name="filter_external_customer"),))
    with pytest.raises(PipelineNotReady):
        engine(host(), p=broken).rank(request(pipeline="p"))


def test_unlocked_commitments_are_counted_by_intent() -> None:
    asked = request(extraSpecs={"capabilities:hypervisor_type": "QEMU", "quota:hw_version": "g"}, intent="resize")
    spec = PipelineSpec(filters=(StepSpec(name="filter_has_enough_capacity"),))
    found = engine(host("h1"), commitment("c"), p=spec).rank(replace(asked, pipeline="p"))
    (event,) = found.traces[0].events
    assert (event.name, event.labels, event.count) == ("commitment_slots_unlocked", (("intent", "resize"),), 1)


def test_weights_must_match_the_hosts() -> None:
    with pytest.raises(RunRefused):
        engine(host("a")).rank(replace(request(hosts=["a"]), weights=(1.0, 2.0)))


def test_the_document_has_every_figure() -> None:
    found = engine(host("a"), host("b", zone="z2")).rank(request(zone="z1"), why=True).to_document()
    assert found.target_host == "a"
    assert found.ordered_hosts == ("a",)
    assert found.raw_in_weights == {"a": 0.0, "b": 0.0}
    assert set(found.aggregated_out_weights) == {"a"}
    assert [step.step_name for step in found.step_results][1] == "filter_correct_az"
    assert found.step_results[-1].activations.keys() == {"a"}
    assert found.rejected["b"].message == "the host is in zone z2, requested is z1"


def test_the_shuffle_never_moves_a_host_across_the_boundary_of_own_slots() -> None:
    hosts, own = ["s1", "s2", "a", "b", "c"], {"s1", "s2"}
    seen = {tuple(shuffle_top(hosts, own, first=4, random=Random(seed))) for seed in range(60)}
    assert {order[:2] for order in seen} == {("s1", "s2"), ("s2", "s1")}
    assert {order[4] for order in seen} == {"c"}
    assert {order[2:4] for order in seen} == {("a", "b"), ("b", "a")}


def test_intent_only_rules_do_not_hold_for_a_request_without_intent() -> None:
    assert request().intent is Intent.UNKNOWN


@pytest.mark.parametrize("name", ["kvm-new-failover-reservation", "kvm-valid-host-reuse-failover-reservation"])
def test_slots_are_never_searched_on_hosts_whose_aggregates_are_for_others(name: str) -> None:
    reserved = host("a", aggregates=[{"name": "x", "metadata": {"filter_tenant_id": "q"}}])
    asked = request(pipeline=name, intent="reserve_for_failover", hosts=["a", "b"])

    engine = Engine(fleet_of(reserved, host("b")), PipelineTable.with_shipped())
    found = engine.rank(asked, why=True)
    assert found.hosts == ("b",)
    assert [reason.step for reason in found.rejected.values()] == ["filter_aggregate_metadata"]


def test_other_calls_pass_only_the_filters_that_their_pipeline_lists() -> None:
    reserved = host("a", aggregates=[{"name": "x", "metadata": {"filter_tenant_id": "q"}}])
    engine = Engine(fleet_of(reserved), PipelineTable.with_shipped())
    asked = request(pipeline="kvm-acknowledge-failover-reservation", intent="evacuate", hosts=["a"])
    assert engine.rank(asked).hosts == ("a",)


def test_an_answer_that_is_read_late_names_the_hosts_of_its_run() -> None:
    ranker = engine(host("a"), host("b"))
    found = ranker.rank(request(), why=True)
    ranker.fleet.remove_host("a")
    ranker.fleet.remove_host("b")
    ranker.fleet.upsert_host(host("c"))
    ranker.fleet.upsert_host(host("d"))
    assert sorted(found.hosts) == ["a", "b"]
    assert set(found.to_document().aggregated_out_weights) == {"a", "b"}


def test_weighers_that_look_at_reservations_need_no_record_of_the_host() -> None:
    asked = replace(
        request(pipeline="p", hosts=["another", "unknown"]), intent=Intent.EVACUATE, resource_id="vm", options=SILENT
    )
    ranking = engine(slot("s", "unknown", members=("vm",)), p=weigher("kvm_failover_evacuation")).rank(asked)
    assert ranking.hosts[0] == "unknown"
    assert ranking.scores[0] > ranking.scores[1]

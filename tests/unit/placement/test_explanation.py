"""Explanations say what the engine did: who was removed by whom, and what put the best into their order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.placement import fleet_of, host, random_fleet, random_request, request, slot

from outlive.base import Random
from outlive.placement import Engine, Explanation, PipelineTable, Ranking, RunRefused, explain, explanation_text, squash

TABLE = PipelineTable.with_shipped()


def ranked(*objects: Any, **fields: Any) -> Ranking:
    return Engine(fleet_of(*objects), TABLE).rank(request(**fields))


def test_removals_name_the_step_and_the_first_hosts_by_name() -> None:
    elsewhere = [host(f"z{number:02}", zone="z2") for number in range(12)]
    found = explain(ranked(host("b"), host("a"), *reversed(elsewhere), zone="z1"))
    (removal,) = found.removals
    assert (found.start, found.remaining.named, removal.step) == (14, ("a", "b"), "filter_correct_az")
    assert removal.hosts.named == tuple(f"z{number:02}" for number in range(10))
    text = explanation_text(found)
    assert "14 hosts at the start. filter_correct_az removed 12 hosts (z00, z01," in text
    assert "z09 and 2 more)" in text
    assert "2 hosts (a and b) remained." in text


def test_hosts_that_nobody_knows_are_named_too() -> None:
    found = explain(ranked(host("b"), hosts=["b", "a"], pipeline="kvm-acknowledge-failover-reservation"))
    assert found.removals[0].hosts.named == ("a",)


def test_the_weigher_that_speaks_most_for_a_host_is_named() -> None:
    full = host("full", allocation={"cpu": "8", "memory": "40Gi"})
    found = explain(ranked(host("empty"), full))
    (pair,) = found.comparisons
    assert (pair.better, pair.worse, pair.by, pair.against) == ("empty", "full", "kvm_binpack", "")
    assert found.decisive == ""
    assert "kvm_prefer_smaller_hosts" in found.negligible
    large = host("large", capacity={"cpu": "32", "memory": "128Gi"}, effectiveCapacity={"cpu": "32", "memory": "128Gi"})
    other = explain(ranked(host("small", allocation={"cpu": "0", "memory": "32Gi"}), large))
    assert other.selected == "small"
    assert other.decisive == "kvm_prefer_smaller_hosts"
    assert (other.comparisons[0].by, other.comparisons[0].against) == ("kvm_prefer_smaller_hosts", "kvm_binpack")
    assert "small before large by kvm_prefer_smaller_hosts (+0.76), against kvm_binpack" in explanation_text(other)


def test_incoming_weights_and_narrow_margins() -> None:
    weighed = explain(
        ranked(host("a"), host("b"), hosts=["a", "b"], weights=[0.0, 1.0],
               pipeline="kvm-acknowledge-failover-reservation")
    )  # fmt: skip
    assert weighed.comparisons[0].incoming > 0.7
    assert "b before a by the incoming weights (+0.76)." in explanation_text(weighed)
    assert "by a narrow margin (+0.0000)" in explanation_text(explain(ranked(host("a"), host("b"))))


def test_an_own_slot_goes_first() -> None:
    found = explain(ranked(host("a"), host("b"), slot("s", on="b", members=("vm-1",)), intent="evacuate"))
    assert found.selected == "b"
    assert found.own_slot


def test_a_step_that_failed_is_named() -> None:
    found = explain(ranked(host("a"), need={"cpu": "0", "memory": "1Gi"}))
    assert found.remaining.count == 0
    assert "filter_has_enough_capacity failed: the VM needs no cpu" in explanation_text(found)
    assert "No host remained." in explanation_text(found)


def _sorted_removals(ranking: Ranking) -> list[tuple[str, int, tuple[str, ...]]]:
    document = ranking.to_document()
    left = set(document.raw_in_weights)
    found = []
    for step in document.step_results:
        if step.kind == "filter":
            gone = sorted(left - set(step.activations))
            if gone:
                found.append((step.step_name, len(gone), tuple(gone[:10])))
            left &= set(step.activations)
    return found


def _decisive(ranking: Ranking) -> str:
    weights = dict(zip(ranking.hosts, ranking.scores, strict=True))
    for trace in ranking.traces:
        if trace.kind != "weigher" or trace.scores is None or len(weights) < 2:
            continue
        names = ranking.names_at(trace.kept.nonzero()[0])
        part = dict(zip(names, (trace.multiplier * squash(trace.scores)).tolist(), strict=True))
        without = {name: weight - part[name] for name, weight in weights.items()}
        if max(without.values()) > without[ranking.hosts[0]]:
            return trace.name
    return ""


@given(st.integers(0, 10_000))
def test_explanations_agree_with_a_plain_count(seed: int) -> None:
    random = Random(seed)
    fleet = random_fleet(random)
    asked = random_request(random, pipeline="kvm-general-purpose-load-balancing")
    try:
        ranking = Engine(fleet, TABLE).rank(asked)
    except RunRefused:
        return
    found: Explanation = explain(ranking)
    assert [(one.step, one.hosts.count, one.hosts.named) for one in found.removals] == _sorted_removals(ranking)
    assert found.decisive == _decisive(ranking)
    assert found.answered == len(ranking)
    assert explanation_text(found).startswith(f"{found.start:,} host")
    assert explain(ranking) == found


def test_an_explanation_does_not_change_what_was_ranked() -> None:
    ranking = ranked(host("a"), host("b"))
    before = ranking.to_document()
    explain(ranking)
    assert replace(ranking.to_document()) == before

"""Decisions: the same answers from plain JSON."""

from __future__ import annotations

import json
from typing import Any

from tests.support.placement import host, slot
from tests.unit.placement.test_quota import NOW, commitment, quota
from tests.unit.placement.test_vmware import UTILIZATION

from outlive.placement import DECISIONS
from outlive.resources import to_builtins
from outlive.runtime import DecisionTable


def decide(name: str, **changes: Any) -> Any:
    given = {
        "request": {
            "resourceId": "vm-1",
            "zone": "z1",
            "need": {"cpu": "4", "memory": "16Gi"},
            "extraSpecs": {"capabilities:hypervisor_type": "QEMU"},
            "pipeline": "kvm-general-purpose-load-balancing",
        },
        "hosts": [to_builtins(host("a")), to_builtins(host("b", zone="z2"))],
        "reservations": [to_builtins(slot("s", on="a"))],
        **changes,
    }
    return json.loads(DecisionTable(DECISIONS).decide_json(name, json.dumps(given).encode()))


def test_rank_answers_with_reasons() -> None:
    found = decide("placement.rank")
    assert found["orderedHosts"] == ["a"]
    assert found["rejected"]["b"] == {
        "step": "filter_correct_az", "code": "wrong-zone", "message": "the host is in zone z2, requested is z1",
    }  # fmt: skip


def test_bad_input_is_an_error_code() -> None:
    assert "error" in decide("placement.rank", request={"pipeline": "none"})
    assert "error" in decide("placement.rank", hosts=[to_builtins(host("a"))] * 2)


def test_members_that_a_decision_does_not_know_are_overlooked() -> None:
    assert decide("placement.rank", surprise=1) == decide("placement.rank")


def test_explain_says_why() -> None:
    found = decide("placement.explain")
    assert found["facts"]["selected"] == "a"
    assert "filter_correct_az removed 1 host (b)." in found["text"]


def test_commitments_quotas_and_records_are_part_of_the_input() -> None:
    enforced = {
        "apiVersion": "outlive.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"},
        "spec": {"filters": [{"name": "filter_quota_enforcement", "params": [{"key": "enforce", "boolValue": True}]}]},
    }  # fmt: skip
    asked = {
        "resourceId": "vm-1", "project": "p", "zone": "z1", "need": {"cpu": "4", "memory": "16Gi"},
        "extraSpecs": {"quota:hw_version": "g"}, "pipeline": "p",
    }  # fmt: skip
    given = {"request": asked, "pipelines": [enforced], "now": NOW.timestamp()}
    assert decide("placement.rank", **given)["orderedHosts"]
    given["quotas"] = [to_builtins(quota(ram=8))]
    spent = decide("placement.rank", **given)
    assert spent["rejected"]["a"]["code"] == "quota-exceeded"
    later = to_builtins(commitment(start_time=NOW.replace(hour=13)))
    assert not decide("placement.rank", **given, commitments=[later])["orderedHosts"]
    holds = to_builtins(commitment(start_time=NOW))
    assert decide("placement.rank", **given, commitments=[holds])["orderedHosts"]
    vmware = {**asked, "pipeline": "vmware-general-purpose-load-balancing", "hosts": ["a", "b"]}
    steps = decide("placement.rank", request=vmware, knowledge=[to_builtins(UTILIZATION)])["stepResults"]
    assert [step["stepName"] for step in steps] == ["vmware_binpack"]

"""``storage.next_calls``: the order of calls, what a failure stops, and which events are due."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.storage.builders import act, attachment, decide, node, pod, resource, run_plan, tick, volume

LOST = {"key": "drbd.linbit.com/lost-quorum", "effect": "NoSchedule"}


def failover_plan(**changes: Any) -> Any:
    return act("failover", tick(**changes))["plans"][0]


def reasons(result: Any) -> list[str]:
    return [one["action"] for one in result["events"]]


def test_taint_then_pods_at_once_then_attachments() -> None:
    plan = failover_plan(pods=[pod(), pod("db-1")])
    first = run_plan(plan)
    (taint,) = first["calls"]
    assert (taint["op"], taint["resourceVersion"], first["done"]) == ("update_node", "7", False)
    second = run_plan(plan, (taint, 200))
    assert [(one["op"], one["pod"]) for one in second["calls"]] == [("evict", "db-0"), ("evict", "db-1")]
    assert reasons(second) == ["TaintedNode"]
    one, two = second["calls"]
    third = run_plan(plan, (taint, 200), (two, 201))
    assert third["calls"] == [one]
    fourth = run_plan(plan, (taint, 200), (two, 201), (one, 404))
    (detach,) = fourth["calls"]
    assert detach == {"op": "delete_volume_attachment", "name": "va-1", "uid": "u-va-1", "grace": 10}
    last = run_plan(plan, (taint, 200), (two, 201), (one, 404), (detach, 200))
    assert (last["done"], last["error"], last["calls"]) == (True, None, [])
    assert reasons(last) == ["TaintedNode", "EvictedPod", "EvictedPod", "VolumeAttachmentDeleted"]


@pytest.mark.parametrize("status", [409, 429, 500, None])
def test_a_pod_that_could_not_be_removed_keeps_its_volume(status: int | None) -> None:
    plan = failover_plan(options={"disableNodeTaints": True})
    (evict,) = run_plan(plan)["calls"]
    result = run_plan(plan, (evict, status))
    assert (result["done"], result["error"], result["calls"]) == (True, "evict-failed", [])


def test_a_conflict_has_the_node_read_and_written_anew_up_to_three_times() -> None:
    plan = failover_plan()
    (first,) = run_plan(plan)["calls"]
    (read,) = run_plan(plan, (first, 409))["calls"]
    assert read == {"op": "read_node", "node": "k1"}
    found = {**node("k1", taints=[{"key": "other", "effect": "NoExecute"}])}
    found["metadata"]["resourceVersion"] = "8"
    answers = [{"call": first, "status": 409}, {"call": read, "status": 200, "object": found}]
    (second,) = decide("next_calls", {"plan": plan, "answers": answers})["calls"]
    assert second["resourceVersion"] == "8"
    assert [one["key"] for one in second["taints"]] == ["other", "drbd.linbit.com/lost-quorum"]
    answers += [{"call": second, "status": 409}, {"call": read, "status": 200, "object": found}]
    (third,) = decide("next_calls", {"plan": plan, "answers": answers})["calls"]
    answers.append({"call": third, "status": 409})
    result = decide("next_calls", {"plan": plan, "answers": answers})
    assert (result["done"], result["error"]) == (True, "taint-failed")


def test_a_taint_that_somebody_else_added_is_enough_and_no_event() -> None:
    plan = failover_plan()
    (first,) = run_plan(plan)["calls"]
    answers = [
        {"call": first, "status": 409},
        {"call": {"op": "read_node", "node": "k1"}, "status": 200, "object": node("k1", taints=[LOST])},
    ]
    result = decide("next_calls", {"plan": plan, "answers": answers})
    assert [one["op"] for one in result["calls"]] == ["evict"]
    assert result["events"] == []


@pytest.mark.parametrize("status", [403, 500, None])
def test_without_the_taint_pods_of_a_node_that_is_not_ready_are_rescued_all_the_same(status: int | None) -> None:
    unready = failover_plan(nodes=[node("k1", "False"), node("k2"), node("k3")])
    (taint,) = run_plan(unready)["calls"]
    assert [one["op"] for one in run_plan(unready, (taint, status))["calls"]] == ["delete_pod"]
    ready = failover_plan()
    (taint,) = run_plan(ready)["calls"]
    assert run_plan(ready, (taint, status))["error"] == "taint-failed"
    compat = failover_plan(profile="compat", nodes=[node("k1", "False"), node("k2"), node("k3")])
    (taint,) = run_plan(compat)["calls"]
    assert run_plan(compat, (taint, status))["error"] == "taint-failed"


def test_an_attachment_that_is_gone_is_done_without_an_event() -> None:
    for profile, error in (("hardened", None), ("compat", "detach-failed")):
        plan = failover_plan(profile=profile, options={"disableNodeTaints": True})
        (evict,) = run_plan(plan)["calls"]
        (detach,) = run_plan(plan, (evict, 200))["calls"]
        result = run_plan(plan, (evict, 200), (detach, 404))
        assert (result["done"], result["error"]) == (True, error)
        assert reasons(result) == ["EvictedPod"]


def test_all_attachments_of_the_node_go_in_hardened_and_the_first_in_compat() -> None:
    attachments = [attachment("va-2"), attachment("va-1")]
    for profile, names in (("hardened", ["va-1", "va-2"]), ("compat", ["va-1"])):
        plan = failover_plan(profile=profile, attachments=attachments)
        assert [one["name"] for one in plan["detachments"]] == names


def forced_plan(**changes: Any) -> Any:
    failing = resource(forceIoFailures=True, role="Secondary", connections=[])
    return decide("forced_errors", tick(failing, pods=[pod(node="k2"), pod("db-1", node="k2")], **changes))["plans"][0]


def test_pods_of_a_failing_volume_go_one_after_the_other() -> None:
    for profile, calls in (("hardened", ["db-1"]), ("compat", [])):
        plan = forced_plan(profile=profile)
        (taint,) = run_plan(plan)["calls"]
        (first,) = run_plan(plan, (taint, 200))["calls"]
        assert (first["op"], first["pod"]) == ("evict", "db-0")
        result = run_plan(plan, (taint, 200), (first, 429))
        assert [one["pod"] for one in result["calls"]] == calls
        assert result["error"] == "evict-failed"


def test_a_failed_taint_ends_the_rescue_of_pods_in_compat_only() -> None:
    for profile, error in (("hardened", None), ("compat", "taint-failed")):
        plan = forced_plan(profile=profile)
        (taint,) = run_plan(plan)["calls"]
        result = run_plan(plan, (taint, 409))
        assert result["error"] == error
        assert result["done"] is (profile == "compat")


STATUS = '[{"name": "pvc-1", "role": "Primary", "suspended": true, "devices": [{"quorum": false}]}]'


def frozen(**changes: Any) -> dict[str, Any]:
    quiet = {"role": "Primary", "suspended": True, "devices": [{"quorum": False, "diskState": "UpToDate"}]}
    return resource(**{**quiet, **changes})


def test_a_demotion_is_read_once_more_before_it_is_made() -> None:
    (plan,) = decide("suspended", tick(frozen(), pods=[]))["plans"]
    (read,) = run_plan(plan)["calls"]
    assert read == {"op": "read_status", "resource": "pvc-1"}
    still = decide("next_calls", {"plan": plan, "answers": [{"call": read, "status": 0, "document": STATUS}]})
    (execute,) = still["calls"]
    assert execute == {"op": "exec", "argv": ["drbdsetup", "secondary", "--force", "pvc-1"]}
    answers = [{"call": read, "status": 0, "document": STATUS}, {"call": execute, "status": 0}]
    done = decide("next_calls", {"plan": plan, "answers": answers})
    assert (done["done"], reasons(done)) == (True, ["ForcedVolumeDemotion", "ForcedVolumeDemotion"])
    assert [one["regarding"]["kind"] for one in done["events"]] == ["PersistentVolume", "PersistentVolumeClaim"]
    answers[1]["status"] = 1
    assert decide("next_calls", {"plan": plan, "answers": answers})["error"] == "demote-failed"


@pytest.mark.parametrize(
    ("status", "document"),
    [
        (0, STATUS.replace("true", "false")),
        (0, STATUS.replace("Primary", "Secondary")),
        (0, STATUS.replace('"suspended": true', '"suspended": true, "suspended-user": true')),
        (0, STATUS.replace("pvc-1", "other")),
        (0, "[{"),
        (0, ""),
        (10, None),
        (None, None),
    ],
)
def test_nothing_is_demoted_that_is_not_frozen_any_more_or_cannot_be_read(status: int | None, document: Any) -> None:
    (plan,) = decide("suspended", tick(frozen(), pods=[]))["plans"]
    (read,) = run_plan(plan)["calls"]
    given = {"plan": plan, "answers": [{"call": read, "status": status, "document": document}]}
    result = decide("next_calls", given)
    assert (result["done"], result["error"], result["calls"], result["events"]) == (True, None, [], [])


def test_compat_demotes_what_kubernetes_does_not_know_and_says_so() -> None:
    given = tick(frozen(), pods=[], volumes=[])
    assert decide("suspended", given)["plans"] == []
    (plan,) = decide("suspended", {**given, "profile": "compat"})["plans"]
    (execute,) = run_plan(plan)["calls"]
    result = run_plan(plan, (execute, 0))
    assert (result["error"], result["events"]) == ("volume-missing", [])


def test_a_claim_reference_without_a_kind_is_filled_in() -> None:
    bare = volume()
    bare["spec"]["claimRef"] = {"namespace": "shop", "name": "data"}
    for profile, kind in (("hardened", "PersistentVolumeClaim"), ("compat", None)):
        (plan,) = decide("suspended", tick(frozen(), pods=[], volumes=[bare], profile=profile))["plans"]
        assert plan["demotion"]["events"][1]["regarding"].get("kind") == kind

"""``storage.suspended``, ``storage.forced_errors``, ``storage.own_taints``: what is repaired on the own node."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.storage.builders import LATER, NOW, decide, node, pod, resource, tick

PROFILES = pytest.mark.parametrize("profile", ["hardened", "compat"])
QUORUM, ERRORS = "drbd.linbit.com/lost-quorum", "drbd.linbit.com/force-io-error"


def frozen(**changes: Any) -> dict[str, Any]:
    return resource(**{"role": "Primary", "suspended": True, **changes})


@PROFILES
@pytest.mark.parametrize("pods", [[], [pod(node="k1")], [pod(node="k2", phase="Pending")]])
def test_a_frozen_volume_that_no_local_pod_wants_gives_up_its_role(profile: str, pods: list[Any]) -> None:
    (plan,) = decide("suspended", tick(frozen(), pods=pods, profile=profile))["plans"]
    assert (plan["of"], plan["node"], plan["demotion"]["resource"]) == ("suspended", "k2", "pvc-1")


@PROFILES
def test_a_local_pod_that_runs_protects_the_volume_and_one_that_ends_does_not(profile: str) -> None:
    assert decide("suspended", tick(frozen(), pods=[pod(node="k2")], profile=profile))["plans"] == []
    ending = pod(node="k2", deletionTimestamp=NOW)
    assert decide("suspended", tick(frozen(), pods=[ending], profile=profile))["plans"]


@PROFILES
@pytest.mark.parametrize("changes", [{"role": "Secondary"}, {"suspended": False}])
def test_what_is_not_frozen_keeps_its_role(profile: str, changes: dict[str, Any]) -> None:
    assert decide("suspended", tick(frozen(**changes), pods=[], profile=profile))["plans"] == []


def test_what_a_user_froze_is_left_to_the_user() -> None:
    given = tick(frozen(suspendedUser=True), pods=[])
    assert decide("suspended", given)["plans"] == []
    assert decide("suspended", {**given, "profile": "compat"})["plans"]


def failing(**changes: Any) -> dict[str, Any]:
    return resource(forceIoFailures=True, connections=[], **changes)


@PROFILES
@pytest.mark.parametrize("phase", ["Running", "Pending", "Failed"])
def test_pods_of_every_phase_leave_a_volume_that_fails(profile: str, phase: str) -> None:
    given = tick(failing(quorum="off"), pods=[pod(node="k2", phase=phase), pod("far", node="k1")], profile=profile)
    (plan,) = decide("forced_errors", given)["plans"]
    assert [(one["op"], one["pod"]) for one in plan["removals"]] == [("evict", "db-0")]
    assert [one["key"] for one in plan["taint"]["taints"]] == [ERRORS]


@PROFILES
@pytest.mark.parametrize(
    "changes", [{"ownerReferences": []}, {"annotations": {"drbd.linbit.com/ignore-fail-over": ""}}]
)
def test_without_users_there_is_no_taint(profile: str, changes: dict[str, Any]) -> None:
    given = tick(failing(), pods=[pod(node="k2", **changes)], profile=profile)
    assert decide("forced_errors", given)["plans"] == []


def test_pods_that_end_already_are_not_evicted_again() -> None:
    given = tick(failing(), pods=[pod(node="k2", deletionTimestamp=NOW)])
    assert decide("forced_errors", given)["plans"][0]["removals"] == []
    assert len(decide("forced_errors", {**given, "profile": "compat"})["plans"][0]["removals"]) == 1


def test_a_missing_own_node_is_an_error_and_pods_are_rescued_all_the_same() -> None:
    given = tick(failing(), pods=[pod(node="k2")], nodes=[node("k1")])
    result = decide("forced_errors", given)
    assert (result["error"], len(result["plans"])) == ("node-missing", 1)
    result = decide("forced_errors", {**given, "profile": "compat"})
    assert (result["error"], result["plans"]) == ("node-missing", [])


def without_quorum(name: str = "pvc-1") -> dict[str, Any]:
    return resource(name, devices=[{"quorum": False, "diskState": "UpToDate"}])


def test_the_own_taint_waits_for_a_new_volume_to_connect() -> None:
    given = tick(without_quorum())
    first = decide("own_taints", given)
    assert first["plans"] == []
    later = decide("own_taints", {**given, "now": LATER, "memory": first["memory"]})
    (plan,) = later["plans"]
    assert [one["key"] for one in plan["taint"]["taints"]] == [QUORUM]
    assert (plan["resource"], plan["node"]) == (None, "k2")
    assert decide("own_taints", {**given, "profile": "compat"})["plans"]


def test_regaining_quorum_begins_the_time_anew() -> None:
    given = tick(without_quorum())
    memory = decide("own_taints", given)["memory"]
    well = {**given, "snapshot": {"ageS": 0, "resources": [resource()]}, "memory": memory}
    assert decide("own_taints", well)["memory"] is None


@PROFILES
def test_a_taint_stays_while_any_volume_lacks_quorum_and_goes_with_the_last(profile: str) -> None:
    tainted = [node("k2", taints=[{"key": QUORUM, "effect": "NoSchedule"}, {"key": "mine", "effect": "NoExecute"}])]
    given = tick(without_quorum(), nodes=tainted, profile=profile)
    assert decide("own_taints", given)["plans"] == []
    given["snapshot"]["resources"] = [resource()]
    (plan,) = decide("own_taints", given)["plans"]
    assert [one["key"] for one in plan["taint"]["taints"]] == ["mine"]
    assert [(one["type"], one["reason"]) for one in plan["taint"]["events"]] == [
        ("Normal", "NodeStorageQuorumRegained")
    ]


@PROFILES
def test_only_keys_are_compared_with_what_is_there(profile: str) -> None:
    tainted = [node("k2", taints=[{"key": QUORUM, "effect": "NoExecute", "value": "x"}] * 2)]
    given = tick(resource(), nodes=tainted, profile=profile)
    (plan,) = decide("own_taints", given)["plans"]
    assert plan["taint"]["taints"] == []
    assert len(plan["taint"]["events"]) == 2


@PROFILES
def test_forced_errors_taint_at_once_whatever_the_quorum_option(profile: str) -> None:
    (plan,) = decide("own_taints", tick(failing(quorum="off"), profile=profile))["plans"]
    assert [one["key"] for one in plan["taint"]["taints"]] == [ERRORS]


def test_no_taint_is_touched_on_a_stale_snapshot_or_where_taints_are_disabled() -> None:
    tainted = [node("k2", taints=[{"key": QUORUM, "effect": "NoSchedule"}])]
    given = tick(resource(), nodes=tainted)
    assert decide("own_taints", {**given, "snapshot": None})["stale"] is True
    assert decide("own_taints", {**given, "snapshot": None, "profile": "compat"})["plans"]
    assert decide("own_taints", tick(resource(), nodes=tainted, options={"disableNodeTaints": True}))["plans"] == []


@PROFILES
def test_a_missing_own_node_is_an_error(profile: str) -> None:
    result = decide("own_taints", tick(nodes=[node("k1")], profile=profile))
    assert (result["error"], result["plans"]) == ("node-missing", [])

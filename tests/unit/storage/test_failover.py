"""``storage.failover``: who leaves a lost node, when, and who is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.storage.builders import (
    LATER,
    NOW,
    act,
    attachment,
    connection,
    decide,
    node,
    pod,
    resource,
    tick,
    volume,
)

PROFILES = pytest.mark.parametrize("profile", ["hardened", "compat"])


def plans(given: dict[str, Any]) -> Any:
    return act("failover", given)["plans"]


@PROFILES
def test_a_loss_waits_for_its_time_and_the_very_instant_acts(profile: str) -> None:
    given = tick(profile=profile)
    first = decide("failover", given)
    assert first["plans"] == []
    assert first["pending"] == [{"resource": "pvc-1", "node": "k1", "since": NOW}]
    early = decide("failover", {**given, "now": "2030-01-01T00:00:04.999Z", "memory": first["memory"]})
    assert early["plans"] == []
    late = decide("failover", {**given, "now": LATER, "memory": first["memory"]})
    (plan,) = late["plans"]
    assert (plan["of"], plan["resource"], plan["node"]) == ("failover", "pvc-1", "k1")
    assert [(one["op"], one["pod"], one["grace"]) for one in plan["removals"]] == [("evict", "db-0", 10)]
    assert [one["name"] for one in plan["detachments"]] == ["va-1"]
    assert plan["taint"]["taints"] == [
        {"key": "drbd.linbit.com/lost-quorum", "effect": "NoSchedule", "timeAdded": LATER}
    ]


@PROFILES
def test_without_a_timeout_the_first_sight_acts(profile: str) -> None:
    assert decide("failover", tick(profile=profile, options={"failOverTimeoutS": 0}))["plans"]


@PROFILES
def test_a_node_that_is_not_ready_has_its_pods_deleted_at_once(profile: str) -> None:
    nodes = [node("k1", "Unknown"), node("k2"), node("k3")]
    (plan,) = plans(tick(profile=profile, nodes=nodes))
    assert [(one["op"], one["grace"]) for one in plan["removals"]] == [("delete_pod", 0)]
    assert [one["grace"] for one in plan["detachments"]] == [0]


@PROFILES
@pytest.mark.parametrize("quorum", ["off", "", "all", "2"])
def test_only_a_majority_proves_anything(profile: str, quorum: str) -> None:
    assert plans(tick(resource(quorum=quorum), profile=profile)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": []},
        {"devices": [{"quorum": False, "diskState": "UpToDate"}]},
        {"devices": [{"quorum": True, "diskState": "Outdated"}]},
        {"devices": [{"quorum": True, "diskState": "Consistent"}]},
        {"devices": [{"quorum": True, "diskState": "Diskless"}]},
        {"devices": [{"quorum": True, "diskState": "UpToDate"}, {"quorum": True, "diskState": "Failed"}]},
        {"forceIoFailures": True},
        {"connections": [connection("k1", "Connecting", "Unknown"), connection("k3", role="Primary")]},
    ],
)
def test_what_this_node_cannot_prove_is_not_acted_on(changes: dict[str, Any]) -> None:
    assert plans(tick(resource(**changes))) == []


def test_a_diskless_node_believes_the_events_stream_only_if_told_to() -> None:
    diskless = resource(devices=[{"quorum": True, "diskState": "Diskless"}], streamMayPromote=True)
    assert plans(tick(diskless)) == []
    assert plans(tick(diskless, options={"promotionSource": "events2"}))


def test_compat_acts_on_an_outdated_replica_as_the_controller_before_did() -> None:
    assert plans(tick(resource(devices=[{"quorum": True, "diskState": "Outdated"}]), profile="compat"))


@PROFILES
@pytest.mark.parametrize("state", ["StandAlone", "Connecting", "?", "NetworkFailure", ""])
def test_every_state_but_connected_is_a_loss(profile: str, state: str) -> None:
    lost = resource(connections=[connection("k1", state, "Unknown"), connection("k3")])
    assert plans(tick(lost, profile=profile))


@PROFILES
def test_neither_pods_nor_an_attachment_starts_no_timer(profile: str) -> None:
    result = decide("failover", tick(profile=profile, pods=[pod(node="k3")], attachments=[]))
    assert (result["memory"], result["pending"]) == (None, [])


@PROFILES
@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "Unknown"])
def test_only_running_pods_are_users(profile: str, phase: str) -> None:
    assert plans(tick(profile=profile, pods=[pod(phase=phase)], attachments=[])) == []


@PROFILES
def test_a_left_over_attachment_without_any_pod_stays(profile: str) -> None:
    assert plans(tick(profile=profile, pods=[])) == []


@PROFILES
def test_readers_are_never_failed_over(profile: str) -> None:
    reader = pod(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}])
    result = act("failover", tick(profile=profile, pods=[reader]))
    assert result["plans"] == []
    assert [(one["pod"], one["reason"]) for one in result["skipped"]] == [("db-0", "read-only")]
    writer = pod("db-1", node="k3")
    assert plans(tick(profile=profile, pods=[reader, writer]))


@PROFILES
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ownerReferences": []}, "unowned"),
        ({"annotations": {"drbd.linbit.com/ignore-fail-over": "false"}}, "annotation"),
        (
            {
                "volumes": [
                    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "time", "hostPath": {"path": "/etc/localtime"}},
                ]
            },
            "unsafe",
        ),
    ],
)
def test_a_pod_that_is_left_alone_keeps_its_volume(profile: str, changes: dict[str, Any], reason: str) -> None:
    result = act("failover", tick(profile=profile, pods=[pod(**changes)]))
    (plan,) = result["plans"]
    assert plan["removals"] == []
    assert [one["reason"] for one in result["skipped"]] == [reason]
    assert bool(plan["detachments"]) is (profile == "compat")


@PROFILES
def test_unsafe_pods_move_if_the_options_say_so(profile: str) -> None:
    unsafe = pod(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "n", "nfs": {}}])
    (plan,) = plans(tick(profile=profile, pods=[unsafe], options={"failOverUnsafePods": True}))
    assert len(plan["removals"]) == 1


def test_a_pod_that_ends_already_is_not_evicted_again_on_a_ready_node() -> None:
    ending = pod(deletionTimestamp=NOW)
    (plan,) = plans(tick(pods=[ending]))
    assert plan["removals"] == []
    assert plan["detachments"]
    (plan,) = plans(tick(pods=[ending], profile="compat"))
    assert len(plan["removals"]) == 1
    (plan,) = plans(tick(pods=[ending], nodes=[node("k1", "False"), node("k2"), node("k3")]))
    assert [one["op"] for one in plan["removals"]] == ["delete_pod"]


def test_each_pair_of_resource_and_peer_has_its_own_timer() -> None:
    """``compat`` has one for each resource, and acts at once on a later loss of another peer."""
    both = [pod(), pod("db-1", node="k3")]
    for profile, acts in (("hardened", False), ("compat", True)):
        given = tick(profile=profile, pods=both, attachments=[])
        first = decide("failover", given)
        again = resource(connections=[connection("k1"), connection("k3", "Connecting", "Unknown")])
        given["snapshot"]["resources"] = [again]
        later = decide("failover", {**given, "now": LATER, "memory": first["memory"]})
        assert bool(later["plans"]) is acts, profile


def test_a_peer_that_comes_back_ends_its_timer() -> None:
    given = tick()
    memory = decide("failover", given)["memory"]
    well = {**given, "snapshot": {"ageS": 0, "resources": [resource(connections=[connection("k1"), connection("k3")])]}}
    assert decide("failover", {**well, "memory": memory})["memory"] is None


@PROFILES
def test_losing_quorum_here_ends_all_timers_of_the_resource(profile: str) -> None:
    given = tick(profile=profile)
    memory = decide("failover", given)["memory"]
    without = {"ageS": 0, "resources": [resource(devices=[{"quorum": False, "diskState": "UpToDate"}])]}
    assert decide("failover", {**given, "snapshot": without, "memory": memory})["memory"] is None


def test_a_stale_or_missing_snapshot_stops_everything() -> None:
    given = tick()
    memory = decide("failover", given)["memory"]
    for snapshot in (None, {"ageS": 30.1, "resources": [resource()]}):
        result = decide("failover", {**given, "snapshot": snapshot, "memory": memory, "now": LATER})
        assert (result["stale"], result["plans"], result["memory"]) == (True, [], memory)
        result = decide("failover", {**given, "snapshot": snapshot, "profile": "compat"})
        assert result["stale"] is False
    assert decide("failover", {**given, "snapshot": {"ageS": 30, "resources": []}})["stale"] is False


def test_several_volumes_of_one_resource_are_all_considered() -> None:
    volumes = [volume("pvc-b", "logs", volumeHandle="pvc-1/1"), volume("pvc-a", volumeHandle="pvc-1/0")]
    pods = [pod(), pod("db-1", claim="logs")]
    attachments = [attachment("va-b", of="pvc-b"), attachment("va-a", of="pvc-a")]
    given = tick(volumes=volumes, pods=pods, attachments=attachments)
    (plan,) = plans(given)
    assert [one["pod"] for one in plan["removals"]] == ["db-0", "db-1"]
    assert [one["name"] for one in plan["detachments"]] == ["va-a", "va-b"]
    same = [volume("pvc-b", "logs", volumeHandle="pvc-1"), volume("pvc-a", volumeHandle="pvc-1")]
    assert plans({**given, "profile": "compat", "cluster": {**given["cluster"], "persistentvolumes": same}}) == []


def test_attachments_are_found_by_the_name_of_the_volume() -> None:
    """``compat`` looks for the name of the resource, and finds none where the names differ."""
    given = tick(resource("vol-9"), volumes=[volume("pv", volumeHandle="vol-9")], attachments=[attachment(of="pv")])
    assert [one["name"] for one in plans(given)[0]["detachments"]] == ["va-1"]
    assert plans({**given, "profile": "compat"})[0]["detachments"] == []


def test_exports_are_left_to_the_storage_side() -> None:
    exported = volume(volumeAttributes={"linstor.csi.linbit.com/nfs-export": ""})
    assert plans(tick(volumes=[exported])) == []
    assert plans(tick(volumes=[exported], profile="compat"))


def test_a_peer_is_the_node_of_its_satellite_pod() -> None:
    satellite = pod("sat-1", node="k1", labels={"app.kubernetes.io/component": "linstor-satellite"}, volumes=[])
    lost = resource(connections=[connection("sat-1", "Connecting", "Unknown"), connection("k3")])
    assert plans(tick(lost, pods=[pod(), satellite]))
    twin = pod("sat-1", node="k3", labels={"app.kubernetes.io/component": "linstor-satellite"}, volumes=[])
    twin["metadata"]["namespace"] = "other"
    assert plans(tick(lost, pods=[pod(), satellite, twin])) == []


def test_generic_ephemeral_volumes_are_claims_too() -> None:
    ephemeral = pod(volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}])
    given = tick(volumes=[volume(claim="db-0-scratch")], pods=[ephemeral])
    (plan,) = plans(given)
    assert len(plan["removals"]) == 1
    assert plans({**given, "profile": "compat"}) == []


def test_a_node_that_kubernetes_does_not_know_is_no_loss() -> None:
    assert plans(tick(nodes=[node("k2"), node("k3")])) == []


@PROFILES
def test_a_taint_that_is_there_is_not_written_again_whatever_its_value(profile: str) -> None:
    there = {"key": "drbd.linbit.com/lost-quorum", "effect": "NoSchedule", "value": "x"}
    assert plans(tick(profile=profile, nodes=[node("k1", taints=[there]), node("k2"), node("k3")]))[0]["taint"] is None
    other = {"key": "drbd.linbit.com/lost-quorum", "effect": "NoExecute"}
    (plan,) = plans(tick(profile=profile, nodes=[node("k1", taints=[other]), node("k2"), node("k3")]))
    assert [one["effect"] for one in plan["taint"]["taints"]] == ["NoExecute", "NoSchedule"]
    assert plans(tick(profile=profile, options={"disableNodeTaints": True}))[0]["taint"] is None


@PROFILES
def test_the_order_of_objects_changes_nothing(profile: str) -> None:
    pods = [pod(f"db-{n}", node="k1" if n % 2 else "k3") for n in range(4)]
    attachments = [attachment(f"va-{n}") for n in range(3)]
    given = tick(profile=profile, pods=pods, attachments=attachments)
    cluster = {name: list(reversed(found)) for name, found in given["cluster"].items()}
    assert act("failover", given) == act("failover", {**given, "cluster": cluster})


def test_a_claim_reference_without_a_type_counts_and_one_of_another_kind_does_not() -> None:
    for kind, version, counts in ((None, None, True), ("Other", "v1", False), ("", "v1", False)):
        one = volume()
        ref = {"namespace": "shop", "name": "data", "kind": kind, "apiVersion": version}
        one["spec"]["claimRef"] = ref
        assert bool(plans(tick(volumes=[one]))) is counts, ref


def test_null_members_are_absent_ones() -> None:
    given = tick()
    given["cluster"]["pods"][0]["metadata"]["deletionTimestamp"] = None
    given["cluster"]["nodes"][0]["spec"]["taints"] = None
    given["snapshot"]["resources"][0]["streamMayPromote"] = None
    assert plans(given)


@pytest.mark.parametrize(
    "path", [("pods", "spec", "volumes"), ("nodes", "spec", "taints"), ("persistentvolumes", "spec", "csi")]
)
def test_an_object_of_another_shape_is_refused(path: tuple[str, str, str]) -> None:
    given = tick()
    given["cluster"][path[0]][0][path[1]][path[2]] = "nonsense"
    assert decide("failover", given) == {"error": "invalid"}

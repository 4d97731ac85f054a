"""VMs of KubeVirt in the decisions: a VM goes as a whole, and a refusal by its webhook is a state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
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
    run_plan,
    tick,
    volume,
)

OWN = {"kubevirt": True, "outOfService": True}
LOST = "Connecting"
DISK = [{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]
IGNORED: dict[str, Any] = {"annotations": {"drbd.linbit.com/ignore-fail-over": ""}}


def launcher(name: str = "virt-launcher-web", node_name: str = "k1", vm: str = "u-web", **changes: Any) -> Any:
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": vm}
    owner = [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": vm}]
    return pod(name, node_name, **{"labels": labels, "ownerReferences": owner, "volumes": DISK, **changes})


def hotplug(of: str = "virt-launcher-web", claim: str = "extra", node_name: str = "k1", **changes: Any) -> Any:
    """The pod that holds a hot-plugged disk; its owner is the launcher."""
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": of, "uid": f"u-{of}", "controller": True}]
    labels = {"kubevirt.io": "hotplug-disk"}
    volumes = [
        {"name": "hotplug-disks", "emptyDir": {}},
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}},
    ]
    name = f"hp-{of}-{claim}"
    return pod(name, node_name, **{"labels": labels, "ownerReferences": owner, "volumes": volumes, **changes})


def two_lost(first: str = LOST, second: str = LOST, **changes: Any) -> Any:
    """As a survivor sees a resource of five peers, of which the first two may be lost."""
    peers = [connection("k1", first, "Unknown"), connection("k4", second, "Unknown"), connection("k3")]
    nodes = [node(name) for name in ("k1", "k2", "k3", "k4")]
    attachments = [attachment("va-1"), attachment("va-4", "k4")]
    given = {"nodes": nodes, "attachments": attachments, "own": OWN, **changes}
    return tick(resource(connections=peers), **given)


def removals(plan: Any) -> list[tuple[str, str, int]]:
    return [(one["op"], one["pod"], one["grace"]) for one in plan["removals"]]


# Failover


def test_a_launcher_is_deleted_and_not_evicted_with_the_grace_that_its_node_is_worth() -> None:
    for ready, grace in (("True", 10), ("Unknown", 0)):
        (plan,) = act("failover", tick(pods=[launcher()], nodes=[node("k1", ready), node("k2")], own=OWN))["plans"]
        assert removals(plan) == [("delete_pod", "virt-launcher-web", grace)]


def test_a_vm_goes_with_its_hot_plugged_disk_and_so_do_its_other_disks() -> None:
    pods = [launcher(claim="root", volumes=[]), hotplug(claim="data"), hotplug(claim="more"), hotplug("virt-other")]
    given = tick(pods=pods, volumes=[volume(), volume("pvc-2", "more"), volume("pvc-3", "extra")], own=OWN)
    (plan,) = act("failover", given)["plans"]
    assert sorted(removals(plan)) == [
        ("delete_pod", "hp-virt-launcher-web-data", 10),
        ("delete_pod", "hp-virt-launcher-web-more", 10),
        ("delete_pod", "virt-launcher-web", 10),
    ]


def test_the_end_of_a_migration_on_a_living_node_is_left_to_kubevirt() -> None:
    given = two_lost(second="Connected", pods=[launcher(), launcher("target", "k4"), launcher("old", "k1", "u-db")])
    (plan,) = act("failover", given)["plans"]
    assert removals(plan) == [("delete_pod", "virt-launcher-web", 10), ("delete_pod", "old", 10)][::-1]


def test_both_ends_of_a_migration_go_before_any_attachment_of_either() -> None:
    given = two_lost(pods=[launcher(), launcher("target", "k4")])
    plans = act("failover", given)["plans"]
    found = [(plan["node"], plan["furtherNodes"]) for plan in plans]
    assert found == [("k1", ["k4"]), ("k4", ["k1"])], "each rests on both losses"
    for plan in plans:
        calls = [({"op": "update_node", "node": plan["node"], **_write(plan)}, 200)]
        both = run_plan(plan, *calls)["calls"]
        assert {one["pod"] for one in both} == {"virt-launcher-web", "target"}
        assert run_plan(plan, *calls, (both[0], 200))["calls"] == [both[1]], "one is not enough"
        refused = run_plan(plan, *calls, (both[0], 200), (both[1], 500))
        assert (refused["calls"], refused["error"]) == ([], "delete-failed")
        assert [one["name"] for one in run_plan(plan, *calls, *((one, 200) for one in both))["calls"]] == [
            plan["detachments"][0]["name"]
        ]


def _write(plan: Any) -> dict[str, Any]:
    return {name: plan["taint"][name] for name in ("taints", "resourceVersion")}


def test_one_end_of_a_migration_waits_while_the_loss_of_the_other_is_not_old_enough() -> None:
    pods = [launcher(), launcher("target", "k4")]
    first = decide("failover", two_lost(second="Connected", pods=pods))
    given = {**two_lost(pods=pods), "now": LATER, "memory": first["memory"]}
    result = decide("failover", given)
    assert result["plans"] == []
    assert [(one["node"], one["rule"], one["detail"]) for one in result["waiting"]] == [("k1", "migration", "k4")]
    assert [one["node"] for one in result["pending"]] == ["k4"]
    later = decide("failover", {**given, "now": "2030-01-01T00:00:10Z", "memory": result["memory"]})
    assert [plan["node"] for plan in later["plans"]] == ["k1", "k4"]
    back = {**two_lost(second="Connected", pods=pods), "now": LATER, "memory": result["memory"]}
    (plan,) = decide("failover", back)["plans"]
    assert removals(plan) == [("delete_pod", "virt-launcher-web", 10)]


def test_a_target_that_has_not_begun_goes_with_its_source() -> None:
    """KubeVirt starts the VM anew only when all of its launchers are gone, and nobody ends this one on a dead node."""
    given = two_lost(pods=[launcher(), launcher("target", "k4", phase="Pending")])
    (plan, *_) = act("failover", given)["plans"]
    assert [one[1] for one in removals(plan)] == ["virt-launcher-web", "target"]


@pytest.mark.parametrize("second", [LOST, "Connected"])
def test_one_end_that_is_left_alone_keeps_the_other_and_all_attachments(second: str) -> None:
    result = act("failover", two_lost(second=second, pods=[launcher(), launcher("target", "k4", **IGNORED)]))
    for plan in result["plans"]:
        assert (plan["removals"], plan["detachments"]) == ([], [])
    assert {(one["pod"], one["reason"]) for one in result["skipped"]} >= {("virt-launcher-web", "annotation")}
    assert "shop/target of the same VM" in {one["detail"] for one in result["skipped"]}


def test_a_finished_end_of_a_migration_counts_for_nothing() -> None:
    given = two_lost(second="Connected", pods=[launcher(), launcher("old", "k4", phase="Succeeded", **IGNORED)])
    (plan,) = act("failover", given)["plans"]
    assert removals(plan) == [("delete_pod", "virt-launcher-web", 10)]


def test_a_vm_with_a_disk_that_drbd_does_not_fence_is_left_alone_as_a_whole() -> None:
    """Also if only the pod of its hot-plugged disk has it."""
    foreign = volume("pvc-9", "extra", driver="rbd.csi.ceph.com")
    result = act("failover", tick(pods=[launcher(), hotplug()], volumes=[volume(), foreign], own=OWN))
    (plan,) = result["plans"]
    assert (plan["removals"], plan["detachments"]) == ([], [])
    details = {one["pod"]: one["detail"] for one in result["skipped"]}
    assert details["virt-launcher-web"] == "shop/hp-virt-launcher-web-extra of the same VM extra: other-driver"


def test_a_host_disk_is_named_and_container_disks_are_nobodys() -> None:
    host = {"name": "scratch", "hostPath": {"path": "/data/vm", "type": "DirectoryOrCreate"}}
    image = {"name": "drivers", "image": {"reference": "registry/virtio-win"}}
    (skipped,) = act("failover", tick(pods=[launcher(volumes=[*DISK, image, host])], own=OWN))["skipped"]
    assert (skipped["reason"], skipped["detail"]) == ("unsafe", "scratch: host disk /data/vm")
    (plan,) = act("failover", tick(pods=[launcher(volumes=[*DISK, image])], own=OWN))["plans"]
    assert len(plan["removals"]) == 1
    for own in ({}, OWN):
        (skipped,) = act("failover", tick(pods=[pod(volumes=[*DISK, image])], own=own))["skipped"]
        assert skipped["detail"] == "drivers: not-a-claim", "of any other pod"


def test_a_node_out_of_service_counts_as_not_ready_and_its_taint_stays() -> None:
    declared = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    given = tick(pods=[launcher()], nodes=[node("k1", taints=[declared]), node("k2")], own=OWN)
    (plan,) = act("failover", given)["plans"]
    assert removals(plan) == [("delete_pod", "virt-launcher-web", 0)]
    assert plan["taint"]["taints"][0] == declared
    (taint,) = run_plan(plan)["calls"]
    (remove,) = run_plan(plan, (taint, 500))["calls"]
    (detach,) = run_plan(plan, (taint, 500), (remove, 404))["calls"]
    assert (detach["op"], detach["grace"]) == ("delete_volume_attachment", 0)
    last = run_plan(plan, (taint, 500), (remove, 404), (detach, 404))
    assert (last["done"], last["error"]) == (True, None), "attach-detach was faster"
    known = {"key": "drbd.linbit.com/lost-quorum", "effect": "NoSchedule"}
    regained = node("k2", taints=[declared, known])
    (own_plan,) = decide("own_taints", tick(nodes=[regained], own=OWN))["plans"]
    assert own_plan["taint"]["taints"] == [declared]


# Forced errors


def failing(pods: list[Any], **changes: Any) -> Any:
    return tick(resource(forceIoFailures=True, connections=[]), pods=pods, own=OWN, **changes)


def at(seconds: int) -> str:
    return f"2030-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"


def test_an_evicted_vm_has_a_minute_to_migrate_and_is_deleted_then() -> None:
    given = failing([launcher(node_name="k2"), hotplug(node_name="k2"), pod(node="k2")])
    memory = None
    for seconds, expected in (
        (0, [("evict", "db-0", 10), ("evict", "virt-launcher-web", 10)]),
        (59, [("evict", "db-0", 10), ("evict", "virt-launcher-web", 10)]),
        (
            60,
            [
                ("evict", "db-0", 10),
                ("delete_pod", "virt-launcher-web", 10),
                ("delete_pod", "hp-virt-launcher-web-extra", 10),
            ],
        ),
    ):
        result = decide("forced_errors", {**given, "now": at(seconds), "memory": memory})
        assert removals(result["plans"][0]) == expected, seconds
        memory = result["memory"]
    assert decide("forced_errors", {**failing([]), "memory": memory})["memory"] is None
    quick = decide("forced_errors", failing([launcher(node_name="k2")]) | {"own": {**OWN, "evacuationLimitS": 0}})
    assert removals(quick["plans"][0]) == [("delete_pod", "virt-launcher-web", 10)]


def test_the_refusal_of_an_evicted_vm_is_a_state_and_that_of_another_pod_a_failure() -> None:
    given = failing([launcher(node_name="k2"), pod(node="k2")], options={"disableNodeTaints": True})
    (plan,) = decide("forced_errors", given)["plans"]
    (first,) = run_plan(plan)["calls"]
    (second,) = run_plan(plan, (first, 201))["calls"]
    assert (first["pod"], second["pod"]) == ("db-0", "virt-launcher-web")
    refused = run_plan(plan, (first, 201), (second, 429))
    assert (refused["done"], refused["error"]) == (True, None)
    assert [one["action"] for one in refused["events"]] == ["EvictedPod", "EvacuationAwaited"]
    assert run_plan(plan, (first, 429), (second, 429))["error"] == "evict-failed"
    assert run_plan(plan, (first, 201), (second, 500))["error"] == "evict-failed"


def test_the_vm_of_a_hot_plugged_disk_that_fails_is_evicted_and_the_pod_of_the_disk_is_not() -> None:
    elsewhere = launcher(node_name="k2", claim="root", volumes=[])
    (plan,) = decide("forced_errors", failing([elsewhere, hotplug(claim="data", node_name="k2")]))["plans"]
    assert removals(plan) == [("evict", "virt-launcher-web", 10)]
    kept = {**elsewhere, "metadata": {**elsewhere["metadata"], **IGNORED}}
    assert decide("forced_errors", failing([kept, hotplug(claim="data", node_name="k2")]))["plans"] == []


# Without the rules of our own


def _plain(document: Any) -> Any:
    """Without anything by which a VM of KubeVirt, or a node out of service, is known."""
    found = copy.deepcopy(document)
    for one in found["cluster"]["pods"]:
        one["metadata"].pop("labels", None)
    return found


PODS = st.lists(
    st.builds(
        lambda kind, where, number, changes: (
            launcher(f"launcher-{number}", where, f"u-vm-{number % 2}", **changes)
            if kind == "launcher"
            else hotplug(f"launcher-{number % 3}", "data" if number % 2 else "extra", where, **changes)
            if kind == "hotplug"
            else pod(f"db-{number}", where, **changes)
        ),
        st.sampled_from(["launcher", "hotplug", "pod"]),
        st.sampled_from(["k1", "k2", "k3", "k4"]),
        st.integers(0, 5),
        st.sampled_from(
            [
                {},
                {},
                IGNORED,
                {"ownerReferences": []},
                {"deletionTimestamp": NOW},
                {"phase": "Succeeded"},
                {"phase": "Pending"},
            ]
        ),
    ),
    max_size=6,
    unique_by=lambda one: one["metadata"]["name"],
)


@drawn(
    pods=PODS,
    profile=st.sampled_from(["hardened", "compat"]),
    name=st.sampled_from(["failover", "suspended", "forced_errors", "own_taints"]),
    fails=st.booleans(),
    ready=st.sampled_from(["True", "Unknown"]),
    own=st.sampled_from([None, {}, {"kubevirt": False, "evacuationLimitS": 1}]),
)
def test_without_rules_of_our_own_a_vm_is_pods_like_any_other(
    pods: list[Any], profile: str, name: str, fails: bool, ready: str, own: Any
) -> None:
    given = two_lost(pods=pods, profile=profile, own=own)
    given["snapshot"]["resources"][0]["forceIoFailures"] = fails and name == "forced_errors"
    given["cluster"]["nodes"][0] = node("k1", ready)
    given["memory"] = {"theirs": 1} if name in ("suspended", "forced_errors") else None
    result = act(name, given)
    assert result == act(name, _plain(given))
    assert result["memory"] == given["memory"] or name not in ("suspended", "forced_errors")
    for plan in result["plans"]:
        assert all(one["op"] == "evict" and not one["refused"] for one in plan["removals"] if name == "forced_errors")
        assert result["waiting"] == []


@drawn(pods=PODS, second=st.sampled_from([LOST, "Connected"]))
def test_a_vm_goes_as_a_whole_or_not_at_all(pods: list[Any], second: str) -> None:
    given = two_lost(second=second, pods=pods, volumes=[volume(), volume("pvc-2", "extra")])
    lost = {"k1", "k4"} if second == LOST else {"k1"}
    by_uid = {one["metadata"]["uid"]: one for one in pods}

    def vm(one: Any) -> str:
        labels = one["metadata"].get("labels", {})
        if labels.get("kubevirt.io") == "hotplug-disk":
            owners = [by_uid.get(ref["uid"]) for ref in one["metadata"]["ownerReferences"]]
            living = [owner for owner in owners if owner is not None and owner["status"]["phase"] != "Succeeded"]
            return vm(living[0]) if living else f"alone {one['metadata']['name']}"
        return str(labels.get("kubevirt.io/created-by", f"alone {one['metadata']['name']}"))

    for plan in act("failover", given)["plans"]:
        removed = {one["pod"] for one in plan["removals"]}
        assert len(removed) == len(plan["removals"]), "none of them twice"
        for one in pods:
            if one["metadata"]["name"] not in removed:
                continue
            assert one["spec"]["nodeName"] in lost
            for other in pods:
                parts = vm(other) == vm(one) and other["status"]["phase"] != "Succeeded"
                if parts and other["spec"]["nodeName"] in lost and "deletionTimestamp" not in other["metadata"]:
                    assert other["metadata"]["name"] in removed

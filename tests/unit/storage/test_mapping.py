"""Names of DRBD and of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.storage.builders import attachment, decide, pod, volume

LABEL = "app.kubernetes.io/component"
SATELLITE = {LABEL: "linstor-satellite"}


@pytest.mark.parametrize(
    ("handle", "expected"),
    [
        ("pvc-1", ("pvc-1", None)),
        ("pvc-1/0", ("pvc-1", 0)),
        ("pvc-1/+07", ("pvc-1", 7)),
        ("pvc-1/-0", ("pvc-1", 0)),
        ("pvc-1/65535", ("pvc-1", 65535)),
        ("pvc-1/" + "0" * 5000 + "1", ("pvc-1", 1)),
        *((handle, (None, None)) for handle in (
            "", "/0", "pvc-1/", "pvc-1/65536", "pvc-1/-1", "pvc-1/1_0", "pvc-1/ 1", "pvc-1/٣", "a/1/2", "a/0x1",
        )),
    ],
)  # fmt: skip
def test_a_handle_names_a_resource_and_perhaps_a_volume_of_it(handle: str, expected: tuple[Any, Any]) -> None:
    found = decide("resource_name", {"handle": handle})
    assert (found["resource"], found["volume"]) == expected
    assert decide("resource_name", {"handle": handle, "profile": "compat"}) == {"resource": handle, "volume": None}


def test_each_kind_is_indexed_by_its_own_keys() -> None:
    assert decide("index", {"persistentVolume": volume()}) == {"pv-by-rd": ["pvc-1"], "pv-by-pvc": ["shop/data"]}
    other = volume(driver="ebs.csi.aws.com")
    assert decide("index", {"persistentVolume": other}) == {"pv-by-rd": [], "pv-by-pvc": ["shop/data"]}
    assert decide("index", {"volumeAttachment": attachment()}) == {"va-by-pv": ["pvc-1"]}
    inline = {"metadata": {"name": "va"}, "spec": {"nodeName": "k1", "source": {"inlineVolumeSpec": {}}}}
    assert decide("index", {"volumeAttachment": inline}) == {"va-by-pv": []}
    twice = [{"name": n, "persistentVolumeClaim": {"claimName": "data"}} for n in "ab"] + [
        {"name": "e", "ephemeral": {}}
    ]
    one = pod(volumes=twice, labels=SATELLITE)
    assert decide("index", {"pod": one}) == {"pod-by-pvc": ["shop/data", "shop/db-0-e"], "satellite-pod": ["db-0"]}
    assert decide("index", {"pod": one, "profile": "compat"})["pod-by-pvc"] == ["shop/data"]
    assert decide("index", {"pod": pod(), "satellitePodLabel": ""})["satellite-pod"] == ["db-0"]
    assert decide("index", {"pod": pod(), "satellitePodLabel": "a b"}) == {"error": "bad-selector"}
    assert decide("index", {})["error"] == "bad-input"


def test_a_pod_keeps_what_is_read_of_it() -> None:
    whole = pod(
        labels={**SATELLITE, "x": "y", "kubevirt.io": "virt-launcher"}, annotations={"a": "b"}, creationTimestamp="t"
    )
    whole |= {"apiVersion": "v1", "kind": "Pod"}
    whole["spec"]["containers"] = [{"name": "c"}]
    whole["status"]["podIP"] = "10.0.0.1"
    kept = decide("trim_pod", {"pod": whole})["pod"]
    assert set(kept["metadata"]) == {"namespace", "name", "uid", "ownerReferences", "labels", "annotations"}
    assert kept["metadata"]["labels"] == {**SATELLITE, "kubevirt.io": "virt-launcher"}
    assert kept["metadata"]["annotations"] == {}
    assert kept["spec"] == {"nodeName": "k1", "volumes": whole["spec"]["volumes"]}
    assert (kept["status"], kept["kind"]) == ({"phase": "Running"}, "Pod")
    assert decide("trim_pod", {"pod": {}})["pod"] == {"metadata": {"labels": {}, "annotations": {}}}
    assert decide("trim_pod", {"pod": kept})["pod"] == kept


def test_a_peer_has_the_name_of_its_node_unless_one_scheduled_satellite_has_its_name() -> None:
    twin = pod("sat-3", node="k4", labels=SATELLITE)
    twin["metadata"]["namespace"] = "b"
    pods = [
        pod("sat-1", node="k1", labels=SATELLITE),
        pod("sat-2", node="", labels=SATELLITE),
        pod("sat-3", node="k3", labels=SATELLITE),
        {
            **pod("sat-3", node="k4", labels=SATELLITE),
            "metadata": {"namespace": "b", "name": "sat-3", "labels": SATELLITE},
        },
        pod("sat-5", node="k5"),
    ]
    given = {"connections": ["sat-1", "sat-2", "sat-3", "sat-5", "k9"], "pods": pods}
    assert decide("node_names", given)["connections"] == ["k1", "sat-2", "sat-3", "sat-5", "k9"]


@pytest.mark.parametrize(
    "kind", ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "gitRepo", "projected", "secret"]
)
def test_volumes_that_nobody_else_writes_are_safe(kind: str) -> None:
    assert decide("volume_safe", {"volume": {"name": "v", kind: {}}}) == {"safe": True, "reason": None}


@pytest.mark.parametrize("kind", ["hostPath", "nfs", "iscsi", "rbd", "cephfs", "fc", "image", "somethingNew"])
def test_all_other_kinds_are_not(kind: str) -> None:
    assert decide("volume_safe", {"volume": {"name": "v", kind: {}}})["safe"] is False


def test_a_claim_is_safe_by_its_one_volume() -> None:
    def safe(volumes: list[Any], **source: Any) -> bool:
        claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data", **source}}
        given = {"namespace": "shop", "volume": claim, "persistentvolumes": volumes}
        return bool(decide("volume_safe", given)["safe"])

    assert safe([volume()])
    assert not safe([])
    assert not safe([volume(), volume("pvc-2")])
    assert not safe([volume(driver="other")])
    assert safe([volume(driver="other", readOnly=True)])
    assert safe([], readOnly=True)
    assert not safe([{"metadata": {"name": "x"}, "spec": {"claimRef": volume()["spec"]["claimRef"], "nfs": {}}}])


def test_the_first_condition_of_readiness_counts() -> None:
    for statuses, ready in ((["True"], True), (["False", "True"], False), (["Unknown"], False), ([], False)):
        conditions = [{"type": "Ready", "status": one} for one in statuses]
        assert decide("node_ready", {"conditions": conditions})["ready"] is ready

"""Who may write the network annotation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.network.builders import IPV4, MAC, decide, pod

NETWORKS = "k8s.ovn.org/pod-networks"
ALLOW = "kubevirt.io/allow-pod-bridge-network-live-migration"
SUBNETS = {"hv-a": ["10.44.7.0/24", "fd44:0:0:7::/64"], "hv-b": "10.44.8.0/24"}
NODE = {"name": "system:node:hv-a", "isNodeIdentity": True, "node": "hv-a"}
SOMEBODY = {"name": "alice"}
ALLOWED_ONE = {"name": "operator", "extraAllowed": True}


def networks(*cidrs: str, network: str = "default") -> dict[str, str]:
    return {NETWORKS: json.dumps({network: {"mac_address": MAC, "ip_addresses": list(cidrs)}})}


def admit(user: Any, old: Any, new: Any, **more: Any) -> str | None:
    found = decide("admit", {"user": user, "old": old, "new": new, "nodeSubnets": SUBNETS} | more)
    assert found["allowed"] is (found["reason"] is None)
    reason: str | None = found["reason"]
    return reason


def on(node: str | None, annotations: Any, **spec: Any) -> Any:
    return pod(annotations=annotations, spec={"nodeName": node, **spec})


GOOD = networks(IPV4)


@pytest.mark.parametrize("key", [NETWORKS, "k8s.ovn.org/dpu.connection-details", "k8s.ovn.org/dpu.connection-status"])
@pytest.mark.parametrize(("before", "after"), [(None, "{}"), ("{}", None), ("{}", '{"x":{}}')])
def test_a_guarded_key_is_changed_by_nodes_and_by_those_who_may(key: str, before: Any, after: Any) -> None:
    old, new = pod(annotations={key: before}), pod(annotations={key: after})
    assert admit(SOMEBODY, old, new) == "user"
    assert admit(ALLOWED_ONE, old, new) is None
    assert admit({"name": "dpu", "extraAllowed": [key]}, old, new) is None
    assert admit({"name": "dpu", "extraAllowed": ["other"]}, old, new) == "user"
    assert admit(NODE, old, new) is None


def test_somebody_who_changes_no_guarded_key_may_do_the_rest() -> None:
    old, new = pod(annotations=GOOD), pod(annotations=GOOD | {"x": "y"}, labels={"a": "b"}, phase="Failed")
    assert admit(SOMEBODY, old, new) is None
    assert admit(SOMEBODY, pod(annotations={NETWORKS: "x"}), pod(annotations={NETWORKS: "x"})) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (on("hv-a", {}), on("hv-a", GOOD), None),
        (on("hv-a", {}), on("hv-a", {}), None),
        (on("hv-a", {}), on("hv-a", GOOD | {"x": "y"}), "key"),
        (on("hv-a", {"x": "y"}), on("hv-a", GOOD), "key"),
        (on("hv-a", {}), on("hv-a", GOOD) | {"status": {"phase": "Failed"}}, "field"),
        (on("hv-a", {}), pod(annotations=GOOD, labels={"a": "b"}), "field"),
        (on("hv-b", {}), on("hv-a", GOOD), "node"),
        (on("hv-a", {}), on("hv-b", GOOD), "node"),
        (on("hv-b", {}), on("hv-b", networks("10.44.8.3/24")), "node"),
        (on(None, {}), on("hv-a", GOOD), "node"),
    ],
)
def test_a_node_changes_guarded_keys_of_its_own_pods_and_nothing_else(old: Any, new: Any, reason: str | None) -> None:
    assert admit(NODE, old, new) == reason


def test_a_node_identity_without_a_node_has_no_pods() -> None:
    assert admit(NODE | {"node": None}, on(None, {}), on(None, GOOD)) == "node"


def test_managed_fields_are_not_compared() -> None:
    new = on("hv-a", GOOD)
    new["metadata"]["managedFields"] = [{"manager": "node"}]
    assert admit(NODE, on("hv-a", {}), new) is None


@pytest.mark.parametrize("user", [NODE, ALLOWED_ONE])
@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        (networks("10.44.7.200/24", "fd44:0:0:7::1/64"), None),
        (networks(), None),
        (networks("10.44.8.3/24", network="till/green"), None),
        (networks("10.44.8.3/24"), "address"),
        (networks(IPV4, "10.44.8.3/24"), "address"),
        ({NETWORKS: "{"}, "annotation"),
        ({NETWORKS: '{"default":{"mac_address":"x"}}'}, "annotation"),
        ({NETWORKS: {}}, "annotation"),
    ],
)
def test_the_addresses_of_a_pod_are_those_of_its_node(user: Any, annotations: Any, reason: str | None) -> None:
    assert admit(user, on("hv-a", {}), on("hv-a", annotations)) == reason


def test_a_pod_of_the_hosts_network_has_no_addresses() -> None:
    assert admit(NODE, on("hv-a", {}, hostNetwork=True), on("hv-a", GOOD, hostNetwork=True)) == "host-network"


def test_a_node_without_subnets_has_no_addresses() -> None:
    assert admit(NODE, on("hv-a", {}), on("hv-a", GOOD), nodeSubnets={}) == "address"
    assert admit(ALLOWED_ONE, on("hv-b", {}), on("hv-b", networks("10.44.8.3/24"))) is None
    assert admit(ALLOWED_ONE, on("hv-b", {}), on("hv-b", GOOD)) == "address"


@pytest.mark.parametrize(
    ("addresses", "kept", "reason"),
    [
        (["10.44.8.3/24"], ["10.44.8.3/24"], None),
        ([IPV4, "10.44.8.3/24"], ["10.44.8.3/24"], None),
        ([IPV4], [], None),
        (["10.44.8.3/24"], [], "address"),
        (["10.44.8.3/24", "10.44.8.4/24"], ["10.44.8.3/24"], "address"),
    ],
)
def test_a_vm_that_travels_keeps_what_its_siblings_have_and_nothing_more(
    addresses: list[str], kept: list[str], reason: str | None
) -> None:
    old, new = on("hv-a", {ALLOW: ""}), on("hv-a", {ALLOW: ""} | networks(*addresses))
    assert admit(NODE, old, new, vmAddresses=kept) == reason


def test_the_exception_is_for_vms_that_travel() -> None:
    assert admit(NODE, on("hv-a", {}), on("hv-a", networks("10.44.8.3/24")), vmAddresses=["10.44.8.3/24"]) == "address"
    assert admit(NODE, on("hv-a", {ALLOW: ""}), on("hv-a", {ALLOW: "", NETWORKS: "x"})) == "annotation"


def test_a_pod_that_is_no_object_is_invalid() -> None:
    assert decide("admit", {"user": NODE, "old": {"metadata": 7}, "new": {}}) == {"error": "invalid"}

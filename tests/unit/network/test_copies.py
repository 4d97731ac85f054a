"""Whose copy a pod is, and where a copy is in the life of its VM."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.builders import addresses, copy, created, decide, error, pod

ALLOW = "kubevirt.io/allow-pod-bridge-network-live-migration"
READY = "kubevirt.io/migration-target-ready-timestamp"
DOMAIN = "kubevirt.io/domain"
LAUNCHER = {"kubevirt.io": "virt-launcher"}
NAMED = {"vm.kubevirt.io/name": "cart"}
VM = {"namespace": "shop", "name": "cart"}


def lifecycle(asked: str, *copies: dict[str, Any]) -> Any:
    return decide("lifecycle", {"asked": asked, "copies": list(copies)})


@pytest.mark.parametrize(
    ("labels", "annotations", "vm"),
    [
        ({}, {DOMAIN: "cart"}, None),
        ({"kubevirt.io": "virt-handler", **NAMED}, {DOMAIN: "cart"}, None),
        ({"kubevirt.io": "", **NAMED}, {}, None),
        (LAUNCHER | NAMED, {DOMAIN: "a-long-name"}, "a-long-name"),
        (LAUNCHER, {DOMAIN: "cart"}, "cart"),
        (LAUNCHER | NAMED, {}, "cart"),
        (NAMED, {}, "cart"),
    ],
)
def test_a_pod_is_a_copy_by_its_labels_and_names_its_vm_by_its_annotation_first(
    labels: dict[str, str], annotations: dict[str, str], vm: str | None
) -> None:
    found = decide("copy", {"pod": pod(labels=labels, annotations=annotations)})["vm"]
    assert found == (None if vm is None else {"namespace": "shop", "name": vm})


def test_a_copy_that_names_no_vm_is_refused() -> None:
    assert decide("copy", {"pod": pod(labels=LAUNCHER)}) == error("vm-name-missing")


def test_a_pod_becomes_a_copy_with_all_members() -> None:
    text = (
        '{"default":{"mac_address":"0a:58:0a:2c:07:17","ip_addresses":["10.44.7.23/24"],"gateway_ips":["10.44.7.1"]},'
    )
    text += '"till/green":{"mac_address":"none"},"till/blue":7}'
    annotations = {ALLOW: "", READY: "2030-01-01T00:00:09Z", "k8s.ovn.org/pod-networks": text}
    one = pod(labels=LAUNCHER | NAMED | {"kubevirt.io/nodeName": "hv-b"}, annotations=annotations)
    empty = {"routes": [], "role": None, "tunnelId": None, "ipv6LlaGateway": None}
    assert decide("copy", {"pod": one}) == {
        "id": "u-virt-launcher-cart-1",
        "namespace": "shop",
        "name": "virt-launcher-cart-1",
        "vm": VM,
        "hypervisor": "hv-a",
        "created": created(0),
        "completed": False,
        "hostNetwork": False,
        "migratable": True,
        "runsOn": "hv-b",
        "readyAt": "2030-01-01T00:00:09Z",
        "networks": {"default": addresses() | empty},
    }


def test_a_pod_without_anything_is_a_copy_of_no_vm_that_is_nowhere() -> None:
    found = decide("copy", {"pod": {}})
    assert {name for name, value in found.items() if value not in (None, False, "", {})} == set()
    assert (found["vm"], found["hypervisor"], found["runsOn"], found["readyAt"]) == (None, None, None, None)


@pytest.mark.parametrize(
    ("phase", "completed"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True)],
)
def test_a_pod_that_has_ended_either_way_is_completed(phase: str, completed: bool) -> None:
    assert decide("copy", {"pod": pod(phase=phase)})["completed"] is completed


def test_a_ready_time_is_any_text_but_an_empty_one() -> None:
    assert decide("copy", {"pod": pod(annotations={READY: "soon"})})["readyAt"] == "soon"
    assert decide("copy", {"pod": pod(annotations={READY: ""})})["readyAt"] is None
    assert decide("copy", {"pod": pod(annotations={"kubevirt.io/migration-target-start-timestamp": "x"})})[
        "readyAt"
    ] is None  # fmt: skip


def test_an_annotation_that_is_no_json_gives_no_networks() -> None:
    for text in ("", "{", "[]", "null", "7"):
        assert decide("copy", {"pod": pod(annotations={"k8s.ovn.org/pod-networks": text})})["networks"] == {}


@pytest.mark.parametrize("text", ["2030-01-01T00:00:00", "2030-02-30T00:00:00Z", "soon", ""])
def test_a_time_without_a_zone_or_that_is_none_is_refused(text: str) -> None:
    assert decide("allowed", {"copy": copy("a", created=text)}) == error("invalid")
    dated = pod()
    dated["metadata"]["creationTimestamp"] = text
    assert decide("copy", {"pod": dated}) == error("invalid")


@pytest.mark.parametrize(
    "text",
    ["2030-01-01T00:00:00Z", "2030-01-01T00:00:00.000000Z", "2030-01-01T00:00:00.5+00:00", "2030-01-01T02:00:00+02:00"],
)
def test_a_time_stays_as_it_was_written(text: str) -> None:
    dated = pod()
    dated["metadata"]["creationTimestamp"] = text
    assert decide("copy", {"pod": dated})["created"] == text


def test_times_are_compared_as_times_and_not_as_texts() -> None:
    later, earlier = copy("a", created="2030-01-01T01:00:00+01:00"), copy("b", created="2029-12-31T23:59:59.5Z")
    assert lifecycle("b", later, earlier)["copies"] == ["b", "a"]
    assert lifecycle("b", later, earlier)["stale"] is True


def test_copies_that_are_null_are_none() -> None:
    for question in ({}, {"copies": None}):
        assert decide("migratable", question) == {"copies": []}
    for name in ("lifecycle", "status", "copy_addresses", "release"):
        assert decide(name, {"asked": "a", "copies": None}) == error("bad-input")
        assert decide(name, {"copies": None}) == error("invalid")


@pytest.mark.parametrize(
    ("topology", "allowed"), [("layer2", True), ("localnet", True), ("routed", False), ("Layer2", False), (None, False)]
)
def test_ports_of_vms_are_switched_over_on_shared_switches_alone(topology: str | None, allowed: bool) -> None:
    assert decide("allowed", {"copy": copy("a"), "topology": topology}) == {"allowed": allowed}
    assert decide("allowed", {"copy": copy("a", vm=None), "topology": topology}) == {"allowed": False}


def test_copies_of_a_vm_are_those_that_name_it_oldest_first_and_siblings_go_by_id() -> None:
    other = copy("x", vm="other")
    elsewhere = copy("y", vm=None) | {"vm": {"namespace": "till", "name": "cart"}}
    twin = copy("c", 3, name="virt-launcher-a")
    found = lifecycle("a", twin, copy("b", 1), other, elsewhere, copy("a", 2), copy("z", vm=None))
    assert (found["vm"], found["copies"], found["siblings"]) == (VM, ["b", "a", "c"], ["b", "c"])


def test_copies_of_one_second_go_by_id_and_neither_is_newer() -> None:
    found = lifecycle("b", copy("b", 1), copy("a", 1))
    assert (found["copies"], found["stale"]) == (["a", "b"], False)
    assert lifecycle("a", copy("b", 1), copy("a", 1))["stale"] is False


def test_a_pod_that_is_no_copy_has_no_copies() -> None:
    found = lifecycle("a", copy("a", vm=None, completed=True), copy("b", 1, vm=None))
    assert found == {
        "vm": None, "copies": [], "siblings": [], "stale": True, "allCompleted": True, "ready": False,
        "macOwner": "shop/virt-launcher-a",
    }  # fmt: skip


def test_asked_must_be_one_of_the_copies() -> None:
    assert lifecycle("b", copy("a")) == error("bad-input")
    assert decide("lifecycle", {"copies": []}) == error("invalid")


@pytest.mark.parametrize(
    ("asked", "other", "stale"),
    [
        ({"migratable": False}, {}, False),
        ({"migratable": False, "completed": True}, {}, False),
        ({"completed": True}, None, True),
        ({}, None, False),
        ({}, {}, True),
        ({}, {"completed": True}, False),
        ({}, {"created": created(0)}, False),
    ],
)
def test_a_copy_is_stale_once_it_is_completed_or_a_living_one_is_newer(
    asked: dict[str, Any], other: dict[str, Any] | None, stale: bool
) -> None:
    siblings = [] if other is None else [copy("b", **{"created": created(1)} | other)]
    assert lifecycle("a", copy("a", **asked), *siblings)["stale"] is stale


@pytest.mark.parametrize(
    ("asked", "other", "completed"),
    [(True, True, True), (True, False, False), (False, True, False), (True, None, True), (False, None, False)],
)
def test_a_vm_is_gone_when_all_its_copies_are_completed(asked: bool, other: bool | None, completed: bool) -> None:
    siblings = [] if other is None else [copy("b", 1, completed=other)]
    found = lifecycle("a", copy("a", completed=asked, migratable=False), *siblings)
    assert found["allCompleted"] is completed


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({"runsOn": "hv-a"}, True),
        ({"runsOn": "hv-b"}, False),
        ({}, False),
        ({"runsOn": None, "hypervisor": None}, False),
        ({"readyAt": "t"}, True),
        ({"readyAt": ""}, False),
        ({"runsOn": "hv-a", "migratable": False}, False),
        ({"runsOn": "hv-a", "hostNetwork": True}, False),
        ({"runsOn": "hv-a", "completed": True}, False),
    ],
)
def test_a_copy_is_ready_when_its_vm_runs_here_or_was_migrated_here(changes: dict[str, Any], ready: bool) -> None:
    assert lifecycle("a", copy("a", **changes))["ready"] is ready
    assert lifecycle("a", copy("a", **changes), copy("b", 1))["ready"] is False


def test_source_and_target_reserve_the_mac_under_one_name() -> None:
    assert lifecycle("a", copy("a"))["macOwner"] == "shop/cart"
    assert lifecycle("a", copy("a", vm=None))["macOwner"] == "shop/virt-launcher-a"


def test_all_copies_that_follow_are_found_completed_ones_too() -> None:
    copies = [
        copy("a"),
        copy("b", completed=True, namespace="till"),
        copy("c", migratable=False),
        copy("d", vm=None),
    ]
    assert set(decide("migratable", {"copies": copies})["copies"]) == {"a", "b"}
    assert decide("migratable", {"copies": [{"id": "a", "vm": VM}]}) == {"copies": []}


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6))
def test_at_most_the_newest_second_of_living_copies_is_not_stale(drawn: list[tuple[int, bool]]) -> None:
    copies = [copy(str(i), second, completed=completed) for i, (second, completed) in enumerate(drawn)]
    fresh = [one for one in copies if not lifecycle(one["id"], *copies)["stale"]]
    newest = max((one["created"] for one in copies if not one["completed"]), default=None)
    assert {one["created"] for one in fresh} == ({newest} if newest else set())

"""Nova's call: what is read, what is refused with which code, and what we send ourselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.loops import run
from tests.support.placement import GIB, fleet_of, host, nova_body, request, slot, wrapped

from outlive.base import LoopClock, Random, Unavailable
from outlive.placement import (
    SILENT,
    BadRequest,
    ExternalAnswer,
    Intent,
    PipelineTable,
    PlacementOptions,
    PlacementService,
    decode_answer,
    decode_request,
    encode_request,
)
from outlive.resources import Amounts, object_name
from outlive.runtime import Metrics


def read(document: dict[str, Any]) -> Any:
    return decode_request(json.dumps(document).encode())


def test_a_request_of_nova_is_read() -> None:
    found = read(nova_body())
    assert found.resource_id == "vm-1"
    assert found.need == Amounts(cpu=4000, memory=16 * GIB)
    assert (found.hosts, found.weights) == (("h1", "h2"), (1.5, -3.0))
    assert found.intent is Intent.EVACUATE
    assert found.hints == {"_nova_check_type": "evacuate", "domain_name": "acme"}
    assert (found.ignore_hosts, found.force_hosts) == (("h9",), None)
    assert found.group.max_server_per_host == 2
    assert found.image_properties["img_hv_type"] == "kvm"
    assert found.pipeline == "kvm-general-purpose-load-balancing"
    assert found.request_id == "req-1"


def test_null_stands_for_empty_everywhere() -> None:
    nothing = dict.fromkeys(
        ["instance_uuid", "project_id", "availability_zone", "num_instances", "scheduler_hints", "ignore_hosts",
         "image", "flavor", "instance_group", "requested_destination"]
    )  # fmt: skip
    empty = {"spec": wrapped(nothing), **dict.fromkeys(["context", "hosts", "weights", "options"]), "pipeline": "x"}
    found = read(empty)
    assert (found.hosts, found.weights, found.options) == ((), (), PlacementOptions())
    assert read({"pipeline": "x", "spec": None}).need == Amounts(cpu=0, memory=0)
    options = {"read_only": None, "ignored_reservation_types": None, "max_candidates": None}
    assert read({"pipeline": "x", "options": options}).options == PlacementOptions()


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        *[(3, 3), (2.0, 2), ("4", 4), ("x", 1), (0, 1), (-1, 1), (1.5, 1), (True, 1), (None, 1), ([], 1)],
        *[("inf", 1), ("nan", 1), ("1e999", 1), (10**400, 1), ("9" * 400, 1)],
    ],
)
def test_a_groups_limit_may_be_written_in_any_way(value: Any, limit: int) -> None:
    group = wrapped({"policy": "anti-affinity", "_rules": {"max_server_per_host": value}})
    assert read(nova_body(spec={"instance_group": group})).group.max_server_per_host == limit


@pytest.mark.parametrize(
    ("hint", "intent"),
    [
        ("rebuild", Intent.REBUILD),
        (["live_migrate"], Intent.LIVE_MIGRATION),
        ("", Intent.CREATE),
        ("anything", Intent.CREATE),
        (["evacuate", "rebuild"], Intent.EVACUATE),
        ([], Intent.UNKNOWN),
        ([3], Intent.UNKNOWN),
        (7, Intent.UNKNOWN),
        (None, Intent.UNKNOWN),
    ],
)
def test_the_intent_is_the_hints_first_word(hint: Any, intent: Intent) -> None:
    assert read(nova_body(spec={"scheduler_hints": {"_nova_check_type": hint}})).intent is intent


@pytest.mark.parametrize(
    ("specs", "pipeline"),
    [
        ({"capabilities:hypervisor_type": "qemu"}, "kvm-general-purpose-load-balancing"),
        ({"capabilities:hypervisor_type": "Ch", "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "Required"},
         "kvm-hana-bin-packing"),
        ({"capabilities:hypervisor_type": "VMware vCenter Server"}, "vmware-general-purpose-load-balancing"),
        ({"capabilities:hypervisor_type": "VMware vCenter Server", "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "required"},
         "vmware-hana-bin-packing"),
        ({"capabilities:hypervisor_type": "qemu", "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "forbidden"},
         "kvm-general-purpose-load-balancing"),
    ],
)  # fmt: skip
def test_without_a_name_the_flavor_chooses_the_pipeline(specs: dict[str, str], pipeline: str) -> None:
    assert read(nova_body(spec={"flavor": wrapped({"extra_specs": specs})})).pipeline == pipeline


def flavor(**specs: str) -> dict[str, Any]:
    return {"flavor": wrapped({"extra_specs": {key.replace("__", ":"): value for key, value in specs.items()}})}


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        ("bad-body", b""),
        ("bad-body", b"[]"),
        ("bad-body", b'{"spec": 3}'),
        ("bad-body", b'{"pipeline": "\xff"}'),
        ("bad-body", nova_body(spec={"num_instances": -1})),
        ("bad-body", nova_body(spec={"num_instances": 1.5})),
        ("bad-body", nova_body(spec={"num_instances": 2**64})),
        ("bad-body", nova_body(spec={"flavor": wrapped({"memory_mb": -5})})),
        ("bad-body", nova_body(spec={"flavor": wrapped({"root_gb": 0.5})})),
        ("bad-body", nova_body(spec={"ignore_hosts": "h1"})),
        ("bad-body", nova_body(weights={"h1": float("inf"), "h2": 0})),
        ("missing-weight", nova_body(weights={"h1": 0})),
        ("unknown-weight", nova_body(weights={"h1": 0, "h2": 0, "h3": 0})),
        ("no-hypervisor-type", nova_body(spec={"flavor": wrapped({})})),
        ("no-hypervisor-type", nova_body(spec=flavor(capabilities__hypervisor_type="Ironic"))),
        (
            "no-flavor-type",
            nova_body(spec=flavor(capabilities__hypervisor_type="qemu", trait__CUSTOM_HANA_EXCLUSIVE_HOST="")),
        ),
    ],
)
def test_a_bad_body_is_refused_with_its_code(code: str, raw: bytes | dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_request(raw if isinstance(raw, bytes) else json.dumps(raw).encode())
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_what_we_send_is_what_we_read() -> None:
    asked = request(
        zone="z1", hosts=["h1", "h2"], ignoreHosts=["h0"], intent="reserve_for_failover", requestId="r",
        globalRequestId="g",
        hints={"_cortex_resource_group": "m"}, imageProperties={"img_hv_type": "kvm"}, forceHosts=["h1"],
        group={"policy": "affinity", "members": ["a"], "maxServerPerHost": 2}, destination={"host": "h1"},
    )  # fmt: skip
    found = decode_request(encode_request(asked))
    hints = {"_nova_check_type": "reserve_for_failover", "_cortex_resource_group": "m"}
    assert found == replace(asked, hints=hints)


def test_a_search_for_a_new_slot_travels_in_the_documented_form() -> None:
    asked = request(
        resourceId="vm", project="9f1b0c", zone="eu-1", ignoreHosts=["kvm-a01"], hosts=["kvm-a02", "kvm-b03"],
        need={"cpu": "8", "memory": "16Gi"}, flavorName="std", extraSpecs={"capabilities:hypervisor_type": "qemu"},
        intent="reserve_for_failover", hints={"_cortex_resource_group": "std"}, imageProperties={"img_hv_type": "kvm"},
        requestId="5a", globalRequestId="failover-8c",
    )  # fmt: skip
    sent = encode_request(replace(asked, options=replace(SILENT, lock_reservations=True)))
    assert sent.decode() == (
        '{"spec":{"nova_object.data":{"instance_uuid":"vm","project_id":"9f1b0c","availability_zone":"eu-1","num_instances":1,'
        '"ignore_hosts":["kvm-a01"],"scheduler_hints":{"_nova_check_type":"reserve_for_failover","_cortex_resource_group":"std"},'
        '"flavor":{"nova_object.data":{"name":"std","memory_mb":16384,"vcpus":8,"extra_specs":{"capabilities:hypervisor_type":"qemu"}}},'
        '"image":{"nova_object.data":{"properties":{"nova_object.data":{"img_hv_type":"kvm"}}}}}},'
        '"context":{"project_id":"9f1b0c","request_id":"5a","global_request_id":"failover-8c"},'
        '"hosts":[{"host":"kvm-a02","hypervisor_hostname":""},{"host":"kvm-b03","hypervisor_hostname":""}],'
        '"weights":{"kvm-a02":0,"kvm-b03":0},"pipeline":"kvm-general-purpose-load-balancing",'
        '"options":{"lock_reservations":true,"skip_history":true,"skip_inflight":true,"skip_committed_resource_tracking":true}}'
    )  # fmt: skip


def test_fractions_of_a_core_are_rounded_up_on_the_wire() -> None:
    asked = json.loads(encode_request(request(need={"cpu": "2500m", "memory": "1025Ki"})))
    sent = asked["spec"]["nova_object.data"]["flavor"]["nova_object.data"]
    assert (sent["vcpus"], sent["memory_mb"]) == (3, 2)


def test_answers_of_other_schedulers_are_read_or_refused() -> None:
    assert decode_answer(200, b'{"hosts": ["a"]}') == ("a",)
    assert decode_answer(200, b'{"hosts": null}') == ()
    with pytest.raises(Unavailable, match="500"):
        decode_answer(500, b"x" * 5000)
    with pytest.raises(Unavailable):
        decode_answer(200, b"<html>")


HOSTS = tuple(f"h{number}" for number in range(1, 7))


def ask(
    document: dict[str, Any] | bytes,
    *,
    explain: bool = False,
    metrics: Metrics | None = None,
    hosts: Iterable[str] = HOSTS,
) -> ExternalAnswer:
    fleet = fleet_of(*map(host, hosts), slot("s", on="h2", members=("vm-1",)))
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()

    async def call() -> ExternalAnswer:
        table = PipelineTable.with_shipped()
        service = PlacementService(fleet, table, clock=LoopClock(), random=Random(1), metrics=metrics)
        return await (service.explain(raw) if explain else service.answer_external(raw))

    return run(call())


def test_an_evacuation_goes_to_the_vms_own_slot() -> None:
    found = ask(nova_body(spec={"ignore_hosts": None}))
    assert (found.status, found.code) == (200, "")
    assert json.loads(found.body) == {"hosts": ["h2", "h1"]}


def test_nova_asks_and_is_answered_with_its_own_names_of_hosts() -> None:
    names = {name: object_name(name) for name in ("KVM_1", "kvm-2", "KVM_3")}
    hosts = {"hosts": [{"host": name} for name in names], "weights": dict.fromkeys(names, 1.0)}
    free = {"ignore_hosts": None, "scheduler_hints": {}, "instance_group": None}
    assert sorted(json.loads(ask(nova_body(**hosts, spec=free), hosts=names.values()).body)["hosts"]) == [
        "KVM_1",
        "KVM_3",
        "kvm-2",
    ]
    ignored = {**free, "ignore_hosts": ["KVM_1"], "force_hosts": ["KVM_1", "KVM_3"]}
    assert json.loads(ask(nova_body(**hosts, spec=ignored), hosts=names.values()).body) == {"hosts": ["KVM_3"]}


def test_no_host_is_an_empty_list() -> None:
    assert ask(nova_body(spec={"availability_zone": "z9"})).body == b'{"hosts":[]}'


def test_a_refusal_by_a_step_is_an_answer_with_its_reason() -> None:
    found = ask(
        nova_body(spec={"flavor": wrapped({"vcpus": 0, "extra_specs": {"capabilities:hypervisor_type": "QEMU"}})})
    )
    answer = json.loads(found.body)
    assert found.status == 200
    assert answer["hosts"] == []
    assert answer["reason"]["code"] == "zero-size"


@pytest.mark.parametrize(
    ("status", "code", "document"),
    [
        (400, "missing-weight", nova_body(weights={})),
        (500, "pipeline-unknown", nova_body(pipeline="none")),
        (500, "invalid-options", nova_body(options={"read_only": True})),
        (500, "gathering-failed", nova_body(pipeline="kvm-hana-bin-packing", spec={"flavor": wrapped({})})),
    ],
)
def test_errors_have_a_status_and_a_code(status: int, code: str, document: dict[str, Any]) -> None:
    found = ask(document)
    answer = json.loads(found.body)
    assert (found.status, found.code, answer["code"]) == (status, code, code)
    assert answer["message"]


def test_explaining_gives_a_reason_for_every_refused_host() -> None:
    found = json.loads(ask(nova_body(spec={"ignore_hosts": ["h2"]}), explain=True).body)
    assert found["orderedHosts"] == ["h1"]
    assert found["rejected"]["h2"]["code"] == "ignored"


def test_calls_are_counted_by_a_fixed_vocabulary() -> None:
    metrics = Metrics()
    ask(nova_body(pipeline="none"), metrics=metrics)
    text = metrics.render().decode()
    assert 'error="pipeline-unknown",method="POST",path="/scheduler/nova/external",status="500"' in text

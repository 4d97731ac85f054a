"""Placement over HTTP: the pinned paths on a real placement service."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.api import api

from outlive.api import Role
from outlive.base import Random, SystemClock
from outlive.placement import Fleet, PipelineTable, PlacementService
from outlive.resources import Amounts, Condition, DomainCapabilities, Hypervisor, HypervisorStatus, ObjectMeta

EXTERNAL = "/scheduler/nova/external"
EXPLAIN = "/scheduler/nova/explain"
GIB = 2**30


def service() -> PlacementService:
    made = PlacementService(Fleet(), PipelineTable.with_shipped(), clock=SystemClock(), random=Random(1))
    for name, cpu in (("small", 2000), ("large", 64_000)):
        status = HypervisorStatus(
            capacity=Amounts(cpu=cpu, memory=64 * GIB),
            allocation=Amounts(cpu=0, memory=0),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            conditions=(Condition(type="Ready", status="True"),),
        )
        made.on_hypervisor(None, Hypervisor(metadata=ObjectMeta(name=name), status=status))
    return made


def body(**changes: Any) -> dict[str, Any]:
    flavor = {"name": "g4", "vcpus": 4, "memory_mb": 8192, "extra_specs": {"capabilities:hypervisor_type": "QEMU"}}
    spec = {"instance_uuid": "u", "num_instances": 1, "flavor": {"nova_object.data": flavor}}
    return {
        "spec": {"nova_object.data": spec},
        "hosts": [{"host": "small"}, {"host": "large"}],
        "weights": {"small": 0.0, "large": 0.0},
        **changes,
    }


async def test_hosts_come_best_first_and_those_without_room_not_at_all() -> None:
    async with api(placement=service()) as server:
        for role in (Role.ADMIN, Role.OPERATOR, Role.SCHEDULER):
            status, answer, _ = await server.call("POST", EXTERNAL, json=body(), role=role)
            assert (status, answer) == (200, {"hosts": ["large"]})


@pytest.mark.parametrize(
    ("request_body", "status", "code"),
    [
        (b"{", 400, ""),
        (body(weights={"small": 1.0}), 400, "missing-weight"),
        (body(weights={"small": 1.0, "large": 1.0, "x": 1.0}), 400, "unknown-weight"),
        (body(pipeline="none"), 500, "pipeline-unknown"),
        (body(spec={}), 400, "no-hypervisor-type"),
        (body(options={"read_only": True}), 500, "invalid-options"),
    ],
)
async def test_refusals_have_exact_statuses_and_stable_codes(request_body: Any, status: int, code: str) -> None:
    async with api(placement=service()) as server:
        for path in (EXTERNAL, EXPLAIN):
            if path == EXPLAIN and code == "invalid-options":
                continue
            sent = {"data": request_body} if isinstance(request_body, bytes) else {"json": request_body}
            got, answer, _ = await server.call("POST", path, **sent)
            assert got == status
            assert answer["message"]
            assert not code or answer["code"] == code


async def test_only_post_places() -> None:
    async with api(placement=service()) as server:
        status, answer, headers = await server.call("GET", EXTERNAL)
        assert (status, answer["code"], headers["Allow"]) == (405, "method-not-allowed", "POST")


async def test_a_viewer_may_ask_why_but_not_place() -> None:
    async with api(placement=service()) as server:
        status, answer, _ = await server.call("POST", EXTERNAL, json=body(), role=Role.VIEWER)
        assert (status, answer["code"]) == (403, "forbidden")
        status, answer, _ = await server.call("POST", EXPLAIN, json=body(), role=Role.VIEWER)
        assert (status, answer["orderedHosts"]) == (200, ["large"])
        assert "small" in answer["rejected"]


async def test_a_server_that_does_not_care_takes_calls_without_a_token() -> None:
    async with api(placement=service(), scheduler_auth="none") as server:
        assert (await server.call("POST", EXTERNAL, json=body(), role=None))[0] == 200
        assert (await server.call("GET", "/apis", role=None))[0] == 401


async def test_a_process_that_places_nothing_says_so() -> None:
    async with api() as server:
        status, answer, _ = await server.call("POST", EXTERNAL, json=body())
        assert (status, answer["code"]) == (503, "unavailable")

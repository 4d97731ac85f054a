"""LIQUID over HTTP: which error comes first, exact texts, one change at a time, who may what, what is counted."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import structlog
from tests.support.api import TOKENS, Api, api
from tests.support.liquid import (
    EVERYTHING,
    SETTINGS,
    LiquidWorld,
    capacity,
    fixed_group,
    liquid,
    variable_group,
)
from tests.support.loops import run_real

from outlive.api.auth import KeystoneAccess, Role
from outlive.base.clock import SystemClock
from outlive.base.errors import OutliveError, Unavailable, Unknown
from outlive.base.ids import SystemIds
from outlive.commitments.access import LiquidPolicy
from outlive.commitments.ports import TokenOwner
from outlive.commitments.requests import Refusal
from outlive.commitments.settings import CommitmentSettings
from outlive.placement.vms import VmView
from outlive.resources import (
    Event,
    ObjectMeta,
    ProjectQuota,
    ProjectQuotaSpec,
)
from outlive.runtime.units import Duration
from outlive.store import list_all
from outlive.store.memory import MemoryStore

BASE = "/commitments/v1"
INFO, CHANGE, CAPACITY = f"{BASE}/info", f"{BASE}/change-commitments", f"{BASE}/report-capacity"
USAGE, QUOTA = f"{BASE}/projects/p1/report-usage", f"{BASE}/projects/p1/quota"
OFF = CommitmentSettings(
    flavor_group_resources={"*": EVERYTHING},
    enable_change_commitments=False,
    enable_report_usage=False,
    enable_report_capacity=False,
    enable_quota=False,
)
UUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


@dataclass
class Limes:
    """The caller, and what answers it."""

    world: LiquidWorld
    api: Api

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any, Any]:
        options.setdefault("role", Role.LIQUID)
        if body is not None:
            options["data"] = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.api.call(method, path, **options)

    async def version(self) -> int:
        version: int = (await self.call("GET", INFO))[1]["version"]
        return version

    async def change(self, **members: Any) -> tuple[int, Any, Any]:
        return await self.call("POST", CHANGE, change(await self.version(), **members))

    def sample(self, text: str) -> list[str]:
        """Lines of the metrics that begin with this text."""
        metrics = self.world.metrics.render().decode()
        return [line for line in metrics.splitlines() if line.startswith(f"outlive_committed_resource_{text}")]


def change(version: int, *, az: str = "a", dry_run: bool = False, uuids: tuple[str, ...] = (UUID,)) -> dict[str, Any]:
    commitments = [{"uuid": uuid, "oldStatus": None, "newStatus": "confirmed", "amount": 1} for uuid in uuids]
    resource = {"totalConfirmedBefore": 0, "totalConfirmedAfter": len(uuids), "commitments": commitments}
    return {
        "az": az,
        "dryRun": dry_run,
        "infoVersion": version,
        "byProject": {"p1": {"byResource": {"hw_version_s4_ram": resource}}},
    }


@asynccontextmanager
async def limes(keystone: KeystoneAccess | None = None, **options: Any) -> AsyncIterator[Limes]:
    groups = options.pop("groups", (fixed_group(), variable_group()))
    async with (
        liquid(*groups, **options) as world,
        api(world.store, commitments=world.service, keystone=keystone) as server,
    ):
        yield Limes(world, server)


def claimed(claim: Callable[[Limes], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with limes(**options) as caller:
            await claim(caller)

    run_real(run())


# -- what comes first ---------------------------------------------------------------------------------------

BAD = b"{"
NOT_ALLOWED = (405, "Method not allowed\n")


@pytest.mark.parametrize(
    ("settings", "known", "method", "path", "body", "status", "text"),
    [
        (OFF, False, "POST", INFO, None, *NOT_ALLOWED),
        (OFF, False, "GET", INFO, None, 503, "Service temporarily unavailable: flavor groups are not known yet\n"),
        (OFF, True, "GET", INFO, None, 200, None),
        (OFF, True, "GET", CHANGE, BAD, 503, "change-commitments API is disabled\n"),
        (OFF, True, "PROPFIND", CHANGE, BAD, 503, "change-commitments API is disabled\n"),
        (SETTINGS, False, "GET", CHANGE, BAD, *NOT_ALLOWED),
        (SETTINGS, False, "POST", CHANGE, BAD, 400, "Invalid request body: Input data was truncated\n"),
        (SETTINGS, False, "POST", CHANGE, b"", 400, "Invalid request body: Input data was truncated\n"),
        (SETTINGS, False, "POST", CHANGE, {"infoVersion": 5}, 400, "availability zone is required\n"),
        (SETTINGS, False, "POST", CHANGE, change(5), 503, "caches not ready, please retry later\n"),
        (SETTINGS, False, "POST", CHANGE, change(5, dry_run=True), 200, None),
        (OFF, True, "GET", CAPACITY, BAD, 503, "report-capacity API is disabled\n"),
        (SETTINGS, False, "GET", CAPACITY, BAD, *NOT_ALLOWED),
        (
            SETTINGS,
            False,
            "POST",
            CAPACITY,
            BAD,
            503,
            "Failed to calculate capacity: flavor groups are not known yet\n",
        ),
        (SETTINGS, True, "POST", CAPACITY, BAD, 200, None),
        (SETTINGS, True, "POST", CAPACITY, b"", 200, None),
        (OFF, True, "GET", f"{BASE}/projects//report-usage", BAD, 503, "report-usage API is disabled\n"),
        (SETTINGS, False, "GET", f"{BASE}/projects//report-usage", BAD, *NOT_ALLOWED),
        (
            SETTINGS,
            False,
            "POST",
            f"{BASE}/projects//report-usage",
            BAD,
            400,
            f"Invalid URL path: expected {BASE}/projects/<project>/report-usage\n",
        ),
        (SETTINGS, False, "POST", USAGE, BAD, 400, "Invalid request body: Input data was truncated\n"),
        (
            SETTINGS,
            False,
            "POST",
            USAGE,
            {},
            500,
            "Failed to generate usage report: what is needed is not available now, retry later\n",
        ),
        (SETTINGS, True, "POST", USAGE, {}, 200, None),
        (OFF, True, "POST", f"{BASE}/projects//quota", BAD, *NOT_ALLOWED),
        (OFF, True, "PUT", f"{BASE}/projects//quota", BAD, 503, "Quota API is disabled\n"),
        (
            SETTINGS,
            False,
            "PUT",
            f"{BASE}/projects//quota",
            BAD,
            400,
            f"Invalid URL path: expected {BASE}/projects/<project>/quota\n",
        ),
        (SETTINGS, False, "PUT", QUOTA, BAD, 400, "Invalid request body: Input data was truncated\n"),
        (
            SETTINGS,
            False,
            "PUT",
            QUOTA,
            {"projectMetadata": {"uuid": "p2"}},
            400,
            'Project UUID mismatch: URL has "p1" but metadata has "p2"\n',
        ),
        (
            SETTINGS,
            False,
            "PUT",
            QUOTA,
            {"resources": {"x": {"perAZ": {"a": {"quota": 2**63}}}}},
            503,
            "flavor groups not available: flavor groups are not known yet\n",
        ),
        (
            SETTINGS,
            True,
            "PUT",
            QUOTA,
            {"resources": {"x": {"perAZ": {"a": {"quota": 2**63}}}}},
            400,
            'Quota value for resource "x" in AZ "a" exceeds int64 max\n',
        ),
        (SETTINGS, True, "PUT", QUOTA, {"projectMetadata": {"uuid": "p1"}}, 204, None),
        (SETTINGS, True, "PUT", QUOTA, {}, 204, None),
    ],
)
def test_errors_come_in_the_order_of_the_contract(
    settings: CommitmentSettings, known: bool, method: str, path: str, body: Any, status: int, text: str | None
) -> None:
    async def claim(caller: Limes) -> None:
        got, answer, headers = await caller.call(method, path, body)
        assert got == status, answer
        assert headers["X-Request-ID"]
        if text is not None:
            assert answer == text
            assert headers["Content-Type"] == "text/plain; charset=utf-8"
            assert headers.get("Allow") == (
                {INFO: "GET"}.get(path, "PUT" if "quota" in path else "POST") if status == 405 else None
            )
        elif status == 200:
            assert headers["Content-Type"] == "application/json"

    claimed(claim, settings=settings, known=known)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/projects/p1/nothing", 404),
        ("/projects/p1/quota/", 404),
        ("/projects/p1", 404),
        ("/projects/", 404),
        ("/projects/report-usage", 400),
        ("/projects/p1/p2/report-usage", 400),
        ("/projects/p1%2Fp2/report-usage", 400),
        ("//projects/p1/report-usage", 404),
        ("/nothing", 404),
        (f"/projects/{'p' * 256}/report-usage", 400),
    ],
)
def test_other_paths_of_projects_lead_nowhere(path: str, status: int) -> None:
    async def claim(caller: Limes) -> None:
        got, answer, headers = await caller.call("POST", BASE + path, {})
        assert got == status
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert answer == "Not found\n" if status == 404 else answer.startswith("Invalid URL path: ")
        assert headers["X-Request-ID"]

    claimed(claim)


def test_every_answer_carries_the_callers_request_id_or_a_new_uuid() -> None:
    async def claim(caller: Limes) -> None:
        for path, method in ((INFO, "GET"), (INFO, "POST"), (f"{BASE}/nothing", "GET")):
            for role in (Role.LIQUID, None):
                mine = await caller.call(method, path, role=role, headers={"X-Request-ID": "req-of-limes"})
                assert mine[2]["X-Request-ID"] == "req-of-limes"
                fresh = await caller.call(method, path, role=role)
                assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", fresh[2]["X-Request-ID"])

    claimed(claim)


def test_a_body_beyond_the_limit_is_refused_in_one_line() -> None:
    async def claim(caller: Limes) -> None:
        for size in (4 * 2**20 + 1, 17 * 2**20):
            body = io.BytesIO(b" " * size)
            status, answer, _ = await caller.api.call("POST", CHANGE, role=Role.LIQUID, data=body)
            assert status == 413
            assert answer.count("\n") == 1

    claimed(claim)


# -- the catalogue and its version --------------------------------------------------------------------------


def test_the_version_of_the_catalogue_rises_with_its_content_and_survives_a_restart() -> None:
    async def claim() -> None:
        store = MemoryStore(SystemClock(), SystemIds())
        async with limes(store=store) as caller:
            status, info, _ = await caller.call("GET", INFO)
            assert (status, len(info["resources"])) == (200, 6)
            assert await caller.version() == info["version"] > 1_700_000_000
        async with limes(store=store, groups=()) as caller:
            assert await caller.version() == info["version"]
        async with limes(store=store, groups=(fixed_group("new"),)) as caller:
            second = await caller.version()
            assert second > info["version"]
            status, answer, _ = await caller.call("POST", CHANGE, change(info["version"]))
            assert (status, answer) == (
                409,
                f"Version mismatch: request version {info['version']}, current version {second}. "
                "Please refresh and retry.\n",
            )
            assert (await caller.call("POST", CHANGE, change(info["version"], dry_run=True)))[0] == 409
            assert caller.world.decider.batches == []

    run_real(claim())


def test_a_unit_that_contradicts_a_group_takes_the_catalogue_away_and_tells_no_setting() -> None:
    ram = msgspec.structs.replace(EVERYTHING.ram, ram_unit_gib=7)
    settings = CommitmentSettings(flavor_group_resources={"s4": msgspec.structs.replace(EVERYTHING, ram=ram)})

    async def claim(caller: Limes) -> None:
        status, answer, _ = await caller.call("GET", INFO)
        assert (status, answer) == (
            503,
            "Service temporarily unavailable: the unit of a flavor group contradicts its flavors\n",
        )

    claimed(claim, settings=settings)


class Away(MemoryStore):
    """A store that says no to some calls, with a word that nobody outside may read."""

    broken = False
    error: type[OutliveError] = Unavailable

    async def get(self, kind: Any, name: str, *, fresh: bool = False) -> Any:
        if self.broken:
            raise self.error("connection to 10.1.2.3:2379 refused, password hunter2")
        return await super().get(kind, name, fresh=fresh)


def test_a_store_that_is_away_is_a_503_without_a_word_about_it() -> None:
    async def claim() -> None:
        store = Away(SystemClock(), SystemIds())
        async with limes(store=store) as caller:
            version = await caller.version()
            for error in (Unavailable, OutliveError, RuntimeError):
                store.broken, store.error = True, error  # type: ignore[assignment]
                answers = [
                    await caller.call("GET", INFO),
                    await caller.call("POST", CHANGE, change(version)),
                    await caller.call("POST", CAPACITY, {}),
                    await caller.call("POST", USAGE, {}),
                    await caller.call("PUT", QUOTA, {"resources": {"x": {"perAZ": {"a": {"quota": 1}}}}}),
                ]
                statuses = [status for status, _, _ in answers]
                assert statuses == ([500] * 5 if error is RuntimeError else [503, 503, 503, 500, 500])
                for _, text, _ in answers:
                    assert "hunter2" not in text
                    assert "10.1.2.3" not in text
                    assert text.count("\n") == 1

    run_real(claim())


# -- changes ------------------------------------------------------------------------------------------------


def test_an_accepted_batch_is_answered_with_nothing_and_a_refused_one_with_the_reason() -> None:
    refusals = [
        Refusal(reason="1 commitment(s) failed to apply:\n- commitment x: no"),
        Refusal(reason="not yet", retry_at=datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ]

    async def claim(caller: Limes) -> None:
        assert (await caller.change())[:2] == (200, {})
        caller.world.decider.answers = [*refusals]
        assert (await caller.change())[:2] == (200, {"rejectionReason": refusals[0].reason})
        assert (await caller.change())[:2] == (200, {"rejectionReason": "not yet", "retryAt": "2027-01-02T03:04:05Z"})
        batch, request_id, by = caller.world.decider.batches[0]
        assert (batch.zone, batch.projects[0].project, by) == ("a", "p1", "liquid-of-tests")
        assert request_id.startswith("committed-resource-")

    claimed(claim)


def test_a_dry_run_asks_and_is_no_mutation() -> None:
    async def claim(caller: Limes) -> None:
        caller.world.decider.answers = [None, Refusal(reason="dry run: 1 probe(s) rejected:\n- probe-0: no")]
        assert (await caller.change(dry_run=True))[:2] == (200, {})
        assert "probe-0" in (await caller.change(dry_run=True))[1]["rejectionReason"]
        await caller.world.events.flush()
        assert [event async for event in list_all(caller.world.store, Event)] == []

    claimed(claim)


def test_a_dry_run_that_nobody_could_decide_is_a_refusal_or_a_failure() -> None:
    async def claim(caller: Limes) -> None:
        caller.world.decider.answers = [Unavailable("hunter2"), OutliveError("hunter2")]
        status, answer, _ = await caller.change(dry_run=True)
        assert (status, answer) == (200, {"rejectionReason": "dry run: caches not ready, please retry later"})
        status, answer, _ = await caller.change(dry_run=True)
        assert (status, answer) == (500, "Failed to judge commitments: internal error (error)\n")

    claimed(claim)


def test_a_batch_has_a_limit() -> None:
    async def claim(caller: Limes) -> None:
        uuids = tuple(f"commitment-{n}" for n in range(10_001))
        assert (await caller.change(uuids=uuids))[:2] == (
            400,
            "Invalid request body: 10001 commitments, at most 10000\n",
        )
        assert (await caller.change(uuids=uuids[1:]))[:2] == (200, {})

    claimed(claim)


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (Unavailable("the leader is 10.9.8.7"), 503, "caches not ready, please retry later\n"),
        (
            Unknown("hunter2"),
            500,
            "Failed to change commitments: the outcome of a write is not known, retry\n",
        ),
        (OutliveError("hunter2"), 500, "Failed to change commitments: internal error (error)\n"),
    ],
)
def test_a_batch_that_could_not_be_decided_is_no_refusal(error: Exception, status: int, text: str) -> None:
    async def claim(caller: Limes) -> None:
        caller.world.decider.answers = [error]
        assert (await caller.change())[:2] == (status, text)

    claimed(claim)


def test_one_change_is_decided_at_a_time_and_few_wait() -> None:
    async def claim(caller: Limes) -> None:
        decider, version = caller.world.decider, await caller.version()
        decider.gate = asyncio.Event()
        roles = [Role.LIQUID] * 64 + [Role.ADMIN] * 16  # as many as each may have at work
        calls = [asyncio.create_task(caller.call("POST", CHANGE, change(version), role=role)) for role in roles]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        refused = [task.result() for task in done]
        assert refused[0][:2] == (503, "too many requests wait, please retry later\n")
        assert refused[0][2]["Retry-After"] == "1"
        decider.gate.set()
        statuses = [status for status, _, _ in await asyncio.gather(*calls)]
        assert (statuses.count(200), statuses.count(503)) == (65, 15)
        assert decider.most_at_once == 1

    claimed(claim)


def test_a_batch_whose_turn_does_not_come_is_refused_in_time() -> None:
    settings = msgspec.structs.replace(SETTINGS, watch_timeout=Duration(0.2))

    async def claim(caller: Limes) -> None:
        decider, version = caller.world.decider, await caller.version()
        decider.gate = asyncio.Event()
        first = asyncio.create_task(caller.call("POST", CHANGE, change(version)))
        await decider.began.wait()
        waited = "timeout after 200ms waiting for 2 CommittedResource CRD(s)"
        asked = change(version, uuids=(UUID, "another-one"))
        status, answer, _ = await caller.call("POST", CHANGE, asked)
        assert (status, answer) == (
            200,
            {"rejectionReason": f"timeout reached while processing commitment changes: {waited}"},
        )
        status, answer, _ = await caller.call("POST", CHANGE, asked | {"dryRun": True})
        assert (status, answer) == (200, {"rejectionReason": f"dry run: timeout: {waited}"})
        decider.gate.set()
        assert (await first)[:2] == (200, {})
        assert caller.sample("change_api_timeouts_total") == [
            'outlive_committed_resource_change_api_timeouts_total{dry_run="true"} 1.0',
            'outlive_committed_resource_change_api_timeouts_total{dry_run="false"} 1.0',
        ]

    claimed(claim, settings=settings)


def test_a_caller_that_goes_away_abandons_its_batch_and_the_next_one_is_decided() -> None:
    async def claim(caller: Limes) -> None:
        decider, version = caller.world.decider, await caller.version()
        decider.gate = asyncio.Event()
        call = asyncio.create_task(caller.call("POST", CHANGE, change(version)))
        await decider.began.wait()
        call.cancel()
        await decider.gave_up.wait()
        decider.gate.set()
        assert (await caller.call("POST", CHANGE, change(version)))[:2] == (200, {})
        assert len(decider.batches) == 2

    claimed(claim)


def test_who_changed_what_is_an_event() -> None:
    async def claim(caller: Limes) -> None:
        await caller.change()
        caller.world.decider.answers = [Refusal(reason="no room")]
        await caller.change()
        await caller.world.events.flush()
        events = [event async for event in list_all(caller.world.store, Event)]
        said = sorted((event.reason, event.type, event.note.partition(" (")[0]) for event in events)
        what = "liquid-of-tests changed 1 commitment of 1 project in a"
        assert said == [("CommitmentsChanged", "Normal", what), ("CommitmentsNotChanged", "Warning", what)]
        assert any(event.note.endswith(": refused: no room") for event in events)

    claimed(claim)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unknown("lost"), "CommitmentsInDoubt"),
        (OutliveError("defect"), "CommitmentsInDoubt"),
        (Unavailable("away"), "CommitmentsNotChanged"),
        (None, "CommitmentsInDoubt"),
    ],
    ids=["unknown", "error", "unavailable", "the caller went away"],
)
def test_an_event_says_that_nothing_changed_only_where_that_is_known(error: Exception | None, reason: str) -> None:
    async def claim(caller: Limes) -> None:
        decider = caller.world.decider
        if error is not None:
            decider.answers = [error]
            await caller.change()
        else:
            version, decider.gate = await caller.version(), asyncio.Event()
            call = asyncio.create_task(caller.call("POST", CHANGE, change(version)))
            await decider.began.wait()
            call.cancel()
            await decider.gave_up.wait()
            await caller.version()
        await caller.world.events.flush()
        assert {event.reason async for event in list_all(caller.world.store, Event)} == {reason}

    claimed(claim)


def test_a_batch_has_the_name_that_its_caller_sent_in_the_header_of_the_contract() -> None:
    async def claim(caller: Limes) -> None:
        body, decider = change(await caller.version()), caller.world.decider
        for headers in (
            {"X-Request-ID": "mine"},
            {"X-OpenStack-Request-ID": "req-1", "X-Request-ID": "mine"},
            {},
            {"X-OpenStack-Request-ID": "req-1"},
            {"X-Request-ID": "no good name"},
        ):
            assert (await caller.call("POST", CHANGE, body, headers=headers))[0] == 200
        named, again, *others = decider.digests
        assert (named, others) == (again, ["", "", ""])
        assert [one[1] for one in decider.batches[:2]] == ["committed-resource-mine"] * 2
        spaced = json.dumps(body | {"more": 1}, indent=1).encode()
        await caller.call("POST", CHANGE, spaced, headers={"X-Request-ID": "mine"})
        assert decider.digests[-1] == named != ""
        await caller.call("POST", CHANGE, body | {"dryRun": True}, headers={"X-Request-ID": "mine"})
        assert decider.digests[-1] == ""

    claimed(claim)


# -- reports ------------------------------------------------------------------------------------------------


def test_capacity_is_reported_and_shown_as_a_metric() -> None:
    known = capacity("s4", "a", running={"s4_c15_m240": 3}, exclusively_free_slots=2)

    async def claim(caller: Limes) -> None:
        version = await caller.version()
        status, answer, _ = await caller.call("POST", CAPACITY, {"allAZs": ["a"], "demandByResource": {"x": 1}})
        assert (status, answer["infoVersion"]) == (200, version)
        assert answer["resources"]["hw_version_s4_ram"] == {"perAZ": {"a": {"capacity": 5, "usage": 3}}}
        shown = caller.sample("reported_capacity")
        assert (
            'outlive_committed_resource_reported_capacity{az="a",resource="hw_version_s4_ram",unit_size="240"} 5.0'
            in shown
        )
        assert (
            'outlive_committed_resource_reported_capacity{az="a",resource="hw_version_s4_cores",unit_size="1"} 0.0'
            in shown
        )

    claimed(claim, capacities=(known,))


def test_a_capacity_that_is_not_up_to_date_is_a_503() -> None:
    async def claim(caller: Limes) -> None:
        assert (await caller.call("POST", CAPACITY, {"allAZs": ["a"]}))[:2] == (
            503,
            "Failed to calculate capacity: the capacity of flavor group s4 in a is not up to date\n",
        )
        assert (await caller.call("POST", CAPACITY, {"allAZs": ["b"]}))[0] == 200

    claimed(claim, capacities=(capacity("s4", "a", ready=False),))


def test_usage_is_that_of_the_project_in_the_path_and_a_vm_is_where_its_host_is() -> None:
    def vm(name: str, project: str) -> VmView:
        return VmView(
            id=name, host="a.kvm-1", project=project, flavor="s4_c15_m240", cpu_milli=15_000, memory_bytes=240 * 2**30
        )

    async def claim(caller: Limes) -> None:
        status, answer, _ = await caller.call("POST", USAGE, {"allAZs": ["a"]})
        zone = answer["resources"]["hw_version_s4_instances"]["perAZ"]["a"]
        assert (status, zone["usage"], zone["subresources"][0]["id"]) == (200, 1, "1")

    claimed(claim, vms=(vm("1", "p1"), vm("2", "p2")))


# -- quota --------------------------------------------------------------------------------------------------


async def quotas(store: Any) -> dict[str, ProjectQuotaSpec]:
    return {one.name: one.spec async for one in list_all(store, ProjectQuota)}


def push(zones: dict[str, int], **metadata: Any) -> dict[str, Any]:
    per_zone = {zone: {"quota": amount} for zone, amount in zones.items()}
    return {"resources": {"hw_version_s4_ram": {"quota": 1, "perAZ": per_zone}}, "projectMetadata": metadata}


def test_a_push_replaces_all_quota_of_its_project_and_of_no_other() -> None:
    other = ProjectQuota(
        metadata=ObjectMeta(name="quota-p2-a"), spec=ProjectQuotaSpec(project_id="p2", availability_zone="a")
    )

    async def claim(caller: Limes) -> None:
        named = {"uuid": "p1", "name": "quay", "domain": {"uuid": "d1", "name": "port"}}
        assert (await caller.call("PUT", QUOTA, push({"a": 1, "b": 2}, **named)))[:2] == (204, "")
        assert (await caller.call("PUT", QUOTA, push({"b": 3, "c": 4}, uuid="p1")))[0] == 204
        found = await quotas(caller.world.store)
        assert sorted(found) == ["quota-p1-b", "quota-p1-c", "quota-p2-a"]
        kept = found["quota-p1-b"]
        assert (kept.project_name, kept.domain_id, kept.domain_name) == ("quay", "d1", "port")
        assert kept.quota == {"hw_version_s4_ram": 720}
        assert found["quota-p1-c"].project_name == ""
        assert (await caller.call("PUT", QUOTA, {}))[0] == 204
        assert sorted(await quotas(caller.world.store)) == ["quota-p2-a"]
        await caller.world.events.flush()
        events = [event async for event in list_all(caller.world.store, Event)]
        assert {event.reason for event in events} == {"QuotaSet"}
        assert len(events) == 3

    claimed(claim, quotas=(other,))


def test_the_same_push_again_writes_nothing() -> None:
    async def claim(caller: Limes) -> None:
        for _ in range(2):
            await caller.call("PUT", QUOTA, push({"a": 1}))
            versions = [one.metadata.resource_version async for one in list_all(caller.world.store, ProjectQuota)]
        assert versions == [one.metadata.resource_version async for one in list_all(caller.world.store, ProjectQuota)]
        await caller.world.events.flush()
        assert len([event async for event in list_all(caller.world.store, Event)]) == 1

    claimed(claim)


def test_pushes_at_once_leave_one_of_them() -> None:
    async def claim(caller: Limes) -> None:
        pushes = [{"a": 1, "b": 1}, {"b": 2, "c": 2}, {"d": 3}]
        await asyncio.gather(*(caller.call("PUT", QUOTA, push(zones)) for zones in pushes * 3))
        found = await quotas(caller.world.store)
        kept = {one.availability_zone: one.quota["hw_version_s4_ram"] // 240 for one in found.values()}
        assert kept in pushes

    claimed(claim)


class NoZoneB(MemoryStore):
    """A store that refuses one object."""

    async def create(self, obj: Any) -> Any:
        if isinstance(obj, ProjectQuota) and obj.spec.availability_zone == "b":
            raise OutliveError("hunter2")
        return await super().create(obj)


def test_a_push_that_fails_midway_says_where_and_keeps_what_is_written() -> None:
    async def claim() -> None:
        store: Any = NoZoneB(SystemClock(), SystemIds())
        async with limes(store=store) as caller:
            status, text, _ = await caller.call("PUT", QUOTA, push({"a": 1, "b": 1, "c": 1}))
            assert (status, text) == (500, "Failed to persist quota for AZ b: internal error (error)\n")
            assert sorted(await quotas(store)) == ["quota-p1-a"]
            await caller.world.events.flush()
            (event,) = [event async for event in list_all(store, Event)]
            assert event.reason == "QuotaNotSet"
            assert event.note.endswith(": Failed to persist quota for AZ b: internal error (error); written are a")

    run_real(claim())


def test_a_push_is_logged_with_what_was_there_before() -> None:
    async def claim(caller: Limes) -> None:
        await caller.call("PUT", QUOTA, push({"a": 1, "b": 2}))
        with structlog.testing.capture_logs() as entries:
            await caller.call("PUT", QUOTA, push({"b": 3}))
        (entry,) = [one for one in entries if one["event"] == "quota.push"]
        assert entry["by"] == "liquid-of-tests"
        assert entry["before"] == {"a": {"hw_version_s4_ram": 240}, "b": {"hw_version_s4_ram": 480}}
        assert entry["quota"] == {"b": {"hw_version_s4_ram": 720}}

    claimed(claim)


# -- who may ------------------------------------------------------------------------------------------------

CALLS = {INFO: "GET", CAPACITY: "POST", USAGE: "POST", CHANGE: "POST", QUOTA: "PUT"}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.ADMIN, set(CALLS)),
        (Role.LIQUID, set(CALLS)),
        (Role.OPERATOR, {INFO, CAPACITY, USAGE}),
        (Role.VIEWER, {INFO, CAPACITY, USAGE}),
        (Role.SCHEDULER, set()),
        (Role.HOST, set()),
        (Role.JOIN, set()),
    ],
)
def test_each_role_may_what_it_is_for(role: Role, allowed: set[str]) -> None:
    async def claim(caller: Limes) -> None:
        for path, method in CALLS.items():
            status, text, _ = await caller.call(method, path, {"az": ""}, role=role)
            assert (status not in (401, 403)) == (path in allowed), (path, text)
        assert (await caller.api.call("GET", "/apis", role=Role.LIQUID))[0] == 403

    claimed(claim)


def test_without_a_token_nobody_learns_whether_anything_is_switched_off() -> None:
    async def claim(caller: Limes) -> None:
        for path in CALLS:
            status, text, headers = await caller.call("DELETE", path, role=None)
            assert (status, headers["Content-Type"]) == (401, "text/plain; charset=utf-8")
            assert "a token is needed" in text

    claimed(claim, settings=OFF)


class Keystone:
    """Knows two tokens, and may be away."""

    def __init__(self) -> None:
        self.away = False

    async def validate(self, token: str) -> TokenOwner | None:
        if self.away:
            raise Unavailable("http://10.1.2.3:5000 did not answer")
        roles = {"of-limes": {"Cloud_Resource_Admin"}, "of-a-reader": {"cloud_resource_viewer", "member"}}.get(token)
        return (
            None
            if roles is None
            else TokenOwner(
                user_id="u1",
                user_name="limes",
                user_domain="default",
                project_id="p9",
                project_name="cloud_admin",
                domain_id="d9",
                domain_name="ccadmin",
                roles=frozenset(roles),
                expires_at=2e9,
            )
        )


def test_a_token_of_keystone_may_what_the_policy_says() -> None:
    keystone = Keystone()

    async def claim(caller: Limes) -> None:
        async def status_of(token: str, path: str) -> tuple[int, str]:
            headers = {"X-Auth-Token": token}
            status, text, _ = await caller.call(CALLS[path], path, {"az": ""}, role=None, headers=headers)
            return status, text

        assert [(await status_of("of-limes", path))[0] for path in CALLS] == [200, 200, 200, 400, 204]
        assert [(await status_of("of-a-reader", path))[0] for path in CALLS] == [200, 200, 200, 403, 403]
        assert await status_of("of-a-reader", QUOTA) == (
            403,
            "limes@default may not set quota: one of the roles cloud_resource_admin is needed "
            "(see docs/reference/commitments.md#access)\n",
        )
        for token in ("unknown", "x" * 20_000):
            assert (await status_of(token, INFO))[0] == 401
        keystone.away = True
        assert await status_of("of-limes", INFO) == (503, "the token cannot be checked now, please retry later\n")
        headers = {"X-Auth-Token": "of-limes"}
        assert (await caller.api.call("GET", "/apis", role=None, headers=headers))[0] == 401
        headers["Authorization"] = f"Bearer {TOKENS[Role.ADMIN]}"
        assert (await caller.call("GET", INFO, role=None, headers=headers))[0] == 200

    claimed(claim, keystone=KeystoneAccess(keystone, LiquidPolicy(projects=("p9",))))


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (LiquidPolicy(projects=("cloud_admin",), domains=("d9",)), 200),
        (LiquidPolicy(projects=("p9",), domains=("ccadmin",)), 200),
        (LiquidPolicy(projects=("cloud_admin@ccadmin",)), 200),
        (LiquidPolicy(projects=("cloud_admin@another",)), 403),
        (LiquidPolicy(projects=("cloud_admin",)), 403),
        (LiquidPolicy(projects=("another",)), 403),
        (LiquidPolicy(domains=("another",)), 403),
        (LiquidPolicy(read_roles=()), 403),
        (LiquidPolicy(read_roles=("member",)), 403),
    ],
)
def test_the_scope_of_a_token_counts(policy: LiquidPolicy, status: int) -> None:
    async def claim(caller: Limes) -> None:
        got, _, _ = await caller.call("GET", INFO, role=None, headers={"X-Auth-Token": "of-limes"})
        assert got == status

    claimed(claim, keystone=KeystoneAccess(Keystone(), policy))


def test_a_server_without_keystone_says_what_to_send() -> None:
    async def claim(caller: Limes) -> None:
        status, text, _ = await caller.call("GET", INFO, role=None, headers={"X-Auth-Token": "of-limes"})
        assert status == 401
        assert "Authorization: Bearer" in text

    claimed(claim)


def test_a_process_that_sells_nothing_says_so() -> None:
    async def claim() -> None:
        async with api() as server:
            for path, method in CALLS.items():
                status, text, _ = await server.call(method, path, data=b"{}")
                assert (status, text) == (503, "this process sells no capacity\n")

    run_real(claim())


# -- what is counted, what is described ---------------------------------------------------------------------


def test_series_exist_before_anybody_calls() -> None:
    async def claim(caller: Limes) -> None:
        requests = caller.sample("change_api_requests_total")
        assert len(requests) == 6 * 2 * 3
        assert {line.rpartition(" ")[2] for line in requests} == {"0.0"}
        assert len(caller.sample("change_api_commitment_changes_total")) == 6
        assert len(caller.sample("change_api_timeouts_total")) == 2
        for call, codes in (("info", 4), ("usage", 5), ("capacity", 3), ("quota", 5)):
            assert len(caller.sample(f"{call}_api_requests_total")) == codes
            assert len(caller.sample(f"{call}_api_request_duration_seconds_count")) == codes
        buckets = caller.sample('change_api_request_duration_seconds_bucket{dry_run="true",le="12.5"')
        assert len(buckets) == 6

    claimed(claim)


def test_calls_are_counted_by_what_became_of_them() -> None:
    async def claim(caller: Limes) -> None:
        caller.world.decider.answers = [None, Refusal(reason="no")]
        await caller.change(uuids=(UUID, "another-one"))
        await caller.change(dry_run=True)
        await caller.call("POST", CHANGE, change(1))
        await caller.call("GET", CHANGE)
        await caller.call("POST", USAGE, BAD)
        name = "outlive_committed_resource_change_api"
        counted = {line for line in caller.sample("change_api") if not line.endswith(" 0.0")}
        assert f'{name}_requests_total{{dry_run="false",result="accepted",status_code="200"}} 1.0' in counted
        assert f'{name}_requests_total{{dry_run="true",result="rejected",status_code="200"}} 1.0' in counted
        assert f'{name}_requests_total{{dry_run="false",result="error",status_code="409"}} 1.0' in counted
        assert f'{name}_requests_total{{dry_run="false",result="error",status_code="405"}} 1.0' in counted
        assert f'{name}_commitment_changes_total{{az="a",dry_run="false",result="accepted"}} 2.0' in counted
        assert f'{name}_commitment_changes_total{{az="a",dry_run="true",result="rejected"}} 1.0' in counted
        assert f'{name}_commitment_changes_total{{az="a",dry_run="false",result="error"}} 1.0' in counted
        usage = caller.sample('usage_api_requests_total{status_code="400"}')
        assert usage[0].endswith(" 1.0")

    claimed(claim)


def test_the_routes_are_described() -> None:
    async def claim(caller: Limes) -> None:
        paths = (await caller.api.call("GET", "/schema/openapi.json", role=None))[1]["paths"]
        found = {path: sorted(set(item) - {"parameters"}) for path, item in paths.items() if path.startswith(BASE)}
        project = f"{BASE}/projects/{{project}}"
        assert found == {
            INFO: ["get"],
            CHANGE: ["post"],
            CAPACITY: ["post"],
            f"{project}/report-usage": ["post"],
            f"{project}/quota": ["put"],
        }

    claimed(claim)

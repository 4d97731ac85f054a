"""LIQUID over HTTP: which error comes first, exact texts, the version of the catalogue, what is counted."""

from __future__ import annotations

import io
import re
from typing import Any

import msgspec
import pytest
from tests.support.liquid import EVERYTHING, SETTINGS, fixed_group
from tests.support.liquid_calls import (
    BASE,
    CAPACITY,
    CHANGE,
    INFO,
    OFF,
    QUOTA,
    USAGE,
    UUID,
    Limes,
    change,
    claimed,
    limes,
)
from tests.support.loops import run_by

from outlive.api import Role
from outlive.base import OutliveError, SystemClock, SystemIds, Unavailable
from outlive.commitments import BatchRefusal, CommitmentSettings
from outlive.store import MemoryStore

# -- what comes first ---------------------------------------------------------------------------------------

BAD = b"{"
HUGE = {"resources": {"x": {"perAZ": {"a": {"quota": 2**63}}}}}
NO_USAGE, NO_QUOTA = f"{BASE}/projects//report-usage", f"{BASE}/projects//quota"
NOT_ALLOWED = (405, "Method not allowed\n")
NOT_KNOWN = "flavor groups are not known yet\n"
LATER = "what is needed is not available now, retry later\n"
TRUNCATED = "Invalid request body: Input data was truncated\n"
MISMATCH = 'Project UUID mismatch: URL has "p1" but metadata has "p2"\n'
EXPECTED = f"Invalid URL path: expected {BASE}/projects/<project>"


@pytest.mark.parametrize(
    ("settings", "known", "method", "path", "body", "status", "text"),
    [
        (OFF, False, "POST", INFO, None, *NOT_ALLOWED),
        (OFF, False, "GET", INFO, None, 503, f"Service temporarily unavailable: {NOT_KNOWN}"),
        (OFF, True, "GET", INFO, None, 200, None),
        (OFF, True, "GET", CHANGE, BAD, 503, "change-commitments API is disabled\n"),
        (OFF, True, "PROPFIND", CHANGE, BAD, 503, "change-commitments API is disabled\n"),
        (SETTINGS, False, "GET", CHANGE, BAD, *NOT_ALLOWED),
        (SETTINGS, False, "POST", CHANGE, BAD, 400, TRUNCATED),
        (SETTINGS, False, "POST", CHANGE, b"", 400, TRUNCATED),
        (SETTINGS, False, "POST", CHANGE, {"infoVersion": 5}, 400, "availability zone is required\n"),
        (SETTINGS, False, "POST", CHANGE, change(5), 503, "caches not ready, please retry later\n"),
        (SETTINGS, False, "POST", CHANGE, change(5, dry_run=True), 200, None),
        (OFF, True, "GET", CAPACITY, BAD, 503, "report-capacity API is disabled\n"),
        (SETTINGS, False, "GET", CAPACITY, BAD, *NOT_ALLOWED),
        (SETTINGS, False, "POST", CAPACITY, BAD, 503, f"Failed to calculate capacity: {NOT_KNOWN}"),
        (SETTINGS, True, "POST", CAPACITY, BAD, 200, None),
        (SETTINGS, True, "POST", CAPACITY, b"", 200, None),
        (OFF, True, "GET", NO_USAGE, BAD, 503, "report-usage API is disabled\n"),
        (SETTINGS, False, "GET", NO_USAGE, BAD, *NOT_ALLOWED),
        (SETTINGS, False, "POST", NO_USAGE, BAD, 400, f"{EXPECTED}/report-usage\n"),
        (SETTINGS, False, "POST", USAGE, BAD, 400, TRUNCATED),
        (SETTINGS, False, "POST", USAGE, {}, 500, f"Failed to generate usage report: {LATER}"),
        (SETTINGS, True, "POST", USAGE, {}, 200, None),
        (OFF, True, "POST", NO_QUOTA, BAD, *NOT_ALLOWED),
        (OFF, True, "PUT", NO_QUOTA, BAD, 503, "Quota API is disabled\n"),
        (SETTINGS, False, "PUT", NO_QUOTA, BAD, 400, f"{EXPECTED}/quota\n"),
        (SETTINGS, False, "PUT", QUOTA, BAD, 400, TRUNCATED),
        (SETTINGS, False, "PUT", QUOTA, {"projectMetadata": {"uuid": "p2"}}, 400, MISMATCH),
        (SETTINGS, False, "PUT", QUOTA, HUGE, 503, f"flavor groups not available: {NOT_KNOWN}"),
        (SETTINGS, True, "PUT", QUOTA, HUGE, 400, 'Quota value for resource "x" in AZ "a" exceeds int64 max\n'),
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
@run_by(claimed)
async def test_other_paths_of_projects_lead_nowhere(caller: Limes, *, path: str, status: int) -> None:
    got, answer, headers = await caller.call("POST", BASE + path, {})
    assert got == status
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer == "Not found\n" if status == 404 else answer.startswith("Invalid URL path: ")
    assert headers["X-Request-ID"]


@run_by(claimed)
async def test_every_answer_carries_the_callers_request_id_or_a_new_uuid(caller: Limes) -> None:
    for path, method in ((INFO, "GET"), (INFO, "POST"), (f"{BASE}/nothing", "GET")):
        for role in (Role.LIQUID, None):
            mine = await caller.call(method, path, role=role, headers={"X-Request-ID": "req-of-limes"})
            assert mine[2]["X-Request-ID"] == "req-of-limes"
            fresh = await caller.call(method, path, role=role)
            assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", fresh[2]["X-Request-ID"])


@run_by(claimed)
async def test_a_body_beyond_the_limit_is_refused_in_one_line(caller: Limes) -> None:
    for size in (4 * 2**20 + 1, 17 * 2**20):
        body = io.BytesIO(b" " * size)
        status, answer, _ = await caller.api.call("POST", CHANGE, role=Role.LIQUID, data=body)
        assert status == 413
        assert answer.count("\n") == 1


# -- the catalogue and its version --------------------------------------------------------------------------


async def test_the_version_of_the_catalogue_rises_with_its_content_and_survives_a_restart() -> None:
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


async def test_a_store_that_is_away_is_a_503_without_a_word_about_it() -> None:
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


# -- what is counted, what is described ---------------------------------------------------------------------


@run_by(claimed)
async def test_series_exist_before_anybody_calls(caller: Limes) -> None:
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


@run_by(claimed)
async def test_calls_are_counted_by_what_became_of_them(caller: Limes) -> None:
    caller.world.decider.answers = [None, BatchRefusal(reason="no")]
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


@run_by(claimed)
async def test_the_routes_are_described(caller: Limes) -> None:
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

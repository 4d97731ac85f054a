"""Changes of commitments over HTTP: one at a time, in time, refused or failed, and which event says so."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from itertools import islice

import msgspec
import pytest
from tests.support.liquid import SETTINGS
from tests.support.liquid_calls import CHANGE, UUID, Limes, change, claimed
from tests.support.loops import run_by

from outlive.api import Role
from outlive.base import OutliveError, Unavailable, Unknown
from outlive.commitments import BatchRefusal
from outlive.resources import Event
from outlive.runtime import Duration
from outlive.store import list_all


def test_an_accepted_batch_is_answered_with_nothing_and_a_refused_one_with_the_reason() -> None:
    refusals = [
        BatchRefusal(reason="1 commitment(s) failed to apply:\n- commitment x: no"),
        BatchRefusal(reason="not yet", retry_at=datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)),
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


@run_by(claimed)
async def test_a_dry_run_asks_and_is_no_mutation(caller: Limes) -> None:
    caller.world.decider.answers = [None, BatchRefusal(reason="dry run: 1 probe(s) rejected:\n- probe-0: no")]
    assert (await caller.change(dry_run=True))[:2] == (200, {})
    assert "probe-0" in (await caller.change(dry_run=True))[1]["rejectionReason"]
    await caller.world.events.flush()
    assert [event async for event in list_all(caller.world.store, Event)] == []


@run_by(claimed)
async def test_a_dry_run_that_nobody_could_decide_is_a_refusal_or_a_failure(caller: Limes) -> None:
    caller.world.decider.answers = [Unavailable("hunter2"), OutliveError("hunter2")]
    status, answer, _ = await caller.change(dry_run=True)
    assert (status, answer) == (200, {"rejectionReason": "dry run: caches not ready, please retry later"})
    status, answer, _ = await caller.change(dry_run=True)
    assert (status, answer) == (500, "Failed to judge commitments: internal error (error)\n")


@run_by(claimed)
async def test_a_batch_has_a_limit(caller: Limes) -> None:
    uuids = tuple(f"commitment-{n}" for n in range(10_001))
    assert (await caller.change(uuids=uuids))[:2] == (400, "Invalid request body: 10001 commitments, at most 10000\n")
    assert (await caller.change(uuids=uuids[1:]))[:2] == (200, {})


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (Unavailable("the leader is 10.9.8.7"), 503, "caches not ready, please retry later\n"),
        (Unknown("hunter2"), 500, "Failed to change commitments: the outcome of a write is not known, retry\n"),
        (OutliveError("hunter2"), 500, "Failed to change commitments: internal error (error)\n"),
    ],
)
@run_by(claimed)
async def test_a_batch_that_could_not_be_decided_is_no_refusal(
    caller: Limes, *, error: Exception, status: int, text: str
) -> None:
    caller.world.decider.answers = [error]
    assert (await caller.change())[:2] == (status, text)


@run_by(claimed)
async def test_one_change_is_decided_at_a_time_and_few_wait(caller: Limes) -> None:
    decider, version = caller.world.decider, await caller.version()
    decider.gate = asyncio.Event()
    roles = [Role.LIQUID] * 64 + [Role.ADMIN] * 16  # as many as each may have at work
    calls = [asyncio.create_task(caller.call("POST", CHANGE, change(version), role=role)) for role in roles]
    refused = [await one for one in islice(asyncio.as_completed(calls), 15)]  # all have come then, and none is decided
    for status, answer, headers in refused:
        assert (status, answer) == (503, "too many requests wait, please retry later\n")
        assert headers["Retry-After"] == "1"
    decider.gate.set()
    statuses = [status for status, _, _ in await asyncio.gather(*calls)]
    assert (statuses.count(200), statuses.count(503)) == (65, 15)
    assert decider.most_at_once == 1


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


@run_by(claimed)
async def test_a_caller_that_goes_away_abandons_its_batch_and_the_next_one_is_decided(caller: Limes) -> None:
    decider, version = caller.world.decider, await caller.version()
    decider.gate = asyncio.Event()
    call = asyncio.create_task(caller.call("POST", CHANGE, change(version)))
    await decider.began.wait()
    call.cancel()
    await decider.gave_up.wait()
    decider.gate.set()
    assert (await caller.call("POST", CHANGE, change(version)))[:2] == (200, {})
    assert len(decider.batches) == 2


@run_by(claimed)
async def test_who_changed_what_is_an_event(caller: Limes) -> None:
    await caller.change()
    caller.world.decider.answers = [BatchRefusal(reason="no room")]
    await caller.change()
    await caller.world.events.flush()
    events = [event async for event in list_all(caller.world.store, Event)]
    said = sorted((event.reason, event.type, event.note.partition(" (")[0]) for event in events)
    what = "liquid-of-tests changed 1 commitment of 1 project in a"
    assert said == [("CommitmentsChanged", "Normal", what), ("CommitmentsNotChanged", "Warning", what)]
    assert any(event.note.endswith(": refused: no room") for event in events)


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
@run_by(claimed)
async def test_an_event_says_that_nothing_changed_only_where_that_is_known(
    caller: Limes, *, error: Exception | None, reason: str
) -> None:
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


@run_by(claimed)
async def test_a_batch_has_the_name_that_its_caller_sent_in_the_header_of_the_contract(caller: Limes) -> None:
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

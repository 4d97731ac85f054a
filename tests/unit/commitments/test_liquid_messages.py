"""The messages of LIQUID: exact JSON, and what is read of what callers send."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput
from outlive.commitments import (
    LARGEST,
    ZONES_LIMIT,
    Batch,
    ChangeAnswer,
    ChangeRequest,
    CommitmentRequest,
    DomainMetadata,
    LiquidCommitment,
    ProjectChange,
    ProjectMetadata,
    ProjectRequest,
    QuotaRequest,
    ReportRequest,
    ResourceChange,
    ResourceRequest,
    batch_of,
    decode,
    encode,
)

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)

CHANGE = {
    "az": "north-1",
    "dryRun": True,
    "infoVersion": 17,
    "surprise": {"a": [1]},
    "byProject": {
        "p1": {
            "projectMetadata": {"uuid": "p1", "name": "quay", "domain": {"uuid": "d1", "name": "port"}},
            "byResource": {
                "hw_version_s4_ram": {
                    "totalConfirmedBefore": 1,
                    "totalConfirmedAfter": 6,
                    "totalGuaranteedBefore": 2,
                    "totalGuaranteedAfter": 3,
                    "commitments": [
                        {
                            "uuid": "11111111-2222",
                            "oldStatus": None,
                            "newStatus": "confirmed",
                            "amount": 5,
                            "confirmBy": "2026-09-01T14:00:00+02:00",
                            "expiresAt": "2026-09-01T12:00:00Z",
                            "oldExpiresAt": "2026-09-01T12:00:00.5Z",
                            "surprise": 1,
                        },
                        {"uuid": "33333333-4444", "oldStatus": "pending", "newStatus": None, "amount": 1},
                    ],
                }
            },
        },
        "p2": {"byResource": None},
    },
}


def test_a_batch_is_read_as_it_is_decided() -> None:
    request = decode(json.dumps(CHANGE).encode(), ChangeRequest)
    assert (request.info_version, request.commitments) == (17, 2)
    assert batch_of(request) == Batch(
        zone="north-1",
        dry_run=True,
        projects=(
            ProjectRequest(
                project="p1",
                domain="d1",
                domain_name="port",
                resources=(
                    ResourceRequest(
                        name="hw_version_s4_ram",
                        confirmed_before=1,
                        confirmed_after=6,
                        guaranteed_before=2,
                        guaranteed_after=3,
                        commitments=(
                            CommitmentRequest(
                                uuid="11111111-2222",
                                new_status="confirmed",
                                amount=5,
                                confirm_by=NOON,
                                expires_at=NOON,
                                old_expires_at=NOON.replace(microsecond=500_000),
                            ),
                            CommitmentRequest(uuid="33333333-4444", old_status="pending", amount=1),
                        ),
                    ),
                ),
            ),
            ProjectRequest(project="p2"),
        ),
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ChangeAnswer(), "{}"),
        (ChangeAnswer(rejection_reason="no"), '{"rejectionReason":"no"}'),
        (
            ChangeAnswer(rejection_reason="no", retry_at=NOON),
            '{"rejectionReason":"no","retryAt":"2026-09-01T12:00:00Z"}',
        ),
    ],
)
def test_an_answer_says_only_what_there_is_to_say(answer: ChangeAnswer, text: str) -> None:
    assert encode(answer).decode() == text


@pytest.mark.parametrize("body", [b"{}", b'{"az":""}', b'{"byProject":null}', b'{"byProject":{"p":{}}}'])
def test_what_is_left_out_of_a_batch_is_empty(body: bytes) -> None:
    request = decode(body, ChangeRequest)
    assert (request.az, request.dry_run, request.info_version, request.commitments) == ("", False, 0, 0)


@pytest.mark.parametrize("body", [b'{"allAZs":null}', b"{}", b'{"demandByResource":{"x":{}}}'])
def test_a_report_may_be_for_no_zone(body: bytes) -> None:
    assert not decode(body, ReportRequest).all_azs


def test_a_report_is_for_so_many_zones() -> None:
    zones = [f"z{number}" for number in range(ZONES_LIMIT + 1)]
    assert decode(json.dumps({"allAZs": zones[1:]}).encode(), ReportRequest).all_azs == tuple(zones[1:])
    for asked in (zones, ["z" * 256]):
        with pytest.raises(BadInput):
            decode(json.dumps({"allAZs": asked}).encode(), ReportRequest)


def _amount(text: str) -> bytes:
    commitment = b'{"uuid":"123456","amount":' + text.encode() + b"}"
    return b'{"byProject":{"p":{"byResource":{"r":{"commitments":[' + commitment + b"]}}}}}"


@pytest.mark.parametrize("amount", [0, 2**63, LARGEST])
def test_numbers_have_64_bits_without_a_sign(amount: int) -> None:
    assert next(decode(_amount(str(amount)), ChangeRequest).iterate_commitments()).amount == amount


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"az":1}',
        b'{"az":"a"} x',
        b"\xff\xfe",
        b'{"az":"\xff"}',
        b'{"infoVersion":"1"}',
        b'{"byProject":[]}',
        _amount("-1"),
        _amount("1.5"),
        _amount(str(LARGEST + 1)),
        _amount("1e400"),
        _amount('"5"'),
        b'{"byProject":{"p":{"byResource":{"r":{"totalConfirmedAfter":18446744073709551616}}}}}',
        b'{"byProject":{"p":{"byResource":{"r":{"commitments":[{"amount":1}]}}}}}',
        b'{"byProject":{"p":{"byResource":{"r":{"commitments":[{"uuid":"1","expiresAt":"tomorrow"}]}}}}}',
        b'{"byProject":{"p":{"byResource":{"r":{"commitments":[{"uuid":"1","expiresAt":"2026-09-01T12:00:00"}]}}}}}',
        b"[" * 100_000,
        b'{"az":"' + b"z" * 256 + b'"}',
        b'{"byProject":{"' + b"p" * 256 + b'":{}}}',
        b'{"byProject":{"p":{"byResource":{"' + b"r" * 256 + b'":{}}}}}',
        b'{"byProject":{"p":{"projectMetadata":{"domain":{"uuid":"' + b"d" * 256 + b'"}}}}}',
    ],
)
def test_a_body_that_is_no_batch_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        decode(body, ChangeRequest)
    assert str(caught.value).startswith("Invalid request body: ")
    assert "\n" not in str(caught.value)


def test_a_quota_is_read_with_whose_it_is() -> None:
    body = {
        "resources": {"hw_version_s4_ram": {"quota": 3, "perAZ": {"a": {"quota": 1}, "b": {"quota": LARGEST}}, "x": 1}},
        "projectMetadata": {"uuid": "p", "name": "n", "domain": {"uuid": "d", "name": "dn"}},
    }
    request = decode(json.dumps(body).encode(), QuotaRequest)
    assert request.project_metadata == ProjectMetadata(uuid="p", name="n", domain=DomainMetadata(uuid="d", name="dn"))
    per_zone = (request.resources or {})["hw_version_s4_ram"].per_az or {}
    assert {zone: one.quota for zone, one in per_zone.items()} == {"a": 1, "b": LARGEST}
    with pytest.raises(BadInput):
        decode(b'{"resources":{"r":{"perAZ":{"a":{"quota":-1}}}}}', QuotaRequest)


TEXT = st.text(max_size=8)
NUMBER = st.integers(min_value=0, max_value=LARGEST)
TIMES = st.none() | st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC)
)
STATUS = st.none() | st.sampled_from(["planned", "pending", "guaranteed", "confirmed", "superseded", "expired"])
COMMITMENTS = st.builds(
    LiquidCommitment,
    uuid=TEXT,
    old_status=STATUS,
    new_status=STATUS,
    amount=NUMBER,
    confirm_by=TIMES,
    expires_at=TIMES,
    old_expires_at=TIMES,
)
RESOURCES = st.builds(
    ResourceChange,
    total_confirmed_before=NUMBER,
    total_confirmed_after=NUMBER,
    total_guaranteed_before=NUMBER,
    total_guaranteed_after=NUMBER,
    commitments=st.none() | st.lists(COMMITMENTS, max_size=3).map(tuple),
)
METADATA = st.builds(ProjectMetadata, uuid=TEXT, name=TEXT, domain=st.builds(DomainMetadata, uuid=TEXT, name=TEXT))
REQUESTS = st.builds(
    ChangeRequest,
    az=TEXT,
    dry_run=st.booleans(),
    info_version=st.integers(min_value=-1, max_value=2**63 - 1),
    by_project=st.none()
    | st.dictionaries(
        TEXT,
        st.builds(
            ProjectChange,
            project_metadata=st.none() | METADATA,
            by_resource=st.none() | st.dictionaries(TEXT, RESOURCES, max_size=2),
        ),
        max_size=3,
    ),
)


@pytest.mark.slow
@given(REQUESTS)
def test_what_is_written_is_read_back(request: ChangeRequest) -> None:
    assert decode(encode(request), ChangeRequest) == request


@pytest.mark.slow
@given(REQUESTS, st.dictionaries(TEXT.map("x-{}".format), st.integers() | TEXT | st.none(), max_size=2))
def test_members_that_nobody_knows_change_nothing(request: ChangeRequest, more: dict[str, Any]) -> None:
    document = json.loads(encode(request))
    for project in (document["byProject"] or {}).values():
        project.update(more)
    assert decode(msgspec.json.encode(document | more), ChangeRequest) == request


@given(REQUESTS)
def test_a_batch_says_what_its_request_says(request: ChangeRequest) -> None:
    batch = batch_of(request)
    assert (batch.zone, batch.dry_run) == (request.az, request.dry_run)
    assert [one.project for one in batch.projects] == list(request.by_project or {})
    listed = [one for project in batch.projects for resource in project.resources for one in resource.commitments]
    assert [(one.uuid, one.amount, one.new_status) for one in listed] == [
        (one.uuid, one.amount, one.new_status) for one in request.iterate_commitments()
    ]


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    for message in (ChangeRequest, ReportRequest, QuotaRequest):
        with contextlib.suppress(BadInput):
            decode(body, message)

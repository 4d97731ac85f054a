"""A commitment as numbers: conversions that refuse what cannot be, what is active, and what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.commitments import GIB, HOUR, NOW, at, commitment, ready, resource

from outlive.base import BadInput, Invalid
from outlive.commitments import (
    ACCEPTED_TEXT,
    STATES,
    WAITING_FOR_SLOTS,
    Commitment,
    GroupUnit,
    ListedCommitment,
    ReadyReason,
    from_change,
    from_listed,
    from_spec,
    has_slots,
    is_active,
    is_judged,
    is_over,
    normalise_time,
    reason_over,
    retry_delay,
    set_ready,
    spec_of,
    summarise,
)
from outlive.resources import CommittedResourceSpec, convert, find_condition

UNIT = GroupUnit(group="g", mib=240 * 1024)
UUID = "b8e6a1f0-3c55-4d0e-9a77-1f2d3c4b5a69"
TIMES = st.none() | st.integers(-10_000, 10_000).map(at)


def changed(**fields: Any) -> Commitment:
    given = {
        "uuid": UUID,
        "status": "confirmed",
        "amount": 5,
        "confirm_by": None,
        "expires_at": at(HOUR),
        "project": "p",
        "domain": "d",
        "group": "g",
        "kind": "memory",
        "zone": "z1",
        "unit": UNIT,
        "now": NOW + 0.75,
    }
    return from_change(**{**given, **fields})


def listed(**fields: Any) -> Commitment:
    given: dict[str, Any] = {
        "uuid": UUID,
        "project": "p",
        "domain": "d",
        "service_type": "compute",
        "resource_name": "hw_version_g_ram",
        "zone": "z1",
        "amount": 2,
        "status": "confirmed",
        "created_at": int(NOW),
        "expires_at": int(NOW + HOUR),
    }
    return from_listed(ListedCommitment(**{**given, **fields}), UNIT)


@pytest.mark.slow
@given(st.sampled_from(sorted(STATES)), st.sampled_from(["memory", "cores"]), st.integers(0, 2**62), TIMES, TIMES)
def test_a_spec_is_the_same_commitment_again(state: Any, kind: Any, amount: int, start: Any, end: Any) -> None:
    sizes = {"memory_bytes": amount if kind == "memory" else 0, "cores": amount if kind == "cores" else 0}
    given = commitment(UUID, type=kind, state=state, start=start, end=end, generation=3, **sizes)
    assert from_spec(spec_of(given), 3) == given


def test_a_change_to_a_state_with_slots_counts_the_amount_from_its_time_on() -> None:
    for status in ("pending", "guaranteed", "confirmed"):
        assert changed(status=status).memory_bytes == 5 * 240 * GIB
        assert changed(status=status, confirm_by=at(60)).start == at(60)
    assert changed().start == at()
    assert changed(confirm_by=datetime(1, 1, 1, tzinfo=UTC)).start == at()
    assert changed(kind="cores").cores == 5
    assert changed(kind="cores").memory_bytes == 0


def test_a_change_to_another_state_has_no_amount_and_no_start() -> None:
    for status in ("planned", "superseded", "expired"):
        assert (changed(status=status).total, changed(status=status).start) == (0, None)


def test_what_has_ended_has_no_amount() -> None:
    assert changed(expires_at=at()).memory_bytes == 0
    assert changed(expires_at=at(), confirm_by=at(-60)).start == at(-60)
    assert changed(expires_at=at(1)).memory_bytes > 0
    assert changed(expires_at=datetime(1, 1, 1, tzinfo=UTC)).end is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"uuid": "x"}, "unexpected commitment format"),
        ({"status": "frozen"}, 'unknown status "frozen"'),
        ({"amount": 2**62}, "4611686018427387904 x 240 GiB is too large"),
        ({"amount": -1}, "negative"),
        ({"amount": 2**63, "kind": "cores"}, "out of range"),
    ],
)
def test_a_change_that_cannot_be_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        changed(**fields)


def test_what_limes_lists_starts_when_it_was_confirmed() -> None:
    assert listed() == commitment(UUID, gib=480, end=at(HOUR))
    assert listed(confirmed_at=int(NOW + 5)).start == at(5)
    assert listed(expires_at=0).end is None
    assert listed(status="planned").state == "planned"


@pytest.mark.parametrize("status", ["planned", "pending", "guaranteed"])
def test_what_is_not_confirmed_yet_starts_when_it_is_to_be_confirmed_as_if_a_change_had_said_it(status: str) -> None:
    assert listed(status=status, confirm_by=int(NOW + 9)).start == at(9)
    assert listed(status=status, confirm_by=int(NOW + 9), confirmed_at=int(NOW + 5)).start == at(5)


def test_commitments_of_cores_are_read_from_limes_as_well() -> None:
    found = listed(resource_name="hw_version_g_cores")
    assert (found.type, found.cores, found.memory_bytes) == ("cores", 2, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"uuid": ""},
        {"resource_name": "volumes"},
        {"status": ""},
        {"amount": 2**60},
        {"created_at": 2**60},
        {"expires_at": 2**62},
    ],
)
def test_nonsense_of_limes_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        listed(**fields)


def test_an_object_of_another_type_is_refused() -> None:
    spec = spec_of(commitment(UUID))
    with pytest.raises(BadInput, match='unsupported resource type "disk"'):
        from_spec(msgspec.structs.replace(spec, resource_type="disk"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("amount", "complaint"), [("-1Gi", "negative"), ("much", "not a quantity"), ("9Ei", "too large"), ("", "not a")]
)
def test_an_object_whose_amount_nobody_could_add_up_is_refused(amount: str, complaint: str) -> None:
    found = msgspec.to_builtins(spec_of(commitment(UUID))) | {"amount": amount}
    with pytest.raises(Invalid, match=complaint):
        convert(CommittedResourceSpec, found)


def test_times_are_whole_seconds_in_utc() -> None:
    berlin = datetime(2026, 9, 1, 2, 0, 0, 999, tzinfo=timezone(timedelta(hours=2)))
    assert normalise_time(berlin) == datetime(2026, 9, 1, tzinfo=UTC)
    assert normalise_time(datetime(2026, 9, 1)) == datetime(2026, 9, 1, tzinfo=UTC)  # noqa: DTZ001 - a time without a zone
    assert normalise_time(datetime(1, 1, 1, tzinfo=UTC)) is None
    west = timezone(-timedelta(hours=10))
    assert normalise_time(datetime(9999, 12, 31, 23, 59, 59, tzinfo=west)) == datetime(
        9999, 12, 31, 23, 59, 59, tzinfo=UTC
    )


def test_only_guaranteed_and_confirmed_ones_promise_something_until_they_end() -> None:
    active = {state for state in STATES if is_active(spec_of(commitment(state=state)), NOW)}
    assert active == {"guaranteed", "confirmed"}
    assert {state for state in STATES if has_slots(commitment(state=state), NOW)} == active | {"pending"}
    ended = commitment(end=at())
    assert not is_active(spec_of(ended), NOW)
    assert is_over(spec_of(ended), NOW)
    assert not has_slots(ended, NOW)
    assert not has_slots(commitment(type="cores", cores=1), NOW)


def test_a_commitment_whose_time_is_over_has_expired_whatever_its_state() -> None:
    assert reason_over(spec_of(commitment(end=at()))) is ReadyReason.EXPIRED
    assert reason_over(spec_of(commitment(state="superseded"))) is ReadyReason.SUPERSEDED


def test_the_time_of_ready_changes_with_status_and_reason_and_on_request() -> None:
    fields: dict[str, Any] = {"ready": False, "reason": ReadyReason.RESERVING, "message": "m", "generation": 1}
    first = set_ready((), **fields, now=NOW)
    assert set_ready(first, **fields, now=NOW + 9) == first
    newer = set_ready(first, **{**fields, "message": "n", "generation": 2}, now=NOW + 9)
    assert [(one.message, one.observed_generation, one.last_transition_time) for one in newer] == [("n", 2, at())]
    for other in ({"reason": ReadyReason.REJECTED}, {"ready": True, "reason": ReadyReason.ACCEPTED}, {"restart": True}):
        found = find_condition(set_ready(first, **{**fields, **other}, now=NOW + 9), "Ready")
        assert found is not None
        assert found.last_transition_time == at(9)


def test_a_generation_is_judged_by_reason() -> None:
    (found,) = ready("False", "Rejected", generation=4)
    assert is_judged(found, ReadyReason.REJECTED, 4)
    assert not is_judged(found, ReadyReason.REJECTED, 5)
    assert not is_judged(found, ReadyReason.ACCEPTED, 4)
    assert not is_judged(None, ReadyReason.REJECTED, 4)


@pytest.mark.parametrize(
    ("elapsed", "delay"),
    [
        (0, 30),
        (29, 30),
        (30, 60),
        (60, 120),
        (119, 120),
        (120, 240),
        (240, 480),
        (480, 960),
        (960, 1800),
        (10**7, 1800),
    ],
)
def test_tries_become_rarer_up_to_a_limit(elapsed: float, delay: float) -> None:
    (found,) = ready("False", "Reserving")
    assert retry_delay(found, NOW + elapsed, 30, 1800) == delay


def test_tries_are_not_rarer_for_another_reason_and_without_a_cap_double_six_times() -> None:
    (rejected,), (reserving,) = ready("False", "Rejected"), ready("False", "Reserving")
    assert retry_delay(None, NOW, 30, 1800) == retry_delay(rejected, NOW + 999, 30, 1800) == 30
    assert retry_delay(reserving, NOW + 10**7, 30, 0) == 30 * 64


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (0, "expired"),
        (59, "exp in 59s"),
        (61, "exp in 1m 1s"),
        (3600, "exp in 1h 0m"),
        (90_000, "exp in 1d 1h"),
        (None, "no expiry"),
    ],
)
def test_the_summary_says_when_it_ends(left: int | None, text: str) -> None:
    wanted = commitment(end=None if left is None else at(left))
    cr = resource(wanted, conditions=ready("True", "Accepted", ACCEPTED_TEXT), assigned_instances=("a",))
    assert summarise(cr, NOW) == f"Accepted · 1 VM · {text}"


def test_the_summary_says_what_differs_from_what_was_accepted() -> None:
    wanted = commitment(gib=48, group="h", zone="z2")
    refused = ready("False", "Rejected", "x" * 81)
    cr = resource(wanted, accepted=commitment(gib=32), conditions=refused)
    assert summarise(cr, NOW) == f"Rejected (amount 32Gi→48Gi; fg g→h; az z1→z2) · {'x' * 77}..."
    cores = resource(commitment(type="cores", cores=3), accepted=commitment(), conditions=refused)
    assert summarise(cores, NOW).startswith("Rejected (amount 32Gi→3; type memory→cores)")


def test_the_summary_leaves_out_what_everybody_knows() -> None:
    waiting = ready("False", "Reserving", WAITING_FOR_SLOTS)
    assert summarise(resource(commitment(), conditions=waiting), NOW) == "Reserving · no expiry"
    asking = ready("False", "Reserving", "insufficient capacity: 0/1 reservation slots could be placed")
    assert "insufficient" in summarise(resource(commitment(), conditions=asking), NOW)
    assert summarise(resource(commitment()), NOW) == ""
    assert (
        summarise(resource(commitment(), conditions=ready("True", "Accepted")), NOW) == "Accepted · 0 VMs · no expiry"
    )

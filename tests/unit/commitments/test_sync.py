"""What the syncer makes of a list of Limes: what is taken over, what ends, and what nobody may lose."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import as_datetime
from outlive.commitments import CommitmentSettings, ListedCommitment, SkipReason, SyncPlan, judge, plan, skip_counts
from outlive.resources import (
    COMMITTED,
    CommitmentChange,
    CommitmentState,
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    CommittedSpec,
    FlavorGroupSpec,
    GroupFlavor,
    ObjectMeta,
    Reservation,
    ReservationSpec,
)

NOW = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
DAY = 86_400
UUID = "6fb1a6d2-0000-4000-8000-000000000001"
SMALL, LARGE = (
    GroupFlavor(name="s4_c1_m4", vcpus=1, memory_mb=4096),
    GroupFlavor(name="s4_c4_m16", vcpus=4, memory_mb=16384),
)
GROUPS = {
    "s4": FlavorGroupSpec(
        group_name="s4", flavors=(LARGE, SMALL), largest_flavor=LARGE, smallest_flavor=SMALL, ram_core_ratio=4096
    )
}
SETTINGS = CommitmentSettings()


def listed(uuid: str = UUID, **said: Any) -> ListedCommitment:
    facts: dict[str, Any] = {
        "project": "p1",
        "domain": "d1",
        "service_type": "compute",
        "resource_name": "hw_version_s4_ram",
        "zone": "zone-a",
        "amount": 10,
        "unit": "4 GiB",
        "status": "confirmed",
        "created_at": int(NOW) - 10 * DAY,
        "expires_at": int(NOW) + 30 * DAY,
    }
    return ListedCommitment(uuid=uuid, **{**facts, **said})


def cr(spec: CommittedResourceSpec, **said: Any) -> CommittedResource:
    new = msgspec.structs.replace(spec, **said)
    return CommittedResource(metadata=ObjectMeta(name=f"commitment-{new.commitment_uuid}"), spec=new)


def ours(uuid: str = UUID, **said: Any) -> CommittedResource:
    """What an earlier run made of the list."""
    return cr(judge([listed(uuid)], GROUPS, SETTINGS).specs[uuid], **said)


def slot(uuid: str, number: int = 0) -> Reservation:
    details = CommittedSpec(commitment_uuid=uuid, resource_group="s4", project_id="p1")
    spec = ReservationSpec(type=COMMITTED, committed_resource_reservation=details)
    return Reservation(metadata=ObjectMeta(name=f"commitment-{uuid}-{number}"), spec=spec)


def planned(
    commitments: list[ListedCommitment],
    existing: tuple[CommittedResource, ...] = (),
    slots: tuple[Reservation, ...] = (),
    changes: tuple[CommitmentChange, ...] = (),
    groups: dict[str, FlavorGroupSpec] = GROUPS,
) -> SyncPlan:
    return plan(judge(commitments, groups, SETTINGS), existing, slots, changes, asked_at=NOW - 60, now=NOW)


def reasons(found: SyncPlan) -> dict[str, int]:
    return dict(skip_counts(found.skipped))


def test_a_commitment_of_limes_is_created_with_all_that_limes_says() -> None:
    found = planned([listed(confirmed_at=int(NOW) - DAY)])
    assert found.active == 1
    (step,) = found.steps
    assert step.before is None
    assert step.after == CommittedResourceSpec(
        commitment_uuid=UUID,
        flavor_group_name="s4",
        resource_type="memory",
        amount="40Gi",
        availability_zone="zone-a",
        project_id="p1",
        domain_id="d1",
        start_time=as_datetime(NOW - DAY),
        end_time=as_datetime(NOW + 30 * DAY),
        state="confirmed",
    )


def test_a_commitment_of_cores_is_taken_over_like_one_of_memory() -> None:
    (step,) = planned([listed(resource_name="hw_version_s4_cores", amount=12, unit="")]).steps
    assert step.after is not None
    assert (step.after.resource_type, step.after.amount) == ("cores", "12")


def test_what_is_already_so_is_not_written_again() -> None:
    assert planned([listed()], (ours(),)).steps == ()


def test_a_change_keeps_whether_a_refusal_is_final() -> None:
    (step,) = planned([listed(amount=20)], (ours(allow_rejection=True),)).steps
    assert step.after is not None
    assert (step.after.amount, step.after.allow_rejection) == ("80Gi", True)


def test_a_commitment_that_moved_to_another_zone_is_moved() -> None:
    (step,) = planned([listed(zone="zone-b")], (ours(),)).steps
    assert step.before is not None
    assert step.after is not None
    assert (step.before.availability_zone, step.after.availability_zone) == ("zone-a", "zone-b")


@pytest.mark.parametrize("said", [{"status": "superseded"}, {"status": "expired"}, {"expires_at": int(NOW)}])
def test_what_is_over_is_never_created(said: dict[str, Any]) -> None:
    assert planned([listed(**said)]).steps == ()


def test_a_superseded_commitment_is_told_so_and_stays_until_its_end() -> None:
    (step,) = planned([listed(status="superseded")], (ours(),)).steps
    assert step.after is not None
    assert step.after.state == "superseded"


def test_a_commitment_goes_at_its_end_together_with_its_slots() -> None:
    over = {"expires_at": int(NOW) - 1, "status": "confirmed"}
    (step,) = planned([listed(**over)], (ours(),), (slot(UUID, 0), slot(UUID, 1))).steps
    assert step.before is not None
    assert step.after is None
    assert [(one.name, one.host) for one in step.slots] == [(f"commitment-{UUID}-{n}", "") for n in (0, 1)]


def test_a_commitment_whose_end_was_put_off_does_not_go() -> None:
    (step,) = planned([listed()], (ours(end_time=as_datetime(NOW - 1)),), (slot(UUID),)).steps
    assert step.after is not None
    assert step.after.end_time == as_datetime(NOW + 30 * DAY)


def test_a_commitment_past_its_end_stays_while_limes_lists_it_and_we_cannot_read_it() -> None:
    found = planned([listed()], (ours(end_time=as_datetime(NOW - 1)),), (slot(UUID),), groups={})
    assert found.steps == ()
    assert reasons(found) == {SkipReason.UNKNOWN_FLAVOR_GROUP: 1}


@pytest.mark.parametrize("state", ["superseded", "expired"])
def test_what_limes_lists_no_more_because_it_is_over_is_not_missed(state: CommitmentState) -> None:
    found = planned([], (ours(state=state),))
    assert (found.steps, found.unmatched) == ((), ())


def test_what_limes_does_not_list_is_counted_and_kept_with_its_slots() -> None:
    found = planned([], (ours(),), (slot(UUID),))
    assert found.steps == ()
    assert found.unmatched == (UUID,)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"service_type": "volumev2"}, SkipReason.NON_COMPUTE),
        ({"status": "dreamt"}, SkipReason.INVALID_STATUS),
        ({"status": ""}, SkipReason.INVALID_STATUS),
        ({"resource_name": "cores"}, SkipReason.INVALID_RESOURCE_NAME),
        ({"resource_name": "hw_version_s4_instances"}, SkipReason.INVALID_RESOURCE_NAME),
        ({"resource_name": "hw_version_new_ram"}, SkipReason.UNKNOWN_FLAVOR_GROUP),
        ({"unit": "GiB"}, SkipReason.UNIT_MISMATCH),
        ({"unit": "bushels"}, SkipReason.UNIT_MISMATCH),
        ({"resource_name": "hw_version_s4_cores", "unit": "GiB"}, SkipReason.UNIT_MISMATCH),
        ({"uuid": "no/uuid"}, SkipReason.INVALID),
        ({"zone": "any"}, SkipReason.INVALID),
        ({"zone": ""}, SkipReason.INVALID),
        ({"amount": 2**62}, SkipReason.INVALID),
        ({"created_at": 2**62}, SkipReason.INVALID),
    ],
)
def test_what_is_left_out_is_counted_and_its_slots_stay(said: dict[str, Any], reason: SkipReason) -> None:
    uuid = said.pop("uuid", UUID)
    found = planned([listed(uuid, **said)], (), (slot(uuid),))
    assert found.steps == ()
    assert reasons(found) == {reason: 1}
    assert found.active == 0


def test_a_commitment_without_a_uuid_is_counted() -> None:
    assert reasons(planned([listed("")])) == {SkipReason.EMPTY_UUID: 1}


def test_another_text_for_the_same_unit_is_the_same_unit() -> None:
    assert planned([listed(unit="4096 MiB")]).active == 1


def test_slots_of_a_commitment_that_nobody_knows_go() -> None:
    (step,) = planned([], (), (slot("gone-1", 3),)).steps
    assert step == CommitmentStep(uuid="gone-1", slots=step.slots)
    assert [one.name for one in step.slots] == ["commitment-gone-1-3"]


def test_slots_that_name_no_commitment_are_left_alone() -> None:
    assert planned([], (), (slot(""),)).steps == ()


@pytest.mark.parametrize("status", ["superseded", "expired"])
def test_slots_go_whose_commitment_is_over_in_limes_and_unknown_to_us(status: str) -> None:
    assert len(planned([listed(status=status)], (), (slot(UUID),)).steps) == 1


def test_commitments_of_another_domain_are_not_touched() -> None:
    foreign = ours(scheduling_domain="ironcore", end_time=as_datetime(NOW - DAY))
    assert planned([listed(amount=20)], (foreign,), (slot(UUID),)).steps == ()


def test_a_commitment_that_is_listed_twice_is_left_alone() -> None:
    found = planned([listed(), listed(project="p2")], (ours(),), (slot(UUID),))
    assert found.steps == ()
    assert reasons(found) == {SkipReason.LISTED_TWICE: 1}


def test_the_same_commitment_twice_counts_once() -> None:
    assert planned([listed(), listed()]).active == 1


def change(name: str = "c1", **said: Any) -> CommitmentChange:
    facts: dict[str, Any] = {
        "phase": "applied",
        "decided_at": as_datetime(NOW - DAY),
        "steps": (CommitmentStep(uuid=UUID),),
        "nonce": "n1",
    }
    return CommitmentChange(metadata=ObjectMeta(name=name), **{**facts, **said})


@pytest.mark.parametrize("said", [{"phase": "decided"}, {"decided_at": as_datetime(NOW - 30)}])
def test_a_list_that_may_be_older_than_a_batch_says_nothing_of_it(said: dict[str, Any]) -> None:
    found = planned([listed(status="pending")], (ours(),), (slot(UUID),), (change(**said),))
    assert found.steps == ()


def test_a_commitment_that_a_batch_has_just_deleted_does_not_come_back() -> None:
    assert planned([listed()], (), (), (change(decided_at=as_datetime(NOW - 1)),)).steps == ()


def test_a_batch_of_yesterday_is_no_reason_to_leave_anything() -> None:
    assert len(planned([listed(amount=20)], (ours(),), (), (change(),)).steps) == 1


def test_a_further_document_counts_as_the_change_that_it_belongs_to() -> None:
    part = change("change-n1-1", part_of="n1", nonce="", phase="decided", decided_at=None)
    assert len(planned([listed(amount=20)], (ours(),), (), (change(steps=()), part)).steps) == 1
    assert len(planned([listed(amount=20)], (ours(),), (), (part,)).steps) == 1
    newer = change(steps=(), decided_at=as_datetime(NOW))
    assert planned([listed(amount=20)], (ours(),), (), (newer, part)).steps == ()


STATUS = st.sampled_from(["planned", "pending", "guaranteed", "confirmed", "superseded", "expired", "odd", ""])
LISTED = st.builds(
    listed,
    uuid=st.sampled_from([f"uuid-{n}" for n in range(6)] + [""]),
    status=STATUS,
    project=st.sampled_from(["p1", "p2"]),
    zone=st.sampled_from(["zone-a", "zone-b", "any"]),
    unit=st.sampled_from(["4 GiB", "", "GiB"]),
    resource_name=st.sampled_from(["hw_version_s4_ram", "hw_version_s4_cores", "hw_version_x_ram", "cores"]),
    service_type=st.sampled_from(["compute", "compute", "object-store"]),
    amount=st.integers(0, 100),
    expires_at=st.sampled_from([0, int(NOW) - 5, int(NOW) + DAY]),
)
OURS = st.lists(
    st.builds(
        ours,
        uuid=st.sampled_from([f"uuid-{n}" for n in range(6)]),
        end_time=st.sampled_from([None, as_datetime(NOW - DAY), as_datetime(NOW + DAY)]),
        state=st.sampled_from(["pending", "confirmed", "superseded"]),
    ),
    unique_by=lambda one: one.spec.commitment_uuid,
    max_size=6,
)
SLOTS = st.lists(
    st.builds(slot, st.sampled_from([f"uuid-{n}" for n in range(8)]), st.integers(0, 2)),
    unique_by=lambda one: one.name,
    max_size=12,
)


@pytest.mark.slow
@given(st.lists(LISTED, max_size=10), OURS, SLOTS)
def test_no_list_loses_a_commitment_that_has_not_ended(
    commitments: list[ListedCommitment], existing: list[CommittedResource], slots: list[Reservation]
) -> None:
    found = planned(commitments, tuple(existing), tuple(slots))
    ends = {one.spec.commitment_uuid: one.spec.end_time for one in existing}
    said_over = {one.uuid for one in commitments if 0 < one.expires_at <= NOW}
    for step in found.steps:
        if step.after is None and step.before is not None:
            own_end = ends[step.uuid]
            assert step.uuid in said_over or (own_end is not None and own_end.timestamp() <= NOW)
    with_slots = {one.uuid for step in found.steps if step.slots for one in [step] if step.after is None}
    kept = {one.spec.commitment_uuid for one in existing} - {s.uuid for s in found.steps if s.before and not s.after}
    assert not kept & with_slots


@pytest.mark.slow
@given(st.lists(LISTED, max_size=10), OURS, SLOTS)
def test_a_second_run_finds_nothing_left_to_do(
    commitments: list[ListedCommitment], existing: list[CommittedResource], slots: list[Reservation]
) -> None:
    found = planned(commitments, tuple(existing), tuple(slots))
    crs = {one.spec.commitment_uuid: one for one in existing}
    gone = {change.name for step in found.steps for change in step.slots}
    for step in found.steps:
        if step.after is not None:
            crs[step.uuid] = cr(step.after)
        else:
            crs.pop(step.uuid, None)
    again = planned(commitments, tuple(crs.values()), tuple(one for one in slots if one.name not in gone))
    assert again.steps == ()

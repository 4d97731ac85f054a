"""Batches: when the sender waits, which steps there are, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.commitments import (
    GIB,
    GROUP,
    HOUR,
    MIXED,
    NOW,
    SELLING,
    at,
    batch,
    change,
    commitment,
    resource,
    wanted,
)

from outlive.commitments import (
    STATES,
    Batch,
    BatchPlan,
    CommitmentRequest,
    CommitmentSettings,
    GroupSettings,
    ProjectRequest,
    RamSettings,
    ResourceRequest,
    dry_run_failed_text,
    dry_run_needs,
    dry_run_timeout_text,
    failed_text,
    needs_confirmation,
    steps_of,
    timeout_text,
    version_text,
)

RAM, CORES = "hw_version_g_ram", "hw_version_g_cores"
GROUPS = {"g": GROUP, "v": MIXED}
STATUS = st.none() | st.sampled_from(sorted(STATES))
AMOUNTS = st.integers(0, 3) | st.just(2**64 - 1)
REQUESTS = st.builds(
    CommitmentRequest,
    uuid=st.just("commit-a"),
    old_status=STATUS,
    new_status=STATUS,
    amount=AMOUNTS,
    old_expires_at=st.none() | st.just(at(1)),
)
RESOURCES = st.builds(
    ResourceRequest,
    name=st.just(RAM),
    confirmed_before=AMOUNTS,
    confirmed_after=AMOUNTS,
    guaranteed_before=AMOUNTS,
    guaranteed_after=AMOUNTS,
    commitments=st.lists(REQUESTS, max_size=3).map(tuple),
)


def steps(given: Batch, *known: Any, settings: CommitmentSettings = SELLING) -> BatchPlan:
    before = {cr.spec.commitment_uuid: cr for cr in known}
    return steps_of(given, GROUPS, settings, before, NOW)


def literally_needs_confirmation(given: Batch) -> bool:
    """The rule as it is written, clause by clause."""
    for project in given.projects:
        for one in project.resources:
            for each in one.commitments:
                if each.new_status in {"confirmed", "guaranteed"} and each.old_expires_at is not None:
                    return True
            unchanged = one.confirmed_before == one.confirmed_after and one.guaranteed_before == one.guaranteed_after
            if unchanged:
                continue
            moves = [(each.old_status, each.new_status, each.amount) for each in one.commitments]
            ends = {"expired", None}
            confirmed_red = sum(n for old, new, n in moves if old == "confirmed" and new in ends)
            guaranteed_red = sum(n for old, new, n in moves if old == "guaranteed" and new in ends | {"confirmed"})
            confirmed_inc = sum(n for old, new, n in moves if (old, new) == ("guaranteed", "confirmed"))
            if one.confirmed_before + confirmed_inc != one.confirmed_after + confirmed_red:
                return True
            if one.guaranteed_before != one.guaranteed_after + guaranteed_red:
                return True
    return False


@pytest.mark.slow
@given(st.lists(RESOURCES, max_size=3))
def test_the_sender_waits_exactly_when_the_rule_says_so(resources: list[ResourceRequest]) -> None:
    given_ = Batch(zone="z1", projects=tuple(ProjectRequest(project="p", resources=(one,)) for one in resources))
    assert needs_confirmation(given_) == literally_needs_confirmation(given_)


@pytest.mark.parametrize(
    ("resource_", "waits"),
    [
        (wanted(RAM, change("commit-a", None, "planned")), False),
        (wanted(RAM, change("commit-a", "planned", "pending")), False),
        (wanted(RAM, change("commit-a", "guaranteed", "confirmed"), confirmed=(0, 1), guaranteed=(1, 0)), False),
        (wanted(RAM, change("commit-a", "confirmed", "expired"), confirmed=(1, 0)), False),
        (wanted(RAM, change("commit-a", "confirmed", None), confirmed=(1, 0)), False),
        (wanted(RAM, change("commit-a", None, "confirmed"), confirmed=(0, 1)), True),
        (wanted(RAM, change("commit-a", "pending", "confirmed"), confirmed=(0, 1)), True),
        (wanted(RAM, change("commit-a", "confirmed", "superseded"), confirmed=(1, 0)), True),
        (wanted(RAM, change("commit-a", "confirmed", "confirmed", old_expires_at=at(1)), confirmed=(1, 1)), True),
        (wanted(RAM, change("commit-a", "planned", "planned", old_expires_at=at(1))), False),
    ],
)
def test_promises_are_confirmed_and_their_end_is_not(resource_: ResourceRequest, waits: bool) -> None:
    assert needs_confirmation(batch({"p": [resource_]})) == waits


def test_a_commitment_is_created_as_the_batch_says() -> None:
    plan = steps(batch({"p": [wanted(RAM, change("commit-a", None, "confirmed", 4), confirmed=(0, 4))]}))
    assert plan.confirmation
    (step,) = plan.steps
    assert step.after is not None
    assert (step.before, step.after.amount, step.after.allow_rejection) == (None, "32Gi", True)
    assert (step.after.project_id, step.after.domain_id, step.after.availability_zone) == ("p", "d", "z1")
    assert (step.after.start_time, step.after.end_time) == (at(), at(1000 * HOUR))


def test_cores_are_counted_as_they_are() -> None:
    (step,) = steps(batch({"p": [wanted(CORES, change("commit-a", None, "confirmed", 4), confirmed=(0, 4))]})).steps
    assert step.after is not None
    assert (step.after.resource_type, step.after.amount) == ("cores", "4")


def test_a_deletion_has_what_was_before_and_comes_first() -> None:
    known = resource(commitment("commit-b"))
    changes = [change("commit-a", None, "planned"), change("commit-b", "confirmed", None), change("nobody", "x", None)]
    plan = steps(batch({"p": [wanted(RAM, *changes[:2])]}), known)
    assert [(step.uuid, step.before, step.after is None) for step in plan.steps] == [
        ("commit-b", known.spec, True),
        ("commit-a", None, False),
    ]
    assert not plan.confirmation


def test_deleting_what_is_not_there_is_no_step() -> None:
    assert steps(batch({"p": [wanted(RAM, change("commit-a", "confirmed", None))]})) == BatchPlan()


@pytest.mark.parametrize(("giver", "taker"), [("a", "b"), ("b", "a")])
def test_a_commitment_that_moves_is_one_step_whichever_project_sorts_first(giver: str, taker: str) -> None:
    known = resource(commitment(project=giver))
    plan = steps(
        batch(
            {
                giver: [wanted(RAM, change("commit-a", "confirmed", None, 4), confirmed=(4, 0))],
                taker: [wanted(RAM, change("commit-a", None, "confirmed", 4), confirmed=(0, 4))],
            }
        ),
        known,
    )
    (step,) = plan.steps
    assert step.before == known.spec
    assert step.after is not None
    assert (step.after.project_id, step.after.amount) == (taker, "32Gi")


def test_a_domain_that_the_batch_leaves_open_stays() -> None:
    plain = Batch(
        zone="z1",
        projects=(ProjectRequest(project="p", resources=(wanted(RAM, change("commit-a", None, "planned")),)),),
    )
    (step,) = steps(plain, resource(commitment())).steps
    assert step.after is not None
    assert step.after.domain_id == "d"


def refused(*resources: ResourceRequest, zone: str = "z1", settings: CommitmentSettings = SELLING) -> str:
    plan = steps(batch({"p": resources}, zone=zone), settings=settings)
    assert plan.steps == ()
    return plan.refusal


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("volumes", 'project with unknown resource name p: invalid resource name "volumes" (missing prefix)'),
        ("hw_version_g_instances", "project with unknown resource name p: invalid resource name"),
        ("hw_version_x_ram", "flavor group not found: x"),
    ],
)
def test_unknown_resources_and_groups_are_refused(name: str, text: str) -> None:
    assert refused(wanted(name)).startswith(text)


def test_what_is_not_sold_is_refused() -> None:
    for name, kind in ((RAM, "memory"), (CORES, "cores")):
        text = f'flavor group "g" is not configured to handle {kind} commitments'
        assert refused(wanted(name), settings=CommitmentSettings()) == text


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (change("x", None, "confirmed"), "commitment x: unexpected commitment format"),
        (change("commit-a", None, "frozen"), 'commitment commit-a: unknown status "frozen"'),
        (change("commit-a", "frozen", None), 'commitment commit-a: unknown status "frozen"'),
        (change("commit-a", None, "confirmed", 2**62), "commitment commit-a: an amount of 4611686018427387904 x 8 GiB"),
        (change("commit-a", None, "confirmed", -1), "commitment commit-a: an amount of -1 is out of range"),
        (change("commit-a", "confirmed", None, 2**64), "commitment commit-a: an amount of 18446744073709551616 is out"),
    ],
)
def test_a_commitment_that_cannot_be_is_refused_by_name(one: CommitmentRequest, text: str) -> None:
    assert refused(wanted(RAM, one)).startswith(text)


@pytest.mark.parametrize("zone", ["", "any", "unknown", "total"])
def test_words_of_liquid_are_refused_as_zones(zone: str) -> None:
    assert refused(wanted(RAM), zone=zone).startswith(f'"{zone}" is not an availability zone')


@pytest.mark.parametrize(
    "resources",
    [
        [wanted(RAM, change("commit-a", None, "confirmed"), change("commit-a", None, "planned"))],
        [wanted(RAM, change("commit-a", "confirmed", None), change("commit-a", None, "confirmed"))],
        [wanted(RAM, change("commit-a", None, "planned")), wanted(CORES, change("commit-a", None, "planned"))],
        [wanted(RAM, change("commit-a", "planned", None)), wanted(CORES, change("commit-a", "planned", None))],
    ],
)
def test_a_batch_that_says_different_things_of_one_commitment_is_refused(resources: list[ResourceRequest]) -> None:
    assert refused(*resources).startswith("commitment commit-a: the batch says different things of it")


def test_the_first_failure_in_order_is_the_reason() -> None:
    given_ = batch({"q": [wanted("volumes")], "p": [wanted("hw_version_y_ram"), wanted("hw_version_x_ram")]})
    assert steps(given_).refusal == "flavor group not found: x"


def test_a_unit_that_contradicts_the_group_sells_nothing() -> None:
    ram = RamSettings(handles_commitments=True, ram_unit_gib=1)
    settings = CommitmentSettings(flavor_group_resources={"g": GroupSettings(ram=ram)})
    assert "ramUnitGiB says 1 GiB" in refused(wanted(RAM), settings=settings)


def test_a_dry_run_asks_for_what_grows_over_all_projects() -> None:
    plan = dry_run_needs(
        batch(
            {
                "a": [wanted(RAM, confirmed=(5, 3)), wanted(CORES, confirmed=(0, 7))],
                "b": [wanted(RAM, confirmed=(0, 1), guaranteed=(0, 4)), wanted("hw_version_v_ram", confirmed=(1, 0))],
            }
        ),
        GROUPS,
        SELLING,
    )
    assert plan.refusal == ""
    assert [(need.group, need.type, need.amount, need.total, need.project) for need in plan.needs] == [
        ("g", "cores", 7, 7, "a"),
        ("g", "memory", 3, 24 * GIB, "b"),
    ]


def test_a_dry_run_of_a_mere_move_asks_for_nothing() -> None:
    move = {"a": [wanted("strange", confirmed=(5, 3))], "b": [wanted("strange", confirmed=(0, 2))]}
    plan = dry_run_needs(batch(move), GROUPS, SELLING)
    assert (plan.needs, plan.refusal) == ((), "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("strange", 'dry run: invalid resource name "strange" (missing prefix)'),
        ("hw_version_x_ram", "dry run: flavor group not found: x"),
    ],
)
def test_a_dry_run_of_something_unknown_is_refused(name: str, text: str) -> None:
    plan = dry_run_needs(batch({"p": [wanted(name, confirmed=(0, 1))]}), GROUPS, SELLING)
    assert plan.refusal.startswith(text)


def test_a_dry_run_skips_what_takes_no_part() -> None:
    for ram in (RamSettings(handles_dry_run=True), RamSettings(handles_commitments=True)):
        settings = CommitmentSettings(flavor_group_resources={"g": GroupSettings(ram=ram)})
        assert dry_run_needs(batch({"p": [wanted(RAM, confirmed=(0, 2**62))]}), GROUPS, settings).needs == ()


def test_a_dry_run_beyond_63_bits_is_refused() -> None:
    plan = dry_run_needs(batch({"p": [wanted(RAM, confirmed=(0, 2**62))]}), GROUPS, SELLING)
    assert plan.refusal.startswith("dry run: an amount of 4611686018427387904 x 8 GiB is too large")


def test_refusals_are_worded_as_the_interface_has_them() -> None:
    short = "insufficient capacity: 3/5 reservation slots could be placed"
    assert failed_text([("u1", short)]) == f"1 commitment(s) failed to apply:\n- commitment u1: {short}"
    assert dry_run_failed_text([("p", short)]) == f"dry run: 1 probe(s) rejected:\n- p: {short}"
    waiting = "timeout after 15s waiting for 2 CommittedResource CRD(s)"
    assert timeout_text(15, 2) == f"timeout reached while processing commitment changes: {waiting}"
    assert dry_run_timeout_text(15, 2) == f"dry run: timeout: {waiting}"
    assert version_text(1, 2) == ("Version mismatch: request version 1, current version 2. Please refresh and retry.")

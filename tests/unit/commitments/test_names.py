"""Names of resources and objects: what is built can be read back, and every object's name is legal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput
from outlive.commitments import (
    capacity_name,
    check_uuid,
    commitment_name,
    free_slot_names,
    parse_resource,
    quota_name,
    real_zone,
    resource_name,
    slot_index_next,
    slot_name,
    uuid_of,
)
from outlive.resources import check_name

UUID = "550e8400-e29b-41d4-a716-446655440000"
UUIDS = st.from_regex(r"\A[a-zA-Z0-9-]{6,40}\Z")
IDS = st.text(max_size=80)


@given(st.text(min_size=1))
def test_a_resource_name_is_read_back(group: str) -> None:
    assert parse_resource(resource_name(group, "ram")) == (group, "memory")
    assert parse_resource(resource_name(group, "cores")) == (group, "cores")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cores", "(missing prefix)"),
        ("hw_version__ram", "(empty group name)"),
        ("hw_version__cores", "(empty group name)"),
        ("hw_version_g_instances", "(only _ram and _cores resources are supported for commitments)"),
        ("hw_version_g", "(only _ram and _cores resources are supported for commitments)"),
        ("hw_version_ram", "(only _ram and _cores resources are supported for commitments)"),
    ],
)
def test_what_nobody_can_commit_to_is_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_resource(name)
    assert name in caught.value.message
    assert why in caught.value.message


@pytest.mark.slow
@given(UUIDS)
def test_every_uuid_gives_a_legal_name_of_its_own(uuid: str) -> None:
    check_uuid(uuid)
    check_name(commitment_name(uuid))
    check_name(slot_name(commitment_name(uuid), 7))


@pytest.mark.slow
@given(UUIDS, UUIDS)
def test_two_commitments_have_two_names(one: str, other: str) -> None:
    assert (commitment_name(one) == commitment_name(other)) == (one == other)


def test_plain_uuids_stand_in_the_name() -> None:
    assert commitment_name(UUID) == f"commitment-{UUID}"
    assert uuid_of(slot_name(commitment_name(UUID), 5)) == UUID
    assert uuid_of("commitment-abc123") == "abc123"


@pytest.mark.parametrize("text", ["", "short", "x" * 41, "with space", "dry_run", "uuid\n123"])
def test_other_texts_are_no_uuids(text: str) -> None:
    with pytest.raises(BadInput, match="unexpected commitment format"):
        check_uuid(text)


def test_slots_are_numbered_on_and_gaps_stay() -> None:
    assert slot_index_next([]) == 0
    assert slot_index_next([f"commitment-{UUID}-0", f"commitment-{UUID}-7", f"commitment-{UUID}-x"]) == 8
    assert slot_index_next(["commitment-7", "7"]) == 0


def test_names_of_slots_that_others_have_now_are_skipped() -> None:
    names = free_slot_names("commitment-a", ["commitment-a-1", "commitment-b-9"], {"commitment-a-3"})
    assert [next(names), next(names)] == ["commitment-a-2", "commitment-a-4"]


def test_the_name_of_a_capacity_object_is_the_hash_of_both() -> None:
    assert capacity_name("Hana_v2", "eu-west.2b").startswith("hana-v2-eu-west-2b-")
    assert capacity_name("a", "b-c") != capacity_name("a-b", "c")
    assert len(capacity_name("g" * 90, "z")) == 63
    assert capacity_name("s4", "qa-de-1b") == "s4-qa-de-1b-d7df90"


@given(IDS, IDS)
def test_objects_of_any_ids_have_legal_names(one: str, other: str) -> None:
    check_name(capacity_name(one, other))
    check_name(quota_name(one, other))


@given(st.lists(st.sampled_from(["a", "-", "b", "A"]), max_size=4), st.lists(st.sampled_from(["a", "-", "A"])))
def test_no_two_projects_share_a_quota_object(one: list[str], other: list[str]) -> None:
    text = "".join(one) + "-" + "".join(other)
    names = {quota_name(text[:cut], text[cut + 1 :]) for cut, sign in enumerate(text) if sign == "-"}
    assert len(names) == text.count("-")


def test_quota_objects_of_keystones_projects_are_called_after_them() -> None:
    assert quota_name("7d1b0c3e5a9f4c1d8e2f6a7b90c4d512", "eu-west-2a") == (
        "quota-7d1b0c3e5a9f4c1d8e2f6a7b90c4d512-eu-west-2a"
    )
    assert quota_name(UUID, "az1") == f"quota-{UUID}-az1"


def test_words_of_liquid_are_no_zones() -> None:
    known = ("eu-1a", "any", "unknown", "total", "")
    assert [real_zone(zone, known) for zone in ("eu-1a", "eu-1b", "any", "total", "")] == ["eu-1a", *["unknown"] * 4]

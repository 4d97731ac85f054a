"""State files: what goes in comes out, and the digest names facts only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from outlive.base import BadInput
from outlive.resources import (
    Amounts,
    Assigned,
    BadInputs,
    Coverage,
    CoverageStatus,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    ObjectRef,
    Resource,
    State,
    VirtualMachine,
    VirtualMachineStatus,
    decode_state,
    encode_state,
    state_digest,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def host(name: str, cpu: int = 8000, uid: str = "u", seen: datetime = NOW) -> Hypervisor:
    meta = ObjectMeta(name=name, uid=uid, resource_version="7", creation_timestamp=seen, generation=3)
    return Hypervisor(metadata=meta, status=HypervisorStatus(capacity=Amounts(cpu=cpu, memory=2**34), observed_at=seen))


def state(*objects: Resource) -> State:
    return State(taken_at=NOW, objects=objects)


def test_a_state_survives_its_file() -> None:
    before = state(host("b"), host("a"))
    after = decode_state(encode_state(before))
    assert after.taken_at == NOW
    assert [item.name for item in after.objects] == ["a", "b"]
    assert after.objects[1] == before.objects[0]


def test_an_empty_state_survives_its_file() -> None:
    assert decode_state(encode_state(state())).objects == ()


def test_each_object_has_a_line_of_its_own() -> None:
    assert len(encode_state(state(host("a"), host("b"))).splitlines()) == 4


def test_the_digest_ignores_order_versions_uids_and_times() -> None:
    later = NOW + timedelta(hours=1)
    assert state_digest([host("a"), host("b")]) == state_digest([host("b", uid="v", seen=later), host("a")])


def test_the_digest_sees_every_fact() -> None:
    assert state_digest([host("a")]) != state_digest([host("a", cpu=8001)])
    assert state_digest([host("a")]) != state_digest([host("a"), host("b")])


def test_the_digest_ignores_the_uid_of_a_reference_but_not_its_name() -> None:
    def vm(slot: str, uid: str) -> VirtualMachine:
        assigned = Assigned(hypervisor="h", slot=ObjectRef(kind="Reservation", name=slot, uid=uid))
        return VirtualMachine(metadata=ObjectMeta(name="v"), status=VirtualMachineStatus(assigned=assigned))

    assert state_digest([vm("s", "1")]) == state_digest([vm("s", "2")])
    assert state_digest([vm("s", "1")]) != state_digest([vm("t", "1")])


def test_what_is_derived_does_not_count_in_the_digest() -> None:
    derived = Coverage(metadata=ObjectMeta(name="v"), status=CoverageStatus(required=1, covered=True))
    assert state_digest([host("a"), derived]) == state_digest([host("a")])


@pytest.mark.parametrize(
    ("raw", "place", "words"),
    [
        (b"", "s.json:1", "not JSON"),
        (b'{"apiVersion":\n"outlive.dev/v1alpha1",\n', "s.json:3", "not JSON"),
        (b"[]", "s.json", "not a state file"),
        (b'{"kind":"List","takenAt":"2026-03-01T12:00:00Z"}', "s.json", "not a state file"),
        (b"\xff\xfe", "s.json:1", "not JSON"),
    ],
)
def test_a_file_that_is_no_state_is_refused_with_its_place(raw: bytes, place: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        decode_state(raw, "s.json")
    assert caught.value.place == place
    assert words in caught.value.message
    assert caught.value.remedy


def test_a_newer_state_is_refused_by_its_version() -> None:
    raw = encode_state(state()).replace(b'"version":1', b'"version":2')
    with pytest.raises(BadInput, match="version 2"):
        decode_state(raw)


def test_every_bad_object_is_named() -> None:
    raw = encode_state(state(host("a"), host("b"), host("c"))).replace(b'"cpu":"8"', b'"cpu":"many"', 2)
    with pytest.raises(BadInputs) as caught:
        decode_state(raw, "s.json")
    assert [problem.place for problem in caught.value.problems] == ["s.json: objects[0]", "s.json: objects[1]"]


def test_an_object_that_is_there_twice_is_refused() -> None:
    with pytest.raises(BadInputs, match="there twice"):
        decode_state(encode_state(state(host("a"), host("a"))))


def test_a_state_names_its_own_kind() -> None:
    assert msgspec.json.decode(encode_state(state()))["kind"] == "State"

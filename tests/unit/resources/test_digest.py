"""What a digest sees of an object: every fact, nothing else, whatever way the object came about."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from tests.unit.resources.examples import FULL, MOMENT, SMALL

from outlive.base import BadInput
from outlive.resources import (
    DUMPED,
    FAILOVER,
    KINDS,
    Amounts,
    ObjectMeta,
    Part,
    RecoveryPolicy,
    Reservation,
    ReservationSpec,
    Resource,
    State,
    VirtualMachine,
    VirtualMachineSpec,
    decode,
    decode_as,
    digest_of,
    encode,
    encode_lines,
    encode_state,
    facts_of,
    read_facts,
    state_digest,
    state_facts,
)


class Limit(Part, frozen=True, kw_only=True):
    """A struct whose own defaults are none that writing leaves out by itself."""

    most: int = 1_000
    share: float = 0.5
    what: str = "all"


def facts(items: list[Resource]) -> bytes:
    return encode_lines(facts_of(items, KINDS.values()))


def literal(value: Any) -> Any:
    """What is left of plain values without times and the uids of references, written out one by one."""
    if isinstance(value, dict):
        reference = "kind" in value and "name" in value
        return {
            key: literal(item)
            for key, item in value.items()
            if not isinstance(item, datetime) and not (reference and key == "uid")
        }
    return [literal(item) for item in value] if isinstance(value, list | tuple) else value


def without_written_defaults(value: Any) -> Any:
    """Defaults that plain values have and facts leave out."""
    defaults = {
        "schedulingDomain": "nova",
        "multiplier": 1.0,
        "createPipeline": True,
        "failureDomain": "rack",
        "stormFraction": 0.5,
        "fencesLimit": 2,
        "fencesWindowS": 600.0,
        "proofs": 1,
        "transitionGraceS": 300.0,
    }
    if isinstance(value, dict):
        return {
            key: without_written_defaults(item)
            for key, item in value.items()
            if without_written_defaults(item) != {} and (key not in defaults or item != defaults[key])
        }
    return [without_written_defaults(item) for item in value] if isinstance(value, list) else value


def amounts(value: object) -> object:
    assert isinstance(value, Amounts)
    return value.to_wire()


@pytest.mark.parametrize("item", FULL, ids=lambda item: item.kind())
def test_facts_are_everything_but_times_uids_and_versions(item: Resource) -> None:
    plain = msgspec.to_builtins(item, enc_hook=amounts, builtin_types=(datetime,))
    for name in ("uid", "resourceVersion", "generation"):
        del plain["metadata"][name]
    plain.pop("apiVersion", None)
    if item.kind() == "Cluster":
        for name in ("sealingKey", "keyIds"):  # random, and nothing about the cluster
            del plain["status"][name]
    if item.kind() == "Hypervisor":  # an update of a host changes none of its facts
        for name in ("version", "keyIds", "authorities"):
            plain.get("status", {}).pop(name, None)
        for name in ("cpus", "kernel", "os"):
            plain.get("status", {}).get("capabilities", {}).pop(name, None)
    (raw,) = facts([item]).splitlines()
    assert without_written_defaults(msgspec.json.decode(raw)) == without_written_defaults(literal(plain))


@pytest.mark.parametrize("item", [*FULL, *SMALL], ids=lambda item: item.kind())
def test_facts_are_the_same_after_a_journey_over_the_wire(item: Resource) -> None:
    assert facts([decode(type(item), encode(item))]) == facts([item])


@pytest.mark.parametrize("item", [*FULL, *SMALL], ids=lambda item: item.kind())
def test_facts_have_their_keys_in_order(item: Resource) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            names = [name for name in value if name != "kind"]
            assert names == sorted(names)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    check(msgspec.json.decode(facts([item])))


def test_a_default_that_was_written_down_is_the_same_fact() -> None:
    given = Reservation(metadata=ObjectMeta(name="r"), spec=ReservationSpec(type=FAILOVER))
    written = b"""{"kind": "Reservation", "apiVersion": "outlive.dev/v1alpha1",
        "metadata": {"name": "r", "labels": {}, "finalizers": []},
        "spec": {"type": "FailoverReservation", "schedulingDomain": "nova", "resources": {}, "targetHost": ""},
        "status": {"host": "", "conditions": []}}"""
    assert facts([decode(Reservation, written)]) == facts([given])


VM = b"""{"kind": "VirtualMachine", "apiVersion": "outlive.dev/v1alpha1", "metadata": {"name": "v"},
    "spec": {"flavor": "m", "resources": {"cpu": "2"}%s}, "status": {%s}}"""


@pytest.mark.parametrize("spec", ["", ', "preferredHosts": {}, "recovery": {"mode": ""}, "powerState": "running"'])
@pytest.mark.parametrize("status", ["", '"holders": [], "phase": ""'])
def test_what_is_empty_and_what_is_absent_are_the_same_fact(spec: str, status: str) -> None:
    vm = VirtualMachine(
        metadata=ObjectMeta(name="v"), spec=VirtualMachineSpec(flavor="m", resources=Amounts(cpu=2_000))
    )
    assert facts([decode(VirtualMachine, VM % (spec.encode(), status.encode()))]) == facts([vm])
    empty = VM.replace(b', "status": {%s}', b"") % spec.encode()
    assert facts([decode(VirtualMachine, empty)]) == facts([vm])


@pytest.mark.parametrize("item", [*FULL, *SMALL], ids=lambda item: item.kind())
@pytest.mark.parametrize("default", [RecoveryPolicy(), Limit(), Amounts(), 600.0, 2, 1_000, True, "nova", ""])
def test_a_member_that_a_kind_gets_changes_no_digest(item: Resource, default: Any) -> None:
    given = type(item)
    added = ("added_later", type(default), default)
    later = msgspec.defstruct(
        given.__name__, [added], bases=(given,), tag_field="kind", tag=given.kind(), frozen=True, kw_only=True
    )
    grown = later(**{field.name: getattr(item, field.name) for field in msgspec.structs.fields(given)})
    assert encode_lines(facts_of([grown], [later])) == facts([item])
    written = msgspec.json.decode(encode(grown))
    written["addedLater"] = msgspec.to_builtins(default, enc_hook=amounts)
    again = decode_as(later, msgspec.json.encode(written))
    assert encode_lines(facts_of([again], [later])) == facts([item])


def test_facts_of_a_file_are_those_of_its_objects() -> None:
    objects = tuple(item for item in FULL if isinstance(item, DUMPED))
    raw = encode_state(State(taken_at=MOMENT, objects=objects))
    assert encode_lines(read_facts(raw)) == encode_lines(state_facts(objects))
    assert digest_of(read_facts(raw)) == state_digest(objects)


def test_a_file_whose_facts_cannot_be_read_is_refused_like_any_state() -> None:
    raw = encode_state(State(taken_at=MOMENT, objects=tuple(item for item in FULL if isinstance(item, DUMPED))))
    with pytest.raises(BadInput, match="not JSON") as caught:
        read_facts(raw[:-20], "s.json")
    assert caught.value.place.startswith("s.json:")
    with pytest.raises(BadInput, match="version 2"):
        read_facts(raw.replace(b'"version":1', b'"version":2'))
    with pytest.raises(BadInput, match="there twice"):
        read_facts(encode_state(State(taken_at=MOMENT, objects=(SMALL[0], SMALL[0]))))

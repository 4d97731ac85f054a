"""What a digest sees of an object: every fact, nothing else, whatever way the object came about."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from tests.unit.resources.examples import FULL, SMALL

from outlive.resources import FAILOVER, Amounts, ObjectMeta, Reservation, ReservationSpec, Resource
from outlive.resources.codec import decode, encode
from outlive.resources.digest import facts


def literal(value: Any) -> Any:
    """What is left of plain values without times and the uids of references, told one by one."""
    if isinstance(value, dict):
        reference = "kind" in value and "name" in value
        return {
            key: literal(item)
            for key, item in value.items()
            if not isinstance(item, datetime) and not (reference and key == "uid")
        }
    return [literal(item) for item in value] if isinstance(value, list | tuple) else value


def without_written_defaults(value: Any) -> Any:
    """Defaults that facts always write and the wire leaves out."""
    defaults = {"schedulingDomain": "nova", "multiplier": 1.0, "createPipeline": True}
    if isinstance(value, dict):
        return {
            key: without_written_defaults(item)
            for key, item in value.items()
            if item != {} and (key not in defaults or item != defaults[key])
        }
    return [without_written_defaults(item) for item in value] if isinstance(value, list) else value


def amounts(value: object) -> object:
    assert isinstance(value, Amounts)
    return value.wire()


@pytest.mark.parametrize("item", FULL, ids=lambda item: item.kind())
def test_facts_are_everything_but_times_uids_and_versions(item: Resource) -> None:
    plain = msgspec.to_builtins(item, enc_hook=amounts, builtin_types=(datetime,))
    for name in ("uid", "resourceVersion", "generation"):
        del plain["metadata"][name]
    del plain["kind"]
    (raw,) = facts([item]).splitlines()
    assert without_written_defaults(msgspec.json.decode(raw)) == without_written_defaults(literal(plain))


@pytest.mark.parametrize("item", [*FULL, *SMALL], ids=lambda item: item.kind())
def test_facts_are_the_same_after_a_journey_over_the_wire(item: Resource) -> None:
    assert facts([decode(type(item), encode(item))]) == facts([item])


@pytest.mark.parametrize("item", [*FULL, *SMALL], ids=lambda item: item.kind())
def test_facts_have_their_keys_in_order(item: Resource) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert list(value) == sorted(value)
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

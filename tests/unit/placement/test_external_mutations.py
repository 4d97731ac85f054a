"""Whatever a body holds, the call is answered: 200, or an error with a code, and never a crash."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.loops import run
from tests.support.placement import nova_body, random_fleet, wrapped

from outlive.base import LoopClock, Random
from outlive.placement import ExternalAnswer, PipelineTable, PlacementService, PlacementSettings
from outlive.runtime import Metrics

REFUSED_AS_A_WHOLE = {"invalid-options", "pipeline-unknown", "pipeline-not-ready", "gathering-failed"}
PIPELINES = [*PipelineTable.with_shipped(), "kvm-descheduler", "nope", ""]
INTENTS = ["evacuate", ["live_migrate"], "reserve_for_failover", "reuse_failover_reservation", "capacity_probe", [3]]
EXTRA_SPECS = {
    "capabilities:hypervisor_type": "QEMU",
    "capabilities:cpu_arch": "x86_64",
    "trait:A": "whatever",
    "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "forbidden",
    "quota:hw_version": "g",
}
BODY = nova_body(
    spec={
        "availability_zone": "z1",
        "scheduler_hints": {
            "_nova_check_type": ["rebuild"],
            "source_host": "h1",
            "domain_name": ["iaas-x"],
            "_cortex_resource_group": "g",
        },
        "flavor": wrapped({"name": "m", "vcpus": 2, "memory_mb": 4096, "extra_specs": EXTRA_SPECS}),
        "requested_destination": wrapped({"host": "", "aggregates": ["a1,a2"]}),
    },
    pipeline="kvm-general-purpose-load-balancing",
    options={
        "read_only": False,
        "assume_empty_hosts": False,
        "lock_reservations": False,
        "ignored_reservation_types": ["FailoverReservation"],
        "max_candidates": 0,
        "skip_history": True,
    },
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a document can be changed."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


PLACES = list(places(BODY))
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**64), 10**400, 0.5, 1e308, -1e308, 5e-324])
WORDS = st.one_of(
    st.sampled_from(
        ["", "h1", "NaN", "1e400", "9" * 400, "required", "<or>", ">= 1e999", "\x00", "affinity", "a" * 9999]
    ),
    st.text(max_size=5),
)
VALUES = st.one_of(
    st.none(), st.booleans(), NUMBERS, WORDS, st.sampled_from(PIPELINES), st.sampled_from(INTENTS),
    st.lists(st.one_of(st.none(), NUMBERS, WORDS), max_size=3),
    st.dictionaries(WORDS, st.one_of(NUMBERS, WORDS), max_size=2),
    st.sampled_from([{"nova_object.data": None}, {"nova_object.data": []}, {"nova_object.data": {}}]),
)  # fmt: skip


def changed(path: tuple[str | int, ...], value: Any, document: Any) -> Any:
    """The document with another value there, if the place still exists."""
    if not path:
        return value
    inner = document
    for key in path[:-1]:
        try:
            inner = inner[key]
        except (LookupError, TypeError):
            return document
    with contextlib.suppress(LookupError, TypeError):
        inner[path[-1]] = value
    return document


def answers(raw: bytes, *, seed: int) -> tuple[ExternalAnswer, ExternalAnswer]:
    """What the call and its explanation answer, over a fleet with every oddity."""
    rules = PlacementSettings(metrics_detail_every=1)
    metrics = Metrics()

    async def ask() -> tuple[ExternalAnswer, ExternalAnswer]:
        fleet, table = random_fleet(Random(seed), rules), PipelineTable.with_shipped()
        service = PlacementService(fleet, table, clock=LoopClock(), random=Random(seed), metrics=metrics)
        return await service.answer_external(raw), await service.explain(raw)

    found = run(ask())
    assert metrics.render()
    return found


def check(raw: bytes, seed: int) -> None:
    for answer in answers(raw, seed=seed):
        document = json.loads(answer.body)
        if answer.status == 200:
            assert answer.code == ""
            assert "hosts" in document or "orderedHosts" in document
            continue
        assert answer.status == 400 or (answer.status == 500 and answer.code in REFUSED_AS_A_WHOLE), answer
        assert document["code"] == answer.code
        assert "Traceback" not in document["message"]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), max_size=4), seed=st.integers(0, 20))
def test_a_body_with_any_value_anywhere_is_answered(changes: list[tuple[Any, Any]], seed: int) -> None:
    document: Any = copy.deepcopy(BODY)
    for path, value in changes:
        document = changed(path, copy.deepcopy(value), document)
    check(json.dumps(document).encode(), seed)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, 5000), cut=st.integers(0, 30), put=st.binary(max_size=6), ascii_only=st.booleans())
def test_a_body_with_any_bytes_anywhere_is_answered(at: int, cut: int, put: bytes, ascii_only: bool) -> None:
    raw = json.dumps(BODY, ensure_ascii=ascii_only).encode()
    at %= len(raw)
    check(raw[:at] + put + raw[at + cut :], seed=3)


def test_nesting_without_end_is_answered() -> None:
    for opening in (b"[", b'{"spec":', b'{"spec":{"nova_object.data":{"scheduler_hints":{"a":'):
        check(opening * 100_000, seed=1)

"""Entries of an EVPN fabric, and the silence of a guest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.builders import decide, error

from outlive.network import measure_gap, probes_of

READY = "TargetDomainReady"


def status(state: str, source: str | None = "hv-a", target: str = "hv-b") -> dict[str, Any]:
    return {"state": state, "source": source, "target": target}


@pytest.mark.parametrize(
    ("hypervisor", "completed", "of", "delete", "ensure"),
    [
        ("hv-a", False, None, False, True),
        ("hv-a", True, None, True, False),
        ("hv-a", False, status("InProgress"), False, False),
        ("hv-b", False, status("InProgress"), False, False),
        ("hv-a", False, status(READY), True, False),
        ("hv-b", False, status(READY), False, True),
        ("hv-b", True, status(READY), True, False),
        ("hv-b", False, status(READY, None), False, True),
        ("hv-a", False, status(READY, None), False, False),
        ("hv-a", False, status("Failed"), False, False),
        ("hv-b", True, status("Failed"), True, False),
    ],
)
def test_the_source_withdraws_and_the_target_tells_once_it_is_active(
    hypervisor: str, completed: bool, of: Any, delete: bool, ensure: bool
) -> None:
    given = {"hypervisor": hypervisor, "completed": completed, "status": of}
    assert decide("neighbours", given) == {"delete": delete, "ensure": ensure}
    if not completed:
        assert decide("neighbours", {"hypervisor": hypervisor, "status": of}) == {"delete": delete, "ensure": ensure}


def gap(*probes: tuple[float, bool], start: float | None = None) -> Any:
    return decide("gap", {"from": start, "probes": [{"at": at, "answered": answered} for at, answered in probes]})


def result(gap_ms: int | None, silent_ms: int | None, down: bool = False) -> dict[str, Any]:
    return {"gapMs": gap_ms, "silentMs": silent_ms, "down": down}


@pytest.mark.parametrize(
    ("probes", "start", "expected"),
    [
        ([(0, True), (0.1, True), (0.2, True)], None, result(100, 0)),
        ([(0, True), (0.1, False), (0.2, False), (0.3, True), (0.35, True)], None, result(300, 200)),
        ([(0, True), (0.1, False), (0.2, True), (0.3, False), (0.6, True)], None, result(400, 300)),
        ([(0, False), (0.25, True)], None, result(0, 250)),
        ([(0.1, True)], None, result(0, 0)),
        ([(0, True), (0.1, False)], None, result(None, None, down=True)),
        ([(0.1, False)], None, result(None, None, down=True)),
        ([(0, True), (5, True), (5.1, True)], 4.0, result(100, 0)),
        ([(0, False), (5, True)], 5.0, result(0, 0)),
        ([(0.3, True), (0, True), (0.1, False), (0.2, False)], None, result(300, 200)),
        ([], None, error("probes-missing")),
        ([(0, True)], 0.1, error("probes-missing")),
        ([(1e300, True)], None, error("invalid")),
    ],
)
def test_the_gap_is_between_answers_and_silence_between_probes(probes: Any, start: float | None, expected: Any) -> None:
    assert gap(*probes, start=start) == expected


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_silence_is_never_longer_than_the_gap_around_it(answers: list[bool]) -> None:
    found = gap(*((i / 50, answered) for i, answered in enumerate([True, *answers])))
    assert found["down"] is not answers[-1]
    if answers[-1]:
        missed = max(len(run) for run in "".join(".x"[one] for one in answers).split("x"))
        assert (found["gapMs"], found["silentMs"]) == ((missed + 1) * 20, missed * 20)


@given(
    st.dictionaries(st.sampled_from(["decide", "commit", "northd", "flows"]), st.floats(0, 1000), min_size=1),
    st.none() | st.floats(0, 5000),
)
def test_the_gap_of_a_switch_over_ends_with_its_stages_or_with_the_guests_own_announcement(
    stages_ms: dict[str, float], activation_ms: float | None
) -> None:
    all_ms = sum(stages_ms.values())
    told = stages_ms if activation_ms is None else {**stages_ms, "activation": activation_ms}
    expected = all_ms if activation_ms is None else min(all_ms, activation_ms)
    found = measure_gap(probes_of(told))
    assert found.gap_ms is not None
    assert abs(found.gap_ms - expected) <= 1
    assert (found.silent_ms, found.down) == (0, False)

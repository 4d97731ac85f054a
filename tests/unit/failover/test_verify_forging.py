"""State and certificate were both tampered with, so that only the rules can notice."""

from __future__ import annotations

import pytest
from tests.support.certified import certified, resources
from tests.support.tampered import CONSISTENT, Case, membership

from outlive.base import Random


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(240))
def test_a_forged_certificate_is_accepted_exactly_if_the_maker_would_have_made_it(seed: int) -> None:
    case = Case(seed % 24)
    case.random = Random(seed)
    for _ in range(case.random.randint(1, 3)):
        case.random.choice(CONSISTENT)(case)
    case.forge()
    verdict = case.verdict()
    made = certified(resources(case.state))
    assert verdict.accepted == (made.certificate is not None), (verdict.counts, made.uncertified)
    rules = {"count", "too-few-slots", "over-capacity", "capacity-unknown", "slot-not-ready"}
    assert set(verdict.counts) <= rules


@pytest.mark.slow
def test_a_move_to_another_valid_slot_is_another_plan() -> None:
    moved = 0
    for seed in range(60):
        case = Case(seed % 12)
        case.random = Random(seed)
        membership(case)
        assert "digest" in case.codes()
        case.forge()
        moved += case.verdict().accepted
    assert moved > 0

"""Every precondition of every step is missed by somebody, and the page that says so is current."""

from __future__ import annotations

import pytest

from tests.model.mutation_proof import ARGUED, DOCUMENT, FOLDER, SHOWN_IN, page, path_of, read, replay
from tests.model.rules import Rules, targets, without


def test_every_rule_is_shown_to_be_missed_or_argued_about() -> None:
    assert set(SHOWN_IN) | set(ARGUED) == set(targets())
    assert not set(SHOWN_IN) & set(ARGUED)


def test_no_precondition_of_a_step_is_only_argued_about() -> None:
    assert [target for target in ARGUED if not target.startswith("shell/")] == []


def test_no_counterexample_is_left_of_a_rule_that_is_gone() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {path_of(target).name for target in SHOWN_IN}


@pytest.mark.parametrize("target", sorted(SHOWN_IN))
def test_a_stored_history_goes_wrong_without_its_rule_and_only_without(target: str) -> None:
    one = read(target)
    assert one is not None, f"run scripts/model --prove --only {target}"
    assert one.world == SHOWN_IN[target]
    reached, violation = replay(one, without(target))
    assert (reached, violation) == (len(one.story), one.violation)
    _, with_all_rules = replay(one, Rules())
    assert with_all_rules == ""


def test_the_page_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == page(), "run scripts/model --prove"

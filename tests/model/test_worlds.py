"""The protocol as it is has no violation in any of these worlds; most are seen whole, of others the nearest states."""

from __future__ import annotations

import pytest

from tests.model.catalogue import SEARCHED, SHORT_SEARCH, WORLDS
from tests.model.rules import Rules
from tests.model.search import Space


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_no_world_has_a_violation(name: str) -> None:
    result = Space(Rules(), WORLDS[name]).search(states=SHORT_SEARCH)
    print(f"{name}: {result.states} states, depth {result.depth}, {'all' if result.complete else 'not all'}")
    story = "\n".join(f"{number}. {said}" for number, (said, _) in enumerate(result.history))
    assert not result.violation, f"{result.violation}\n{story}"
    assert result.complete == (name not in SEARCHED), "the page says how far each larger world was searched"


def test_states_that_differ_by_the_names_of_fencers_are_one() -> None:
    space = Space(Rules(), WORLDS["two-fencers"])
    after = {new for _, _, new in space.after(space.first())}
    said = [said for said, _, _ in space.after(space.first()) if "sees version" in said]
    assert len(said) == 2
    assert len([one for one in after if space.parts(one)[8].known or space.parts(one)[9].known]) == 1

"""The state of a story's cluster in the middle of it, as an operator finds it who looks at that moment."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from outlive.resources import DUMPED, RenewalSight, Resource, State, encode_state
from outlive.runtime import Duration
from outlive.simulation import Expectations, PlayedStory, Story, read_scenario
from tests.support.loops import run

SCENARIOS = Path(__file__).parents[1] / "scenarios"


class _Interrupted(Story):
    """Of a story that ends early nothing is expected; its store is kept."""

    found: tuple[Resource, ...] = ()
    sight: RenewalSight | None = None

    async def _end(self) -> PlayedStory:
        self.found = tuple(one for kind in DUMPED for one in self.world.store.list_all(kind))
        self.sight = await self.world.read_sight()
        return await super()._end()


@cache
def state_of(scenario: str, at_s: float) -> bytes:
    """The state file of the cluster of a story, so many virtual seconds after its begin."""
    whole = read_scenario(SCENARIOS / scenario)
    acts = tuple(act for act in whole.acts if act.when is not None or act.at_s <= at_s)
    part = msgspec.structs.replace(whole, acts=acts, expect=Expectations(until=Duration(at_s)))

    async def played() -> _Interrupted:
        story = _Interrupted(part, seed=whole.spec.seed, replay="")
        await story.play()
        return story

    story = run(played())
    assert story.sight is not None
    return encode_state(State(taken_at=story.sight.at, sight=story.sight, objects=story.found))

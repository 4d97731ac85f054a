"""What a Prometheus server would have of a played failure: real metrics of the controller, scraped in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from outlive.runtime import Duration
from outlive.simulation import ControllerRole, Expectations, Story, read_scenario
from tests.support.loops import run
from tests.support.nights import SCENARIOS

SCRAPED_S = 15
"""Virtual seconds between two scrapes."""

TIME = "_timestamp_seconds"
"""In the name of metrics that are moments; here they count from the begin of the story, as promtool's clock does."""

Series = Mapping[str, tuple[float | None, ...]]
"""A series as PromQL writes it → its value at each scrape; ``None``: it was not there."""


def series_of(text: bytes) -> dict[str, float]:
    """The samples of a scrape."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


@cache
def scrapes_of(scenario: str, until_s: float) -> Series:
    """All series of the controller of a story, from its begin on; also whether it answers (``up``)."""
    whole = read_scenario(SCENARIOS / scenario)
    acts = tuple(act for act in whole.acts if act.when is not None or act.at_s <= until_s)
    part = msgspec.structs.replace(whole, acts=acts, expect=Expectations(until=Duration(until_s)))
    scrapes, begun_at = dict[int, dict[str, float]](), list[float]()

    def scrape(story: Story, now_s: int) -> None:
        number = now_s // SCRAPED_S
        if number in scrapes:
            return
        role = next((one.role for one in story.world.controllers.values() if one.active), None)
        found = series_of(role.role.metrics.render()) if isinstance(role, ControllerRole) else {}
        begun_at.append(story.world.clock.now() - now_s)
        found = {name: value - begun_at[0] if TIME in name else value for name, value in found.items()}
        scrapes[number] = {**found, 'up{job="outlive"}': float(bool(found))}

    async def played() -> None:
        story = Story(part, seed=whole.spec.seed, replay="", tick=lambda now_s: scrape(story, now_s))
        await story.play()

    run(played())
    names = sorted({name for found in scrapes.values() for name in found})
    return {name: tuple(scrapes.get(number, {}).get(name) for number in range(max(scrapes) + 1)) for name in names}

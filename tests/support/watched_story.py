"""A scenario that is played while a test notes what is so at short intervals."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from outlive.simulation import Story, read_scenario
from tests.support.loops import run


class WatchedStory(Story):
    """A story that is looked at every ``pause_s`` virtual seconds."""

    pause_s: ClassVar[float]

    @classmethod
    def played(cls, scenario: Path, **named: Any) -> Self:
        """The story of this folder, once it has been played to its end."""

        async def play() -> Self:
            found = read_scenario(scenario)
            story = cls(found, seed=found.spec.seed, replay="", **named)
            await story.play()
            return story

        return run(play())

    @abstractmethod
    def note(self) -> None:
        """Note what is so now."""

    async def _run(self) -> None:
        self.world.start_task(self._watch(), name="notes are taken")
        await super()._run()

    async def _watch(self) -> None:
        while True:
            await self.world.clock.sleep(self.pause_s)
            self.note()

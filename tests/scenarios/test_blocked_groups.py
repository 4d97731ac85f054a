"""``outlive why`` says what blocks a VM of a group and names the move that helps, and that move helps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from outlive.base import Random, SeededIds
from outlive.cli import explanation_lines
from outlive.failover import FailoverSettings, gather
from outlive.recovery import build_in_flight, group_moves, move_together
from outlive.recovery.why import explain
from outlive.resources import AffinityRule, VirtualMachine
from outlive.simulation import Story, read_scenario
from outlive.store import compare_and_swap, list_all
from tests.support.loops import run

FILES = {
    "README": "Two VMs that run apart are said to belong together, and the host of one dies.\n",
    "cluster.yaml": """
hosts: {count: 4, prefix: node}
vms:
  - {name: a, host: node2, migrationMethod: live}
  - {name: b, host: node3, migrationMethod: live}
  - {name: x, host: node2}
settings: {failover: {flavorFailoverRequirements: {"*": 0}}}
""",
    "timeline.yaml": "- {at: 60s, power-off: {hosts: [node3]}}\n",
    "expect.yaml": "until: 300s\nat: [{at: 299s, vm: {a: {runs: node1}, b: {runs: node1}, x: {runs: node2}}}]\n",
}
RULES = {
    "a": (AffinityRule(group="ab", policy="affinity"),),
    "b": (AffinityRule(group="ab", policy="affinity"), AffinityRule(group="bx", policy="anti-affinity")),
    "x": (AffinityRule(group="bx", policy="anti-affinity"),),
}
LOOKS_S = (40.0, 120.0, 200.0)
"""While both run, while one waits, and after the move."""
MOVE = re.compile(r"What helps: outlive group move (\S+) (\S+) brings all")


class GroupStory(Story):
    """A story in which somebody sets rules, asks why at some moments, and makes the move that is named for b."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.printed: dict[tuple[float, str], str] = {}

    async def _run(self) -> None:
        self.world.start_task(self._operate(), name="an operator")
        await super()._run()

    async def _operate(self) -> None:
        world = self.world
        begun_s = world.clock.monotonic()
        await world.clock.sleep(20.0)
        for name, rules in RULES.items():
            await compare_and_swap(
                world.store,
                VirtualMachine,
                name,
                lambda vm, rules=rules: ruled(vm, rules),
                clock=world.clock,
                half="spec",
            )
        for at_s in LOOKS_S:
            await world.clock.sleep(begun_s + at_s - world.clock.monotonic())
            for name in "ab":
                answer = await explain(world.store, name, await world.read_sight())
                self.printed[at_s, name] = "\n".join(map(str, explanation_lines(answer, wide=True)))
            if at_s == LOOKS_S[1] and (found := MOVE.search(self.printed[at_s, "b"])):
                await self._move(*found.groups())

    async def _move(self, group: str, host: str) -> None:
        world = self.world
        gathered = await gather(world.store, FailoverSettings(), in_flight=build_in_flight)
        vms = {vm.name: vm async for vm in list_all(world.store, VirtualMachine)}
        moves = group_moves(gathered, vms, group, host)
        assert await move_together(world.store, world.clock, SeededIds(Random(7)), moves) == ""


def ruled(vm: VirtualMachine | None, rules: tuple[AffinityRule, ...]) -> VirtualMachine:
    assert vm is not None
    return msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, affinity=rules))


def test_why_names_what_blocks_a_vm_of_a_group_and_the_move_that_helps(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    async def play() -> tuple[GroupStory, tuple[str, ...]]:
        scenario = read_scenario(tmp_path)
        story = GroupStory(scenario, seed=scenario.spec.seed, replay="")
        return story, (await story.play()).failed

    story, failed = run(play())
    before, waiting, after = ({name: story.printed[at_s, name] for name in "ab"} for at_s in LOOKS_S)
    for name, other in (("a", "node3"), ("b", "node2")):
        assert "it runs against a rule" in before[name]
        assert f"of affinity group ab of {name}, which is on {other}" in before[name]
        assert MOVE.search(before[name]), before[name]
    assert "and is held" in waiting["b"], waiting["b"]
    assert "node2 has x of anti-affinity group bx" in waiting["b"], waiting["b"]
    assert MOVE.search(waiting["b"]), waiting["b"]
    for name in "ab":
        assert "runs against a rule" not in after[name]
        assert "What helps" not in after[name]
    assert failed == ()

"""From a dead host to the VM in its slot, asked of what a whole simulated run has left in the store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outlive.cli import decision_table
from outlive.recovery.why import WhyAnswer
from outlive.runtime import run_virtual
from outlive.simulation import PlayedStory, Story, read_scenario

SCENARIO = Path(__file__).parents[2] / "scenarios" / "host-loses-power"
CHAIN = (
    r"the last renewal of kvm-4 that (\S+) saw is number \d+ of epoch 1",
    r"(\S+) had seen it unchanged for [\d.]+ s \(limit 5 s\) and condemned kvm-4 on exactly that version",
    r"checked once instead of 2 times: its BMC says that it is off",
    r"proof of epoch 1 by power: the controller of system .* said off .*, recorded by \S+",
    r"an earlier copy of it can do no harm any more, proven by power",
    r"its slot (\S+) is claimed",
    r"it is assigned to (\S+)",
    r"it is seen running on (\S+)",
    r"(\S+) holds it in epoch 1, run \S+, seen running",
)
UNDATED = (0, 2, len(CHAIN) - 1)
"""The last renewal, which a fencer only saw some time; why it was not checked more often; and what is so now."""


def chain_of(name: str) -> WhyAnswer:
    scenario = read_scenario(SCENARIO)

    async def play() -> PlayedStory:
        return await Story(scenario, seed=scenario.spec.seed, replay="", why=name).play()

    ended = run_virtual(play())
    assert not ended.failed
    assert ended.why is not None
    return ended.why


@pytest.mark.slow
def test_the_chain_of_a_recovered_vm_has_every_link_with_its_time_and_its_slot() -> None:
    answer = chain_of("vm-4-1")
    found = [re.fullmatch(link, one.text) for link, one in zip(CHAIN, answer.chain, strict=True)]
    assert all(found), [one.text for one in answer.chain]
    words = [one.groups() for one in found if one is not None]
    assert words[0] == words[1], "one observer both saw the last renewal and condemned"
    assert words[6] == words[7] == words[8]
    assert answer.settled
    assert answer.summary.endswith(f"and runs on {words[7][0]} again, in its promised slot {words[5][0]}")
    times = [one.at for number, one in enumerate(answer.chain) if number not in UNDATED]
    assert all(times)
    assert times == sorted(times, key=lambda one: one.timestamp() if one is not None else 0.0)


@pytest.mark.slow
def test_every_decision_of_the_chain_answers_the_same_again() -> None:
    answer = chain_of("vm-4-1")
    names = {one.decision for one in answer.decisions}
    assert {"safety.condemn", "safety.prove.power", "safety.claim", "safety.assign", "safety.hold"} <= names
    table = decision_table()
    for one in answer.decisions:
        again = table.decide(one.decision, bytes(one.input))
        assert json.loads(again) == json.loads(bytes(one.output)), one.name

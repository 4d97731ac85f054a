"""Stories about storage: mistakes are all reported before anything is played, and what came out can be proposed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.loops import run

from outlive.base import BadInput
from outlive.simulation.kubernetes import StorageEnded, read_storage_scenario, storage_proposal, storage_story

CLUSTER = "nodes: {count: 3}\nworkloads: [{name: db, disks: [node-1, node-2, node-3]}]\n"
MISTAKES = {
    "an unknown node": ("timeline.yaml", "- {at: 1s, power-off: {nodes: [node-9]}}", "no node 'node-9'"),
    "an unknown node of a link": ("timeline.yaml", "- {at: 1s, cut-links: {between: [[node-1, x]]}}", "no node 'x'"),
    "an unknown domain": ("timeline.yaml", "- {at: 1s, power-off: {domain: r9}}", "no failure domain 'r9'"),
    "an unknown verb": ("timeline.yaml", "- {at: 1s, power-of: {nodes: [node-1]}}", "do you mean power-off"),
    "a verb of hosts": ("timeline.yaml", "- {at: 1s, kill-daemon: {host: node-1}}", "is no verb"),
    "an unknown field": ("timeline.yaml", "- {at: 1s, power-off: {node: node-1}}", "node"),
    "a condition": ("timeline.yaml", "- {when: {}, power-off: {nodes: [node-1]}}", "when is not for stories"),
    "an act after the end": ("expect.yaml", "until: 1s", "after the end"),
    "an unknown pod": ("expect.yaml", "at: [{at: 5s, pod: {web: {writes: node-1}}}]", "no pod 'web'"),
    "an unknown fact": ("expect.yaml", "at: [{at: 5s, pod: {db-0: {runs: node-1}}}]", "no fact 'runs'"),
    "a limit that is none": ("expect.yaml", "backWithin: {soon: all}", "soon"),
    "a replica nowhere": ("cluster.yaml", "nodes: {count: 1}\nworkloads: [{name: db, disks: [x]}]", "no node 'x'"),
    "a name twice": ("cluster.yaml", "nodes: [{name: a}, {name: a}]", "'a' is there twice"),
    "an unknown option": ("cluster.yaml", "nodes: {count: 1}\nagent: {no-such: 1}", "no option 'no-such'"),
}


def written(folder: Path, **files: str) -> Path:
    texts = {"README": "A story.", "cluster.yaml": CLUSTER, "timeline.yaml": "- {at: 10s, heal: {}}", "expect.yaml": ""}
    for name, text in {**texts, **files}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_reported_with_their_place(mistake: str, tmp_path: Path) -> None:
    name, text, said = MISTAKES[mistake]
    with pytest.raises(BadInput) as error:
        read_storage_scenario(written(tmp_path, **{name: text}))
    assert said in str(error.value)


def test_what_came_out_is_an_expectation_that_is_met(tmp_path: Path) -> None:
    folder = written(tmp_path, **{"timeline.yaml": "- {at: 30s, power-off: {nodes: [node-1]}}"})

    async def play() -> StorageEnded:
        return await storage_story(read_storage_scenario(folder), seed=1, replay="").play()

    ended = run(play())
    (folder / "expect.yaml").write_text(storage_proposal(ended))
    again = run(play())
    assert again.failed == ()
    assert again.trace_hash == ended.trace_hash
    assert again.summary.to_document()["pods"] == 1


async def test_what_is_not_as_expected_is_said(tmp_path: Path) -> None:
    expect = "at: [{at: 20s, pod: {db-0: {writes: node-3}}}]\ndown: [db-0]\nviolations: [two-writers]"
    folder = written(tmp_path, **{"expect.yaml": expect})
    failed = (await storage_story(read_storage_scenario(folder), seed=1, replay="").play()).failed
    assert "at 20.0 s: pod db-0: writes is node-1, not node-3" in failed
    assert "down at the end: nothing, not [db-0]" in failed
    assert "two-writers was to be violated and was not" in failed

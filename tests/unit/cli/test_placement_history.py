"""``outlive placement history``: the last answers for a VM, from a state file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.command import outlive
from tests.unit.cli.test_hostile_states import state_of

from outlive.placement import RecordedRun, with_answer
from outlive.resources import to_builtins


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """One VM with two answers, the last of which found nothing."""
    path = state_of(tmp_path, "h1,z,64,256Gi\n", "v1,f,4,8Gi,h1\n")
    at = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
    kept = with_answer(None, RecordedRun(resource_id="v1", zone="z", at=at, pipeline="p", intent="create", target="h1",
                                    hosts=("h1",)))  # fmt: skip
    kept = with_answer(kept, RecordedRun(resource_id="v1", zone="z", at=at + 60, pipeline="p", intent="evacuate",
                                    error="no pipeline p"))  # fmt: skip
    document = json.loads(path.read_text())
    document["objects"].append(to_builtins(kept))
    path.write_text(json.dumps(document))
    return path


def test_the_last_answers_are_shown_with_the_reason(state: Path) -> None:
    done = outlive("placement", "history", "v1", "--state", state)
    assert done.code == 0, done.err
    assert "v1: no pipeline p" in done.out
    lines = [line.split() for line in done.out.splitlines() if line.startswith("2026")]
    assert [line[1:] for line in lines] == [["12:01:00", "evacuate", "p", "none"], ["12:00:00", "create", "p", "h1"]]
    assert json.loads(outlive("placement", "history", "v1", "--state", state, "-o", "json").out)["spec"] == {
        "resourceID": "v1", "availabilityZone": "z",
    }  # fmt: skip


def test_a_vm_without_a_history_is_not_found(state: Path) -> None:
    done = outlive("placement", "history", "v2", "--state", state)
    assert done.code == 4
    assert "placement has no history of 'v2'" in done.err

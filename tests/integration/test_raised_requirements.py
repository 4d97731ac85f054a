"""What VMs need is raised: slots that are there are planned anew, and nobody has fewer on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import imported, outlive

from outlive.cli.example import example_files

Document = dict[str, Any]


def plan(state: Path, k: int, *more: str, code: int = 0) -> Document:
    done = outlive("failover", "plan", "-k", k, *more, "--state-dir", state, "-o", "json")
    assert done.code == code, done.err + done.out
    document: Document = json.loads(done.out)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_on_the_example_a_slot_more_for_everybody_is_found_as_from_nothing(tmp_path: Path, k: int) -> None:
    with example_files() as files:
        state = imported(tmp_path, files.hosts, files.vms)
    anew = plan(state, k + 1)["after"]
    plan(state, k, "--apply")
    raised = plan(state, k + 1, "--apply")["after"]
    assert raised["covered"] == raised["required"]
    assert raised["slots"] <= 1.05 * anew["slots"]
    assert outlive("failover", "check", "--state-dir", state).code == 0

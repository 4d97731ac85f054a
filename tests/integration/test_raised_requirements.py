"""What VMs need is raised: slots that are there are planned anew, and nobody has fewer on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import outlive

from outlive.cli.example import example_files

CORES = [2, 2, 4, 4, 4, 6] * 13 + [1, 1]
"""Of 80 VMs; together 288."""

Document = dict[str, Any]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """12 hosts of 64 cores and 256 GiB in two zones, with 80 VMs."""
    assert (len(CORES), sum(CORES)) == (80, 288)
    hosts = "".join(f"h{n:02},64,256Gi,z{n // 6}\n" for n in range(12))
    vms = "".join(f"v{n:02},{c},{4 * c}Gi,h{n % 12:02},m{c},z{n % 12 // 6}\n" for n, c in enumerate(CORES))
    (tmp_path / "hosts.csv").write_text("name,cpu,memory,zone\n" + hosts)
    (tmp_path / "vms.csv").write_text("id,cpu,memory,host,flavor,zone\n" + vms)
    return imported(tmp_path, tmp_path / "hosts.csv", tmp_path / "vms.csv")


def imported(folder: Path, hosts: Path, vms: Path) -> Path:
    state = folder / "state"
    done = outlive("import", "csv", "--hosts", hosts, "--vms", vms, "--state-dir", state)
    assert done.code == 0, done.err
    return state


def plan(state: Path, k: int, *more: str, code: int = 0) -> Document:
    done = outlive("failover", "plan", "-k", k, *more, "--state-dir", state, "-o", "json")
    assert done.code == code, done.err + done.out
    document: Document = json.loads(done.out)
    return document


def test_raised_from_one_slot_to_two_everybody_is_covered_with_the_slots_of_a_plan_from_nothing(small: Path) -> None:
    anew = plan(small, 2)["after"]
    assert plan(small, 1, "--apply")["after"]["covered"] == 80
    asked = outlive("whatif", "require", "*=2", "--state-dir", small, "-o", "json")
    assert asked.code == 0, asked.out
    assert json.loads(asked.out)["possible"]
    raised = plan(small, 2, "--apply")["after"]
    assert (raised["covered"], raised["required"]) == (80, 80)
    assert raised["slots"] <= 1.05 * anew["slots"]
    assert outlive("failover", "check", "--state-dir", small).code == 0
    now = plan(small, 2)
    assert now["actions"] == []
    assert now["after"]["slots"] == raised["slots"]


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
